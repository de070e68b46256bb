"""The text of HTML and XML.

Of HTML it is the main content, without menus, footers, cookie notices and scripts: Resiliparse parses as browsers do
and decides by tags, class names and places what belongs to the content. Code, tables, lists and captions of figures
stay.

Of XML it is the character data in order; elements that hold only elements go on lines. Expat parses as a stream, so
that depth and size cost no memory. No entity is ever expanded and nothing outside the file is ever opened: references
stay as they are written. A document whose entities refer to one another is refused, since that has no use but to grow
("billion laughs").
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from tasks.readers.decode import Decoded, clean, decode_declared
from tasks.readers.records import ExtractionProblem

if TYPE_CHECKING:
    from resiliparse.parse.html import DOMContext, HTMLTree

LONGEST_TITLE = 1000
# The search for the main content takes time in proportion to the square of the depth; pages have below 100 levels.
MAX_DEPTH = 1000
MAX_LISTS = 100  # each costs time in proportion to the size of the page
_PLAIN_LIST_NEAR_TOP = "body > ul:not(:has(a)), body > * > ul:not(:has(a))"
# Left out with all that is in them, such as code, unless the alternative texts of pictures are asked for.
_FIGURE = re.compile(r"<(/?)fig(?:ure|caption)\b", re.IGNORECASE)
_HIDDEN = ["[hidden]", "[style*='display:none' i]", "[style*='display: none' i]"]
FEED_CHARACTERS = 1024 * 1024

_BREAK = "\n"
_BLANK_RUNS = re.compile(r"\n{3,}")


def read_html(data: bytes) -> Decoded:
    """Return the title and main content of an HTML file; where there is none, its whole visible text, with a note."""
    # Only here: a worker that meets no HTML need not load it.
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    found = decode_declared(data)
    tree = HTMLTree.parse(_FIGURE.sub(r"<\1div", found.text))
    note, content = "", ""
    if _is_deep(tree, found.text):
        note = f"elements are nested more than {MAX_DEPTH} deep, so the whole text was read, menus and all"
    else:
        _protect_lists(tree)
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
    """Resiliparse takes any list near the top for a menu: one without links is moved deeper."""
    for _ in range(MAX_LISTS):
        # One at a time: going through a list of nodes costs time in proportion to its square.
        inner: Any = tree.body.query_selector(_PLAIN_LIST_NEAR_TOP) if tree.body is not None else None
        if inner is None:
            return
        for _ in range(3):
            box: Any = tree.create_element("div")
            inner.parent.replace_child(box, inner)
            box.append_child(inner)
            inner = box


def read_xml(data: bytes) -> Decoded:
    """Return the text of an XML file, and as its title the first element of that name.

    Raises:
        ExtractionProblem: It is not well-formed, or its entities are made to explode ("corrupt").
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
    """Take the parser's events.

    Whether a child element stands in a line of text or on a line of its own shows only when its parent ends: a
    parent with text of its own is a line with marked-up words in it. So each boundary of a child puts down a break,
    and a parent that turns out to have text takes the breaks of its children back.
    """

    def __init__(self) -> None:
        # The text is decoded already, whatever the declaration says.
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._declare
        # With this handler set, Expat passes references to entities on instead of expanding them.
        self.parser.DefaultHandler = self._other
        self.n_external = 0
        self.title: list[str] = []
        self._pieces: list[str] = []
        self._breaks: list[list[int]] = [[]]  # Where each open element's children begin and end.
        self._has_text = [False]
        self._title_depth = 0

    def text(self) -> str:
        """Return the text so far."""
        flow = TextFlow()
        for piece in self._pieces:
            if piece == _BREAK:
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
        self._pieces.append(_BREAK)

    def _characters(self, data: str) -> None:
        # One space more, so that no piece is taken for a break; the flow folds it.
        self._pieces.append(data if data != _BREAK else " ")
        self._has_text[-1] = self._has_text[-1] or not data.isspace()
        if self._title_depth > 0:
            self.title.append(data)

    def _other(self, data: str) -> None:
        if len(data) > 2 and data[0] == "&" and data[-1] == ";":
            self._characters(data)

    def _declare(
        self, name: str, is_parameter: bool, value: str | None, _base: str | None, system_id: str | None, *_: str | None
    ) -> None:
        # An entity as in "&#38;lt;" only spells a character.
        spells_character = value is not None and len(value) <= 20 and value.startswith("&#")
        if system_id is not None:
            self.n_external += 1
        elif value is not None and "&" in value and not is_parameter and not spells_character:
            reason = (
                f"the entity {name[:80]!r} is made of other entities, which may expand without end "
                '("billion laughs"); the document is not read'
            )
            raise ExtractionProblem("rejected", "corrupt", reason)


class TextFlow:
    """The text of a document in reading order: its words, lines and paragraphs, whatever white space the source has.

    Never a blank line at the beginning, never two in a row.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._breaks = 2  # Line feeds that stand at the end so far; the beginning needs none.
        self._wanted = 0  # Line feeds that must stand before the next text.
        self._space = False  # Whether the last text ended in white space, which only counts if more follows.

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
        """Add text in which white space counts."""
        if text:
            self._put(text)
            self._breaks = len(text) - len(text.rstrip("\n"))

    def cell(self) -> None:
        """End a cell of a table; the next one of the row follows after a tab."""
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
        """Return the whole text."""
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
    """The text with one space for each run of white space; a no-break space is none."""
    for character in "\t\n\r\f":
        text = text.replace(character, " ")
    # Each round halves the longest run, so this is n log n at worst, and much faster than an expression.
    while "  " in text:
        text = text.replace("  ", " ")
    return text
