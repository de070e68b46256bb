"""Line charts over steps and histograms of stacked bars, drawn by `charts.html`.

Coordinates lie on a square of `SIDE` units, which the style sheet stretches. Long series are thinned to the first,
lowest, highest and last value of about every pixel, so that a spike of a single step stays visible.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Literal, NamedTuple

from markupsafe import Markup

from tasks.report.page import macro
from tasks.report.wording import amount, counted, number

Size = Literal["", "tall", "wide"]  # in a grid of charts, taller, or as wide as the page
_INTERVALS = {"": (4, 4), "tall": (4, 7), "wide": (12, 9)}  # most intervals between ticks, x and y
SIDE = 1000.0
_STYLES = 6  # line styles in the style sheet; further series repeat them
_STRIPES = 100  # vertical stripes with one tooltip each
_DOTS = 40  # series of at most so many values have a dot at each
_HUGE = 1e150  # larger values are not drawn: their differences overflow
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)

Point = tuple[float, float]  # (step, value) or (x, y) on the square; NaN as value is a gap


class Scale(NamedTuple):
    """One axis.

    Attributes:
        low, high: its ends, `low` < `high`.
        ticks: ascending, within its ends; at least one.
    """

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value between the ends, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def scale_of(
    values: Sequence[float], intervals: int, log: bool = False, tight: bool = False, whole: bool = False
) -> Scale:
    """Return a scale over all values, with round numbers as ticks.

    Args:
        values: finite, at least one; above zero for a logarithmic scale.
        intervals: most intervals between ticks.
        tight: ends at the outermost values, not at ticks.
        whole: ticks are whole numbers.
    """
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)) or high - low < sys.float_info.min:
        room = 1.0 if whole and not log else 0.1 * abs(low) or 1.0
        low, high = (low - room, high + room) if low or whole else (0.0, room)
    ticks = _powers(low, high, intervals) if log else []
    if len(ticks) < 2:
        step = _round_step(high - low, intervals)
        step = max(1.0, math.ceil(step)) if whole else step
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [float(f"{step * place:.12g}") for place in range(first, last + 1)]
        ticks = [tick for tick in ticks if tick > 0] if log else ticks
    if tight:
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) or low <= tick <= high]
        return Scale(low, high, ticks or [low, high], log)
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks, log)


def _powers(low: float, high: float, intervals: int) -> list[float]:
    """Return powers of ten around the ends, or 1, 2 and 5 times these if there are few; empty for fewer than three."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first > 2:
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first) / intervals))]
    found = [float(f"{part}e{power}") for power in range(first, last + 1) for part in (1, 2, 5)]
    found = [tick for tick in found if low <= tick <= high]
    return found if len(found) > 2 else []


def _round_step(span: float, intervals: int) -> float:
    power = 10.0 ** math.floor(math.log10(span / intervals))
    return next(power * part for part in _ROUND if power * part * intervals >= span * (1 - 1e-9))


class Axes(NamedTuple):
    """The scales of a chart."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> Point:
        """Return the coordinates of a point on the square, from its upper left corner."""
        return SIDE * self.x.share(x), SIDE * (1 - self.y.share(y))

    @property
    def ticks(self) -> list[list[Point | tuple[float, str]]]:
        """Positions and labels of the ticks of both axes."""
        across = [(self.at(tick, self.y.high)[0], amount(tick, 7)) for tick in self.x.ticks]
        return [list(across), [(self.at(self.x.low, tick)[1], amount(tick, 7)) for tick in self.y.ticks]]


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        steps: x coordinates, ascending.
        values: y coordinates, as many; one that is not finite is a gap.
        pale: True to draw it faintly in the colour of the next series, such as raw values behind their mean.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    pale: bool = False

    @cached_property
    def points(self) -> list[Point]:
        """Steps and values; NaN for a value that cannot be drawn."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value if -_HUGE <= value <= _HUGE else math.nan) for step, value in pairs]


class Mark(NamedTuple):
    """A step with an event, and its tooltip, such as "loss spike"."""

    step: float
    words: str


def line_figure(
    name: str,
    title: str,
    note: str,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    *,
    over: str = "step",
    size: Size = "",
) -> Markup:
    """Return a line chart with its title, and a legend for more than one line.

    Args:
        name: id, unique in the page.
        note: unit and meaning of the values.
        over: unit of the steps.
    """
    before = accumulate((not one.pale for one in series), initial=0)
    classes = [
        f"line-{place % _STYLES}{' pale' if one.pale else ''}" for place, one in zip(before, series, strict=False)
    ]
    points = [point for one in series for point in _seen(one.points)]
    legend = [(one.name, class_) for one, class_ in zip(series, classes, strict=True) if len(one.values)]
    legend, words = legend if len(series) > 1 else [], _described(note, series)
    if not points:
        return macro("charts.html", "figure", name, title, note, words, legend=legend)
    across, up = _INTERVALS[size]
    whole = all(float(step).is_integer() for step, _ in points)
    x = scale_of([step for step, _ in points], across, tight=True, whole=whole)
    axes = Axes(x, scale_of([value for _, value in points], up))
    lines: list[tuple[str, str]] = []
    for one, class_ in zip(series, classes, strict=True):
        lines += _line([axes.at(*point) for point in one.points], class_, 2 if size == "wide" else 5)
    return macro("charts.html", "figure", name, title, note, words, axes.ticks, over, legend, size, lines,
                 list(_stripes(over, series, axes)), list(_marks(marks, axes)))  # fmt: skip


def line_picture(title: str, note: str, series: Sequence[Series], over: str = "step") -> Markup:
    """Return a line chart as an SVG document; arguments as for `line_figure`, with at least one value."""
    points = [point for one in series for point in _seen(one.points)]
    across, up = _INTERVALS["wide"]
    x = scale_of([step for step, _ in points], across, tight=True)
    axes = Axes(x, scale_of([value for _, value in points], up))
    tones = [place for place, one in enumerate(series) if not one.pale]
    lines, legend = [], []
    for place, one in enumerate(series):
        tone = next(rank for rank, shown in enumerate(tones) if shown >= place)
        drawn = _line([axes.at(*point) for point in one.points], "", 2)
        lines += [(path, tone, one.pale) for path, _ in drawn]
        legend += [(one.name, tone)] if place == tones[tone] else []
    return macro("charts.html", "picture", title, note, axes.ticks, over, legend if len(legend) > 1 else [], lines)


def _step(step: float) -> str:
    return f"{step:,.0f}" if float(step).is_integer() else number(step)


def _seen(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if not math.isnan(point[1])]


def _line(points: Sequence[Point], class_: str, bucket: float) -> Iterator[tuple[str, str]]:
    """Yield the paths of a line with their classes; it is broken at gaps, and a value between two gaps is a dot."""
    dotted = len(points) <= _DOTS
    for is_gap, run in groupby(_thinned(points, bucket), key=lambda at: math.isnan(at[1])):
        at = [] if is_gap else [f"{x:.1f} {y:.1f}" for x, y in run]
        if len(at) > 1:
            yield f"M{'L'.join(at)}", f"line {class_}"
        if dotted or len(at) == 1:
            yield from ((f"M{place}h0", f"knot {class_}") for place in at)


def _thinned(points: Sequence[Point], bucket: float) -> Iterator[Point]:
    """Keep the first, lowest, highest and last point of each bucket of x; a gap only if all its points are gaps."""
    for _, group in groupby(points, key=lambda at: int(at[0] / bucket)):
        near = list(group)
        inside = _seen(near) or near[:1]
        ends = {pick(range(len(inside)), key=lambda place: inside[place][1]) for pick in (min, max)}
        yield from (inside[place] for place in sorted(ends | {0, len(inside) - 1}))


def _stripes(over: str, series: Sequence[Series], axes: Axes) -> Iterator[tuple[float, float, str]]:
    """Yield left edge, width and tooltip of vertical stripes, with the last value of each line in them."""
    found: dict[int, dict[int, Point]] = {}
    for place, one in enumerate(series):
        for step, value in _seen(one.points):
            found.setdefault(min(_STRIPES - 1, int(axes.x.share(step) * _STRIPES)), {})[place] = (step, value)
    for stripe, values in sorted(found.items()):
        said = (
            f"{series[place].name} {number(value)} at {over} {_step(step)}"
            for place, (step, value) in sorted(values.items())
        )
        yield SIDE * stripe / _STRIPES, SIDE / _STRIPES, "; ".join(said)


def _marks(marks: Sequence[Mark], axes: Axes) -> Iterator[tuple[float, str]]:
    """Yield position and tooltip of vertical lines; marks in the same stripe are merged."""
    inside = sorted(mark for mark in marks if axes.x.low <= mark.step <= axes.x.high)
    for _, group in groupby(inside, key=lambda mark: int(axes.x.share(mark.step) * _STRIPES)):
        first, *others = group
        words = f"{first.words}, at {first.step:,.0f}"
        words += f", and {counted(len(others), 'more mark')} up to {others[-1].step:,.0f}" if others else ""
        yield SIDE * axes.x.share(first.step), words


def _described(note: str, series: Sequence[Series]) -> str:
    """Return a text alternative of all lines, for screen readers."""
    sentences = []
    for one in series:
        seen, words = _seen(one.points), []
        if seen:
            low, high = min(seen, key=lambda point: point[1]), max(seen, key=lambda point: point[1])
            at = [f"{number(value)} at {_step(step)}" for step, value in (seen[0], seen[-1], low, high)]
            words.append(f"{counted(len(seen), 'value')}, first {at[0]}, last {at[1]}, lowest {at[2]}, highest {at[3]}")
        if len(seen) < len(one.points):
            words.append(f"{counted(len(one.points) - len(seen), 'value')} not finite")
        if words:
            sentences.append(f"{one.name}: {', '.join(words)}")
    return ". ".join([*(sentences or ["No value was recorded"]), *filter(None, [note])]) + "."


class Layer(NamedTuple):
    """One of the layers that bars are stacked from.

    Attributes:
        name: name of the counted items, after the number.
        tone: class of its colour, such as `tone-ink`.
        counts: in each bin.
    """

    name: str
    tone: str
    counts: Sequence[float]


def bar_figure(
    name: str,
    title: str,
    note: str,
    edges: Sequence[float],
    layers: Sequence[Layer],
    log: bool = False,
    median: float | None = None,
) -> Markup:
    """Return a histogram of stacked bars with its title; a bin with a count is never invisible.

    Args:
        name: id, unique in the page.
        edges: of the bins, one more than there are bins.
        layers: from the lowest to the highest.
        log: True if the bins grow by a factor.
        median: median of all values; None to leave it out.
    """
    heights = [sum(counts) for counts in zip(*(layer.counts for layer in layers), strict=True)]
    if not any(heights):
        return macro("charts.html", "figure", name, title, note, "No value was recorded.")
    axes = Axes(scale_of([edges[0], edges[-1]], 6, log=log, tight=True), scale_of([0.0, max(heights)], 4, whole=True))
    bins, spans = [], [f"{amount(low)} and {amount(high)}" for low, high in pairwise(edges)]
    for place, height in enumerate(heights):
        counts = [(layer.counts[place], layer) for layer in layers]
        said = f"between {spans[place]}: " + ", ".join(f"{count:,} {layer.name}" for count, layer in counts)
        left, right = (SIDE * axes.x.share(edge) for edge in edges[place : place + 2])
        if height:
            bins.append((left, right - left, said, [(SIDE * axes.y.share(n), layer.tone) for n, layer in counts if n]))
    words = f"{sum(heights):,} values; the fullest bin is between {spans[heights.index(max(heights))]}. {note}."
    shown = "" if median is None else f"median {amount(median)}"
    return macro("charts.html", "figure", name, title, note, words, axes.ticks, bins=bins, median=shown)
