"""The cells of a Jupyter notebook in order: prose as it is written, code between fences; outputs are left out.

Outputs repeat what the code says, and much of them is pictures in base64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.readers.decode import clean, decode
from tasks.readers.detect import KERNELS
from tasks.readers.parsed import Parsed
from tasks.readers.records import ExtractionProblem

_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def read_notebook(data: bytes) -> Parsed:
    """Read a Jupyter notebook, of version 3 or later.

    Args:
        data: The whole file.

    Returns:
        Its text and programming language. JSON without cells is no notebook, and is returned as it is.

    Raises:
        ExtractionProblem: It is not JSON, or its cells are not what they should be ("corrupt").
    """
    found = decode(data)
    try:
        notebook = json.loads(found.text)
    except RecursionError:
        raise _corrupt("its values are nested too deep") from None
    except ValueError as error:
        raise _corrupt(str(error)) from None
    cells = _cells(notebook)
    if cells is None:
        return Parsed(found.text, found.encoding, found.confidence, media_type="application/json")
    language = _language(notebook)
    text = "\n\n".join(part for part in _parts(cells, language) if part.strip())
    return Parsed(clean(text), found.encoding, found.confidence, programming_language=KERNELS.get(language))


def _cells(notebook: Any) -> list[Any] | None:
    """The notebook's cells; None if it is no notebook."""
    if not isinstance(notebook, dict):
        return None
    if isinstance(notebook.get("cells"), list):
        return list(notebook["cells"])
    sheets = notebook.get("worksheets")  # Version 3.
    if isinstance(sheets, list) and all(isinstance(sheet, dict) for sheet in sheets):
        lists = [sheet.get("cells", []) for sheet in sheets]
        return [cell for cells in lists if isinstance(cells, list) for cell in cells]
    return None


def _language(notebook: dict[str, Any]) -> str:
    """The name of the kernel's language in lower case, or ""."""
    metadata = notebook.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for section, key in (("language_info", "name"), ("kernelspec", "language"), ("kernelspec", "name")):
        values = metadata.get(section)
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str) and name.strip():
            return name.strip().lower()[:40]
    return ""


def _parts(cells: list[Any], language: str) -> Iterator[str]:
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict):
            raise _corrupt(f"cell {number} is no object but {type(cell).__name__}")
        source = cell.get("source", cell.get("input", ""))
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise _corrupt(f"the source of cell {number} is no text but {type(source).__name__}")
        source = source.strip("\n")
        is_code = cell.get("cell_type") == "code" and source.strip()
        yield _fenced(source, language) if is_code else source


def _fenced(source: str, language: str) -> str:
    longest = max((len(fence) for fence in _FENCE.findall(source)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{source}\n{fence}"


def _corrupt(detail: str) -> ExtractionProblem:
    return ExtractionProblem("failed", "corrupt", f"not a readable notebook: {detail}")
