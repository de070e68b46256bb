"""The text of a Word document (DOCX): headings, paragraphs and rows of tables in reading order.

python-docx opens the package; the text is then taken from the XML itself. python-docx's own paragraphs leave out what
stands in content controls, text boxes and tracked insertions, and its tables repeat a cell as often as the file says
it spans, a billion times if need be.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

from tasks.readers.decode import clean
from tasks.readers.flow import TextFlow
from tasks.readers.parsed import Parsed
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


def read_docx(data: bytes, options: ExtractOptions) -> Parsed:
    """Read a Word document.

    Args:
        data: The whole file.
        options: Limits on what it may unpack to.

    Returns:
        Its text and its title.

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
    return Parsed(clean(text), None, 1.0, title=clean(title or "").strip() or None)


def _check_sizes(data: bytes, options: ExtractOptions) -> None:
    """Refuse a package that would unpack to too much; zipfile never gives more than what is declared."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            infos = package.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise ExtractionProblem("failed", "corrupt", f"Word document cannot be opened: {error}") from None
    total = sum(info.file_size for info in infos)
    if total > options.max_file_bytes:
        reason = f"the Word document unpacks to {total} bytes; the limit is {options.max_file_bytes} (max_file_bytes)"
        raise ExtractionProblem("rejected", "too_large", reason)
    markup = sum(info.file_size for info in infos if info.filename.endswith((".xml", ".rels")))
    if markup > MAX_XML_BYTES:
        reason = f"the Word document unpacks to {markup} bytes of XML; the limit is {MAX_XML_BYTES}"
        raise ExtractionProblem("rejected", "too_large", reason)


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
            _begin(flow, tag, element)
        else:
            tables -= tag == f"{_WORD}tbl"
            _end(flow, tag, tables)
    return flow.result()


def _begin(flow: TextFlow, tag: str, element: Any) -> None:
    if tag in _TEXTS:
        # Word marks the spaces that count; the others stand between elements, which have no text of their own.
        flow.preformatted(element.text or "")
    elif tag in _LINES:
        flow.line()
    elif tag in _CHARACTERS and element.getparent().tag == f"{_WORD}r":
        flow.preformatted(_CHARACTERS[tag])
    elif tag == f"{_WORD}tbl":
        flow.paragraph()


def _end(flow: TextFlow, tag: str, tables: int) -> None:
    if tag == f"{_WORD}p":
        if tables:
            flow.text(" ")  # Paragraphs of one cell stay on the line of its row.
        else:
            flow.paragraph()
    elif tag == f"{_WORD}tc":
        flow.cell()
    elif tag == f"{_WORD}tr":
        flow.line()
    elif tag == f"{_WORD}tbl":
        flow.paragraph()
