"""A field of a settings section: default, meaning and range, written once.

pydantic reads it like its own `Field`. It is a plain dataclass field, because extraction workers do without pydantic,
whose import takes longer than most documents.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

MAX_SEED = 2**63 - 1  # what torch's generators and the tables' columns take
STRICT: Any = {"extra": "forbid", "allow_inf_nan": False}  # configuration of the sections that pydantic checks


def option(default: Any, description: str, **limits: float) -> Any:
    """Return a dataclass field.

    Args:
        default: value where none is given.
        description: meaning, as shown in help and on the page of all settings.
        limits: range by pydantic's names: `ge`, `gt`, `le`, `lt`, and `min_length` of text.
    """
    return field(default=default, metadata={"description": description, **limits})
