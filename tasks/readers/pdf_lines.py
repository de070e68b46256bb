"""Lines of a PDF page, each with its place, size and font, cut where a wide gap parts columns or cells.

PDFium gives the text of a page as lines in the order of the file. A call for each character would take longer than the
text itself, so a line is measured by a few: the first and the last character, and the boxes of its text objects, whose
gaps show where to look closer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import PYFUNCTYPE, byref, c_double, c_float, c_int, c_void_p, cast, create_string_buffer
from dataclasses import dataclass
from math import hypot, isfinite
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from tasks.readers.ruled import Grid

WIDE_GAP = 0.7  # font sizes: wider than the spaces of most justified text
BACK = -2  # font sizes: a step to another line, which PDFium takes for the same one
WIDE_LETTERS = 0.5  # font sizes for each character of a line, until a page has shown its own
LETTERS_KNOWN, WIDER = 200, 1.1  # characters that show it; wider lines of one text object may hold gaps
NARROWEST = 0.15  # font sizes for each character of a level line
RAISED = 1.2  # height of a letter, relative to that of a raised number at least
UPRIGHT = 0.1  # largest slope of a line
BOLD_WEIGHT, BOLD_FLAG, FIXED_FLAG = 600, 1 << 18, 1

# PDFium marks the hyphen at the end of a line whose word goes on in the next one, in place of the line break.
_LINE_END = re.compile("\r\n|[\u0002\ufffe](?:\r\n)?")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_SPACES = re.compile(r"\s+")
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


def _function(declared: Any, result: Any = c_int) -> Any:
    """Return a function of PDFium without the types of its arguments, whose checks take longer than most calls."""
    return PYFUNCTYPE(result)(cast(declared, c_void_p).value or 0)


_get_box = _function(pdfium_c.FPDFText_GetLooseCharBox)
_get_matrix = _function(pdfium_c.FPDFText_GetMatrix)
_get_size = _function(pdfium_c.FPDFText_GetFontSize, c_double)
_get_text_object = _function(pdfium_c.FPDFText_GetTextObject, c_void_p)
_get_font = _function(pdfium_c.FPDFTextObj_GetFont, c_void_p)
_count_rects = _function(pdfium_c.FPDFText_CountRects)
_get_rect = _function(pdfium_c.FPDFText_GetRect)
_get_character = _function(pdfium_c.FPDFText_GetCharIndexFromTextIndex)


class _Reader:
    """Calls into PDFium for the characters of a page."""

    def __init__(self, layer: pdfium.PdfTextPage, grids: Sequence[Grid], length: int) -> None:
        self._grids = grids
        self._layer = cast(layer.raw, c_void_p)
        self._box = (c_float * 4)()  # left, top, right, bottom
        self._matrix = (c_float * 6)()  # a to f
        self._edges = (c_double * 4)()  # left, top, right, bottom
        self._box_out, self._matrix_out = byref(self._box), byref(self._matrix)
        self._edges_out = [byref(self._edges, 8 * number) for number in range(4)]
        last = length - 1
        # most often no character is left out of the text: then each has the place of its character
        self._same = last < 0 or _get_character(self._layer, last) == last
        self._letters: dict[tuple[bool, bool], list[float]] = {}  # widths and characters of a style so far
        self._fonts: dict[int, tuple[bool, bool]] = {}

    def pieces(self, line: str, places: Sequence[int]) -> list[Piece]:
        """Return the pieces of a line.

        Args:
            places: Place of each character in PDFium's text, and of the end.
        """
        layer = self._layer
        start, stop = len(line) - len(line.lstrip()), len(line.rstrip())
        first, last = self._character(places[start]), self._character(places[stop - 1])
        if first < 0 or last < first or not _get_matrix(layer, first, self._matrix_out):
            return []
        a, b, c, d, _, _ = self._matrix
        if a <= 0 or abs(b) > UPRIGHT * a:
            return []
        # the larger one, as a line may begin or end in a raised number
        size = max(_get_size(layer, first), _get_size(layer, last)) * hypot(c, d)
        bold, fixed = self._style(first)
        style = bold, fixed and self._style(last)[1] and self._style((first + last) // 2)[1]
        whole = self._piece(line[start:stop], first, last, size, style)
        if not (size > 0 and isfinite(size + whole.left + whole.right + whole.bottom + whole.top)):
            return []
        middle = (whole.bottom + whole.top) / 2
        rules = [
            x for grid in self._grids if grid.ys[0] < middle < grid.ys[-1]
            for x in grid.xs if whole.left < x < whole.right
        ]  # fmt: skip
        if not (rules or self._has_gap(whole, first, last)) or _RIGHT_TO_LEFT.search(line):
            # vertical text is as wide as one character
            return [whole] if whole.right - whole.left > NARROWEST * size * len(whole.text) else []
        box, out = self._box, self._box_out
        characters = places if self._same else [self._character(place) for place in places]
        found, begin = [], start
        for space in _SPACES.finditer(line, start, stop):
            end, after = space.span()
            _get_box(layer, characters[end - 1], out)
            right = box[2]
            _get_box(layer, characters[after], out)
            left = box[0]
            ruled = rules and any(right - 1 <= x <= left + 1 for x in rules)
            if ruled or not BACK * size < left - right < WIDE_GAP * size:
                found.append(self._piece(line[begin:end], characters[begin], characters[end - 1], size, style))
                begin = after
        found.append(self._piece(line[begin:stop], characters[begin], last, size, style))
        return found

    def _piece(self, text: str, first: int, last: int, size: float, style: tuple[bool, bool]) -> Piece:
        _get_box(self._layer, first, self._box_out)
        left, top, right, bottom = self._box
        if last != first:
            _get_box(self._layer, last, self._box_out)
            # the first character of a line from right to left is on its right
            left, right = min(left, self._box[0]), max(right, self._box[2])
            if self._box[1] - self._box[3] > RAISED * (top - bottom):  # the first one is a raised number
                top, bottom = self._box[1], self._box[3]
        return Piece(text, left, bottom, right, top, size, *style)

    def _character(self, place: int) -> int:
        return place if self._same else int(_get_character(self._layer, place))

    def _has_gap(self, whole: Piece, first: int, last: int) -> bool:
        """Return True if the line may hold a wide gap."""
        width = (whole.right - whole.left) / whole.size
        known = self._letters.setdefault((whole.bold, whole.fixed), [0.0, 0.0])
        widest_letter = WIDER * known[0] / known[1] if known[1] > LETTERS_KNOWN else WIDE_LETTERS
        if width > widest_letter * len(whole.text) + WIDE_GAP:
            return True
        known[0] += width
        known[1] += len(whole.text)
        layer, edges = self._layer, self._edges
        back, widest, end = BACK * whole.size, WIDE_GAP * whole.size, whole.left
        for index in range(_count_rects(layer, first, last - first + 1)):
            _get_rect(layer, index, *self._edges_out)
            if not back < edges[0] - end < widest:
                return True
            end = edges[2]
        return False

    def _style(self, character: int) -> tuple[bool, bool]:
        """Return whether the font of a character is bold, and whether it is fixed."""
        item = _get_text_object(self._layer, character)
        font = _get_font(c_void_p(item)) if item else None
        if not font:
            return False, False
        if font not in self._fonts:
            self._fonts[font] = _font_style(cast(font, pdfium_c.FPDF_FONT))
        return self._fonts[font]


def _font_style(font: pdfium_c.FPDF_FONT) -> tuple[bool, bool]:
    """Return whether a font is bold, and whether it is fixed, by what it says and by its name."""
    name = create_string_buffer(128)  # a longer one is not written
    pdfium_c.FPDFFont_GetBaseFontName(font, name, len(name))
    flags = pdfium_c.FPDFFont_GetFlags(font)
    heavy = pdfium_c.FPDFFont_GetWeight(font) >= BOLD_WEIGHT or flags & BOLD_FLAG
    return (
        bool(heavy or _BOLD_NAME.search(name.value)),
        bool(flags & FIXED_FLAG or _FIXED_NAME.search(name.value)),
    )
