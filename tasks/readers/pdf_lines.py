"""Lines of a PDF page, each with its place, size and font, cut where a wide gap parts columns or cells.

PDFium gives the text of a page as lines in the order of the file. A call for each character would take longer than the
text itself, so a line is measured by a few: the first and the last character, and the boxes of its text objects, whose
gaps show where to look closer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import byref, c_double, create_string_buffer
from dataclasses import dataclass
from math import hypot, isfinite

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from tasks.readers.ruled import Grid

WIDE_GAP = 0.7  # font sizes: wider than the spaces of most justified text
BACK = -2  # font sizes: a step to another line, which PDFium takes for the same one
WIDE_LETTERS = 0.5  # font sizes for each character of a line, until a page has shown its own
LETTERS_KNOWN, WIDER = 200, 1.1  # characters that show it; wider lines of one text object may hold gaps
NARROWEST = 0.15  # font sizes for each character of a level line
UPRIGHT = 0.1  # largest slope of a line
BOLD_WEIGHT, BOLD_FLAG, FIXED_FLAG = 600, 1 << 18, 1

# PDFium marks the hyphen at the end of a line whose word goes on in the next one, in place of the line break.
_LINE_END = re.compile("\r\n|[\u0002\ufffe](?:\r\n)?")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_WORD = re.compile(r"\S+")
_BOLD_NAME = re.compile(rb"bold|black|heavy|demi|CMBX|CMB\d|SFBX", re.I)
_FIXED_NAME = re.compile(rb"mono|courier|CMTT|SFTT|consol|typewriter", re.I)


@dataclass(slots=True)
class Piece:
    """Consecutive characters of a line without a wide gap.

    Attributes:
        text: Its characters; with its hyphen, if it ends in one that divides a word.
        left, bottom, right, top: Box in points, from the lower left corner of the page.
        size: Size of the font as drawn, in points.
        bold, fixed: Whether the font is bold, and whether all its characters are equally wide.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    size: float
    bold: bool = False
    fixed: bool = False

    @property
    def middle(self) -> tuple[float, float]:
        """Return x and y of its middle, in points."""
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2


def read_pieces(layer: pdfium.PdfTextPage, text: str, grids: Sequence[Grid] = ()) -> tuple[list[Piece], list[str]]:
    """Return the pieces of a page in the order of the file, and its lines that are not level, which have none.

    Args:
        layer: The text page.
        text: All its text, as PDFium gives it.
        grids: Ruled tables, whose vertical lines part pieces, too.
    """
    reader = _Reader(layer, grids, len(text.encode("utf-16-le", "surrogatepass")) // 2)
    found: list[Piece] = []
    others: list[str] = []
    wide = max(text, default="") > "\uffff"  # such a character is two of PDFium's text
    start = position = 0
    for end in _LINE_END.finditer(text + "\r\n"):
        line, mark = text[start : end.start()], end[0]
        places = _units(line) if wide else range(position, position + len(line) + 1)
        if line and not line.isspace():
            pieces = reader.pieces(line, [position + place for place in places] if wide else places)
            if pieces and mark[0] != "\r":
                pieces[-1].text += "-"
            found += pieces
            if not pieces:
                others.append(line)
        position += (places[-1] if wide else len(line)) + len(mark)
        start = end.end()
    return found, others


def _units(line: str) -> list[int]:
    """Return the place in UTF-16 of each character, and of the end."""
    places = [0]
    for character in line:
        places.append(places[-1] + 1 + (character > "\uffff"))
    return places


class _Reader:
    """Calls into PDFium for the characters of a page."""

    def __init__(self, layer: pdfium.PdfTextPage, grids: Sequence[Grid], length: int) -> None:
        self._grids = grids
        self._layer = layer.raw  # its `_as_parameter_` would be asked for in each call
        self._box, self._matrix = pdfium_c.FS_RECTF(), pdfium_c.FS_MATRIX()
        self._edges = c_double(), c_double(), c_double(), c_double()
        self._box_out, self._matrix_out = byref(self._box), byref(self._matrix)
        self._edges_out = tuple(map(byref, self._edges))
        last = length - 1
        # most often no character is left out of the text: then each has the place of its character
        self._same = last < 0 or pdfium_c.FPDFText_GetCharIndexFromTextIndex(self._layer, last) == last
        self._letters: dict[tuple[bool, bool], list[float]] = {}  # widths and characters of a style so far
        self._name = create_string_buffer(128)
        self._fonts: dict[int, tuple[bool, bool]] = {}

    def pieces(self, line: str, places: Sequence[int]) -> list[Piece]:
        """Return the pieces of a line.

        Args:
            places: Place of each character in PDFium's text, and of the end.
        """
        layer, matrix = self._layer, self._matrix
        start, stop = len(line) - len(line.lstrip()), len(line.rstrip())
        first, last = self._character(places[start]), self._character(places[stop - 1])
        if first < 0 or last < first or not pdfium_c.FPDFText_GetMatrix(layer, first, self._matrix_out):
            return []
        if matrix.a <= 0 or abs(matrix.b) > UPRIGHT * matrix.a:
            return []
        # the larger one, as a line may begin or end in a raised number
        size = max(pdfium_c.FPDFText_GetFontSize(layer, first), pdfium_c.FPDFText_GetFontSize(layer, last))
        size *= hypot(matrix.c, matrix.d)
        bold, fixed = self._style(first)
        style = bold, fixed and self._style(last)[1] and self._style((first + last) // 2)[1]
        whole = self._piece(line, start, stop, first, last, size, *style)
        if not (size > 0 and isfinite(size + whole.left + whole.right + whole.bottom + whole.top)):
            return []
        rules = [
            x for grid in self._grids if grid.ys[0] < whole.middle[1] < grid.ys[-1]
            for x in grid.xs if whole.left < x < whole.right
        ]  # fmt: skip
        if not (rules or self._has_gap(whole, first, last)) or _RIGHT_TO_LEFT.search(line):
            # vertical text is as wide as one character
            return [whole] if whole.right - whole.left > NARROWEST * size * len(whole.text) else []
        words = [(word.start(), word.end()) for word in _WORD.finditer(line)]
        found, begin = [], 0
        for number in range(1, len(words) + 1):
            if number < len(words):
                left = self._box_of(places[words[number][0]]).left
                right = self._box_of(places[words[number - 1][1] - 1]).right
                ruled = any(right - 1 <= x <= left + 1 for x in rules)
                if not ruled and BACK * size < left - right < WIDE_GAP * size:
                    continue
            ends = words[begin][0], words[number - 1][1]
            piece = self._piece(
                line, *ends, self._character(places[ends[0]]), self._character(places[ends[1] - 1]), size, *style
            )
            found.append(piece)
            begin = number
        return found

    def _piece(
        self, line: str, start: int, end: int, first: int, last: int, size: float, bold: bool, fixed: bool
    ) -> Piece:
        box = self._box
        pdfium_c.FPDFText_GetLooseCharBox(self._layer, first, self._box_out)
        left, right, bottom, top = box.left, box.right, box.bottom, box.top
        pdfium_c.FPDFText_GetLooseCharBox(self._layer, last, self._box_out)
        # the first character of a line from right to left is on its right
        return Piece(line[start:end], min(left, box.left), bottom, max(right, box.right), top, size, bold, fixed)

    def _character(self, place: int) -> int:
        return place if self._same else int(pdfium_c.FPDFText_GetCharIndexFromTextIndex(self._layer, place))

    def _box_of(self, place: int) -> pdfium_c.FS_RECTF:
        pdfium_c.FPDFText_GetLooseCharBox(self._layer, self._character(place), self._box_out)
        return self._box

    def _has_gap(self, whole: Piece, first: int, last: int) -> bool:
        """Return True if the line may hold a wide gap."""
        width = (whole.right - whole.left) / whole.size
        known = self._letters.setdefault((whole.bold, whole.fixed), [0.0, 0.0])
        widest_letter = WIDER * known[0] / known[1] if known[1] > LETTERS_KNOWN else WIDE_LETTERS
        if width > widest_letter * len(whole.text) + WIDE_GAP:
            return True
        known[0] += width
        known[1] += len(whole.text)
        layer, (left, _, right, _) = self._layer, self._edges
        back, widest, end = BACK * whole.size, WIDE_GAP * whole.size, whole.left
        for index in range(pdfium_c.FPDFText_CountRects(layer, first, last - first + 1)):
            pdfium_c.FPDFText_GetRect(layer, index, *self._edges_out)
            if not back < left.value - end < widest:
                return True
            end = right.value
        return False

    def _style(self, character: int) -> tuple[bool, bool]:
        """Return whether the font of a character is bold, and whether it is fixed."""
        item = pdfium_c.FPDFText_GetTextObject(self._layer, character)
        font = pdfium_c.FPDFTextObj_GetFont(item) if item else None
        if not font:
            return False, False
        key = pdfium_c.cast(font, pdfium_c.c_void_p).value or 0
        if key not in self._fonts:
            name = self._name
            name[0] = b"\0"  # a longer one is not written
            pdfium_c.FPDFFont_GetBaseFontName(font, name, len(name))
            flags = pdfium_c.FPDFFont_GetFlags(font)
            heavy = pdfium_c.FPDFFont_GetWeight(font) >= BOLD_WEIGHT or flags & BOLD_FLAG
            self._fonts[key] = (
                bool(heavy or _BOLD_NAME.search(name.value)),
                bool(flags & FIXED_FLAG or _FIXED_NAME.search(name.value)),
            )
        return self._fonts[key]
