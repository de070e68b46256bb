"""Extract the text of packages of XML: Word documents, EPUB books, presentations, spreadsheets and OpenDocument files.

Each is a ZIP archive whose parts name each other. lxml parses them without entities and without other files; a part is
read once, however often it is named. Formulas are not text, but the values that they last had are.
"""

from __future__ import annotations

import io
import lzma
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

from tasks.readers.decode import LONGEST_TITLE, Decoded, clean, decode_declared
from tasks.readers.markup import FIGURE, MAX_XML_BYTES, TextFlow, parse_xml
from tasks.readers.records import ExtractionProblem, ExtractOptions, markdown_table

EPUB = "application/epub+zip"
_OFFICE = "application/vnd.openxmlformats-officedocument."
_OPEN = "application/vnd.oasis.opendocument."
MOST_CHARACTERS = 2**28  # of a text: a cell may refer to a long text, and a million cells to the same one
MOST_COLUMNS = 1000  # of a table; a cell may claim to be repeated a billion times

_DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError, zlib.error, lzma.LZMAError
)  # fmt: skip
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDE = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATHS = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_WORD_TEXTS = frozenset((f"{_WORD}t", f"{_MATHS}t"))
_WORD_LINES = frozenset((f"{_WORD}br", f"{_WORD}cr"))
_WORD_CHARACTERS = {f"{_WORD}tab": "\t", f"{_WORD}ptab": "\t", f"{_WORD}noBreakHyphen": "-"}
# not shown by Word: moved or deleted text, and fallbacks for older programs
_WORD_LEFT_OUT = frozenset((f"{_COMPATIBILITY}Fallback", f"{_WORD}moveFrom", f"{_WORD}del"))
_ODF = "{urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _TABLE, _DRAW, _OFFICE_NS = (f"{_ODF}{name}:1.0}}" for name in ("text", "table", "drawing", "office"))
_SPACES = {f"{_TEXT}{name}" for name in ("s", "tab", "line-break", "p", "h")}
_SLIDE_CLASS = f"{_ODF}presentation:1.0}}class"
_NOT_SHOWN = {f"{_TEXT}tracked-changes", f"{_OFFICE_NS}annotation", f"{_TEXT}note-citation", f"{_OFFICE_NS}forms"}
_CLOSED = re.compile(r"<(title|script|style|textarea|iframe|a|p|div|span|i|b|em)(\s[^<>]*)?/>", re.IGNORECASE)
_CELL = re.compile(r"([A-Z]{1,3})\d*")
# formats of numbers that are dates or times; letters in quotes and brackets mean nothing
_DATE_IDS = frozenset([*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)])
_LITERAL = re.compile(r'"[^"]*"|\[[^\]]*\]|\\.')
_DATE_LETTER = re.compile(r"[ymdhs]", re.IGNORECASE)


class _Package:
    """The parts of a package.

    Raises:
        ExtractionProblem: It unpacks to too many bytes ("too_large"), or is no sound archive ("corrupt").
    """

    def __init__(self, data: bytes, options: ExtractOptions, what: str) -> None:
        self.what = what
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            self.infos = {info.filename: info for info in self._zip.infolist()}
        except _DAMAGE as error:
            raise self.corrupt(str(error)) from None
        total = sum(info.file_size for info in self.infos.values())
        if total > options.max_file_bytes:
            found = f"{total} bytes; the limit is {options.max_file_bytes} (max_file_bytes)"
            raise ExtractionProblem("rejected", "too_large", f"the {what} unpacks to {found}")
        self._left = MAX_XML_BYTES

    def corrupt(self, detail: str) -> ExtractionProblem:
        """Return the problem of a package that cannot be read."""
        return ExtractionProblem("failed", "corrupt", f"{self.what} cannot be read: {detail[:500]}")

    def has(self, name: str) -> bool:
        """Return True if there is a part of this name."""
        return name in self.infos

    def read(self, name: str) -> bytes:
        """Return the content of a part, within the budget of bytes for all parts together."""
        info = self.infos.get(name)
        if info is None:
            raise self.corrupt(f"it has no {name[:200]}")
        self._left -= info.file_size
        if self._left < 0:
            reason = f"the {self.what} has more than {MAX_XML_BYTES} bytes of XML"
            raise ExtractionProblem("rejected", "too_large", reason)
        try:
            return self._zip.read(info)
        except _DAMAGE as error:
            raise self.corrupt(f"{name[:200]}: {error}") from None

    def tree(self, name: str) -> Any:
        """Return the root of a part."""
        return parse_xml(self.read(name), f"{name[:200]} in the {self.what}")

    def related(self, name: str) -> dict[str, str]:
        """Return the parts that a part of an Office package refers to, by the id of the reference."""
        folder, _, file = name.rpartition("/")
        rels = f"{folder}/_rels/{file}.rels".lstrip("/")
        if not self.has(rels):
            return {}
        found = {}
        for item in self.tree(rels):
            target = item.get("Target") or ""
            if item.get("TargetMode") != "External":
                place = target.lstrip("/") if target.startswith("/") else posixpath.join(folder, target)
                found[item.get("Id") or ""] = posixpath.normpath(place)
        return found

    def office_title(self) -> str | None:
        """Return the title in the properties of an Office package."""
        return _title(self.tree("docProps/core.xml")) if self.has("docProps/core.xml") else None


def _title(root: Any) -> str | None:
    found = root.find(".//{http://purl.org/dc/elements/1.1/}title")
    return clean(" ".join("".join(found.itertext()).split())[:LONGEST_TITLE]) or None if found is not None else None


def _decoded(parts: Iterator[str], title: str | None, missing: int = 0) -> Decoded:
    found, left = [], MOST_CHARACTERS
    for part in map(str.strip, parts):
        left -= len(part)
        if left < 0:
            raise ExtractionProblem("rejected", "too_large", f"the text has more than {MOST_CHARACTERS} characters")
        found += [part] if part else []
    note = f"{missing} parts that are named are not in the file" if missing else ""
    return Decoded(clean("\n\n".join(found)), None, 1.0, title=title, note=note)


# Word documents


def read_docx(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the text and title of a Word document.

    python-docx opens the package; the text is taken from its XML, because python-docx's paragraphs lack content
    controls, text boxes and tracked insertions, and its tables repeat a cell as often as it spans, up to a billion
    times.
    """
    package = _Package(data, options, "Word document")
    markup = sum(info.file_size for name, info in package.infos.items() if name.endswith((".xml", ".rels")))
    if markup > MAX_XML_BYTES:
        reason = f"the Word document unpacks to {markup} bytes of XML; the limit is {MAX_XML_BYTES}"
        raise ExtractionProblem("rejected", "too_large", reason)
    import docx

    try:
        document = docx.Document(io.BytesIO(data))
        text = _word_text(document.element.body)
        title = document.core_properties.title
    except MemoryError:
        raise
    # python-docx raises many types for a damaged package (KeyError, AttributeError, ...)
    except Exception as error:  # noqa: BLE001
        raise package.corrupt(str(error).strip() or type(error).__name__) from None
    return Decoded(clean(text), None, 1.0, title=clean(title or "").strip() or None)


def _word_text(body: Any) -> str:
    """Return the text of the document's body, without recursion."""
    from lxml import etree

    flow = TextFlow()
    depth_left_out = 0
    tables = 0
    for event, element in etree.iterwalk(body, events=("start", "end")):
        tag = element.tag
        if tag in _WORD_LEFT_OUT:
            depth_left_out += 1 if event == "start" else -1
        elif depth_left_out:
            continue
        elif tag == f"{_WORD}tbl":
            tables += 1 if event == "start" else -1
            flow.paragraph()
        elif event == "start":
            if tag in _WORD_TEXTS:
                # all text is in these elements, including significant spaces
                flow.preformatted(element.text or "")
            elif tag in _WORD_LINES:
                flow.line()
            elif tag in _WORD_CHARACTERS and element.getparent().tag == f"{_WORD}r":
                flow.preformatted(_WORD_CHARACTERS[tag])
        elif tag == f"{_WORD}p" and tables:
            flow.text(" ")  # the paragraphs of a cell stay on the line of its row
        elif tag == f"{_WORD}p":
            flow.paragraph()
        elif tag == f"{_WORD}tc":
            flow.cell()
        elif tag == f"{_WORD}tr":
            flow.line()
    return flow.result()


# EPUB


def read_epub(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the chapters of a book in its order of reading, and its title."""
    package = _Package(data, options, "EPUB book")
    container = package.tree("META-INF/container.xml")
    named = container.find(".//{*}rootfile")
    content = unquote((named.get("full-path") if named is not None else None) or "")
    book = package.tree(content)
    folder = posixpath.dirname(content)
    files = {
        item.get("id"): posixpath.normpath(posixpath.join(folder, unquote(item.get("href") or "")))
        for item in book.iterfind(".//{*}manifest/{*}item")
    }
    chapters = list(dict.fromkeys(files.get(item.get("idref"), "") for item in book.iterfind(".//{*}spine/{*}itemref")))
    if package.has("META-INF/encryption.xml"):
        references = package.tree("META-INF/encryption.xml").iter("{*}CipherReference")
        if {unquote(item.get("URI") or "") for item in references} & set(chapters):
            raise ExtractionProblem("rejected", "encrypted", "the EPUB book is protected against copying")
    present = [name for name in chapters if package.has(name)]
    parts = (_chapter(package.read(name)) for name in present)
    return _decoded(parts, _title(book), len(chapters) - len(present))


def _chapter(data: bytes) -> str:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    # as HTML an element without content would not end, and a figure would be left out with its content
    markup = _CLOSED.sub(r"<\1\2></\1>", decode_declared(data).text)
    tree = HTMLTree.parse(FIGURE.sub(r"<\1div", markup))
    return extract_plain_text(tree, main_content=False, alt_texts=False, list_bullets=True)


# presentations


def read_presentation(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the slides of a presentation in their order, with tables and notes."""
    package = _Package(data, options, "presentation")
    name = "ppt/presentation.xml"
    related = package.related(name)
    ids = (item.get(f"{_RELATION}id") for item in package.tree(name).iter(f"{_SLIDE}sldId"))
    slides = dict.fromkeys(related[one] for one in ids if one in related)
    return _decoded((part for slide in slides for part in _slide(package, slide)), package.office_title())


def _slide(package: _Package, name: str) -> Iterator[str]:
    if not package.has(name):
        return
    root = package.tree(name)
    for other in list(root.iter(f"{_COMPATIBILITY}Fallback")):  # the same for older programs
        other.getparent().remove(other)
    for shape in root.iter(f"{_SLIDE}sp", f"{_DRAWING}tbl"):
        if shape.tag == f"{_DRAWING}tbl":
            rows = shape.iter(f"{_DRAWING}tr")
            yield _table([_paragraphs(cell, " ") for cell in row.iter(f"{_DRAWING}tc")] for row in rows)
            continue
        place = shape.find(f".//{_SLIDE}ph")
        kind = place.get("type", "") if place is not None else ""
        if kind in ("title", "ctrTitle"):
            if title := _paragraphs(shape, " "):
                yield f"## {title}"
        elif kind not in ("sldNum", "ftr", "dt"):
            yield _paragraphs(shape, "\n")
    notes = (part for part in package.related(name).values() if "/notesSlides/" in part and package.has(part))
    for part in notes:
        for shape in package.tree(part).iter(f"{_SLIDE}sp"):
            place = shape.find(f".//{_SLIDE}ph")
            if place is not None and place.get("type") == "body":
                yield _paragraphs(shape, "\n")


def _paragraphs(shape: Any, joint: str) -> str:
    """Return the paragraphs below an element of a drawing."""
    found = []
    for paragraph in shape.iter(f"{_DRAWING}p"):
        pieces = (
            (item.text or "") if item.tag == f"{_DRAWING}t" else "\n"
            for item in paragraph.iter(f"{_DRAWING}t", f"{_DRAWING}br")
        )
        found.append(" ".join("".join(pieces).split()))
    return joint.join(filter(None, found))


# spreadsheets


def read_spreadsheet(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the sheets of a workbook as tables, with the values that were last shown."""
    package = _Package(data, options, "workbook")
    name = "xl/workbook.xml"
    workbook, related = package.tree(name), package.related(name)
    shared = _shared_strings(package) if package.has("xl/sharedStrings.xml") else []
    dates = _date_styles(package) if package.has("xl/styles.xml") else set()
    properties = workbook.find(f"{_SHEET}workbookPr")
    since_1904 = properties is not None and properties.get("date1904") in ("1", "true")
    epoch = datetime(1904, 1, 1) if since_1904 else datetime(1899, 12, 30)

    def sheets() -> Iterator[str]:
        for sheet in workbook.iter(f"{_SHEET}sheet"):
            part = related.get(sheet.get(f"{_RELATION}id"), "")
            is_sheet = "/worksheets/" in part and package.has(part)
            if is_sheet and (rows := _table(_rows(package.tree(part), shared, dates, epoch))):
                yield f"## {' '.join((sheet.get('name') or '').split())}"
                yield rows

    return _decoded(sheets(), package.office_title())


def _shared_strings(package: _Package) -> list[str]:
    items = package.tree("xl/sharedStrings.xml").iter(f"{_SHEET}si")
    return ["".join(_runs(item)) for item in items]


def _runs(item: Any) -> Iterator[str]:
    """Yield the texts of a string without its phonetic guides."""
    for text in item.iter(f"{_SHEET}t"):
        if text.getparent().tag != f"{_SHEET}rPh":
            yield text.text or ""


def _date_styles(package: _Package) -> set[int]:
    """Return the numbers of the cell styles that show a number as a date or time."""
    styles = package.tree("xl/styles.xml")
    dates = set(_DATE_IDS)
    for item in styles.iter(f"{_SHEET}numFmt"):
        code = _LITERAL.sub("", item.get("formatCode") or "")
        if _DATE_LETTER.search(code):
            dates.add(_number(item.get("numFmtId") or ""))
    cells = styles.find(f"{_SHEET}cellXfs")
    formats = [_number(item.get("numFmtId") or "") for item in cells] if cells is not None else []
    return {number for number, one in enumerate(formats) if one in dates - {10**9}}


def _rows(sheet: Any, shared: list[str], dates: set[int], epoch: datetime) -> Iterator[list[str]]:
    for row in sheet.iter(f"{_SHEET}row"):
        values: list[str] = []
        column = -1
        for cell in row.iter(f"{_SHEET}c"):
            place = _CELL.match(cell.get("r") or "")
            column = _column(place[1]) if place else column + 1
            if column < MOST_COLUMNS and (value := _value(cell, shared, dates, epoch)):
                values += [""] * (column + 1 - len(values))
                values[column] = value
        yield values


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1


def _value(cell: Any, shared: list[str], dates: set[int], epoch: datetime) -> str:
    """Return the shown value of a cell."""
    kind = cell.get("t") or "n"
    if kind == "inlineStr":
        return "".join(_runs(cell))
    found = cell.find(f"{_SHEET}v")
    value = (found.text or "") if found is not None else ""
    if kind == "s":
        return shared[_number(value)] if _number(value) < len(shared) else ""
    if kind == "b":
        return {"1": "TRUE", "0": "FALSE"}.get(value, value)
    style = cell.get("s") or "0"
    if kind == "n" and _number(style) in dates:
        return _date(value, epoch)
    return value


def _number(text: str) -> int:
    """Return a count or an index; a very large number for anything else."""
    return int(text) if text.isdecimal() and len(text) < 10 else 10**9


def _date(value: str, epoch: datetime) -> str:
    """Return days since the epoch as a date, a time or both."""
    try:
        days = float(value)
        moment = epoch + timedelta(seconds=round(days * 86_400))
    except (ValueError, OverflowError):
        return value
    if 0 <= days < 1:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%Y-%m-%d}" if days == int(days) else f"{moment:%Y-%m-%d %H:%M:%S}"


# OpenDocument


def read_opendocument(data: bytes, options: ExtractOptions) -> Decoded:
    """Return the text, the sheets or the slides of an OpenDocument file."""
    package = _Package(data, options, "OpenDocument file")
    if package.has("META-INF/manifest.xml") and b"encryption-data" in package.read("META-INF/manifest.xml"):
        reason = "an OpenDocument file that needs a password; save it without"
        raise ExtractionProblem("rejected", "encrypted", reason)
    title = _title(package.tree("meta.xml")) if package.has("meta.xml") else None
    body = package.tree("content.xml").find(f"{_OFFICE_NS}body")
    if body is None:
        raise package.corrupt("content.xml has no body")
    return _decoded(_open_parts(body), title)


def _open_parts(body: Any) -> Iterator[str]:
    """Yield headings, paragraphs, lists and tables, without recursion."""
    from lxml import etree

    items: list[str] = []  # of the outermost list that is open
    lists = 0
    is_sheet = body.find(f"{_OFFICE_NS}spreadsheet") is not None
    walk = etree.iterwalk(body, events=("start", "end"))
    for event, element in walk:
        tag = element.tag
        if tag == f"{_TEXT}list":
            lists += 1 if event == "start" else -1
            if items and not lists:
                yield "\n".join(items)
                items = []
        elif event == "end":
            continue
        elif tag in _NOT_SHOWN:
            walk.skip_subtree()
        elif tag == f"{_TABLE}table":
            if (name := element.get(f"{_TABLE}name")) and is_sheet:
                yield f"## {' '.join(name.split())}"
            yield _table(_open_cells(row) for row in _open_rows(element))
            walk.skip_subtree()
        elif tag == f"{_DRAW}frame" and element.get(_SLIDE_CLASS) == "title":
            if title := _open_text(element):
                yield f"## {title}"
            walk.skip_subtree()
        elif tag == f"{_TEXT}h":
            level = _number(element.get(f"{_TEXT}outline-level") or "1")
            yield f"{'#' * min(level, 6)} {_open_text(element)}"
            walk.skip_subtree()
        elif tag == f"{_TEXT}p":
            text = _open_text(element)
            if lists:
                items += [f"- {text}"] if text else []
            else:
                yield text
            walk.skip_subtree()


def _open_rows(table: Any) -> Iterator[Any]:
    """Yield the rows of a table, not those of a table in a cell."""
    waiting = [table]
    while waiting:
        element = waiting.pop()
        if element.tag == f"{_TABLE}table-row":
            yield element
        else:
            groups = ("table-row", "table-rows", "table-header-rows", "table-row-group")
            waiting += reversed([*element.iterchildren(*(f"{_TABLE}{name}" for name in groups))])


def _open_cells(row: Any) -> list[str]:
    cells: list[str] = []
    empty = 0  # those at the end of a row claim to be thousands
    for cell in row.iterchildren(f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
        text = _open_text(cell)
        times = min(_number(cell.get(f"{_TABLE}number-columns-repeated") or "1"), MOST_COLUMNS)
        if text:
            cells += [""] * empty + [text] * times
        empty = 0 if text else min(empty + times, MOST_COLUMNS)
    return cells[:MOST_COLUMNS]


def _open_text(element: Any) -> str:
    """Return the text of an element, with the spaces and line breaks that elements stand for."""
    from lxml import etree

    pieces: list[str] = []
    walk = etree.iterwalk(element, events=("start", "end", "comment", "pi"))
    for event, part in walk:
        if event == "start":
            if part.tag in _NOT_SHOWN:
                walk.skip_subtree()
            else:
                pieces += [" " if part.tag in _SPACES else "", part.text or ""]
        elif part is not element:
            pieces += [" " if part.tag in _SPACES else "", part.tail or ""]
    return " ".join("".join(pieces).split())


def _table(rows: Iterable[list[str]]) -> str:
    """Return rows of cells as Markdown, without empty rows and columns; "" if all are empty."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    width = max(map(len, filled), default=0)
    rows = [row + [""] * (width - len(row)) for row in filled]
    kept = [number for number in range(width) if any(row[number].strip() for row in rows)]
    return markdown_table([[row[number] for number in kept] for row in rows]) if kept else ""


PACKAGES: dict[str, Callable[[bytes, ExtractOptions], Decoded]] = {
    EPUB: read_epub,
    f"{_OFFICE}wordprocessingml.document": read_docx,
    f"{_OFFICE}presentationml.presentation": read_presentation,
    f"{_OFFICE}presentationml.slideshow": read_presentation,
    f"{_OFFICE}spreadsheetml.sheet": read_spreadsheet,
    "application/vnd.ms-excel.sheet.macroenabled.12": read_spreadsheet,
    f"{_OPEN}text": read_opendocument,
    f"{_OPEN}spreadsheet": read_opendocument,
    f"{_OPEN}presentation": read_opendocument,
}
