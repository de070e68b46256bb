"""Blocks of a PDF page: paragraphs, list items, tables and code, from the places of its lines and its ruled lines.

Whether a paragraph is a heading, a running head or a footnote depends on the rest of the document, and is decided where
the whole of it is known (`tasks.text.markdown`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median

from tasks.readers.pdf_lines import Piece
from tasks.readers.reading_order import SAME_EDGE, Row
from tasks.readers.records import LINE_BREAK, Block, BlockKind, markdown_table
from tasks.readers.ruled import Grid

SAME_SIZE = 0.07  # relative difference between the sizes of lines of a paragraph
LOOSE = 1.3  # line pitches, from which a line begins a new paragraph
HEADING_PITCH = 1.6  # font sizes between the lines of a heading at most
UNKNOWN_PITCH = 1.9  # font sizes, where a page has no lines below each other
INDENT = 0.8  # font sizes that the first line of a paragraph is indented by
ROOM = 0.5  # font sizes left in a line beyond the word that had room in it
HIGHER = 5  # font sizes that the first line of a cell may stand higher than the cells before, in the middle of a row
MOST_BLOCKS = 2000  # of a page: more are no text
NEAR = 16  # lines before and after one that tell the width of its column
CELL_GAP = 0.5  # font sizes between columns of a table
LEAST_ROWS = 3  # of a table without rules, with several cells
LEAST_FILLED = 0.35  # share of the cells of a grid
SHARE_OF_ROWS = 0.6  # rows of a table with several cells
APART = 0.2  # font sizes that more space is around a table than between its rows
LOOKED_AT_AGAIN = 60  # rows that make no table together
LONGEST_CELL = 600  # characters
FAR = 3.0  # font sizes between the rows of a table
WIDEST_CODE = 400  # characters that a piece of code may be indented
MOST_COLUMNS = 50  # of a table without rules
LETTER = 0.6  # width of a character of a fixed font, in font sizes

MARKER = re.compile(
    r"(?:[\u2022\u25e6\u25aa\u2023\u00b7\u25cf\u25cb\u25a0\u25a1\u2219\uf0b7*\u2013\u2014-]|\(?(?:\d{1,3}|[a-z]|[ivx]{2,5})[.)]|\[\d{1,3}\])(?=\s|$)"
)
_LEADER = re.compile(r"(?:\.\s?){4,}|\u2026{2,}")
_ENDS = re.compile(r"\w\w\w.*[.!?:;\u3002\uff01\uff1f]['\")\]\u201d\u2019]*$")


@dataclass(slots=True)
class _Line:
    """A row of pieces as one line.

    Attributes:
        edge: Right edge of its column.
    """

    row: Row
    text: str
    left: float
    right: float
    bottom: float
    top: float
    size: float
    bold: bool
    fixed: bool
    edge: float = 0.0


def find_blocks(rows: Sequence[Row], grids: Sequence[Grid]) -> list[Block]:
    """Return the blocks of a page.

    Args:
        rows: Its pieces in reading order.
        grids: Its ruled tables.
    """
    blocks: list[Block] = []
    pitch = _pitch(rows)
    bands = list(_bands(rows, grids))
    text: list[Row] = []  # rows that are in no table
    place = 0
    while place < len(bands):
        band = bands[place]
        if band.grid:
            stop, table = place + 1, _grid_table(rows[band.start : band.stop], band.grid)
        else:
            stop, table = _aligned_table(bands, place)
        own = rows[band.start : bands[stop - 1].stop]
        if table:
            blocks += _paragraphs([_line(row) for row in text], pitch)
            text = []
            blocks.append(_block("table", table, own))
        else:
            text += own
        place = stop
    blocks += _paragraphs([_line(row) for row in text], pitch)
    return blocks if len(blocks) <= MOST_BLOCKS else []


def _inside(row: Row, grid: Grid) -> bool:
    return all(grid.holds(*piece.middle) for piece in row)


def _line(row: Row) -> _Line:
    longest = max(row, key=lambda piece: len(piece.text)) if len(row) > 1 else row[0]
    return _Line(
        row,
        " ".join([piece.text for piece in row]),
        row[0].left,
        row[-1].right,
        min([piece.bottom for piece in row]),
        max([piece.top for piece in row]),
        longest.size,
        all(piece.bold for piece in row),
        all(piece.fixed for piece in row),
    )


def _block(kind: BlockKind, text: str, rows: Sequence[Row]) -> Block:
    pieces = [piece for row in rows for piece in row]
    return Block(
        kind,
        text,
        x0=round(min(piece.left for piece in pieces), 1),
        y0=round(min(piece.bottom for piece in pieces), 1),
        x1=round(max(piece.right for piece in pieces), 1),
        y1=round(max(piece.top for piece in pieces), 1),
        size=round(max(pieces, key=lambda piece: len(piece.text)).size, 1),
        bold=all(piece.bold for piece in pieces),
    )


def _pitch(rows: Sequence[Row]) -> float:
    """Return the usual distance between lines in font sizes."""
    found = []
    for before, after in pairwise(rows):
        one, other = before[0], after[0]
        step = one.bottom - other.bottom
        if 0 < step < 2.5 * one.size and abs(one.size - other.size) <= SAME_SIZE * one.size:
            found.append(step / one.size)
    return median(found) if found else UNKNOWN_PITCH / LOOSE


# paragraphs


def _paragraphs(lines: Sequence[_Line], pitch: float) -> Iterator[Block]:
    """Yield the paragraphs, items of lists and blocks of code of consecutive lines."""
    current: list[_Line] = []
    hang = math.inf  # left edge of all lines of a block but the first
    for number, line in enumerate(lines):
        line.edge = _edge(line, lines[max(0, number - NEAR) : number + NEAR])
        if current and _begins(line, current, hang, pitch):
            yield _text_block(current, pitch)
            current, hang = [], math.inf
        if current:
            hang = min(hang, line.left)
        current.append(line)
    if current:
        yield _text_block(current, pitch)


def _edge(line: _Line, near: Sequence[_Line]) -> float:
    """Return the right edge of the column of a line, which most longer lines reach."""
    left, right = line.left, line.right
    rights = sorted([one.right for one in near if one.left < right and one.right > left])
    return max(right, rights[int(0.9 * len(rights))]) if rights else right


def _ends_early(last: _Line, line: _Line) -> bool:
    """Return True if the first word of the next line had room in a line: whoever wrote it wanted the line to end."""
    word = len(line.text.split(" ", 1)[0]) + 1
    letter = (line.right - line.left) / len(line.text)
    return last.edge - last.right > word * letter + ROOM * last.size


def _begins(line: _Line, current: Sequence[_Line], hang: float, pitch: float) -> bool:
    """Return True if a line begins a new block."""
    first, last = current[0], current[-1]
    step = last.bottom - line.bottom
    if abs(line.size - last.size) > SAME_SIZE * last.size or line.bold != last.bold:
        return True
    if step < -0.3 * last.size or line.left > last.right or line.right < last.left:
        return True  # elsewhere: the next column
    if line.fixed and last.fixed:
        return step > 2 * LOOSE * pitch * last.size
    loose = max(LOOSE * pitch, HEADING_PITCH) if line.bold else LOOSE * pitch
    if step > loose * last.size or MARKER.match(line.text):
        return True
    early = _ends_early(last, line)
    indent = INDENT * line.size
    if line.fixed != last.fixed:
        return early or abs(line.left - last.left) > indent
    if MARKER.match(first.text) and line.left < first.left - SAME_EDGE:
        return True  # the lines of an item hang below its text
    ended = bool(_ENDS.search(last.text[-12:]))
    if len(current) > 1:
        if first.left < hang - indent and abs(line.left - first.left) < SAME_EDGE:
            return True  # the next of entries whose lines hang
        if line.left > hang + indent and (early or ended):
            return True
    elif line.left > first.left + indent and early and not MARKER.match(first.text):
        return True
    return early and ended


def _text_block(lines: Sequence[_Line], pitch: float) -> Block:
    rows = [line.row for line in lines]
    if all(line.fixed for line in lines):
        return _block("code", _indented(lines, pitch), rows)
    text = lines[0].text
    for last, line in pairwise(lines):
        text += (LINE_BREAK if _ends_early(last, line) else "\n") + line.text
    kind: BlockKind = "item" if MARKER.match(text) and len(text) > 3 else "paragraph"
    return _block(kind, text, rows)


def _indented(lines: Sequence[_Line], pitch: float) -> str:
    """Return lines of a fixed font with their indents and gaps."""
    left = min(line.left for line in lines)
    found: list[str] = []
    for number, line in enumerate(lines):
        if number and lines[number - 1].bottom - line.bottom > LOOSE * pitch * line.size:
            found.append("")
        text = ""
        for piece in line.row:
            column = min(round((piece.left - left) / (LETTER * piece.size)), WIDEST_CODE)
            text += " " * max(bool(text), column - len(text)) + piece.text
        found.append(text)
    return "\n".join(found)


# tables


@dataclass(slots=True)
class _Cell:
    """Pieces below each other.

    Attributes:
        whole: Whether another piece is beside it in its row, so that none below belongs to it.
    """

    pieces: list[Piece]
    whole: bool
    left: float = field(init=False)
    right: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.right = self.pieces[0].left, self.pieces[0].right

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.left, self.right = min(self.left, piece.left), max(self.right, piece.right)

    @property
    def text(self) -> str:
        return " ".join(piece.text for piece in self.pieces)

    @property
    def bottom(self) -> float:
        return self.pieces[-1].bottom

    @property
    def top(self) -> float:
        return self.pieces[0].top

    @property
    def size(self) -> float:
        return self.pieces[0].size


@dataclass
class _Band:
    """Cells beside each other, and the rows of pieces that they are made of: [start, stop)."""

    cells: list[_Cell]
    start: int
    stop: int
    grid: Grid | None = None
    bottom: float = math.inf
    top: float = -math.inf

    @cached_property
    def tabular(self) -> bool:
        """True if its cells may be those of a table without rules."""
        cells = self.cells
        if self.grid or len(cells) > MOST_COLUMNS or any(map(_is_no_cell, cells)):
            return False
        return not MARKER.fullmatch(cells[0].text)


def _bands(rows: Sequence[Row], grids: Sequence[Grid]) -> Iterator[_Band]:
    """Yield cells that follow each other to the right, from the order of the file; a ruled table is one band."""
    band: _Band | None = None
    for place, row in enumerate(rows):
        grid = next((grid for grid in grids if _inside(row, grid)), None)
        if band is None or grid is not band.grid or (grid is None and not _joins(row, band)):
            if band:
                yield band
            band = _Band([], place, place, grid)
        if grid is None and len(row) == 1 and band.cells and row[0].left < band.cells[-1].right:
            band.cells[-1].add(row[0])
        else:
            band.cells += [_Cell([piece], len(row) > 1) for piece in row]
        band.stop = place + 1
        band.bottom = min([band.bottom, *[piece.bottom for piece in row]])
        band.top = max([band.top, *[piece.top for piece in row]])
    if band:
        yield band


def _joins(row: Row, band: _Band) -> bool:
    """Return True if a row of pieces goes on in the last cell of a band, or is beside it."""
    last, piece = band.cells[-1], row[0]
    if len(band.cells) >= MOST_COLUMNS:
        return False
    if piece.left >= last.right:
        return piece.top > band.bottom and piece.bottom < band.top + HIGHER * piece.size
    step = last.bottom - piece.bottom
    below = 0 < step < UNKNOWN_PITCH * piece.size and piece.right > last.left
    return below and len(row) == 1 and not last.whole and abs(piece.size - last.size) <= SAME_SIZE * last.size


def _aligned_table(bands: Sequence[_Band], place: int) -> tuple[int, str]:
    """Return the end of the cells below each other that begin at a band, and their table; "" if they are text."""
    if len(bands[place].cells) < 2:
        return place + 1, ""
    spans: list[tuple[float, float]] = []
    end = place
    while end < len(bands):
        band = bands[end]
        size = band.cells[0].size
        if not band.tabular or (end > place and not -size < _gap(bands, end) < FAR * size):
            break
        merged = _merge([*spans, *((cell.left, cell.right) for cell in band.cells)], CELL_GAP * size)
        if not 2 <= len(merged) <= MOST_COLUMNS:
            break
        spans = merged
        end += 1
    if end - place < LEAST_ROWS:
        return max(end, place + 1), ""
    scanned = end
    inner = median(_gap(bands, number) for number in range(place + 1, end))
    apart = inner + APART * bands[place].cells[0].size
    while len(bands[end - 1].cells) == 1 and _gap(bands, end - 1) > apart:
        end -= 1
    own = bands[place:end]
    spans = _merge([(cell.left, cell.right) for band in own for cell in band.cells], CELL_GAP * own[0].cells[0].size)
    several = sum(len(band.cells) > 1 for band in own)
    # more space around the rows than between them: wide spaces in a paragraph make no table
    joined = any(-bands[place].cells[0].size < _gap(bands, number) < apart for number in (place, end))
    filled = Counter(column for band in own for column in {_nearest(cell, spans) for cell in band.cells})
    columns = sum(count > 1 for count in filled.values())
    if several < max(LEAST_ROWS, SHARE_OF_ROWS * len(own)) or joined or columns < 2:
        # a table may begin further down, below more space; where much was looked at in vain, nothing is again
        further = range(place + 1, scanned if scanned - place <= LOOKED_AT_AGAIN else 0)
        size = own[0].cells[0].size
        return next((number for number in further if not -size < _gap(bands, number) < apart), scanned), ""
    return end, markdown_table(list(_rows_of(own, spans, inner)))


def _rows_of(bands: Sequence[_Band], spans: Sequence[tuple[float, float]], inner: float) -> Iterator[list[str]]:
    """Yield the rows of a table; the lines of a single cell that are as far apart as rows are rows, too."""
    for band in bands:
        pieces = band.cells[0].pieces
        if len(band.cells) == 1 and len(pieces) > 1 and pieces[0].bottom - pieces[1].top > inner - 0.1 * pieces[0].size:
            column = _nearest(band.cells[0], spans)
            yield from ([piece.text if number == column else "" for number in range(len(spans))] for piece in pieces)
        else:
            cells: list[list[str]] = [[] for _ in spans]
            for cell in band.cells:
                cells[_nearest(cell, spans)].append(cell.text)
            yield [" ".join(cell) for cell in cells]


def _gap(bands: Sequence[_Band], number: int) -> float:
    """Return the space above a band, in points; that above the first and below the last is endless."""
    return bands[number - 1].bottom - bands[number].top if 0 < number < len(bands) else math.inf


def _is_no_cell(cell: _Cell) -> bool:
    return len(cell.text) > LONGEST_CELL or any(_LEADER.search(piece.text) for piece in cell.pieces)


def _merge(spans: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Return the union of intervals, with those less than a gap apart joined."""
    merged: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if merged and left - merged[-1][1] < gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], right)
        else:
            merged.append((left, right))
    return merged


def _nearest(cell: _Cell, spans: Sequence[tuple[float, float]]) -> int:
    """Return the number of the span that a cell overlaps most."""
    return max(range(len(spans)), key=lambda n: min(cell.right, spans[n][1]) - max(cell.left, spans[n][0]))


def _grid_table(rows: Sequence[Row], grid: Grid) -> str:
    """Return the table of a grid; "" if most of its cells are empty."""
    cells: dict[tuple[int, int], list[str]] = defaultdict(list)
    for row in rows:
        for piece in row:
            cells[grid.cell(*piece.middle)].append(piece.text)
    down, kept = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    table = [[" ".join(cells.get((row, column), ())) for column in kept] for row in down]
    filled = sum(bool(cell) for row in table for cell in row)
    return markdown_table(table) if len(kept) > 1 and filled >= LEAST_FILLED * len(table) * len(kept) else ""
