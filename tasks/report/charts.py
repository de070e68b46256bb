"""Charts as SVG: lines over steps and stacked bars over bins, on axes with one choice of ticks.

Colours are classes of the style sheet, so that light, dark and print agree; a title under the pointer holds the
numbers, and the description says the same in words. A series of any length is drawn in a bounded number of points that
keep the lowest and the highest value of every pixel or so: a spike of a single step is seen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

from markupsafe import Markup

from tasks.report.wording import amount, counted, number, shown

NARROW, HEIGHT = 304.0, 112.0  # of a chart among others, and of every chart on a telephone
WIDE, TALL = 960.0, 260.0  # of a chart that stands alone
LETTER = 6.6  # width of a digit, in pixels
_TOP, _RIGHT, _BOTTOM = 16.0, 18.0, 36.0
_STYLES = 6  # of lines in the style sheet; more series take them again
_BUCKET = 1.5  # pixels that four points of a series may share
_COLUMN = 6.0  # pixels under which a pointer finds one set of numbers
_MARK = 3.0  # pixels that marks share
_DOTS = 40  # values up to which each has a dot
_HUGE, _TINY = 1e150, 1e-150  # beyond them differences and quotients lose their meaning
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))

Point = tuple[float, float]  # of step and value, or in pixels; a gap has nan as value


# ---- elements


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element; content and attributes are escaped, a trailing underscore in the names of attributes is dropped."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_coordinate(value) if isinstance(value, float) else shown(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{''.join(map(shown, content))}</{tag}>")


def _coordinate(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def label(x: float, y: float, text: object, class_: str = "note", **attributes: object) -> Markup:
    """A line of text."""
    return element("text", text, x=float(x), y=float(y), class_=class_ or None, **attributes)


def path(*points: Point, class_: str, **attributes: object) -> Markup:
    """Straight lines through points."""
    way = "L".join(f"{_coordinate(x)} {_coordinate(y)}" for x, y in points)
    return element("path", d=f"M{way}", class_=class_, **attributes)


def drawing(name: str, title: str, description: str, size: Point, *content: object) -> Markup:
    """A drawing that keeps its size and is scrolled where the page is narrower.

    Args:
        name: an id that no other drawing of the page has.
        description: what it shows, for those who do not see it.
        size: width and height.
    """
    words = element("title", title, id=f"{name}-title"), element("desc", description, id=f"{name}-desc")
    width, height = map(_coordinate, size)
    named = {"role": "img", "aria_labelledby": f"{name}-title {name}-desc"}
    box = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    inside = element("svg", *words, *content, id=name, **box, **named)
    return element("div", inside, class_="scroll", tabindex="0", role="group", aria_label=title)


# ---- axes


class Scale(NamedTuple):
    """One axis.

    Attributes:
        low, high: its ends, below each other.
        ticks: ascending, within its ends; at least one.
    """

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def scale_of(
    values: Sequence[float], intervals: int, log: bool = False, tight: bool = False, whole: bool = False
) -> Scale:
    """A scale that holds all values, with round numbers as ticks.

    Args:
        values: finite, at least one; above zero for a logarithmic scale.
        intervals: how many intervals between ticks there is room for.
        tight: ends at the outermost values, not at ticks.
        whole: ticks are whole numbers.
    """
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)) or high - low < sys.float_info.min:
        room = 1.0 if whole else 0.1 * abs(low) or 1.0
        low, high = (low - room, high + room) if low or whole else (0.0, room)
    ticks = _powers(low, high, max(1, intervals)) if log else []
    if len(ticks) < 2:
        step = _round_step(high - low, max(1, intervals))
        step = max(1.0, math.ceil(step)) if whole else step
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [float(f"{step * place:.12g}") for place in range(first, last + 1)]
        ticks = [tick for tick in ticks if tick > 0] if log else ticks
    if tight:
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) or low <= tick <= high]
        return Scale(low, high, ticks or [low, high], log)
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks, log)


def _powers(low: float, high: float, intervals: int) -> list[float]:
    """Powers of ten around the ends, or some numbers within them where there are few powers."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first > 2:
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first) / intervals))]
    found = [float(f"{part}e{power}") for power in range(first, last + 1) for part in (1, 2, 5)]
    found = [tick for tick in found if low <= tick <= high]
    return found if len(found) > 2 else []


def _round_step(span: float, intervals: int) -> float:
    power = 10.0 ** math.floor(math.log10(span / intervals))
    return next(power * part for part in _ROUND if power * part * intervals >= span * (1 - 1e-9))


@dataclass(frozen=True)
class Axes:
    """Two scales in a drawing; `x` has numbers below, `y` to the left of the plot of `width` by `height`."""

    x: Scale
    y: Scale
    width: float
    height: float
    show_x: Callable[[float], str] = number
    show_y: Callable[[float], str] = number

    @property
    def left(self) -> float:
        return 12 + LETTER * max(len(self.show_y(tick)) for tick in self.y.ticks)

    @property
    def size(self) -> Point:
        """Width and height with the numbers around the plot."""
        return self.left + self.width + _RIGHT, _TOP + self.height + _BOTTOM

    def at(self, x: float, y: float) -> Point:
        """Where a point stands."""
        return self.left + self.width * self.x.share(x), _TOP + self.height * (1 - self.y.share(y))

    def drawn(self, words: str) -> Iterator[Markup]:
        """Grid, ticks, numbers, and what the lower axis counts."""
        right, bottom = self.left + self.width, _TOP + self.height
        for tick in self.y.ticks:
            _, y = self.at(self.x.low, tick)
            yield path((self.left, y), (right, y), class_="grid")
            yield label(self.left - 7, y + 4, self.show_y(tick), text_anchor="end")
        yield path((self.left, bottom), (right, bottom), class_="axis")
        free = -math.inf
        for tick in self.x.ticks:
            x, _ = self.at(tick, self.y.low)
            yield path((x, bottom), (x, bottom + 4), class_="axis")
            half = LETTER * len(self.show_x(tick)) / 2
            if x - half > free:
                # the last number may reach beyond the plot, but not beyond the drawing
                yield label(min(x, right + _RIGHT - half), bottom + 16, self.show_x(tick), text_anchor="middle")
                free = x + half + 6
        yield label(self.left, bottom + 31, words)

    def target(self, x: float, width: float, words: str, *content: object) -> Markup:
        """An upright stripe under which a pointer finds words."""
        area = element("rect", x=x, y=_TOP, width=width, height=self.height, class_="target")
        return element("g", element("title", words), area, *content)


# ---- lines


class Series(NamedTuple):
    """One line.

    Attributes:
        steps: where its values stand, ascending.
        values: as many; one that is not finite, or not above zero on a logarithmic axis, is a gap.
        pale: whether it stands back, in the colour of the series after it: raw values behind their mean.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    pale: bool = False


class Mark(NamedTuple):
    """A step at which something happened, with words for the pointer such as "loss spike"."""

    step: float
    words: str


@dataclass(frozen=True)
class LinePlot:
    """A line chart.

    Attributes:
        name: an id that no other drawing of the page has.
        note: what the values are.
        log: whether the axis of the values is logarithmic.
        over: what the steps count.
        names: of steps that are categories, in their order from 0; without them steps are numbers.
        width, height: in pixels; a `WIDE` one is drawn narrow as well, for small screens.
    """

    name: str
    title: str
    note: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    log: bool = False
    over: str = "step"
    names: Sequence[str] = ()
    width: float = NARROW
    height: float = HEIGHT


def smooth(series: Series, name: str, reach: int) -> Series:
    """The exponential moving average of a series, unbiased; gaps are passed over.

    Args:
        reach: how many values it looks back, roughly.
    """
    keep, mean, weight, values = 1 - 2 / (max(1, reach) + 1), 0.0, 0.0, []
    for value in series.values:
        if math.isfinite(value):
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        values.append(mean / weight if weight else math.nan)
    return Series(name, series.steps, values)


def line_figure(plot: LinePlot) -> Markup:
    """The chart under its title, with a legend where there is more than one series."""
    classes = _line_classes(plot.series)
    keys = [
        (element("svg", path((0, 5), (24, 5), class_=f"line {class_}"), width=24, height=10, aria_hidden="true"), one)
        for one, class_ in zip(plot.series, classes, strict=True)
        if len(one.values)
    ]
    legend = [element("span", sample, one.name) for sample, one in keys] if len(plot.series) > 1 else []
    if plot.width <= NARROW:
        return _figure(plot.title, plot.note, legend, line_chart(plot))
    small = replace(plot, name=f"{plot.name}-narrow", width=NARROW, height=min(plot.height, 1.4 * HEIGHT))
    both = element("div", line_chart(plot), class_="if-wide"), element("div", line_chart(small), class_="if-narrow")
    return _figure(plot.title, plot.note, legend, *both)


def _figure(title: str, note: str, legend: Sequence[Markup], *content: Markup) -> Markup:
    head = [element("h3", title), *([element("p", note, class_="why")] if note else [])]
    return element("figure", *head, *([element("p", *legend, class_="legend")] if legend else []), *content)


def line_chart(plot: LinePlot) -> Markup:
    """The lines of a plot between their axes."""
    series = [_drawable(one, plot.log) for one in plot.series]
    points = [point for one in series for point in _seen(one)]
    if not points:
        odd = any(len(one.values) for one in plot.series)
        words = "No value of it can be drawn." if odd else "There is no value of it."
        return drawing(plot.name, plot.title, words, (plot.width + _RIGHT, 40.0), label(0, 24, words))
    values = scale_of([value for _, value in points], round(plot.height / 28), log=plot.log)
    left = 12 + LETTER * max(len(number(tick)) for tick in values.ticks)
    width = plot.width - left - _RIGHT
    if plot.names:
        steps, show = Scale(-0.5, len(plot.names) - 0.5, range(len(plot.names))), lambda step: plot.names[int(step)]
    else:
        steps, show = scale_of([step for step, _ in points], round(width / 64), tight=True, whole=True), _round_number
    axes = Axes(steps, values, width, plot.height, show)
    placed = [[axes.at(*point) for point in one] for one in series]
    scale = " · values on a logarithmic scale" if plot.log else ""
    body = [*axes.drawn(f"{plot.over}{scale}"), *_marks(plot.marks, axes), *_targets(plot, series, placed, axes)]
    for one, class_ in zip(placed, _line_classes(plot.series), strict=True):
        body += _line(one, class_)
    return drawing(plot.name, plot.title, _described(plot, series), axes.size, *body)


def _round_number(step: float) -> str:
    """A round number of steps, in full below ten thousand."""
    unit, letter = next((unit for unit in _STEPS if step >= 10_000 and step >= unit[0]), (1.0, ""))
    return f"{step / unit:,.7g}{letter}"


def _step(plot: LinePlot, step: float) -> str:
    if plot.names:
        return plot.names[int(step)]
    return f"{step:,.0f}" if float(step).is_integer() else number(step)


def _line_classes(series: Sequence[Series]) -> list[str]:
    before = accumulate((not one.pale for one in series), initial=0)
    return [f"line-{place % _STYLES}{' pale' if one.pale else ''}" for place, one in zip(before, series, strict=False)]


def _drawable(series: Series, log: bool) -> list[Point]:
    """The points of a series; a value that cannot be drawn is nan."""
    lowest = _TINY if log else -_HUGE
    return [
        (step, value if lowest <= value <= _HUGE else math.nan)  # nan itself is within no limits
        for step, value in zip(series.steps, series.values, strict=True)
    ]


def _seen(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if not math.isnan(point[1])]


def _line(points: Sequence[Point], class_: str) -> Iterator[Markup]:
    """One line, broken at its gaps; a value between two gaps is a dot."""
    dotted = len(points) <= _DOTS
    for is_gap, run in groupby(_thinned(points), key=lambda at: math.isnan(at[1])):
        at = [] if is_gap else list(run)
        if len(at) > 1:
            yield path(*at, class_=f"line {class_}")
        if dotted or len(at) == 1:
            yield from (element("circle", cx=x, cy=y, r=2.4, class_=f"knot {class_}") for x, y in at)


def _thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Of the points that share a place, the first, the lowest, the highest and the last; a gap only if all are gaps."""
    for _, bucket in groupby(points, key=lambda at: int(at[0] / _BUCKET)):
        near = list(bucket)
        inside = _seen(near) or near[:1]
        ends = {pick(range(len(inside)), key=lambda place: inside[place][1]) for pick in (min, max)}
        yield from (inside[place] for place in sorted(ends | {0, len(inside) - 1}))


def _targets(
    plot: LinePlot, series: Sequence[Sequence[Point]], placed: Sequence[Sequence[Point]], axes: Axes
) -> Iterator[Markup]:
    """Stripes that hold the last values of all lines up to their right edge."""
    found: dict[int, dict[int, Point]] = {}
    column = axes.width / len(plot.names) if plot.names else _COLUMN
    last = math.ceil(axes.width / column - 1e-9) - 1
    for place, (points, places) in enumerate(zip(series, placed, strict=True)):
        for point, (x, y) in zip(points, places, strict=True):
            if not math.isnan(y):
                found.setdefault(min(last, int((x - axes.left) / column)), {})[place] = point
    for stripe, values in sorted(found.items()):
        said = "; ".join(
            f"{plot.series[place].name} {number(value)} at {plot.over} {_step(plot, step)}"
            for place, (step, value) in sorted(values.items())
        )
        x = axes.left + stripe * column
        yield axes.target(x, min(column, axes.left + axes.width - x), said)


def _marks(marks: Sequence[Mark], axes: Axes) -> Iterator[Markup]:
    """Upright lines; the words are found at their tips, above the plot."""
    inside = sorted(mark for mark in marks if axes.x.low <= mark.step <= axes.x.high)
    for _, group in groupby(inside, key=lambda mark: int(axes.at(mark.step, axes.y.low)[0] / _MARK)):
        first, *others = group
        x, bottom = axes.at(first.step, axes.y.low)
        words = f"{first.words}, at {first.step:,.0f}"
        words += f", and {counted(len(others), 'more mark')} up to {others[-1].step:,.0f}" if others else ""
        tip = path((x - 4.5, _TOP - 9), (x + 4.5, _TOP - 9), (x, _TOP - 1), class_="tip")
        yield element("g", element("title", words), path((x, _TOP), (x, bottom), class_="mark"), tip)


def _described(plot: LinePlot, series: Sequence[Sequence[Point]]) -> str:
    """All lines in words, for those who do not see them."""
    sentences = []
    for one, points in zip(plot.series, series, strict=True):
        seen = _seen(points)
        words = []
        if seen:
            low, high = min(seen, key=lambda point: point[1]), max(seen, key=lambda point: point[1])
            at = [f"{number(value)} at {_step(plot, step)}" for step, value in (seen[0], seen[-1], low, high)]
            words.append(f"{counted(len(seen), 'value')}, first {at[0]}, last {at[1]}, lowest {at[2]}, highest {at[3]}")
        if len(seen) < len(points):
            words.append(f"{counted(len(points) - len(seen), 'value')} that cannot be drawn")
        if words:
            sentences.append(f"{one.name}: {', '.join(words)}")
    happened = [f"{mark.words} at {plot.over} {mark.step:,.0f}" for mark in plot.marks[:_DOTS]]
    more = [f"and {len(plot.marks) - _DOTS:,} other marks"] if len(plot.marks) > _DOTS else []
    return ". ".join([*sentences, *happened, *more, *filter(None, [plot.note])]) + "."


# ---- bars


class Layer(NamedTuple):
    """One of the layers that bars are stacked from.

    Attributes:
        name: what is counted, after the number.
        tone: class of its colour, such as `tone-ink`.
        counts: in each bin.
    """

    name: str
    tone: str
    counts: Sequence[float]


@dataclass(frozen=True)
class BarPlot:
    """Stacked bars over bins: a histogram, or shares that are compared with a diagonal.

    Attributes:
        edges: of the bins, one more than there are bins.
        layers: from the lowest to the highest.
        log: whether the bins grow by a factor.
        median: of all values; None where there are none.
        hints: words for the pointer on each bin; without them the counts of the layers.
        diagonal: whether heights are shares of 1 beside a dashed line on which they equal their place.
        over: what the lower axis counts.
    """

    name: str
    title: str
    note: str
    edges: Sequence[float]
    layers: Sequence[Layer]
    log: bool = False
    median: float | None = None
    hints: Sequence[str] = ()
    diagonal: bool = False
    over: str = ""
    width: float = NARROW
    height: float = HEIGHT


def bar_figure(plot: BarPlot, legend: bool = False) -> Markup:
    """The bars under their title; the legend may stand once for several figures."""
    keys = [element("span", element("i", class_=layer.tone), layer.name) for layer in plot.layers] if legend else []
    return _figure(plot.title, plot.note, keys, bar_chart(plot))


def bar_chart(plot: BarPlot) -> Markup:
    """Bars of the layers, one on the other; a bin with anything in it is never invisible."""
    heights = [sum(counts) for counts in zip(*(layer.counts for layer in plot.layers), strict=True)]
    if not any(heights):
        words = "There is no value of it."
        return drawing(plot.name, plot.title, words, (plot.width, 40.0), label(0, 24, words))
    edges, quarters = plot.edges, (0.0, 0.25, 0.5, 0.75, 1.0)
    y = Scale(0.0, 1.0, quarters) if plot.diagonal else scale_of([0.0, max(heights)], 4, whole=True)
    width = plot.width - 12 - LETTER * max(len(amount(tick)) for tick in y.ticks) - _RIGHT
    x = scale_of([edges[0], edges[-1]], round(width / 40), log=plot.log, tight=True)
    axes = Axes(x, y, width, plot.height, amount, amount)
    body = [*axes.drawn(plot.over), *(_bar(plot, place, axes) for place in range(len(heights)) if heights[place])]
    if plot.diagonal:
        body.append(path(axes.at(0, 0), axes.at(1, 1), class_="ideal"))
    if plot.median is not None:
        body.append(label(axes.left, 10, f"median {amount(plot.median)}"))
    peak = heights.index(max(heights))
    between = f"between {amount(edges[peak])} and {amount(edges[peak + 1])}"
    hints = "; ".join(hint for hint, height in zip(plot.hints, heights, strict=False) if height)
    words = hints or f"{sum(heights):,} values; most lie {between}"
    return drawing(plot.name, plot.title, f"{words}. {plot.note}.", axes.size, *body)


def _bar(plot: BarPlot, place: int, axes: Axes) -> Markup:
    """The bars of one bin, and the place where a pointer finds their numbers."""
    (left, y), (right, _) = axes.at(plot.edges[place], 0), axes.at(plot.edges[place + 1], 0)
    bars = []
    for layer in plot.layers:
        count = layer.counts[place]
        if count:
            height = max(1.5, axes.height * axes.y.share(count))
            y -= height
            width = max(right - left - 1.2, 1.0)
            bars.append(element("rect", x=left, y=y, width=width, height=height, class_=f"bar {layer.tone}"))
    if plot.hints:
        words = plot.hints[place]
    else:
        counts = ", ".join(f"{layer.counts[place]:,} {layer.name}" for layer in plot.layers)
        words = f"{amount(plot.edges[place])} to {amount(plot.edges[place + 1])}: {counts}"
    return axes.target(left, right - left, words, *bars)
