"""Pictures of an inspection: projections of vectors, and lengths of states through the layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from tasks.report.charts import SIDE, Axes, Point, Scale, scale_of
from tasks.report.page import macro
from tasks.report.wording import cut, number

_LETTER = 7.3  # width of a letter of a token's label, in pixels
_ROOM = 54.0  # of a label at the end of a line, on the square of the chart

Rectangle = tuple[float, float, float, float]


def norms_chart(labels: Sequence[str], norms: Sequence[Sequence[float]]) -> Markup:
    """Return the length of the state through the layers as a chart of one line per token.

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
    axes = Axes(layers, scale, lambda layer: f"h{layer}", lambda tick: f"{tick:.3g}")
    kind = "logarithmic scale" if log else "from zero" if not scale.low else f"from {number(scale.low)}"
    # from blue for the first token to rose for the last, readable on light and dark
    colours = [f"hsl({210 + 130 * token / max(1, n - 1):.0f} 62% 55%)" for token in range(n)]
    tracks = []
    for token in range(n):
        points = (axes.at(layer, max(norms[layer][token], low)) for layer in range(last + 1))
        tracks.append(("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), colours[token]))
    ends = [axes.at(last, max(value, low))[1] for value in norms[-1]]
    named = [(place, f"{token} {cut(labels[token], 9)}", colours[token]) for token, place in _moved_apart(ends)]
    words = (
        f"Length of the state of each of {n} tokens after the embedding and each of {last} blocks: from {low:.3g} to "
        f"{high:.3g}. The table below has all values."
    )
    return macro("pictures.html", "norms", words, axes.ticks, f"length, {kind}; h0 is the embedding’s", tracks, named)


def _moved_apart(ends: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Lines and places of the labels at their ends; only some of them where there are many."""
    n, fit = len(ends), int(SIDE // _ROOM)
    chosen = range(n) if n <= fit else {round(index * (n - 1) / (fit - 1)) for index in range(fit)}
    order = sorted(chosen, key=lambda token: ends[token])
    places: list[float] = []
    for token in order:
        places.append(max(ends[token], places[-1] + _ROOM if places else 0.0))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], places[index + 1] - _ROOM if index + 1 < len(places) else SIDE)
    return zip(order, places, strict=True)


def scatter(
    name: str, title: str, labels: Sequence[str], points: Sequence[Point], shares: tuple[float, float]
) -> Markup:
    """Return projected vectors, joined in token order; tokens at one place share a dot."""
    width, height, pad = 450.0, 360.0, 44.0
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = [max(point[axis] for point in points) - low[axis] for axis in (0, 1)]
    scale = min((width - 2 * pad - 30) / (span[0] or 1), (height - 2 * pad) / (span[1] or 1))
    offset = [(width - 30 - span[0] * scale) / 2, (height - span[1] * scale) / 2]
    at = [(offset[0] + (x - low[0]) * scale, height - offset[1] - (y - low[1]) * scale) for x, y in points]
    spots: dict[tuple[int, int], list[int]] = {}
    for index, (x, y) in enumerate(at):
        spots.setdefault((round(x), round(y)), []).append(index)
    names = [_spot_name(labels, indices) for indices in spots.values()]
    taken, words = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y in spots], []
    for (x, y), text in zip(spots, names, strict=True):
        found = _free_spot(x, y, _LETTER * len(text) + 4, taken, (width, height - 20))
        if found is not None:
            taken.append(found)
            words.append((found[0] + 2, found[3] - 4, text))
    steps = [(one, other) for one, other in itertools.pairwise(at) if math.dist(one, other) >= 12]
    dots = [(x, y, len(indices)) for (x, y), indices in spots.items()]
    said = f"{len(spots)} places in the plane of the two main directions, joined in token order: {', '.join(names)}."
    return macro("pictures.html", "scatter", name, title, said, steps, dots, words, shares)


def _spot_name(labels: Sequence[str], indices: Sequence[int]) -> str:
    places = ",".join(map(str, indices[:3])) + ("…" if len(indices) > 3 else "")
    same = {labels[index] for index in indices}
    return f"{cut(labels[indices[0]], 9)}{'+' if len(same) > 1 else ''} {places}"


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
