"""A field of a settings section, with default, description and range in one place.

pydantic reads it like its own `Field`. It is a plain dataclass field because extraction workers do not import pydantic,
which would take longer than most documents.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

MAX_SEED = 2**63 - 1  # the maximum of torch's generators and of int64 columns
STRICT: Any = {"extra": "forbid", "allow_inf_nan": False}  # configuration of the sections that pydantic checks


def option(default: Any, description: str, **limits: float) -> Any:
    """Return a dataclass field.

    Args:
        default: default value.
        description: meaning, as shown in help and in the reference of settings.
        limits: range by pydantic's names: `ge`, `gt`, `le`, `lt`, and `min_length` of text.
    """
    return field(default=default, metadata={"description": description, **limits})
