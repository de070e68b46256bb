"""How the project computes each entry of golden.json: operations by formula, claims by a check of their own.

An operation is one function whose parameters are named like the entry's inputs (and `entry` where the rest of it is
needed). It goes through the project's own functions wherever there are any; `by_hand` marks mere arithmetic of a
document. Entries without a formula are claims: settings that a document fixes, and behaviour that is seen on the
project's own code; where the document is wrong, the corrected behaviour is. What is left is listed with the reason.

Importing the package enters all of them: a module takes part once it is imported here.

Everything is float64. Products in the documents are row vector times matrix, and torch stores a layer's matrix as
(out, in), so stated matrices are transposed on their way into a layer.
"""

from __future__ import annotations

from golden import (
    arithmetic,
    attention,
    claims_attention,
    claims_blocks,
    claims_generation,
    claims_settings,
    claims_text,
    claims_training,
    layers,
    networks,
    positions,
    sampling,
    sizes,
    text,
    training,
)
from golden.not_computable import NOT_COMPUTABLE
from golden.registry import CLAIMS, OPERATIONS, Entry, Found

__all__ = [
    "CLAIMS",
    "NOT_COMPUTABLE",
    "OPERATIONS",
    "Entry",
    "Found",
    "arithmetic",
    "attention",
    "claims_attention",
    "claims_blocks",
    "claims_generation",
    "claims_settings",
    "claims_text",
    "claims_training",
    "layers",
    "networks",
    "positions",
    "sampling",
    "sizes",
    "text",
    "training",
]
