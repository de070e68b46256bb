"""The drawings of a corpus report: one bar of all files, bars of counts, histograms."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report import old_charts as charts
from tasks.report.corpus.figures import FATES, Fate, Histogram, Tally
from tasks.report.inspect.labels import legible
from tasks.report.inspect.svg import element, escape
from tasks.report.old_charts import Layer, Part, Plot
from tasks.report.wording import cut, size_of

_NAME = 34  # characters of a name beside a bar


def fate_bar(fates: Sequence[Fate]) -> str:
    """All files and members as one bar, with a legend that says each part in words."""
    parts = [Part(fate.name, FATES.get(fate.name, fate.name), fate.n, size_of(fate.size)) for fate in fates]
    return charts.whole_bar(parts, "What became of the files; the list says it")


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


def histogram(data: Histogram) -> str:
    """Bars of kept documents with the dropped ones on top, under their title."""
    layers = [Layer("kept", "ink", data.kept), Layer("dropped", "dropped-ink", data.dropped)]
    return charts.histogram_figure(Plot(data.name, data.title, data.note, data.edges, layers, data.log, data.median))
