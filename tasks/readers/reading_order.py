"""Two columns that a PDF holds row by row, put back one after the other.

PDFium gives text in the order of the file. Nearly every program writes column after column, and then there is nothing
to do; some write line by line across both columns, and each line of the text then begins in one sentence and ends in
another. Such a page is known by its boxes: rows of two long pieces with the same gutter between them, each filling its
column. A table has short, ragged cells, a table of contents has leaders across its gap, and both are left as they are.

A glance at a few boxes settles it for ordinary pages; only a page that looks suspicious is measured in full.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from ctypes import byref, c_double
from dataclasses import dataclass

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

MINIMUM_CHARACTERS = 400  # Less is no page of two columns.
CHARACTERS_PER_GLANCE = 200  # Two rows of two columns.
BOXES_PER_GLANCE = 16
SAME_EDGE = 3  # Points.
MINIMUM_ROWS = 10  # Rows with a gutter, in all.
NARROWEST_GUTTER = 8  # Points.
SHARE_OF_ROWS = 0.6  # Of the rows that have text on either side of the gutter.
SHORTEST_COLUMN_LINE = 25  # Characters, in the median: cells of tables are shorter.
FILLED = 0.8  # Share of a column's width that most of its lines fill.
MINIMUM_GUTTER = 0.6  # In heights of a line: wider than any space between words.
LANDING_ZONE = (0.4, 0.75)  # Of the page's width: where a right column begins.
GUTTER_ZONE = (0.3, 0.7)  # Of the width of the text.
SAME_ROW = 0.6  # Heights of a line that the pieces of a row may be apart: columns need not share their baselines.
ROWS_LOOKED_AT = 300

_HYPHENATED = re.compile("[\u0002\ufffe]\r\n")  # PDFium marks the hyphen at a line end that it joined.


@dataclass(slots=True)
class _Piece:
    """A run of characters on one line without a wide gap: its first character, the end of it, its box."""

    start: int
    end: int
    left: float
    right: float
    bottom: float
    top: float

    @property
    def height(self) -> float:
        return self.top - self.bottom

    def goes_on_at(self, left: float, bottom: float) -> bool:
        """Return True if a character whose box begins there stands next on the same line."""
        gap = left - self.right
        return -self.height < gap < MINIMUM_GUTTER * self.height and abs(bottom - self.bottom) < SAME_ROW * self.height


_Row = list[_Piece]


def text_in_column_order(page: pdfium.PdfPage, layer: pdfium.PdfTextPage, text: str, n_characters: int) -> str:
    """Return the text of a page with its columns one after the other, if the file has them interleaved.

    `text` is in the order of the file, and `layer` counts `n_characters`. It comes back as it is for every page that is
    not demonstrably two columns written row by row.
    """
    if n_characters < MINIMUM_CHARACTERS or not _looks_suspicious(page, layer, n_characters):
        return text
    rows = _rows(layer, n_characters)
    gutter = _gutter(rows)
    if gutter is None:
        return text
    found = []
    for line in _by_column(rows, gutter):
        start = line[0].start
        found.append(layer.get_text_range(start, line[-1].end - start, errors="surrogatepass").rstrip())
    return _HYPHENATED.sub("\ufffe", "\r\n".join(found))


def _looks_suspicious(page: pdfium.PdfPage, layer: pdfium.PdfTextPage, n_characters: int) -> bool:
    """Return True if the text jumps over a gap into the right half, and to the same place, wherever one looks."""
    width = pdfium_c.FPDF_GetPageWidthF(page)
    zone = (LANDING_ZONE[0] * width, LANDING_ZONE[1] * width)
    # The middle first: on most pages that is all that has to be looked at.
    places = _landings(layer, n_characters // 2, zone)
    for quarter in (1, 3):
        if not places:
            return False
        others = _landings(layer, quarter * n_characters // 4, zone)
        places = [x for x in places if any(abs(x - other) <= SAME_EDGE for other in others)]
    return bool(places)


def _landings(layer: pdfium.PdfTextPage, first: int, zone: tuple[float, float]) -> list[float]:
    n_boxes = min(pdfium_c.FPDFText_CountRects(layer, first, CHARACTERS_PER_GLANCE), BOXES_PER_GLANCE)
    left, top, right, bottom = c_double(), c_double(), c_double(), c_double()
    outputs = byref(left), byref(top), byref(right), byref(bottom)
    landings = []
    end_before = bottom_before = math.inf
    for index in range(n_boxes):
        pdfium_c.FPDFText_GetRect(layer, index, *outputs)
        jumps = left.value - end_before > NARROWEST_GUTTER and abs(bottom.value - bottom_before) < NARROWEST_GUTTER
        if jumps and zone[0] < left.value < zone[1]:
            landings.append(left.value)
        end_before, bottom_before = right.value, bottom.value
    return landings


def _rows(layer: pdfium.PdfTextPage, n_characters: int) -> list[_Row]:
    rows: list[_Row] = []
    box = pdfium_c.FS_RECTF()
    for index in range(n_characters):
        # Made up by PDFium (spaces, line ends): they have no place.
        if pdfium_c.FPDFText_IsGenerated(layer, index) == 1:
            continue
        if not pdfium_c.FPDFText_GetLooseCharBox(layer, index, byref(box)) or box.right <= box.left:
            continue
        last = rows[-1][-1] if rows else None
        if last and last.goes_on_at(box.left, box.bottom):
            last.end, last.right = index + 1, max(last.right, box.right)
            continue
        piece = _Piece(index, index + 1, box.left, box.right, box.bottom, box.top)
        if last and piece.left >= last.right and abs(piece.bottom - last.bottom) < SAME_ROW * last.height:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _gutter(rows: list[_Row]) -> float | None:
    """Return the place of the gutter between two interleaved columns; None if there are no such columns."""
    left, right = min(row[0].left for row in rows), max(row[-1].right for row in rows)
    zone = (left + GUTTER_ZONE[0] * (right - left), left + GUTTER_ZONE[1] * (right - left))
    gaps = [
        (before.right, after.left)
        for row in rows[:ROWS_LOOKED_AT]
        for before, after in itertools.pairwise(row)
        if before.right <= zone[1] and after.left >= zone[0]
    ]
    if len(gaps) < MINIMUM_ROWS:
        return None
    # In the middle of the narrowest gap: what falls into that one falls into the others as well.
    middles = {min(max((start + end) / 2, zone[0]), zone[1]) for start, end in gaps}
    gutter = max(sorted(middles), key=lambda x: sum(start <= x <= end for start, end in gaps))
    parted = [sides for row in rows if all(sides := _sides(row, gutter)) and not _crosses(row, gutter)]
    n_crossing = sum(_crosses(row, gutter) for row in rows)
    if len(parted) < max(MINIMUM_ROWS, SHARE_OF_ROWS * (len(parted) + n_crossing)):
        return None
    return gutter if all(_is_column([sides[side] for sides in parted]) for side in (0, 1)) else None


def _is_column(lines: list[_Row]) -> bool:
    """Return True for lines of running text: long enough, and most as wide as the column."""
    from statistics import median  # only here: what it imports takes longer to load than most pages to read

    characters = median(line[-1].end - line[0].start for line in lines)
    width = max(line[-1].right for line in lines) - min(line[0].left for line in lines)
    # In one piece: what has more gaps than the gutter is a table.
    n_filled = sum(len(line) == 1 and line[0].right - line[0].left >= FILLED * width for line in lines)
    return characters >= SHORTEST_COLUMN_LINE and n_filled >= SHARE_OF_ROWS * len(lines)


def _crosses(row: _Row, gutter: float) -> bool:
    """Return True if a piece of the row lies on the gutter, as the lines of a title do."""
    return any(piece.left < gutter < piece.right for piece in row)


def _sides(row: _Row, gutter: float) -> tuple[_Row, _Row]:
    return [piece for piece in row if piece.right <= gutter], [piece for piece in row if piece.right > gutter]


def _by_column(rows: list[_Row], gutter: float) -> Iterator[_Row]:
    """The lines in reading order: between two rows that cross the gutter, the left ones first."""
    left: list[_Row] = []
    right: list[_Row] = []
    for row in rows:
        if _crosses(row, gutter):
            yield from (*left, *right, row)
            left, right = [], []
            continue
        for line, column in zip(_sides(row, gutter), (left, right), strict=True):
            if line:
                column.append(line)
    yield from (*left, *right)
