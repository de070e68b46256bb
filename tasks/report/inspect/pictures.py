"""Pictures of an inspection as SVG: projections of vectors, and lengths of states through the layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from tasks.report.charts import Axes, Point, Scale, drawing, element, label, path, scale_of
from tasks.report.wording import cut, number

_LETTER = 7.3  # width of a letter of a token's label, in pixels

Rectangle = tuple[float, float, float, float]


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
        yield label(x + 20, place + 4, f"{token} {cut(labels[token], 9)}", "token")


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
    words = []
    names = [_spot_name(labels, indices) for indices in spots.values()]
    for (x, y), indices, text in zip(spots, spots.values(), names, strict=True):
        parts.append(element("circle", cx=float(x), cy=float(y), r=5 if len(indices) > 1 else 4, class_="dot"))
        size, room = _LETTER * len(text) + 4, (width, height - 20)
        found = _free_spot(x, y, size, taken, room)
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
    return f"{cut(labels[indices[0]], 9)}{'+' if len(same) > 1 else ''} {places}"


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
