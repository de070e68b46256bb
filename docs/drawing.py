"""Boxes and arrows as SVG documents on a white ground, which read the same in light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

LINE = 16  # height of a line of text in a box, in pixels
INK, GREY = "#22303a", "#6b7780"
FILLS = {
    "blue": "#dbe8f6",
    "green": "#dcefdf",
    "yellow": "#f8ecc8",
    "red": "#f7dcd5",
    "violet": "#e8e0f4",
    "teal": "#d6eeee",
    "grey": "#eceff1",
    "white": "#ffffff",
}

Point = tuple[float, float]


def document(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return an SVG document of this size in pixels; `title` is what a screen reader says."""
    style = (
        f"text{{font:12.5px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:{INK}}}"
        f".small{{font-size:11.5px;fill:{GREY}}}.mono{{font:11.5px 'DejaVu Sans Mono',ui-monospace,monospace}}"
        f".name{{font-weight:600}}.line{{fill:none;stroke:{GREY};stroke-width:1.4}}"
    )
    marker = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0.5 8 4 0 7.5z" fill="{GREY}"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}"><style>{style}</style><defs>{marker}</defs>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def box(
    left: float,
    top: float,
    width: float,
    height: float,
    lines: Sequence[str],
    fill: str = "white",
    *,
    first: str = "name",
    rest: str = "small",
    align: str = "middle",
    stacked: bool = False,
    dashed: bool = False,
) -> str:
    """Return a box with lines of text in it.

    Args:
        fill: Name in `FILLS`.
        first, rest: Classes of the first line and of the others: "name", "small", "mono" or "".
        align: "middle" or "start".
        stacked: Draw a second box behind, for several of a kind.
        dashed: Draw a dashed border.
    """
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    frame = f'rx="6" fill="{FILLS[fill]}" stroke="{GREY}"{dash}'
    size = f'width="{width:g}" height="{height:g}"'
    behind = f'<rect x="{left + 4:g}" y="{top - 4:g}" {size} {frame}/>' if stacked else ""
    x = left + width / 2 if align == "middle" else left + 10
    begin = top + height / 2 - LINE * (len(lines) - 1) / 2 + 4.5
    texts = "".join(
        text(x, begin + LINE * place, line, rest if place else first, align) for place, line in enumerate(lines)
    )
    return f'{behind}<rect x="{left:g}" y="{top:g}" {size} {frame}/>{texts}'


def text(x: float, y: float, line: str, kind: str = "", align: str = "middle") -> str:
    """Return a line of text whose baseline is at `y`."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{align}" class="{kind}">{escape(line)}</text>'


def arrow(points: Sequence[Point], label: str = "", *, dashed: bool = False, side: float = 8) -> str:
    """Return an arrow along straight lines; its label stands beside the middle of the longest of them."""
    path = "M" + " ".join(f"{x:g} {y:g}" for x, y in points)
    (x, y), (to_x, to_y) = max(
        pairwise(points), key=lambda ends: abs(ends[0][0] - ends[1][0]) + abs(ends[0][1] - ends[1][1])
    )
    is_level = abs(to_x - x) > abs(to_y - y)
    place = ((x + to_x) / 2, y - 6, "middle") if is_level else (x + side, (y + to_y) / 2 + 4, "start")
    said = text(place[0], place[1], label, "small", place[2]) if label else ""
    return line(path, dashed) + said


def curve(points: Sequence[Point], *, dashed: bool = False) -> str:
    """Return an arrow that bends from row to row and leaves and enters each of them vertically."""
    path = f"M{points[0][0]:g} {points[0][1]:g}"
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        path += f"C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"
    return line(path, dashed)


def line(path: str, dashed: bool = False) -> str:
    """Return an arrow along an SVG path."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path class="line" d="{path}" marker-end="url(#tip)"{dash}/>'
