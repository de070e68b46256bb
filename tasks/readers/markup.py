"""Extract the text of HTML, XML and Jupyter notebooks, in reading order.

HTML: the main content, without menus, footers, cookie notices and scripts. Resiliparse parses as browsers do and
selects the content by tags, class names and positions. Code, tables, lists and captions stay; headings are Markdown's.

XML: the character data in order, with line breaks around elements whose parent has no text. Expat parses as a stream,
so depth and size cost no memory. Entities are not expanded and no other file is opened: references stay as they are
written. A document whose entities refer to one another is refused, since its only use is to expand ("billion laughs").

Notebooks: prose as it is, code in fences; outputs are left out, as they are mostly derived from the code, or images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from tasks.readers.decode import LONGEST_TITLE, Decoded, clean, decode, decode_declared
from tasks.readers.detect import KERNELS
from tasks.readers.records import ExtractionProblem

if TYPE_CHECKING:
    from resiliparse.parse.html import DOMContext, HTMLTree

# The search for the main content is quadratic in the depth; real pages have below 100 levels.
MAX_DEPTH = 1000
MAX_LISTS = 100  # each costs time in proportion to the size of the page
_PLAIN_LIST_NEAR_TOP = "body > ul:not(:has(a)), body > * > ul:not(:has(a))"
# Resiliparse drops figures with all their content, such as code, unless alternative texts are requested.
FIGURE = re.compile(r"<(/?)fig(?:ure|caption)\b", re.IGNORECASE)
_HIDDEN = ["[hidden]", "[style*='display:none' i]", "[style*='display: none' i]"]
FEED_CHARACTERS = 1024 * 1024
_BLANK_RUNS = re.compile(r"\n{3,}")
_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


# HTML


def read_html(data: bytes) -> Decoded:
    """Return the title and main content of an HTML file; without main content, all visible text and a note."""
    # only here: most workers do not need it
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    found = decode_declared(data)
    tree = HTMLTree.parse(FIGURE.sub(r"<\1div", found.text))
    note, content = "", ""
    if _is_deep(tree, found.text):
        note = f"elements are nested more than {MAX_DEPTH} deep, so the whole text was read, menus and all"
    else:
        _protect_lists(tree)
        _mark_headings(tree)
        content = extract_plain_text(tree, main_content=True, alt_texts=False)
        if not content:
            note = "no main content was found, so the whole text was read, menus and all"
    if not content:
        content = extract_plain_text(tree, alt_texts=False, skip_elements=_HIDDEN)
    title = clean(" ".join((tree.title or "").split())[:LONGEST_TITLE])
    return replace(found, text=clean(content), title=title or None, note=note)


def _is_deep(tree: HTMLTree, text: str) -> bool:
    from resiliparse.parse.html import traverse_dom

    if text.count("<") <= MAX_DEPTH or tree.body is None:
        return False
    deepest = 0

    def look(context: DOMContext) -> None:
        nonlocal deepest
        deepest = max(deepest, context.depth)

    traverse_dom(tree.body, look, elements_only=True)
    return deepest > MAX_DEPTH


def _protect_lists(tree: HTMLTree) -> None:
    """Nest lists without links near the top deeper, because Resiliparse takes them for menus."""
    for _ in range(MAX_LISTS):
        # one at a time, because iterating over a list of nodes is quadratic
        inner: Any = tree.body.query_selector(_PLAIN_LIST_NEAR_TOP) if tree.body is not None else None
        if inner is None:
            return
        for _ in range(3):
            box: Any = tree.create_element("div")
            inner.parent.replace_child(box, inner)
            box.append_child(inner)
            inner = box


def _mark_headings(tree: HTMLTree) -> None:
    """Write headings as Markdown, as those of all other formats are."""
    for level in range(1, 7):
        headings: Any = [] if tree.body is None else tree.body.get_elements_by_tag_name(f"h{level}")
        for heading in headings:
            if heading.text.strip():
                heading.insert_before(tree.create_text_node(f"{'#' * level} "), heading.first_child)


# XML


def read_xml(data: bytes) -> Decoded:
    """Return the text of an XML file, and the content of its first `title` element.

    Raises:
        ExtractionProblem: It is not well-formed, or its entities refer to one another ("corrupt").
    """
    found = decode_declared(data)
    reader = _XmlReader()
    try:
        for start in range(0, len(found.text), FEED_CHARACTERS):
            reader.parser.Parse(found.text[start : start + FEED_CHARACTERS].encode("utf-8"), False)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ExtractionProblem("failed", "corrupt", f"not well-formed XML: {error}") from None
    note = f"{reader.n_external} entities refer to other files, which are not opened" if reader.n_external else ""
    title = " ".join("".join(reader.title).split())[:LONGEST_TITLE]
    return replace(found, text=clean(reader.text()), title=clean(title) or None, note=note)


class _XmlReader:
    """Handler of Expat's events.

    A child element is inline if its parent has text of its own, which is known only at the parent's end. So a break is
    recorded at each boundary of a child, and removed at the end of a parent with text.
    """

    def __init__(self) -> None:
        # the text is decoded already, whatever encoding the document declares
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._declare
        # with this handler, Expat passes on references to entities unexpanded
        self.parser.DefaultHandler = self._other
        self.n_external = 0
        self.title: list[str] = []
        self._pieces: list[str | None] = []  # None is a break
        self._breaks: list[list[int]] = [[]]  # for each open element, the indexes of its children's breaks
        self._has_text = [False]
        self._title_depth = 0

    def text(self) -> str:
        flow = TextFlow()
        for piece in self._pieces:
            if piece is None:
                flow.line()
            else:
                flow.text(piece)
        return flow.result()

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        self._break()
        self._breaks.append([])
        self._has_text.append(False)
        if not self.title and not self._title_depth and name.rpartition(":")[2].lower() == "title":
            self._title_depth = len(self._breaks)

    def _end(self, _name: str) -> None:
        if self._title_depth == len(self._breaks):
            self._title_depth = -1
        breaks = self._breaks.pop()
        if self._has_text.pop():
            for place in breaks:
                self._pieces[place] = ""
        self._break()

    def _break(self) -> None:
        self._breaks[-1].append(len(self._pieces))
        self._pieces.append(None)

    def _characters(self, data: str) -> None:
        self._pieces.append(data)
        self._has_text[-1] = self._has_text[-1] or not data.isspace()
        if self._title_depth > 0:
            self.title.append(data)

    def _other(self, data: str) -> None:
        if len(data) > 2 and data[0] == "&" and data[-1] == ";":
            self._characters(data)

    def _declare(
        self, name: str, is_parameter: bool, value: str | None, _base: str | None, system_id: str | None, *_: str | None
    ) -> None:
        # an entity such as "&#38;lt;" is a single character
        spells_character = value is not None and len(value) <= 20 and value.startswith("&#")
        if system_id is not None:
            self.n_external += 1
        elif value is not None and "&" in value and not is_parameter and not spells_character:
            reason = (
                f"the entity {name[:80]!r} is made of other entities, which may expand without end "
                '("billion laughs"); the document is not read'
            )
            raise ExtractionProblem("rejected", "corrupt", reason)


MAX_XML_BYTES = 48 * 1024**2  # The tree of an XML part takes about eight times its size.


def parse_xml(data: bytes, what: str) -> Any:
    """Return the root of a small XML document, whose entities stay as they are.

    Raises:
        ExtractionProblem: It is not well-formed ("corrupt").
    """
    from lxml import etree  # only here: most workers do not need it

    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True, load_dtd=False)
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise ExtractionProblem("failed", "corrupt", f"not well-formed {what}: {error}") from None


# Notebooks


def read_notebook(data: bytes) -> Decoded:
    """Return the text and programming language of a Jupyter notebook; JSON without cells is returned unchanged.

    Raises:
        ExtractionProblem: It is not JSON, or its cells are malformed ("corrupt").
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
    """Return the notebook's cells; None if it is not a notebook."""
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


class TextFlow:
    """Builder of a document's text from words, lines and paragraphs, independent of the source's white space.

    The result has no leading blank line and no two blank lines in a row.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._breaks = 2  # line feeds at the end so far; as if 2 at the beginning
        self._wanted = 0  # line feeds required before the next text
        self._space = False  # whether the last text ended in white space, which is written only before more text

    def text(self, text: str) -> None:
        """Add text in which white space is only a separator."""
        words = _fold(text)
        if words in ("", " "):
            self._space = self._space or bool(words)
            return
        if words[0] == " ":
            self._space, words = True, words[1:]
        self._put(words.rstrip(" "))
        self._space = words[-1] == " "

    def preformatted(self, text: str) -> None:
        """Add text whose white space is kept."""
        if text:
            self._put(text)
            self._breaks = len(text) - len(text.rstrip("\n"))

    def cell(self) -> None:
        """End a cell of a table, with a tab before the next one of the row."""
        if self._breaks == 0 and self._wanted == 0:
            self._pieces.append("\t")
            self._space = False

    def line(self) -> None:
        """End the line."""
        self._wanted, self._space = max(self._wanted, 1), False

    def paragraph(self) -> None:
        """End the paragraph."""
        self._wanted, self._space = 2, False

    def result(self) -> str:
        whole = "".join(self._pieces)
        lines = (line.rstrip(" \t") for line in whole.split("\n"))
        return _BLANK_RUNS.sub("\n\n", "\n".join(lines)).strip("\n")

    def _put(self, text: str) -> None:
        missing = self._wanted - self._breaks
        if missing > 0:
            self._pieces.append("\n" * missing)
        elif self._space and self._breaks == 0 and self._wanted == 0:
            self._pieces.append(" ")
        self._pieces.append(text)
        self._wanted = self._breaks = 0
        self._space = False


def _fold(text: str) -> str:
    """Replace each run of white space by one space; no-break spaces stay."""
    for character in "\t\n\r\f":
        text = text.replace(character, " ")
    # each round halves the longest run: O(n log n), and much faster than a regular expression
    while "  " in text:
        text = text.replace("  ", " ")
    return text
