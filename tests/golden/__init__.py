"""The project's value of each entry of golden.json: operations by formula, claims by their own checks.

Entries with a formula go through one function each, and that through the project's own functions. Entries without one
are claims: settings that a document fixes, and behaviour that is seen on the project's own code. What is left stands in
`exceptions` with the reason. Importing the package enters all of them.

Everything is float64. Products in the documents are row vector times matrix, and torch stores a layer's matrix as
(out, in), so stated matrices are transposed on their way into a layer.
"""

from __future__ import annotations

from golden import claims, claims_settings, layers, learning, sizes
from golden.registry import operations

OPERATIONS = operations(layers, learning, sizes)
__all__ = ["OPERATIONS", "claims", "claims_settings"]
