"""Extract the text of RTF files, as the specification 1.9.1 of the format has it."""

from __future__ import annotations

import codecs
import re

from tasks.readers.decode import LONGEST_TITLE, Decoded, clean
from tasks.readers.markup import TextFlow
from tasks.readers.records import ExtractionProblem

# a control word with its number and one space, a byte in hexadecimal, a control symbol, a brace, or other text
_TOKEN = re.compile(
    rb"\\([A-Za-z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^A-Za-z'])|([{}])|([^\\{}\r\n]+)|[\r\n]+|\\"
)
_SKIPPED = frozenset(
    b"fonttbl colortbl stylesheet pict object themedata datastore header headerl headerr headerf footer footerl "
    b"footerr footerf listtable listoverridetable rsidtbl generator xmlnstbl latentstyles filetbl revtbl fldinst "
    b"bkmkstart bkmkend annotation atnid atnauthor mmathPr sp".split()
)
_CHARACTERS = {
    b"tab": "\t", b"emdash": "\u2014", b"endash": "\u2013", b"lquote": "\u2018", b"rquote": "\u2019",
    b"ldblquote": "\u201c", b"rdblquote": "\u201d", b"bullet": "\u2022", b"emspace": " ", b"enspace": " ",
}  # fmt: skip
# whether it ends a paragraph, or only a line
_ENDS = {b"par": True, b"sect": True, b"page": True, b"row": False, b"nestrow": False, b"line": False}
_SYMBOLS = {b"~": "\u00a0", b"_": "-", b"\\": "\\", b"{": "{", b"}": "}"}
_MAC, _PC = "mac_roman", "cp437"


def read_rtf(data: bytes) -> Decoded:
    """Return the text and title of an RTF file.

    Raises:
        ExtractionProblem: Its groups are not closed ("corrupt"), so its end is missing.
    """
    reader, place = _Reader(), 0
    while not reader.done and (token := _TOKEN.search(data, place)):
        reader.take(token)
        place = token.end()
        if token[1] == b"bin":  # so many bytes follow, which may be braces
            place += max(0, int(token[2] or 0))
    if not reader.done:
        raise ExtractionProblem("failed", "corrupt", "the RTF file is cut off: its groups are not closed")
    title = clean(" ".join("".join(reader.title).split())[:LONGEST_TITLE])
    return Decoded(clean(reader.flow.result()), reader.encoding, 1.0, title=title or None)


class _Reader:
    """State of the reading: a group inherits that of the group around it.

    Attributes:
        done: Whether the outermost group is closed.
    """

    def __init__(self) -> None:
        self.flow, self.title, self.encoding = TextFlow(), list[str](), "cp1252"
        self.done = False
        self._groups: list[tuple[str, int, bool]] = []  # destination, characters behind \u, hidden
        self._into, self._behind, self._hidden = "text", 1, False
        self._skip = 0  # characters left that stand for a Unicode one, for programs without Unicode
        self._optional = False  # after "\*": a destination that is not known is skipped
        self._bytes = bytearray()  # of characters of several bytes

    def take(self, token: re.Match[bytes]) -> None:
        """Read one token."""
        word, number, byte, symbol, brace, text = token.groups()
        if byte:
            if self._skip:
                self._skip -= 1
            else:
                self._bytes.append(int(byte, 16))
            return
        self._flush()
        if brace == b"{":
            self._groups.append((self._into, self._behind, self._hidden))
            self._skip, self._optional = 0, False
        elif brace == b"}":
            self._skip = 0
            if self._groups:
                self._into, self._behind, self._hidden = self._groups.pop()
            self.done = not self._groups
        elif word and self._skip and word != b"u":
            self._skip -= 1  # a control word may stand for the character, too
        elif word:
            self._word(word, int(number) if number else None)
        elif symbol == b"*":
            self._optional = True
        elif symbol:
            self._put(_SYMBOLS.get(symbol, ""))
        elif text:
            skipped = min(self._skip, len(text))
            self._skip -= skipped
            self._put(text[skipped:].decode(self.encoding, "replace"))

    def _word(self, word: bytes, number: int | None) -> None:
        if word in _SKIPPED or (self._optional and word not in (b"shptxt", b"shpinst")):
            self._into = "nothing"
        elif word in (b"info", b"title"):
            self._into = "nothing" if word == b"info" else "title"
        elif word == b"ansicpg" and number:
            self.encoding = _known(f"cp{number}")
        elif word in (b"mac", b"pc", b"pca"):
            self.encoding = _MAC if word == b"mac" else _PC
        elif word == b"uc":
            self._behind = min(max(number or 0, 0), 100)
        elif word == b"u" and number is not None:
            self._put(chr(number % 0x10000))
            self._skip = self._behind
        elif word == b"v":
            self._hidden = number != 0
        elif word == b"plain":
            self._hidden = False
        elif word in _ENDS and self._into == "text":
            self.flow.paragraph() if _ENDS[word] else self.flow.line()
        elif word in (b"cell", b"nestcell") and self._into == "text":
            self.flow.cell()
        elif word in _CHARACTERS:
            self._put(_CHARACTERS[word])
        self._optional = False

    def _flush(self) -> None:
        if self._bytes:
            self._put(self._bytes.decode(self.encoding, "replace"))
            self._bytes.clear()

    def _put(self, text: str) -> None:
        if not text or self._hidden:
            return
        if self._into == "title":
            self.title.append(text)
        elif self._into == "text":
            self.flow.preformatted(text)


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        return "cp1252"
