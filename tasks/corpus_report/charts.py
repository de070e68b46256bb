"""The drawings of a corpus report: one bar of all files, bars of counts, histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.corpus_report.figures import FATES, Fate, Histogram, Tally
from tasks.corpus_report.wording import amount, cut, share, size_of
from tasks.inspection.labels import legible
from tasks.inspection.svg import Picture, element, escape, label, line

WIDTH, HEIGHT = 288.0, 112.0  # of a histogram's plot
_LEFT, _TOP, _BOTTOM = 8.0, 16.0, 20.0
_NAME = 34  # characters of a name beside a bar


def fate_bar(fates: Sequence[Fate]) -> str:
    """All files and members as one bar, with a legend that says each part in words."""
    total = sum(fate.n for fate in fates) or 1
    parts, legend = "", ""
    for fate in fates:
        words = f"{FATES.get(fate.name, fate.name)}: {fate.n:,} ({share(fate.n, total)})"
        parts += element("i", class_=f"fate {fate.name}", style=f"flex-grow:{fate.n}", title=words)
        swatch = element("i", class_=f"fate {fate.name}")
        text = element("span", escape(FATES.get(fate.name, fate.name)), class_="what")
        numbers = f"<b>{fate.n:,}</b> <small>{share(fate.n, total)} · {escape(size_of(fate.size))}</small>"
        legend += element("li", f"{swatch}{text}{numbers}")
    bar = element("div", parts, class_="fates", role="img", aria_label="What became of the files; the list says it")
    return bar + element("ul", legend, class_="fate-list")


def bars(tallies: Sequence[Tally], shown: int, judged: bool = True) -> str:
    """Counts as bars; where documents are judged, the part that is kept is darker. The rest is summed up."""
    if not tallies:
        return element("p", "none", class_="why")
    rest = tallies[shown:] if len(tallies) > shown + 1 else []
    listed = list(tallies[: len(tallies) - len(rest)])
    top = max(tally.n for tally in listed) or 1
    if rest:
        listed.append(Tally(f"{len(rest)} others", sum(item.n for item in rest), sum(item.kept for item in rest)))
    inside = ""
    for tally in listed:
        words = f"{tally.kept:,} of {tally.n:,}" if judged and tally.kept != tally.n else f"{tally.n:,}"
        name = legible(tally.name)
        hint = name if len(name) > _NAME else None
        pale = "fill all" if judged else "fill"
        fill = element("i", class_=pale, style=f"width:{min(100.0, 100 * tally.n / top):.2f}%")
        if judged:
            fill += element("i", class_="fill", style=f"width:{min(100.0, 100 * tally.kept / top):.2f}%")
        inside += element("span", escape(cut(name, _NAME)), class_="bar-name", title=hint)
        inside += element("span", fill, class_="track") + element("span", words)
    return element("div", inside, class_="bars counts")


def histogram(data: Histogram) -> Picture:
    """Bars of kept documents with the dropped ones on top; a bin with anything in it is never invisible."""
    n = len(data.kept)
    top = max(kept + dropped for kept, dropped in zip(data.kept, data.dropped, strict=True)) or 1
    step = WIDTH / n
    parts = []
    for place, (kept, dropped) in enumerate(zip(data.kept, data.dropped, strict=True)):
        if not kept + dropped:
            continue
        y, x = _TOP + HEIGHT, _LEFT + place * step
        words = f"{_value(data, place)} to {_value(data, place + 1)}: {kept:,} kept, {dropped:,} dropped"
        inside = ""
        for count, name in ((kept, "ink"), (dropped, "dropped-ink")):
            height = max(1.5, HEIGHT * count / top) if count else 0.0
            y -= height
            inside += element("rect", x=x, y=y, width=max(step - 1.2, 1.0), height=height, class_=name) if count else ""
        area = element("rect", x=x, y=_TOP, width=step, height=HEIGHT, class_="target")
        parts.append(element("g", element("title", escape(words)) + area + inside))
    parts.append(line((_LEFT, _TOP + HEIGHT), (_LEFT + WIDTH, _TOP + HEIGHT), class_="axis"))
    parts += [
        label(_LEFT + place * step, _TOP + HEIGHT + 15, _value(data, place), "note", text_anchor=_anchor(place, n))
        for place in _ticks(data)
    ]
    parts.append(label(_LEFT + WIDTH, 10, f"highest bar: {top:,}", "note", text_anchor="end"))
    if data.median is not None:
        parts.append(label(_LEFT, 10, f"median {amount(data.median)}", "note"))
    peak = max(range(n), key=lambda place: data.kept[place] + data.dropped[place])
    description = f"{data.n:,} values; most lie between {_value(data, peak)} and {_value(data, peak + 1)}. {data.note}."
    size = (WIDTH + 2 * _LEFT, _TOP + HEIGHT + _BOTTOM)
    return Picture(f"histogram-{data.name}", data.title, description, *size, "".join(parts))


def _anchor(place: int, n: int) -> str:
    return "start" if place == 0 else "end" if place == n else "middle"


def _ticks(data: Histogram) -> list[int]:
    """Edges that have a number: powers of ten, or five evenly spread ones."""
    n = len(data.kept)
    if not data.log:
        return list(range(0, n + 1, max(1, n // 4)))
    powers = [place for place, edge in enumerate(data.edges) if math.isclose(edge, 10 ** round(math.log10(edge)))]
    room = WIDTH / n
    while len(powers) > 1 and (powers[1] - powers[0]) * room < 34:
        powers = powers[::2]
    # a single narrow range may hold no power of ten
    return powers or [0, n]


def _value(data: Histogram, place: int) -> str:
    return amount(data.edges[place])
