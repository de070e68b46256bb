"""Two models side by side as one HTML file that needs nothing else: no network, no script, no other files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.atomic import write_file
from storage.digest import sha256_json
from tasks.evaluation.compare import DocumentPair, SlicePair
from tasks.evaluation.tables import DIMENSIONS
from tasks.report.evaluation import charts, texts
from tasks.report.evaluation.charts import interval, interval_words
from tasks.report.evaluation.pairs import PairFigures
from tasks.report.evaluation.sections import TALL_FROM, TITLES
from tasks.report.evaluation.texts import BEGINNING, PATH, beginning, in_a_line, written
from tasks.report.evaluation.words import figure_name, verdict
from tasks.report.frame import report_page
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, more, scrolled, table
from tasks.report.markdown import cell
from tasks.report.markdown import table as markdown_table
from tasks.report.wording import amount, cut_middle, size_of

SECTIONS = {
    "figures": "Figures",
    "slices": "Slices",
    "documents": "Documents",
    "completions": "What they write",
}
FOOTER = "Made by sheepfold from two evaluations; the same command again finds them in the store."
CSS = """
.sides { margin-bottom: 20px; }
.sides h3 { margin: 0 0 6px; overflow-wrap: anywhere; }
ul.notes { color: var(--contrary); overflow-wrap: anywhere; }
"""
FIRST = ("bits_per_byte", "bits_per_character", "loss", "perplexity", "top1", "top5", "ece")  # of the figures
_KEY = 8  # letters of each key in the name of a page
_SLICES = 40  # of a dimension
_TERMINAL_DOCUMENTS, _TERMINAL_COMPLETIONS = 10, 4
_NAME = 60  # characters of a name, and of a document's beginning
_TEXT = 240  # characters of a completion


def pair_page(figures: PairFigures, corpus: str) -> str:
    """The page.

    Args:
        corpus: name of the corpus whose documents both were measured on.
    """
    one, other = figures.names
    found = figures.comparison
    made = {
        "figures": figures_section(figures),
        "slices": slices_section(figures),
        "documents": documents_section(figures),
        "completions": completions_section(figures),
    }
    bits = found.metrics["val/bits_per_byte"]
    facts = {
        f"Bits per byte, {one}": f"{bits[0]:.4f}",
        f"Bits per byte, {other}": f"{bits[1]:.4f}",
        "Difference": interval_words(found.difference),
        "Documents": f"{found.difference.documents:,}",
    }
    title = f"Corpus {corpus}: {one} and {other}"
    lead = verdict(found.difference, one, other)
    style = charts.CSS + texts.CSS + CSS
    return report_page(title, lead, facts, SECTIONS, made, style=style, footer=FOOTER)


def figures_section(figures: PairFigures) -> str:
    """All figures beside each other."""
    known = figures.comparison.metrics
    first = [name for name in map("val/{}".format, FIRST) if name in known]
    head = ["", *map(legible, figures.names), "change"]
    body = ""
    if figures.notes:
        items = "".join(element("li", escape(legible(note))) for note in figures.notes)
        body += element("ul", items, class_="notes")
    body += scrolled(table(head, _figures(known, first), ""), "Figures")
    rest = _figures(known, [name for name in known if name not in first])
    if rest:
        body += more("Baselines and sizes", scrolled(table(head, rest, ""), "Baselines and sizes"))
    why = "Losses and perplexities compare only where both have the same tokeniser; bits per byte always do."
    return section("figures", "Figures", why, body)


def _figures(
    known: Mapping[str, tuple[float | None, float | None]], names: Sequence[str]
) -> list[list[Cell | str | float]]:
    rows: list[list[Cell | str | float]] = []
    for name in names:
        a, b = known[name]
        rows.append([figure_name(name), _value(name, a), _value(name, b), _change(a, b)])
    return rows


def _value(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    whole = name.endswith(("tokens", "bytes", "characters", "documents", "_order"))
    return f"{value:,.0f}" if whole else f"{value:.4f}"


def _change(a: float | None, b: float | None) -> str:
    """How much the first figure is above the second."""
    if a is None or b is None or math.isnan(a - b):
        return "–"
    if a == b:
        return "="
    words = f"{a - b:+.4f}" if abs(a - b) < 10_000 else f"{'+' if a > b else '-'}{amount(abs(a - b))}"
    return words.replace("-", "−")


def slices_section(figures: PairFigures) -> str:
    """Slices with intervals."""
    one, other = map(legible, figures.names)
    body = ""
    for dimension in DIMENSIONS:
        chosen = [item for item in figures.comparison.slices if item.dimension == dimension]
        if chosen:
            title = element("h3", escape(TITLES[dimension]))
            shown = _slices(chosen[:_SLICES], one, other)
            body += title + scrolled(shown, TITLES[dimension], tall=len(chosen) > TALL_FROM)
    why = (
        f"Bits per byte of either, and the difference ({one} less {other}) with the interval that holds 95 % of it "
        "when documents are drawn anew. Left of the middle the first is better; colour where the interval leaves out 0."
    )
    return section("slices", "By slice", why, body)


def _slices(pairs: Sequence[SlicePair], one: str, other: str) -> str:
    known = [
        bound
        for item in pairs
        for bound in (item.difference.low, item.difference.value, item.difference.high)
        if math.isfinite(bound)
    ]
    reach = max(map(abs, known), default=0.0)
    head = "".join(
        element("th", escape(name), scope="col", class_=class_)
        for name, class_ in (
            ("", "left"),
            (one, None),
            (other, None),
            ("difference", "left"),
            ("95 % interval", "left"),
            ("documents", None),
            ("text", None),
        )
    )
    rows = ""
    for item in pairs:
        cells = [
            element("th", escape(legible(item.value) or "(none)"), scope="row", class_="name"),
            element("td", _bits(item.a.bits_per_byte)),
            element("td", _bits(item.b.bits_per_byte)),
            element("td", interval(item.difference, reach), class_="interval"),
            element("td", escape(interval_words(item.difference)), class_="left"),
            element("td", f"{item.a.documents:,}"),
            element("td", size_of(item.a.bytes)),
        ]
        rows += element("tr", "".join(cells))
    return element("table", element("thead", element("tr", head)) + element("tbody", rows))


def _bits(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def documents_section(figures: PairFigures) -> str:
    """What changed most."""
    one, other = map(legible, figures.names)
    rows = [_document(figures, item) for item in figures.comparison.documents]
    head = ["document", f"bits, {one} less {other}", one, other, "text", "begins"]
    body = scrolled(table(head, rows, ""), "Documents") if rows else element("p", "There are no documents.")
    why = "Documents that changed most, by all bits of the document: they make the largest part of the difference."
    return section("documents", "Documents that changed most", why, body)


def _document(figures: PairFigures, item: DocumentPair) -> list[Cell | str | float]:
    name = legible(figures.paths.get(item.doc_id) or item.doc_id[:12])
    return [
        Cell(cut_middle(name, PATH), "path", hint=name),
        f"{item.bits:+,.0f}".replace("-", "−"),
        _bits(item.a.bits_per_byte),
        _bits(item.b.bits_per_byte),
        size_of(item.a.bytes),
        Cell(legible(beginning(figures.begins[item.doc_id], BEGINNING)) or "(no text)", "begins left"),
    ]


def completions_section(figures: PairFigures) -> str:
    """The same prompts, continued by both."""
    body = ""
    for pair in figures.completions:
        columns = ""
        for name, item in zip(figures.names, pair, strict=True):
            columns += element("div", element("h3", escape(legible(name))) + written(item))
        body += element("div", columns, class_="texts sides")
    why = "Each prompt, in grey, as either model continues it, sampled with the same settings and seed."
    return section("completions", "What they write", why, body or element("p", "Nothing was written."))


def write_pair_page(folder: Path, figures: PairFigures, corpus: str) -> Path:
    """Write the page under a name of the models, the documents, and how they were measured and sampled."""
    sides = (figures.a, figures.b)
    how = [ref.key for side in sides for ref in (side.evaluation, side.completions) if ref is not None]
    keys = [*(side.checkpoint.key for side in sides), figures.evalset.key, sha256_json(how)]
    page = folder / f"{'-'.join(['comparison', *(key[:_KEY] for key in keys)])}.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(page, pair_page(figures, corpus).encode())
    return page


def pair_table(figures: PairFigures) -> str:
    """The comparison as Markdown: verdict, figures, slices, documents, completions."""
    found, names = figures.comparison, [cell(name) for name in figures.names]
    lines = [verdict(found.difference, *names), *(f"note: {cell(note, _TEXT)}" for note in figures.notes)]
    metrics = {name: found.metrics.get(f"val/{name}", (None, None)) for name in FIRST}
    rows = [[figure_name(name), *map(_bits, values)] for name, values in metrics.items()]
    lines += ["", *markdown_table(["", *names], rows)]
    rows = [
        [
            cell(f"{item.dimension} {item.value}"),
            _bits(item.a.bits_per_byte),
            _bits(item.b.bits_per_byte),
            interval_words(item.difference),
            f"{item.a.documents:,}",
        ]
        for item in found.slices
    ]
    lines += ["", *markdown_table(["bits per byte", *names, "difference (95 % interval)", "documents"], rows)]
    rows = [
        [
            cell(figures.paths.get(item.doc_id) or item.doc_id[:12]),
            f"{item.bits:+,.0f}".replace("-", "−"),
            _bits(item.a.bits_per_byte),
            _bits(item.b.bits_per_byte),
            cell(figures.begins[item.doc_id]),
        ]
        for item in found.documents[:_TERMINAL_DOCUMENTS]
    ]
    lines += ["", *markdown_table(["changed most", "bits", *names, "begins"], rows)]
    for pair in figures.completions[:_TERMINAL_COMPLETIONS]:
        lines += ["", f"> {cell(pair[0].prompt, _TEXT)}"]
        lines += [f"- {name}: {cell(in_a_line(item, _TEXT), _TEXT)}" for name, item in zip(names, pair, strict=True)]
    return "\n".join(lines)
