"""Charts as SVG: attention maps, the mask, projections, and states through the layers.

Colours come from the page's style sheet: a value is the opacity of one ink, so that light, dark and print agree. A
script may show another head or token in the same drawing; without it the first one stands there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tasks.report.inspect.labels import short
from tasks.report.inspect.svg import Picture, element, label, line, number

# Upper ends of the value classes of an attention map.
BINS = (0.15, 0.25, 0.35, 0.48, 0.50)
_LETTER = 7.3  # width of a letter of a label, in pixels


def cell_size(n: int) -> float:
    """Side of a map's cell, so that a map of any length can be looked at."""
    return 27 if n <= 12 else 24 if n <= 20 else 15 if n <= 40 else 11 if n <= 80 else 6


def _label_step(side: float) -> int:
    """Every how many tokens a label has room."""
    return 1 if side >= 11 else next(step for step in (5, 10, 20, 50) if step * side >= 30)


def square_map(
    name: str,
    title: str,
    description: str,
    labels: Sequence[str],
    seen: Sequence[Sequence[bool]],
    values: Sequence[Sequence[float]] | None = None,
    largest: float = 27,
) -> Picture:
    """A token-by-token grid; rows look at columns.

    Args:
        seen: which cells exist; the others are drawn as forbidden.
        values: between 0 and 1, drawn as ink and, where there is room, as numbers; None draws plain cells.
        largest: side of a cell, in pixels, unless there are too many.
    """
    n, side = len(labels), min(largest, cell_size(len(labels)))
    step = _label_step(side)
    margin = 16 + _LETTER * max(len(short(text)) for text in labels)
    parts = []
    for place, text in enumerate(labels):
        if place % step:
            continue
        centre, text = margin + (place + 0.5) * side, text if step == 1 else str(place)
        kind = "token" if side >= 15 or step > 1 else "token small"
        parts.append(label(margin - 6, centre + 4, short(text), kind, text_anchor="end"))
        parts.append(_above(centre, margin - 6, text, side * step, kind))
    gap = 1.0 if side >= 11 else 0.0
    for row in range(n):
        for column in range(n):
            x, y = margin + column * side, margin + row * side
            cell = "cell" if seen[row][column] else "off"
            if cell == "off" and side < 11:
                continue
            size, value = side - gap, 0.0 if values is None else values[row][column]
            ink = None if values is None or cell == "off" else f"fill-opacity:{math.sqrt(value):.3f}"
            corner = 2 if side >= 20 else None
            box = {"x": float(x), "y": float(y), "width": float(size), "height": float(size), "rx": corner}
            parts.append(element("rect", class_=cell, style=ink, **box))
            if values is not None and cell == "cell" and side >= 27:
                strong = "value strong" if math.sqrt(value) > 0.6 else "value"
                parts.append(label(x + size / 2, y + size / 2 + 4, f"{value:.2f}", strong, text_anchor="middle"))
    edge = margin + n * side
    parts.append(
        element("rect", class_="frame", x=margin - 1, y=margin - 1, width=edge - margin + 1, height=edge - margin + 1)
    )
    return Picture(name, title, description, edge + 4, edge + 4, "".join(parts))


def _above(x: float, y: float, text: str, room: float, kind: str = "token") -> str:
    """A token above its column: upright if it fits, else turned."""
    if _LETTER * len(text) <= room:
        return label(x, y, text, kind, text_anchor="middle")
    return label(x + 4, y, short(text), kind, transform=f"rotate(-90 {number(x + 4)} {number(y)})")


def mask_picture(labels: Sequence[str], seen: Sequence[Sequence[bool]], window: int | None) -> Picture:
    """Who may look at whom."""
    reach = f" and at most {window - 1} tokens back" if window else ""
    description = f"Each token (row) may look at itself and at earlier tokens{reach}; grey cells are not allowed."
    return square_map("mask", "Attention mask", description, labels, seen, largest=min(15, max(4, 330 // len(labels))))


def scatter(
    name: str, title: str, labels: Sequence[str], points: Sequence[tuple[float, float]], shares: tuple[float, float]
) -> Picture:
    """Projected vectors, joined in token order; tokens at one place share a dot."""
    width, height, pad = 450.0, 360.0, 44.0
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = [max(point[axis] for point in points) - low[axis] for axis in (0, 1)]
    scale = min((width - 2 * pad - 30) / (span[0] or 1), (height - 2 * pad) / (span[1] or 1))
    offset = [(width - 30 - span[0] * scale) / 2, (height - span[1] * scale) / 2]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return offset[0] + (point[0] - low[0]) * scale, height - offset[1] - (point[1] - low[1]) * scale

    spots: dict[tuple[int, int], list[int]] = {}
    at = [place(point) for point in points]
    for index, (x, y) in enumerate(at):
        spots.setdefault((round(x), round(y)), []).append(index)
    parts = [line((pad / 2, height - 16), (width - pad / 2, height - 16), class_="axis")]
    parts.append(line((pad / 2, 14), (pad / 2, height - 16), class_="axis"))
    parts += _trajectory(at)
    taken = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y in spots]
    words, segments = [], _samples(at) if len(at) <= 24 else []
    for (x, y), indices in spots.items():
        parts.append(element("circle", cx=float(x), cy=float(y), r=5 if len(indices) > 1 else 4, class_="dot"))
        text = _spot_label(labels, indices)
        size, room = _LETTER * len(text) + 4, (width, height - 20)
        found = _free_spot(x, y, size, [*taken, *segments], room) or _free_spot(x, y, size, taken, room)
        if found is not None:
            taken.append(found)
            words.append(label(found[0] + 2, found[3] - 4, text, "token halo"))
    parts += words
    parts.append(
        label(
            width - pad / 2, height - 2, f"direction 1 · {shares[0]:.0%} of the variance →", "note", text_anchor="end"
        )
    )
    turn = f"rotate(-90 {number(pad / 2 - 6)} 14)"
    parts.append(label(pad / 2 - 6, 14, f"direction 2 · {shares[1]:.0%} →", "note", text_anchor="end", transform=turn))
    tokens = ", ".join(_spot_label(labels, indices) for indices in spots.values())
    description = f"{len(spots)} places in the plane of the two main directions, joined in token order: {tokens}."
    return Picture(name, title, description, width, height, "".join(parts))


def _spot_label(labels: Sequence[str], indices: Sequence[int]) -> str:
    places = ",".join(map(str, indices[:3])) + ("…" if len(indices) > 3 else "")
    same = {labels[index] for index in indices}
    return f"{short(labels[indices[0]])}{'+' if len(same) > 1 else ''} {places}"


def _trajectory(at: Sequence[tuple[float, float]]) -> list[str]:
    """Segments from token to token; the later, the stronger, each with a small head half-way."""
    parts = []
    last = max(1, len(at) - 2)
    for index, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(at)):
        length = math.hypot(to_x - x, to_y - y)
        if length < 12:
            continue
        opacity = 0.25 + 0.6 * index / last
        angle = math.degrees(math.atan2(to_y - y, to_x - x))
        parts.append(
            element("path", d=f"M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}", class_="way", opacity=opacity)
        )
        middle = f"translate({number(x + 0.55 * (to_x - x))} {number(y + 0.55 * (to_y - y))}) rotate({number(angle)})"
        parts.append(element("path", d="M3 0L-4 -3.2V3.2Z", class_="way-tip", transform=middle, opacity=opacity))
    return parts


def _samples(at: Sequence[tuple[float, float]]) -> list[Rectangle]:
    """Small squares along the line, which labels keep clear of."""
    found = []
    for (x, y), (to_x, to_y) in itertools.pairwise(at):
        steps = max(1, int(math.hypot(to_x - x, to_y - y) / 5))
        for step in range(steps):
            px, py = x + (to_x - x) * step / steps, y + (to_y - y) * step / steps
            found.append((px - 1, py - 1, px + 1, py + 1))
    return found


Rectangle = tuple[float, float, float, float]


def _free_spot(
    x: float, y: float, width: float, taken: Sequence[Rectangle], room: tuple[float, float]
) -> Rectangle | None:
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


def norms_chart(labels: Sequence[str], norms: Sequence[Sequence[float]]) -> Picture:
    """Length of the state through the layers, one line per token.

    Args:
        norms: (L + 1) rows of T lengths.
    """
    n, last = len(labels), len(norms) - 1
    width, height, left, right, top, bottom = 260.0 + 40 * min(max(last, 4), 11), 330.0, 46.0, 110.0, 14.0, 40.0
    every = [value for row in norms for value in row]
    high, low = max(every) or 1.0, max(min(every), 1e-9)
    logarithmic = high / low > 20
    base = 0.0 if logarithmic or low < 0.5 * high else low - 0.15 * (high - low)
    if base and high - base < 0.02 * high:
        base = 0.9 * high  # nearly equal lengths are not blown up

    def y_of(value: float) -> float:
        if logarithmic:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - base) / (high - base)
        return height - bottom - share * (height - top - bottom)

    def x_of(layer: int) -> float:
        return left + layer / last * (width - left - right)

    parts = []
    for tick in _ticks(low if logarithmic else base, high, logarithmic):
        parts.append(line((left, y_of(tick)), (width - right, y_of(tick)), class_="grid"))
        parts.append(label(left - 8, y_of(tick) + 4, f"{tick:.3g}", "note", text_anchor="end"))
    parts += [
        label(x_of(layer), height - bottom + 18, f"h{layer}", "note", text_anchor="middle")
        for layer in range(0, last + 1, max(1, math.ceil(last / 14)))
    ]
    for token in range(n):
        points = [(x_of(layer), y_of(norms[layer][token])) for layer in range(last + 1)]
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        hover = element("path", d=path, class_="hit")
        stroke = element("path", d=path, class_="series", style=f"stroke:{token_colour(token, n)}")
        parts.append(element("g", stroke + hover, class_="track", data_token=token))
    parts += _end_labels(labels, [y_of(value) for value in norms[-1]], width - right, (top, height - bottom))
    scale = "logarithmic scale" if logarithmic else f"from {base:.3g}" if base else "from zero"
    parts.append(label(left, height - 4, f"length, {scale}; h0 is the embedding’s", "note"))
    description = (
        f"Length of the state of each of {n} tokens after the embedding and each of {last} blocks: from "
        f"{low:.3g} to {high:.3g}. The table below has all values."
    )
    return Picture("norms", "Length of the hidden state through the layers", description, width, height, "".join(parts))


def token_colour(token: int, n: int) -> str:
    """From blue for the first token to rose for the last, readable on light and dark."""
    return f"hsl({210 + 130 * token / max(1, n - 1):.0f} 62% 55%)"


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        parts = (1,) if len(powers) > 4 else (1, 2, 5)
        return [part * 10.0**power for power in powers for part in parts if low <= part * 10.0**power <= high]
    power = 10 ** math.floor(math.log10(high - low))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1.0, 2.0) if (high - low) / (power * part) <= 6)
    return [step * index for index in range(math.ceil(low / step), int(high / step) + 1)]


def _end_labels(labels: Sequence[str], ends: Sequence[float], x: float, room: tuple[float, float]) -> list[str]:
    """Names at the ends of lines, moved apart; only some of them where there are many."""
    n, space = len(labels), 14.0
    fit = int((room[1] - room[0]) // space)
    chosen = list(range(n)) if n <= fit else sorted({round(index * (n - 1) / (fit - 1)) for index in range(fit)})
    order = sorted(chosen, key=lambda token: ends[token])
    places: list[float] = []
    for token in order:
        places.append(max(ends[token], places[-1] + space if places else room[0]))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], places[index + 1] - space if index + 1 < len(places) else room[1])
    parts = []
    for token, y in zip(order, places, strict=True):
        colour = f"stroke:{token_colour(token, n)}"
        parts.append(
            element(
                "path",
                d=f"M{number(x + 2)} {number(ends[token])}L{number(x + 16)} {number(y)}",
                class_="leader",
                style=colour,
            )
        )
        parts.append(label(x + 20, y + 4, f"{token} {short(labels[token])}", "token"))
    return parts


def dimension_map(states: Sequence[Sequence[float]]) -> Picture:
    """Values of one token's state: columns are dimensions, rows go through the layers."""
    n_states, n_columns = len(states), len(states[0])
    largest = max(abs(value) for row in states for value in row) or 1.0
    side, left, top = 18.0, 34.0, 20.0
    parts = []
    for state in range(n_states):
        parts.append(label(left - 6, top + state * side + 13, f"h{state}", "note", text_anchor="end"))
        for column in range(n_columns):
            box = {"x": left + column * side, "y": top + state * side, "width": side - 1, "height": side - 1}
            value = states[state][column]
            ink = f"fill-opacity:{abs(value) / largest:.3f}"
            parts.append(element("rect", class_="signed minus" if value < 0 else "signed", style=ink, **box))
    parts += [
        label(left + (column + 0.5) * side, top - 6, str(column), "note", text_anchor="middle")
        for column in range(0, n_columns, 4)
    ]
    description = (
        f"Rows are the states h0 to h{n_states - 1}, columns the first {n_columns} dimensions of the chosen token; one "
        f"colour for positive values, another for negative ones. The table below has the first four."
    )
    size = (left + n_columns * side + 4, top + n_states * side + 4)
    return Picture("dimensions", "Hidden-state values through the layers", description, *size, "".join(parts))


def increment_map(labels: Sequence[str], norms: Sequence[Sequence[float]]) -> Picture:
    """How much each block adds to each token's state.

    Args:
        norms: (L) rows of T lengths of block_l(x) - x.
    """
    n, side = len(labels), 40.0 if len(labels) <= 16 else 22.0
    margin = 16 + _LETTER * max(len(short(text)) for text in labels)
    left, high = 66.0, max(max(row) for row in norms) or 1.0
    parts = []
    for place, text in enumerate(labels):
        centre = left + (place + 0.5) * side
        parts.append(_above(centre, margin - 6, text, side))
    for row, values in enumerate(norms):
        y = margin + row * 26
        parts.append(label(left - 8, y + 17, f"block {row + 1}", "note", text_anchor="end"))
        for place, value in enumerate(values):
            box = {"x": left + place * side, "y": float(y), "width": side - 2, "height": 24.0, "rx": 3}
            tip = element("title", f"block {row + 1}, token {place}: {value:.3g}")
            parts.append(element("rect", tip, class_="ink", fill_opacity=round(0.05 + 0.95 * value / high, 3), **box))
            if side >= 40:
                dark = " strong" if value / high > 0.55 else ""
                written, middle = f"{value:#.3g}".rstrip("."), left + (place + 0.5) * side - 1
                parts.append(label(middle, y + 16, written, f"value{dark}", text_anchor="middle"))
    description = f"Length of what each of {len(norms)} blocks adds to each of {n} tokens' states, at most {high:.3g}."
    size = (left + n * side + 4, margin + 26 * len(norms) + 4)
    return Picture("increments", "What each block adds", description, *size, "".join(parts))
