"""Line charts: several series over the steps of a training, as SVG that needs no script.

A series of any length is drawn in a bounded number of points, which keep the lowest and the highest value of every
pixel or so: a spike of a single step is seen. What is no finite number is a gap, and the words that stand for the
drawing say how many there are. Lines differ in colour and in their dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

from tasks.report.inspect.labels import legible
from tasks.report.inspect.svg import Picture, element, escape, label, line, number
from tasks.report.old_charts import HEIGHT
from tasks.report.ticks import Scale, exact, rounded_step, scale_of, short, steps_between
from tasks.report.wording import counted

NARROW = 304.0  # of a chart among others, and of every chart on a telephone
WIDE, TALL = 960.0, 260.0  # of a chart that stands alone
STYLES = 6  # of lines in the style sheet; more series take them again
_TOP, _RIGHT, _BOTTOM = 12.0, 18.0, 36.0
_LETTER = 6.6  # width of a digit, in pixels
_BUCKET = 1.5  # pixels that four points of a series may share
_COLUMN = 6.0  # pixels under which a pointer finds one set of numbers
_MARK = 3.0  # pixels that marks share
_DOTS = 40  # values up to which each has a dot
_HUGE, _TINY = 1e150, 1e-150  # beyond them differences and quotients lose their meaning

Point = tuple[float, float]  # of step and value, or in pixels; a gap has nan as value


class Series(NamedTuple):
    """One line.

    Attributes:
        name: text of the legend.
        steps: where its values stand, ascending.
        values: as many; one that is not finite, or not above zero on a logarithmic axis, is a gap.
        pale: whether it stands back, in the colour of the series after it: raw values behind their mean.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    pale: bool = False


class Mark(NamedTuple):
    """A step at which something happened, as a thin upright line.

    Attributes:
        words: text that a pointer finds, such as "loss spike".
    """

    step: float
    words: str


@dataclass(frozen=True)
class LinePlot:
    """A line chart.

    Attributes:
        name: an id that no other drawing of the page has.
        title: text, like `note`, which says what the values are.
        log: whether the axis of the values is logarithmic.
        over: what the steps count.
        width: of the drawing in pixels; a `WIDE` one is drawn narrow as well, for small screens.
        height: of the plot within its axes.
    """

    name: str
    title: str
    note: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    log: bool = False
    over: str = "step"
    width: float = NARROW
    height: float = HEIGHT


def line_figure(plot: LinePlot) -> str:
    """The chart under its title, with a legend where there is more than one series."""
    legend = "".join(
        element("span", _sample(class_) + escape(legible(one.name)))
        for one, class_ in zip(plot.series, _classes(plot.series), strict=True)
        if len(one.values)
    )
    head = element("h3", escape(plot.title)) + (element("p", escape(plot.note), class_="why") if plot.note else "")
    if legend and len(plot.series) > 1:
        head += element("p", legend, class_="legend")
    if plot.width <= NARROW:
        return element("figure", head + line_chart(plot).markup())
    small = replace(plot, name=f"{plot.name}-narrow", width=NARROW, height=min(plot.height, 1.4 * HEIGHT))
    both = element("div", line_chart(plot).markup(), class_="if-wide")
    return element("figure", head + both + element("div", line_chart(small).markup(), class_="if-narrow"))


def smooth(series: Series, name: str, reach: int) -> Series:
    """The exponential moving average of a series, without the pull of a first value; gaps are passed over.

    Args:
        name: of the average.
        reach: how many values it looks back, roughly.
    """
    keep, mean, weight, values = 1 - 2 / (max(1, reach) + 1), 0.0, 0.0, []
    for value in series.values:
        if math.isfinite(value):
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        values.append(mean / weight if weight else math.nan)
    return Series(name, series.steps, values)


def line_chart(plot: LinePlot) -> Picture:
    """The lines of a plot between their axes."""
    drawn = [_finite(one, plot.log) for one in plot.series]
    points = [point for one in drawn for point in _seen(one)]
    if not points:
        return _empty(plot)
    frame = _Frame.around(plot, points)
    placed = [list(map(frame.place, one)) for one in drawn]
    parts = [*frame.axes(plot.over), *_marks(plot.marks, frame), *_targets(plot, drawn, placed, frame)]
    for one, class_ in zip(placed, _classes(plot.series), strict=True):
        parts += _line(one, class_)
    return Picture(plot.name, plot.title, _described(plot, drawn), *frame.size, "".join(parts))


@dataclass(frozen=True)
class _Frame:
    """Where values stand in the drawing."""

    left: float
    width: float
    height: float
    steps: Scale
    values: Scale

    @classmethod
    def around(cls, plot: LinePlot, points: Sequence[Point]) -> _Frame:
        values = scale_of([value for _, value in points], round(plot.height / 28), log=plot.log)
        left = 12 + _LETTER * max(len(short(tick)) for tick in values.ticks)
        width = plot.width - left - _RIGHT
        return cls(left, width, plot.height, _steps_in([step for step, _ in points], width), values)

    @property
    def size(self) -> Point:
        return self.left + self.width + _RIGHT, _TOP + self.height + _BOTTOM

    def place(self, point: Point) -> Point:
        x = self.left + self.width * self.steps.share(point[0])
        return x, _TOP + self.height * (1 - self.values.share(point[1]))

    def axes(self, over: str) -> Iterator[str]:
        right, bottom = self.left + self.width, _TOP + self.height
        for tick in self.values.ticks:
            _, y = self.place((self.steps.low, tick))
            yield line((self.left, y), (right, y), class_="grid")
            yield label(self.left - 7, y + 4, short(tick), "note", text_anchor="end")
        yield line((self.left, bottom), (right, bottom), class_="axis")
        for tick in self.steps.ticks:
            x, _ = self.place((tick, self.values.low))
            yield line((x, bottom), (x, bottom + 4), class_="axis")
            yield label(x, bottom + 16, rounded_step(tick), "note", text_anchor="middle")
        scale = " · values on a logarithmic scale" if self.values.log else ""
        yield label(self.left, bottom + 31, f"{over}{scale}", "note")


def _steps_in(steps: Sequence[float], width: float) -> Scale:
    """The axis of steps, with as many ticks as have room for their numbers."""
    for intervals in range(max(1, round(width / 64)), 1, -1):
        scale = steps_between(steps, intervals)
        between = width * (scale.share(scale.ticks[1]) - scale.share(scale.ticks[0])) if len(scale.ticks) > 1 else width
        if _LETTER * len(rounded_step(scale.ticks[-1])) + 8 <= between:
            return scale
    return steps_between(steps, 1)


def _finite(series: Series, log: bool) -> list[Point]:
    """The points of a series; a value that cannot be drawn is nan."""
    lowest = _TINY if log else -_HUGE
    return [
        (step, value if lowest <= value <= _HUGE else math.nan)  # nan itself is within no limits
        for step, value in zip(series.steps, series.values, strict=True)
    ]


def _seen(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if not math.isnan(point[1])]


def _line(points: Sequence[Point], class_: str) -> Iterator[str]:
    """One line, broken at its gaps; a value between two gaps is a dot."""
    dotted = len(points) <= _DOTS
    for is_gap, run in groupby(_thinned(points), key=lambda at: math.isnan(at[1])):
        at = [] if is_gap else list(run)
        if len(at) > 1:
            yield line(*at, class_=f"line {class_}")
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
    plot: LinePlot, drawn: Sequence[Sequence[Point]], placed: Sequence[Sequence[Point]], frame: _Frame
) -> Iterator[str]:
    """Upright stripes under which a pointer finds the last values up to their right edge."""
    found: dict[int, dict[int, Point]] = {}
    last = math.ceil(frame.width / _COLUMN) - 1
    for place, (points, places) in enumerate(zip(drawn, placed, strict=True)):
        for point, (x, y) in zip(points, places, strict=True):
            if not math.isnan(y):
                found.setdefault(min(last, int((x - frame.left) / _COLUMN)), {})[place] = point
    for stripe, values in sorted(found.items()):
        x = frame.left + stripe * _COLUMN
        said = "; ".join(
            f"{plot.series[place].name} {short(value)} at {plot.over} {exact(step)}"
            for place, (step, value) in sorted(values.items())
        )
        width = min(_COLUMN, frame.left + frame.width - x)
        area = element("rect", x=x, y=_TOP, width=width, height=frame.height, class_="target")
        yield element("g", element("title", escape(legible(said))) + area)


def _marks(marks: Sequence[Mark], frame: _Frame) -> Iterator[str]:
    """Upright lines; the words are found at their tips, above the plot."""
    inside = sorted(mark for mark in marks if frame.steps.low <= mark.step <= frame.steps.high)
    for _, group in groupby(inside, key=lambda mark: int(frame.place((mark.step, frame.values.low))[0] / _MARK)):
        first, *others = group
        x, _ = frame.place((first.step, frame.values.low))
        words = f"{first.words}, at {exact(first.step)}"
        words += f", and {counted(len(others), 'more mark')} up to {exact(others[-1].step)}" if others else ""
        shape = line((x, _TOP), (x, _TOP + frame.height), class_="mark")
        tip = element("path", d=f"M{number(x - 4.5)} {_TOP - 9:g}H{number(x + 4.5)}L{number(x)} {_TOP - 1:g}Z")
        yield element("g", element("title", escape(legible(words))) + shape + tip, class_="marked")


def _classes(series: Sequence[Series]) -> list[str]:
    """The style of each line."""
    before = accumulate((not one.pale for one in series), initial=0)
    return [f"line-{place % STYLES}{' pale' if one.pale else ''}" for place, one in zip(before, series, strict=False)]


def _sample(class_: str) -> str:
    """A piece of a line for the legend."""
    piece = element("path", d="M0 5H24", class_=f"line {class_}")
    return element("svg", piece, width=24, height=10, aria_hidden="true")


def _described(plot: LinePlot, drawn: Sequence[Sequence[Point]]) -> str:
    """All lines in words, for those who do not see them."""
    sentences = []
    for one, points in zip(plot.series, drawn, strict=True):
        seen = _seen(points)
        gaps = len(points) - len(seen)
        if not points:
            continue
        words = f"{one.name}: "
        if seen:
            (first, start), (last, end) = seen[0], seen[-1]
            low, high = min(seen, key=lambda point: point[1]), max(seen, key=lambda point: point[1])
            words += (
                f"{counted(len(seen), 'value')}, {short(start)} at {plot.over} {exact(first)}, {short(end)} at "
                f"{exact(last)}, lowest {short(low[1])} at {exact(low[0])}, highest {short(high[1])} at "
                f"{exact(high[0])}"
            )
        if gaps:
            words += f"{', ' if seen else ''}{counted(gaps, 'value')} that cannot be drawn"
        sentences.append(words)
    happened = [f"{mark.words} at {plot.over} {exact(mark.step)}" for mark in plot.marks[:_DOTS]]
    more = [f"and {len(plot.marks) - _DOTS:,} other marks"] if len(plot.marks) > _DOTS else []
    return legible(". ".join([*sentences, *happened, *more, *filter(None, [plot.note])]) + ".")


def _empty(plot: LinePlot) -> Picture:
    size = plot.width + _RIGHT, 40.0
    odd = any(len(one.values) for one in plot.series)
    words = "No value of it can be drawn." if odd else "There is no value of it."
    return Picture(plot.name, plot.title, words, *size, label(0, 24, words, "note"))
