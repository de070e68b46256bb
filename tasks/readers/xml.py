"""The text of XML: the character data in order, without markup; elements that hold only elements go on lines.

Expat parses as a stream, so that depth and size cost no memory. No entity is ever expanded and nothing outside the
file is ever opened: references stay as they are written. A document whose entities refer to one another is refused,
since that has no use but to grow ("billion laughs").
"""

from __future__ import annotations

from xml.parsers import expat

from tasks.readers.declared import decode_declared
from tasks.readers.decode import clean
from tasks.readers.flow import TextFlow
from tasks.readers.parsed import Parsed
from tasks.readers.records import ExtractionProblem

FEED_CHARACTERS = 1024 * 1024
LONGEST_TITLE = 1000

_BREAK = "\n"


def read_xml(data: bytes) -> Parsed:
    """Read an XML document.

    Args:
        data: The whole file.

    Returns:
        Its text, and as its title the first element of that name.

    Raises:
        ExtractionProblem: It is not well-formed, or its entities are made to explode ("corrupt").
    """
    text, encoding, confidence = decode_declared(data)
    reader = _Reader()
    try:
        for start in range(0, len(text), FEED_CHARACTERS):
            reader.parser.Parse(text[start : start + FEED_CHARACTERS].encode("utf-8"), False)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise ExtractionProblem("failed", "corrupt", f"not well-formed XML: {error}") from None
    note = f"{reader.n_external} entities refer to other files, which are not opened" if reader.n_external else ""
    title = " ".join("".join(reader.title).split())[:LONGEST_TITLE]
    return Parsed(clean(reader.text()), encoding, confidence, title=clean(title) or None, note=note)


class _Reader:
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
        self,
        name: str,
        is_parameter: bool,
        value: str | None,
        _base: str | None,
        system_id: str | None,
        _public_id: str | None,
        _notation: str | None,
    ) -> None:
        if system_id is not None:
            self.n_external += 1
        elif value is not None and "&" in value and not is_parameter and not _is_character_reference(value):
            reason = (
                f"the entity {name[:80]!r} is made of other entities, which may expand without end "
                '("billion laughs"); the document is not read'
            )
            raise ExtractionProblem("rejected", "corrupt", reason)


def _is_character_reference(value: str) -> bool:
    """Whether each "&" in the value of an entity only spells a character, as in "&#38;lt;" for "<"."""
    return len(value) <= 20 and value.startswith("&#")
