"""Pictures of an inspection as SVG: maps of attention, states and increments, projections, lengths through the layers.

A value is the opacity of one ink, so that light, dark and print agree. The page's script shows another head or token in
the same drawing; without it the first one stands there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from tasks.report.charts import Axes, Point, Scale, drawing, element, label, path, scale_of
from tasks.report.inspect.labels import short
from tasks.report.wording import number

BINS = (0.15, 0.25, 0.35, 0.48, 0.50)  # upper ends of the value classes of an attention map
_LETTER = 7.3  # width of a letter of a token's label, in pixels

Rectangle = tuple[float, float, float, float]


class Cell(NamedTuple):
    """One cell of a map.

    Attributes:
        class_: of its colour.
        ink: opacity of the colour; None leaves it to the style sheet.
        text: written in it.
        hint: for the pointer.
    """

    class_: str
    ink: float | None = None
    text: str = ""
    hint: str | None = None


def _map(
    name: str,
    title: str,
    description: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Cell | None],
    size: Point,
    kinds: tuple[str, str] = ("note", "token"),
    every: int = 1,
) -> Markup:
    """Cells in rows and columns with labels; empty labels are left out.

    Args:
        size: width and height of a cell, in pixels.
        kinds: classes of the labels of rows and columns.
        every: how many columns share the room of a label.
    """
    width, height = size
    left = 16 + _LETTER * max(map(len, rows))
    room = width * every
    turned = any(_LETTER * len(text) > room for text in columns)
    top = 10 + (_LETTER * max(map(len, columns)) if turned else 12)
    parts = [
        label(left - 6, top + (row + 0.5) * height + 4, text, kinds[0], text_anchor="end")
        for row, text in enumerate(rows)
        if text
    ]
    for column, text in enumerate(columns):
        x = left + (column + 0.5) * width
        if text and _LETTER * len(text) <= room:
            parts.append(label(x, top - 6, text, kinds[1], text_anchor="middle"))
        elif text:
            parts.append(label(x + 4, top - 6, text, kinds[1], transform=f"rotate(-90 {x + 4:g} {top - 6:g})"))
    gap = 1.0 if width >= 11 else 0.0
    for row, column in itertools.product(range(len(rows)), range(len(columns))):
        found = cell(row, column)
        if found is None:
            continue
        x, y = left + column * width, top + row * height
        box = {"x": x, "y": y, "width": width - gap, "height": height - gap, "rx": 2 if width >= 20 else None}
        ink = None if found.ink is None else f"fill-opacity:{found.ink:.3f}"
        hint = [element("title", found.hint)] if found.hint else []
        parts.append(element("rect", *hint, class_=found.class_, style=ink, **box))
        if found.text:
            strong = "value strong" if (found.ink or 0) > 0.6 else "value"
            place = x + (width - gap) / 2, y + (height - gap) / 2 + 4
            parts.append(label(*place, found.text, strong, text_anchor="middle"))
    edge = left + len(columns) * width + 4, top + len(rows) * height + 4
    return drawing(name, title, description, edge, *parts)


def square_map(
    name: str,
    title: str,
    description: str,
    labels: Sequence[str],
    seen: Sequence[Sequence[bool]],
    values: Sequence[Sequence[float]] | None = None,
    largest: float = 27.0,
) -> Markup:
    """A token-by-token map; rows look at columns.

    Args:
        seen: which cells exist; the others are drawn as forbidden.
        values: between 0 and 1, drawn as ink and, where there is room, as numbers; None draws plain cells.
        largest: side of a cell, in pixels, unless there are too many.
    """
    n = len(labels)
    side = min(largest, 27.0 if n <= 12 else 24.0 if n <= 20 else 15.0 if n <= 40 else 11.0 if n <= 80 else 6.0)
    every = 1 if side >= 11 else next(step for step in (5, 10, 20, 50) if step * side >= 30)
    kind = "token" if side >= 15 or every > 1 else "token small"
    names = [short(text) if every == 1 else "" if place % every else str(place) for place, text in enumerate(labels)]

    def cell(row: int, column: int) -> Cell | None:
        if not seen[row][column]:
            return Cell("off") if side >= 11 else None
        if values is None:
            return Cell("cell")
        value = values[row][column]
        return Cell("cell", math.sqrt(value), f"{value:.2f}" if side >= 27 else "")

    return _map(name, title, description, names, names, cell, (side, side), (kind, kind), every)


def mask_map(labels: Sequence[str], seen: Sequence[Sequence[bool]], window: int | None) -> Markup:
    """Boolean attention mask."""
    reach = f" and at most {window - 1} tokens back" if window else ""
    description = f"Each token (row) may look at itself and at earlier tokens{reach}; grey cells are not allowed."
    return square_map("mask", "Attention mask", description, labels, seen, largest=min(15, max(4, 330 // len(labels))))


def dimension_map(states: Sequence[Sequence[float]]) -> Markup:
    """Values of one token's state: columns are dimensions, rows go through the layers."""
    largest = max(abs(value) for row in states for value in row) or 1.0
    rows = [f"h{state}" for state in range(len(states))]
    columns = ["" if column % 4 else str(column) for column in range(len(states[0]))]

    def cell(row: int, column: int) -> Cell:
        value = states[row][column]
        return Cell("signed minus" if value < 0 else "signed", abs(value) / largest)

    description = (
        f"Rows are the states h0 to h{len(rows) - 1}, columns the first {len(columns)} dimensions of the chosen token; "
        f"one colour for positive values, another for negative ones. The table below has the first four."
    )
    title = "Hidden-state values through the layers"
    return _map("dimensions", title, description, rows, columns, cell, (18.0, 18.0), ("note", "note"), every=4)


def increment_map(labels: Sequence[str], norms: Sequence[Sequence[float]]) -> Markup:
    """How much each block adds to each token's state.

    Args:
        norms: (L) rows of T lengths of block_l(x) - x.
    """
    width, high = 40.0 if len(labels) <= 16 else 22.0, max(max(row) for row in norms) or 1.0
    rows = [f"block {row}" for row in range(1, len(norms) + 1)]

    def cell(row: int, column: int) -> Cell:
        value = norms[row][column]
        text = f"{value:#.3g}".rstrip(".") if width >= 40 else ""
        return Cell("ink", 0.05 + 0.95 * value / high, text, f"{rows[row]}, token {column}: {value:.3g}")

    description = (
        f"Length of what each of {len(norms)} blocks adds to each of {len(labels)} tokens' states, at most {high:.3g}."
    )
    names = list(map(short, labels))
    return _map("increments", "What each block adds", description, rows, names, cell, (width, 26.0))


# ---- lengths through the layers


def norms_chart(labels: Sequence[str], norms: Sequence[Sequence[float]]) -> Markup:
    """Length of the state through the layers, one line per token.

    Args:
        norms: (L + 1) rows of T lengths.
    """
    n, last = len(labels), len(norms) - 1
    every = [value for row in norms for value in row]
    high, low = max(every) or 1.0, max(min(every), 1e-9)
    log = high / low > 20
    # nearly equal lengths are not blown up
    base = low if log else 0.0 if low < 0.5 * high else min(low, 0.9 * high)
    layers = Scale(0, last, range(0, last + 1, max(1, math.ceil(last / 14))))
    scale = scale_of([base, high], 6, log=log)
    axes = Axes(
        layers, scale, 150.0 + 40 * min(max(last, 4), 11), 276.0, lambda layer: f"h{layer}", lambda tick: f"{tick:.3g}"
    )
    kind = "logarithmic scale" if log else "from zero" if not scale.low else f"from {number(scale.low)}"
    parts = list(axes.drawn(f"length, {kind}; h0 is the embedding’s"))
    for token in range(n):
        points = [axes.at(layer, max(norms[layer][token], low)) for layer in range(last + 1)]
        stroke = path(*points, class_="series", style=f"stroke:{_colour(token, n)}")
        parts.append(element("g", stroke, path(*points, class_="hit"), class_="track", data_token=token))
    ends = [axes.at(last, max(value, low)) for value in norms[-1]]
    parts += _end_labels(labels, ends, axes.at(0, scale.high)[1], axes.at(0, scale.low)[1])
    description = (
        f"Length of the state of each of {n} tokens after the embedding and each of {last} blocks: from "
        f"{low:.3g} to {high:.3g}. The table below has all values."
    )
    size = axes.size[0] + 92, axes.size[1]
    return drawing("norms", "Length of the hidden state through the layers", description, size, *parts)


def _colour(token: int, n: int) -> str:
    """From blue for the first token to rose for the last, readable on light and dark."""
    return f"hsl({210 + 130 * token / max(1, n - 1):.0f} 62% 55%)"


def _end_labels(labels: Sequence[str], ends: Sequence[Point], top: float, bottom: float) -> Iterator[Markup]:
    """Names at the ends of lines, moved apart; only some of them where there are many."""
    n, space = len(labels), 14.0
    fit = int((bottom - top) // space)
    chosen = range(n) if n <= fit else sorted({round(index * (n - 1) / (fit - 1)) for index in range(fit)})
    order = sorted(chosen, key=lambda token: ends[token][1])
    places: list[float] = []
    for token in order:
        places.append(max(ends[token][1], places[-1] + space if places else top))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], places[index + 1] - space if index + 1 < len(places) else bottom)
    for token, place in zip(order, places, strict=True):
        x, y = ends[token]
        yield path((x + 2, y), (x + 16, place), class_="leader", style=f"stroke:{_colour(token, n)}")
        yield label(x + 20, place + 4, f"{token} {short(labels[token])}", "token")


# ---- projections


def scatter(
    name: str, title: str, labels: Sequence[str], points: Sequence[Point], shares: tuple[float, float]
) -> Markup:
    """Projected vectors, joined in token order; tokens at one place share a dot."""
    width, height, pad = 450.0, 360.0, 44.0
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = [max(point[axis] for point in points) - low[axis] for axis in (0, 1)]
    scale = min((width - 2 * pad - 30) / (span[0] or 1), (height - 2 * pad) / (span[1] or 1))
    offset = [(width - 30 - span[0] * scale) / 2, (height - span[1] * scale) / 2]
    at = [(offset[0] + (x - low[0]) * scale, height - offset[1] - (y - low[1]) * scale) for x, y in points]
    spots: dict[tuple[int, int], list[int]] = {}
    for index, (x, y) in enumerate(at):
        spots.setdefault((round(x), round(y)), []).append(index)
    parts = [path((pad / 2, 14), (pad / 2, height - 16), (width - pad / 2, height - 16), class_="axis"), *_way(at)]
    taken = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y in spots]
    words, segments = [], list(_beside(at)) if len(at) <= 24 else []
    names = [_spot_name(labels, indices) for indices in spots.values()]
    for (x, y), indices, text in zip(spots, spots.values(), names, strict=True):
        parts.append(element("circle", cx=float(x), cy=float(y), r=5 if len(indices) > 1 else 4, class_="dot"))
        size, room = _LETTER * len(text) + 4, (width, height - 20)
        found = _free_spot(x, y, size, [*taken, *segments], room) or _free_spot(x, y, size, taken, room)
        if found is not None:
            taken.append(found)
            words.append(label(found[0] + 2, found[3] - 4, text, "token halo"))
    across, up = (f"direction {axis + 1} · {shares[axis]:.0%}" for axis in (0, 1))
    parts += [*words, label(width - pad / 2, height - 2, f"{across} of the variance →", text_anchor="end")]
    turn = f"rotate(-90 {pad / 2 - 6:g} 14)"
    parts.append(label(pad / 2 - 6, 14, f"{up} →", text_anchor="end", transform=turn))
    places = f"{len(spots)} places in the plane of the two main directions, joined in token order"
    return drawing(name, title, f"{places}: {', '.join(names)}.", (width, height), *parts)


def _spot_name(labels: Sequence[str], indices: Sequence[int]) -> str:
    places = ",".join(map(str, indices[:3])) + ("…" if len(indices) > 3 else "")
    same = {labels[index] for index in indices}
    return f"{short(labels[indices[0]])}{'+' if len(same) > 1 else ''} {places}"


def _way(at: Sequence[Point]) -> Iterator[Markup]:
    """Segments from token to token; the later, the stronger, each with a small head half-way."""
    last = max(1, len(at) - 2)
    for index, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(at)):
        if math.hypot(to_x - x, to_y - y) < 12:
            continue
        opacity, angle = 0.25 + 0.6 * index / last, math.degrees(math.atan2(to_y - y, to_x - x))
        yield path((x, y), (to_x, to_y), class_="way", opacity=opacity)
        middle = f"translate({x + 0.55 * (to_x - x):.2f} {y + 0.55 * (to_y - y):.2f}) rotate({angle:.2f})"
        yield element("path", d="M3 0L-4 -3.2V3.2Z", class_="way-tip", transform=middle, opacity=opacity)


def _beside(at: Sequence[Point]) -> Iterator[Rectangle]:
    """Small squares along the line, which labels keep clear of."""
    for (x, y), (to_x, to_y) in itertools.pairwise(at):
        steps = max(1, int(math.hypot(to_x - x, to_y - y) / 5))
        for step in range(steps):
            px, py = x + (to_x - x) * step / steps, y + (to_y - y) * step / steps
            yield px - 1, py - 1, px + 1, py + 1


def _free_spot(x: float, y: float, width: float, taken: Sequence[Rectangle], room: Point) -> Rectangle | None:
    """A place for a label beside a dot that covers nothing; None if there is none near."""
    for distance in (8, 16, 26):
        for dx, dy in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1)):
            left = x + dx * distance - (width if dx < 0 else width / 2 if dx == 0 else 0)
            top = y + dy * distance - (15 if dy < 0 else 7.5 if dy == 0 else 0)
            box = (left, top, left + width, top + 15)
            if left < 24 or top < 2 or box[2] > room[0] or box[3] > room[1]:
                continue
            if not any(box[0] < r[2] and box[2] > r[0] and box[1] < r[3] and box[3] > r[1] for r in taken):
                return box
    return None
