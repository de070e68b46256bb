"""How the project computes each entry of golden.json: operations by formula, claims by a check of their own.

Entries with a formula go through one function each, and that through the project's own functions. Entries without one
are claims: settings that a document fixes, and behaviour that is seen on the project's own code. What is left stands in
`exceptions` with the reason. Importing the package enters all of them.

Everything is float64. Products in the documents are row vector times matrix, and torch stores a layer's matrix as
(out, in), so stated matrices are transposed on their way into a layer.
"""

from __future__ import annotations

from golden import claims, claims_settings, learning, networks, parts, sizes
from golden.exceptions import ARITHMETIC, NOT_COMPUTABLE
from golden.registry import CLAIMS, OPERATIONS, Entry, Found, Shape, called, computed, has_gap

__all__ = [
    "ARITHMETIC",
    "CLAIMS",
    "NOT_COMPUTABLE",
    "OPERATIONS",
    "Entry",
    "Found",
    "Shape",
    "called",
    "claims",
    "claims_settings",
    "computed",
    "has_gap",
    "learning",
    "networks",
    "parts",
    "sizes",
]
