"""The text of Word documents (DOCX) and Jupyter notebooks, in reading order.

python-docx opens the package of a Word document; the text is then taken from the XML itself. python-docx's own
paragraphs leave out what stands in content controls, text boxes and tracked insertions, and its tables repeat a cell as
often as the file says it spans, a billion times if need be.

Of a notebook prose is as it is written and code between fences; outputs are left out: they repeat what the code says,
and much of them is pictures in base64.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tasks.readers.decode import Decoded, clean, decode
from tasks.readers.detect import KERNELS
from tasks.readers.markup import TextFlow
from tasks.readers.records import ExtractionProblem, ExtractOptions

MAX_XML_BYTES = 48 * 1024**2  # The tree of an XML part takes about eight times its size.

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_MATHS = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_TEXTS = frozenset((f"{_WORD}t", f"{_MATHS}t"))
_LINES = frozenset((f"{_WORD}br", f"{_WORD}cr"))
# What Word would not show beside the rest: moved away, or there for programs that know less.
_LEFT_OUT = frozenset((f"{_COMPATIBILITY}Fallback", f"{_WORD}moveFrom", f"{_WORD}del"))
_CHARACTERS = {f"{_WORD}tab": "\t", f"{_WORD}ptab": "\t", f"{_WORD}noBreakHyphen": "-"}
_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def read_docx(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the text and title of a Word document.

    Raises:
        ExtractionProblem: It unpacks to too much ("too_large"), or cannot be opened ("corrupt").
    """
    _check_sizes(data, options)
    import docx

    try:
        document = docx.Document(io.BytesIO(data))
        text = _text(document.element.body)
        title = document.core_properties.title
    except MemoryError:
        raise
    # A damaged package makes python-docx stumble over whatever is missing (KeyError, AttributeError, ...).
    except Exception as error:  # noqa: BLE001
        detail = str(error).strip() or type(error).__name__
        raise ExtractionProblem("failed", "corrupt", f"Word document cannot be opened: {detail[:500]}") from None
    return Decoded(clean(text), None, 1.0, title=clean(title or "").strip() or None)


def _check_sizes(data: bytes, options: ExtractOptions) -> None:
    """Refuse a package that would unpack to too much; zipfile never gives more than what is declared."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            infos = package.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise ExtractionProblem("failed", "corrupt", f"Word document cannot be opened: {error}") from None
    total = sum(info.file_size for info in infos)
    markup = sum(info.file_size for info in infos if info.filename.endswith((".xml", ".rels")))
    found = ""
    if total > options.max_file_bytes:
        found = f"{total} bytes; the limit is {options.max_file_bytes} (max_file_bytes)"
    elif markup > MAX_XML_BYTES:
        found = f"{markup} bytes of XML; the limit is {MAX_XML_BYTES}"
    if found:
        raise ExtractionProblem("rejected", "too_large", f"the Word document unpacks to {found}")


def _text(body: Any) -> str:
    """The text of the document's body, element by element, without recursion."""
    from lxml import etree

    flow = TextFlow()
    depth_left_out = 0
    tables = 0
    for event, element in etree.iterwalk(body, events=("start", "end")):
        tag = element.tag
        if tag in _LEFT_OUT:
            depth_left_out += 1 if event == "start" else -1
        elif depth_left_out:
            continue
        elif event == "start":
            tables += tag == f"{_WORD}tbl"
            if tag in _TEXTS:
                # Word marks the spaces that count; the others stand between elements, which have no text of their own.
                flow.preformatted(element.text or "")
            elif tag in _LINES:
                flow.line()
            elif tag in _CHARACTERS and element.getparent().tag == f"{_WORD}r":
                flow.preformatted(_CHARACTERS[tag])
            elif tag == f"{_WORD}tbl":
                flow.paragraph()
        elif tag == f"{_WORD}p":
            if tables:
                flow.text(" ")  # Paragraphs of one cell stay on the line of its row.
            else:
                flow.paragraph()
        elif tag == f"{_WORD}tc":
            flow.cell()
        elif tag == f"{_WORD}tr":
            flow.line()
        elif tag == f"{_WORD}tbl":
            tables -= 1
            flow.paragraph()
    return flow.result()


def read_notebook(data: bytes) -> Decoded:
    """Return the text and programming language of a Jupyter notebook; JSON without cells comes back as it is.

    Raises:
        ExtractionProblem: It is not JSON, or its cells are not what they should be ("corrupt").
    """
    found = decode(data)
    try:
        notebook = json.loads(found.text)
    except RecursionError:
        raise _bad_notebook("its values are nested too deep") from None
    except ValueError as error:
        raise _bad_notebook(str(error)) from None
    cells = _cells(notebook)
    if cells is None:
        return replace(found, media_type="application/json")
    language = _language(notebook)
    text = "\n\n".join(part for part in _cell_texts(cells, language) if part.strip())
    return replace(found, text=clean(text), programming_language=KERNELS.get(language))


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
    metadata = notebook.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for section, key in (("language_info", "name"), ("kernelspec", "language"), ("kernelspec", "name")):
        values = metadata.get(section)
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str) and name.strip():
            return name.strip().lower()[:40]
    return ""


def _cell_texts(cells: list[Any], language: str) -> Iterator[str]:
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict):
            raise _bad_notebook(f"cell {number} is no object but {type(cell).__name__}")
        source = cell.get("source", cell.get("input", ""))
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise _bad_notebook(f"the source of cell {number} is no text but {type(source).__name__}")
        source = source.strip("\n")
        if cell.get("cell_type") == "code" and source.strip():
            longest = max((len(fence) for fence in _FENCE.findall(source)), default=2)
            fence = "`" * (longest + 1)
            source = f"{fence}{language}\n{source}\n{fence}"
        yield source


def _bad_notebook(detail: str) -> ExtractionProblem:
    return ExtractionProblem("failed", "corrupt", f"not a readable notebook: {detail}")
