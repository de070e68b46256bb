"""Drawings of several pages: one bar of a whole, histograms in layers, legends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasks.report.inspect.svg import Picture, element, escape, label, line
from tasks.report.wording import amount, share

WIDTH, HEIGHT = 288.0, 112.0  # of a histogram's plot
_LEFT, _TOP, _BOTTOM = 8.0, 16.0, 20.0


class Part(NamedTuple):
    """A part of a whole.

    Attributes:
        class_: the name of its colour in the style sheet.
        title: what it is.
        note: a few words behind its share.
    """

    class_: str
    title: str
    n: int
    note: str = ""


def whole_bar(parts: Sequence[Part], alternative: str) -> str:
    """A whole as one bar, with a legend that says each part in words.

    Args:
        alternative: what it shows, for those who do not see it.
    """
    total = sum(part.n for part in parts) or 1
    bar, legend = "", ""
    for part in parts:
        percent = share(part.n, total)
        hint = f"{part.title}: {part.n:,} ({percent})"
        bar += element("i", class_=f"fate {part.class_}", style=f"flex-grow:{part.n}", title=hint)
        swatch = element("i", class_=f"fate {part.class_}")
        text = element("span", escape(part.title), class_="what")
        note = f"{percent} · {part.note}" if part.note else percent
        legend += element("li", f"{swatch}{text}<b>{part.n:,}</b> <small>{escape(note)}</small>")
    whole = element("div", bar, class_="fates", role="img", aria_label=alternative)
    return whole + element("ul", legend, class_="fate-list")


class Layer(NamedTuple):
    """One of the layers that a histogram's bars are stacked from.

    Attributes:
        name: what is counted, after the number.
        class_: of its bars.
        counts: in each bin.
    """

    name: str
    class_: str
    counts: Sequence[int]


@dataclass(frozen=True)
class Plot:
    """A histogram.

    Attributes:
        name: an id that no other drawing of the page has.
        edges: of the bins, one more than there are bins.
        layers: from the lowest to the highest.
        log: whether the bins grow by a factor.
        median: of all values; None where there are none.
    """

    name: str
    title: str
    note: str
    edges: Sequence[float]
    layers: Sequence[Layer]
    log: bool = False
    median: float | None = None


def legend(classes: Mapping[str, str]) -> str:
    """What colours stand for.

    Args:
        classes: text, by the class of its swatch in the style sheet; the plain ink has none.
    """
    inside = "".join(
        element("span", element("i", class_=class_ or None) + escape(text)) for class_, text in classes.items()
    )
    return element("p", inside, class_="legend")


def histogram_figure(plot: Plot) -> str:
    """The histogram under its title."""
    title = f'<h3>{escape(plot.title)}</h3><p class="why">{escape(plot.note)}</p>'
    return element("figure", title + histogram(plot).markup())


def histogram(plot: Plot) -> Picture:
    """Bars of the layers, one on the other; a bin with anything in it is never invisible."""
    heights = [sum(counts) for counts in zip(*(layer.counts for layer in plot.layers), strict=True)]
    n, top = len(heights), max(heights) or 1
    step = WIDTH / n
    parts = [_bar(plot, place, top) for place in range(n) if heights[place]]
    parts.append(line((_LEFT, _TOP + HEIGHT), (_LEFT + WIDTH, _TOP + HEIGHT), class_="axis"))
    parts += [
        label(_LEFT + place * step, _TOP + HEIGHT + 15, _value(plot, place), "note", text_anchor=_anchor(place, n))
        for place in _ticks(plot)
    ]
    parts.append(label(_LEFT + WIDTH, 10, f"highest bar: {top:,}", "note", text_anchor="end"))
    if plot.median is not None:
        parts.append(label(_LEFT, 10, f"median {amount(plot.median)}", "note"))
    peak = heights.index(max(heights))
    description = f"{sum(heights):,} values; most lie between {_value(plot, peak)} and {_value(plot, peak + 1)}."
    size = (WIDTH + 2 * _LEFT, _TOP + HEIGHT + _BOTTOM)
    return Picture(f"histogram-{plot.name}", plot.title, f"{description} {plot.note}.", *size, "".join(parts))


def _bar(plot: Plot, place: int, top: int) -> str:
    """The bars of one bin, and the place where a pointer finds their numbers."""
    step = WIDTH / (len(plot.edges) - 1)
    y, x = _TOP + HEIGHT, _LEFT + place * step
    counted = ", ".join(f"{layer.counts[place]:,} {layer.name}" for layer in plot.layers)
    inside = ""
    for layer in plot.layers:
        count = layer.counts[place]
        height = max(1.5, HEIGHT * count / top) if count else 0.0
        y -= height
        if count:
            inside += element("rect", x=x, y=y, width=max(step - 1.2, 1.0), height=height, class_=layer.class_)
    area = element("rect", x=x, y=_TOP, width=step, height=HEIGHT, class_="target")
    words = f"{_value(plot, place)} to {_value(plot, place + 1)}: {counted}"
    return element("g", element("title", escape(words)) + area + inside)


def _anchor(place: int, n: int) -> str:
    return "start" if place == 0 else "end" if place == n else "middle"


def _ticks(plot: Plot) -> list[int]:
    """Edges that have a number: powers of ten, or five evenly spread ones."""
    n = len(plot.edges) - 1
    if not plot.log:
        return list(range(0, n + 1, max(1, n // 4)))
    powers = [place for place, edge in enumerate(plot.edges) if math.isclose(edge, 10 ** round(math.log10(edge)))]
    room = WIDTH / n
    while len(powers) > 1 and (powers[1] - powers[0]) * room < 34:
        powers = powers[::2]
    # a single narrow range may hold no power of ten
    return powers or [0, n]


def _value(plot: Plot, place: int) -> str:
    return amount(plot.edges[place])
