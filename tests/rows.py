"""Rows of tables, for stores that are made by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def row(schema: pa.Schema, **values: Any) -> dict[str, Any]:
    """A row with a plain value in every column that is not given."""
    plain = {"string": "", "large_string": "", "bool": False, "double": 0.0}
    filled = {
        field.name: None if field.nullable else [] if "list" in str(field.type) else plain.get(str(field.type), 0)
        for field in schema
    }
    assert values.keys() <= filled.keys()
    return {**filled, **values}
