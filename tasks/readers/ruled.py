"""Ruled tables of a PDF page: the lines that a page draws, joined to grids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from ctypes import byref, c_float
from dataclasses import dataclass

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

OBJECTS_LOOKED_AT = 4000  # of a page: drawings have hundreds of thousands
SEGMENTS_LOOKED_AT = 4000  # of all paths
MOST_LINES = 1000
MOST_CELLS = 5000
THIN = 2.0  # points: a path of less height or width is a line
SHORTEST = 6.0  # points
TOUCHING = 3.0  # points between lines that meet, and between lines that are the same one


@dataclass(frozen=True, slots=True)
class Grid:
    """A ruled table.

    Attributes:
        xs: x of its vertical lines, from left to right, in points; n columns have n + 1.
        ys: y of its horizontal lines, from bottom to top.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def holds(self, x: float, y: float) -> bool:
        """Return True if a point is inside the table."""
        return self.xs[0] <= x <= self.xs[-1] and self.ys[0] <= y <= self.ys[-1]

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return row, from the top, and column of the cell at a point inside the table, both from 0."""
        across = min(max(bisect_right(self.xs, x), 1), len(self.xs) - 1) - 1
        up = min(max(bisect_right(self.ys, y), 1), len(self.ys) - 1) - 1
        return len(self.ys) - 2 - up, across


_Line = tuple[float, float, float]  # place across the line, start and end along it, in points


def read_grids(page: pdfium.PdfPage) -> list[Grid]:
    """Return the ruled tables of a page that have at least two rows and two columns."""
    level, upright = _lines(page)
    if len(level) < 3 or len(upright) < 3 or len(level) + len(upright) > MOST_LINES:
        return []
    grids = []
    for levels, uprights in _connected(_joined(level), _joined(upright)):
        xs, ys = _places(uprights), _places(levels)
        if len(xs) > 2 and len(ys) > 2 and len(xs) * len(ys) <= MOST_CELLS:
            grids.append(Grid(xs, ys))
    return grids


def _lines(page: pdfium.PdfPage) -> tuple[list[_Line], list[_Line]]:
    """Return the level and the upright lines of a page."""
    level: list[_Line] = []
    upright: list[_Line] = []
    segments = SEGMENTS_LOOKED_AT
    raw, sides = page.raw, (c_float(), c_float(), c_float(), c_float())
    outputs = tuple(map(byref, sides))
    for index in range(min(pdfium_c.FPDFPage_CountObjects(raw), OBJECTS_LOOKED_AT)):
        item = pdfium_c.FPDFPage_GetObject(raw, index)
        if pdfium_c.FPDFPageObj_GetType(item) != pdfium_c.FPDF_PAGEOBJ_PATH:
            continue
        if not pdfium_c.FPDFPageObj_GetBounds(item, *outputs):
            continue
        left, bottom, right, top = (side.value for side in sides)
        boxes = [(left, bottom, right, top)]
        if top - bottom > THIN and right - left > THIN:
            segments -= max(0, pdfium_c.FPDFPath_CountSegments(item))
            boxes = list(_segments(item)) if segments >= 0 else []
        for left, bottom, right, top in boxes:
            if top - bottom <= THIN and right - left >= SHORTEST:
                level.append(((bottom + top) / 2, left, right))
            elif right - left <= THIN and top - bottom >= SHORTEST:
                upright.append(((left + right) / 2, bottom, top))
    return level, upright


def _segments(item: pdfium_c.FPDF_PAGEOBJECT) -> Iterator[tuple[float, float, float, float]]:
    """Yield the boxes of the straight segments of a path that is stroked."""
    filled, stroked, matrix = pdfium_c.c_int(), pdfium_c.c_int(), pdfium_c.FS_MATRIX()
    pdfium_c.FPDFPath_GetDrawMode(item, byref(filled), byref(stroked))
    count = pdfium_c.FPDFPath_CountSegments(item)
    if not stroked.value or not pdfium_c.FPDFPageObj_GetMatrix(item, byref(matrix)):
        return
    x, y = c_float(), c_float()
    start = last = (0.0, 0.0)
    for index in range(count):
        segment = pdfium_c.FPDFPath_GetPathSegment(item, index)
        pdfium_c.FPDFPathSegment_GetPoint(segment, byref(x), byref(y))
        point = (
            matrix.a * x.value + matrix.c * y.value + matrix.e,
            matrix.b * x.value + matrix.d * y.value + matrix.f,
        )
        if pdfium_c.FPDFPathSegment_GetType(segment) == pdfium_c.FPDF_SEGMENT_MOVETO:
            start = point
        else:
            yield _box(last, point)
        if pdfium_c.FPDFPathSegment_GetClose(segment):
            yield _box(point, start)
        last = point


def _box(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float, float, float]:
    return min(one[0], other[0]), min(one[1], other[1]), max(one[0], other[0]), max(one[1], other[1])


def _joined(lines: Sequence[_Line]) -> list[_Line]:
    """Return lines with the pieces of one line joined."""
    joined: list[_Line] = []
    for place, start, end in sorted(lines, key=lambda line: (round(line[0] / TOUCHING), line[1])):
        last = joined[-1] if joined else None
        if last and abs(place - last[0]) <= TOUCHING and start <= last[2] + TOUCHING:
            joined[-1] = last[0], last[1], max(last[2], end)
        else:
            joined.append((place, start, end))
    return joined


def _connected(level: Sequence[_Line], upright: Sequence[_Line]) -> Iterator[tuple[list[_Line], list[_Line]]]:
    """Yield the level and upright lines that are connected with each other."""
    left = set(range(len(upright)))
    seen: set[int] = set()
    for first in range(len(level)):
        if first in seen:
            continue
        seen.add(first)
        levels, uprights, waiting = [], [], [first]
        while waiting:
            line = level[waiting.pop()]
            levels.append(line)
            met = [number for number in left if _meet(line, upright[number])]
            left.difference_update(met)
            uprights += [upright[number] for number in met]
            for number in met:
                more = [n for n in range(len(level)) if n not in seen and _meet(level[n], upright[number])]
                seen.update(more)
                waiting += more
        yield levels, uprights


def _meet(level: _Line, upright: _Line) -> bool:
    return (
        level[1] - TOUCHING <= upright[0] <= level[2] + TOUCHING
        and upright[1] - TOUCHING <= level[0] <= upright[2] + TOUCHING
    )


def _places(lines: Sequence[_Line]) -> tuple[float, ...]:
    """Return the different places of lines, in order."""
    places: list[float] = []
    for place in sorted(line[0] for line in lines):
        if not places or place - places[-1] > TOUCHING:
            places.append(place)
    return tuple(places)
