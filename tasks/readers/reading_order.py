"""Reading order of the pieces of a PDF page, for any number of columns.

Most files hold one column after the other; some are written line by line across all columns, which interleaves their
sentences. Such a page goes back and forth between columns of long lines that fill them. Tables have short, ragged
cells and stay row by row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from tasks.readers.pdf_lines import Piece

Row = list[Piece]  # pieces beside each other, from left to right

MOST_PIECES = 3000  # of a page whose columns are looked for
SAME_EDGE = 3  # points
SAME_ROW = 0.5  # font sizes between the lower edges of the pieces of a row
MINIMUM_MOVES = 6  # steps to the right, from one piece to the next, of a page that interleaves columns
MOVE_HEIGHT = 1.5  # font sizes that such a step may go up or down: columns need not share their baselines
MINIMUM_LINES = 6  # of a column
GUTTER = 0.6  # font sizes: wider than any space between words
MOST_DIVISIONS = 3  # of a page into two sides: eight columns
MOST_TRIED = 3  # edges at which a column may begin, each with others inside its sides
MOST_CROSSING = 0.5  # pieces across a gutter, relative to the lines of the shorter column beside it
SHORTEST_COLUMN_LINE = 12  # characters, in the median: cells of tables are shorter
LEAST_TEXT = 200  # characters of a column
SHARE_OF_CELLS = 0.4  # lines of a column that may have a piece that begins at the same place inside
FILLED, SHARE_FILLED = 0.7, 0.5  # share of a column's width that this share of its lines fills


def rows_in_order(pieces: Sequence[Piece]) -> tuple[list[Row], bool]:
    """Return the pieces of a page as rows in reading order, and whether this differs from the order of the file."""
    looked_at = len(pieces) <= MOST_PIECES and _goes_back_and_forth(pieces)
    starts = _columns(pieces, max(piece.right for piece in pieces)) if looked_at else None
    if not starts or not _interleaved(pieces, starts):
        return _rows(pieces), False
    return list(_by_column(pieces, starts)), True


def _rows(pieces: Sequence[Piece]) -> list[Row]:
    """Return the rows of pieces in the order of the file."""
    rows: list[Row] = []
    for piece in pieces:
        last = rows[-1][-1] if rows else None
        if last and piece.left >= last.right and abs(piece.bottom - last.bottom) < SAME_ROW * last.size:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _goes_back_and_forth(pieces: Sequence[Piece]) -> bool:
    """Return True if the order of the file steps to the right often."""
    moves = sum(
        after.left >= before.right and abs(after.bottom - before.bottom) < MOVE_HEIGHT * before.size
        for before, after in pairwise(pieces)
    )
    return moves >= MINIMUM_MOVES


def _interleaved(pieces: Sequence[Piece], starts: Sequence[float]) -> bool:
    """Return True if the order of the file changes between the columns from line to line."""
    places = [number for piece in pieces if (number := _column(piece, starts)) is not None]
    shortest = min(map(places.count, range(len(starts) + 1)))
    return sum(one != other for one, other in pairwise(places)) >= max(MINIMUM_MOVES, shortest // 2)


def _columns(pieces: Sequence[Piece], end: float, divisions: int = MOST_DIVISIONS) -> list[float] | None:
    """Return x of the left edge of each column of text but the first; None if the pieces are not columns of text.

    Args:
        end: Left edge of what is on the right of the pieces.
        divisions: How often the pieces may be divided further.
    """
    for start in _column_starts(pieces) if divisions else ():
        left = _columns([piece for piece in pieces if piece.right <= start], start, divisions - 1)
        right = _columns([piece for piece in pieces if piece.left >= start - SAME_EDGE], end, divisions - 1)
        if left is not None and right is not None:
            return [*left, start, *right]
    return [] if _is_column(pieces, end) else None


def _column_starts(pieces: Sequence[Piece]) -> list[float]:
    """Return left edges at which a column may begin, with another one beside it, the most likely first."""
    size = median(piece.size for piece in pieces)
    found = []
    for start in _common_edges(pieces):
        left = [piece for piece in pieces if piece.right <= start]
        right = [piece for piece in pieces if piece.left >= start - SAME_EDGE]
        fewer = min(len(left), len(right))
        crossing = len(pieces) - len(left) - len(right)
        if fewer < MINIMUM_LINES or crossing > MOST_CROSSING * fewer:
            continue
        low, high = min(piece.bottom for piece in right), max(piece.top for piece in right)
        beside = sum(low - size < piece.bottom < high for piece in left)
        if start - max(piece.right for piece in left) >= GUTTER * size and 2 * beside >= len(left):
            found.append((crossing / fewer, start))
    return [start for _, start in sorted(found)[:MOST_TRIED]]


def _common_edges(pieces: Sequence[Piece]) -> Iterator[float]:
    """Yield the left edges that several pieces share, from left to right."""
    edges = sorted(piece.left for piece in pieces)
    last = edges[0]
    for edge, other in zip(edges, edges[MINIMUM_LINES // 2 :], strict=False):
        if edge - last > SAME_EDGE and other - edge <= SAME_EDGE:
            yield edge
            last = edge


def _column(piece: Piece, starts: Sequence[float]) -> int | None:
    """Return the number of the column that holds a piece, from 0; None if it crosses a gutter."""
    first = sum(piece.left >= start - SAME_EDGE for start in starts)
    last = sum(piece.right > start + SAME_EDGE for start in starts)
    return first if first == last else None


def _is_column(pieces: Sequence[Piece], end: float) -> bool:
    """Return True for lines of running text: long enough, and most as wide as the column.

    Args:
        end: Left edge of the next column.
    """
    rows = rows_by_place(pieces)
    start = min(piece.left for piece in pieces)
    filled = sum(row[-1].right - start >= FILLED * (end - start) for row in rows)
    characters = median(sum(len(piece.text) for piece in row) for row in rows)
    long_enough = characters >= SHORTEST_COLUMN_LINE and characters * len(rows) >= LEAST_TEXT
    if not long_enough or filled < SHARE_FILLED * len(rows):
        return False
    # cells begin below each other, the words after a wide space do not
    inner = sorted(piece.left for row in rows for piece in row[1:])
    below = max((bisect_right(inner, edge + SAME_EDGE) - place for place, edge in enumerate(inner)), default=0)
    return below < SHARE_OF_CELLS * len(rows)


def _by_column(pieces: Sequence[Piece], starts: Sequence[float]) -> Iterator[Row]:
    """Yield the rows in reading order: between two pieces that cross a gutter, one column after the other."""
    pending: list[Piece] = []
    for row in rows_by_place(pieces):
        if any(_column(piece, starts) is None for piece in row):
            yield from _columns_in_order(pending, starts)
            yield row
            pending = []
        else:
            pending += row
    yield from _columns_in_order(pending, starts)


def _columns_in_order(pieces: Sequence[Piece], starts: Sequence[float]) -> Iterator[Row]:
    for number in range(len(starts) + 1):
        yield from rows_by_place([piece for piece in pieces if _column(piece, starts) == number])


def rows_by_place(pieces: Sequence[Piece]) -> list[Row]:
    """Return the rows of pieces from top to bottom."""
    rows: list[Row] = []
    for piece in sorted(pieces, key=lambda piece: -piece.bottom):
        if rows and rows[-1][0].bottom - piece.bottom < SAME_ROW * piece.size:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    for row in rows:
        row.sort(key=lambda piece: piece.left)
    return rows
