"""The sections of an evaluation's report, each from the figures alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.evaluation.tables import DIMENSIONS, Sums, baselines_of
from tasks.report.evaluation.charts import confidence_figure, positions_figure, reliability_figure
from tasks.report.evaluation.figures import Document, EvaluationFigures
from tasks.report.evaluation.texts import begins_cell, name_cell, written
from tasks.report.evaluation.words import ZSTD, verdict, worries
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.wording import counted, share, size_of
from tasks.report.worries import look_first

TALL_FROM = 14  # rows
_SLICES = 40  # of a dimension
_KEY = 12  # letters of a key that are shown
TITLES = {
    "kind": "By kind",
    "language": "By language",
    "source": "By source folder",
    "method": "By extraction method",
    "length": "By length",
}

Row = list[Cell | str | float]


def first_section(figures: EvaluationFigures) -> str:
    """What to look at."""
    why = "What makes the figures doubtful comes first, then what is good to know."
    return look_first(
        "first", worries(figures), why, "Nothing: it beats its baselines, on enough text that it never saw."
    )


def baselines_section(figures: EvaluationFigures) -> str:
    """The model among what it is measured against."""
    found = figures.metrics
    rows = [("this model", found["val/loss"], figures.bits_per_byte, f"{found['val/perplexity']:.2f}")]
    if figures.rival is not None:
        known = figures.rival.metrics
        perplexity = f"{known['val/perplexity']:.2f}"
        rows.append((figures.rival.name, known["val/loss"], known["val/bits_per_byte"], perplexity))
    for name, of in baselines_of(found):
        loss = found[f"val/{of}_loss"]
        rows.append((name, loss, found[f"val/{of}_bits_per_byte"], f"{math.exp(loss):,.2f}"))
    if ZSTD in found:
        rows.append(("zstd -19", math.nan, found[ZSTD], "–"))
    top = max(bits for _, _, bits, _ in rows)
    written_rows: list[Row] = [
        [legible(name), bits_cell(bits, top), _less(figures.bits_per_byte, bits), loss, perplexity]
        for name, loss, bits, perplexity in rows
    ]
    head = ["", "bits per byte", "this model takes", "loss", "perplexity"]
    body = scrolled(table(head, written_rows, "", name="baselines-table"), "Baselines")
    if figures.rival is not None:
        body += element("p", escape(legible(verdict(figures.rival.difference, "It", figures.rival.name))))
    why = (
        "Bits per byte decide, for they compare across tokenisers. Uniform, unigram and n-gram models know no more "
        "than the training text's tokens; zstd packs the evaluation text itself."
    )
    return section("baselines", "Beside its baselines", why, body)


def _less(own: float, other: float) -> str:
    """How much less the model takes than something else."""
    if own == other or not other:
        return "–"
    change = 100 * (1 - own / other)
    return f"{abs(change):.1f} % {'less' if change > 0 else 'more'}"


def bits_cell(bits: float, top: float) -> Cell:
    """Bits per byte with a bar."""
    if math.isnan(bits):
        return Cell("–")
    return Cell(f"{bits:.4f}", share=min(1.0, bits / top) if top else 0.0)


def curves_section(figures: EvaluationFigures) -> str:
    """Calibration and context."""
    found = figures.evaluation
    drawn = [
        reliability_figure(found.calibration),
        confidence_figure(found.calibration),
        positions_figure(found.positions),
    ]
    why = (
        f"Whether it is as right as it is sure (expected calibration error {figures.metrics['val/ece']:.4f}), and what "
        "it makes of a longer context."
    )
    return section("curves", "Calibration and context", why, element("div", "".join(drawn), class_="plots"))


def slices_section(figures: EvaluationFigures) -> str:
    """Figures by slice."""
    body = ""
    named = baselines_of(figures.metrics)
    for dimension in DIMENSIONS:
        chosen = [item for item in figures.evaluation.slices if item.dimension == dimension]
        if not chosen:
            continue
        top = max((item.sums.bits_per_byte for item in chosen if item.sums.bytes), default=0.0)
        rows: list[Row] = [
            [
                Cell(legible(item.value) or "(none)", "name"),
                bits_cell(item.sums.bits_per_byte, top),
                *_rivals(figures, dimension, item.value, item.sums, [of for _, of in named]),
                percent(item.sums.top1_share),
                f"{item.sums.documents:,}",
                size_of(item.sums.bytes),
            ]
            for item in chosen[:_SLICES]
        ]
        rival = ["other champion"] if figures.rival is not None else []
        head = ["", "bits per byte", *rival, *(name for name, _ in named), "top-1", "documents", "text"]
        more = f"The largest {_SLICES} of {len(chosen):,}." if len(chosen) > _SLICES else ""
        title = element("h3", escape(TITLES[dimension]))
        body += title + scrolled(table(head, rows, more), TITLES[dimension], tall=len(rows) > TALL_FROM)
    why = "Each figure is made of sums over the slice's own tokens, with the same baselines; the largest slices first."
    return section("slices", "By slice", why, body)


def _rivals(figures: EvaluationFigures, dimension: str, value: str, sums: Sums, of: Sequence[str]) -> list[str]:
    """Bits per byte of the other champion and of the baselines on a slice."""
    bits = [] if figures.rival is None else [figures.rival.bits.get((dimension, value), math.nan)]
    found = [*bits, *(sums.baseline_bits_per_byte(name) for name in of)]
    return ["–" if item is None or math.isnan(item) else f"{item:.4f}" for item in found]


def percent(value: float) -> str:
    """A share with one place."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def documents_section(figures: EvaluationFigures) -> str:
    """Where it does best and worst."""
    body = ""
    for title, documents in (("The hardest", figures.worst), ("The easiest", figures.best)):
        if documents:
            body += f"<h3>{title}</h3>{scrolled(_documents(documents), title)}"
    why = "Documents by bits per byte: what it cannot foresee, and what it knows. Very short ones are left out."
    return section("documents", "Documents", why, body or element("p", "No document is long enough."))


def _documents(documents: Sequence[Document]) -> str:
    top = max(item.sums.bits_per_byte for item in documents)
    looked = any(item.seen is not None for item in documents)
    rows: list[Row] = [
        [
            name_cell(item),
            bits_cell(item.sums.bits_per_byte, top),
            item.labels["kind"],
            size_of(item.sums.bytes),
            *([share(item.seen or 0.0, 1)] if looked else []),
            begins_cell(item),
        ]
        for item in documents
    ]
    return table(["document", "bits per byte", "kind", "text", *(["seen"] if looked else []), "begins"], rows, "")


def contamination_section(figures: EvaluationFigures) -> str:
    """How it does on what it may have read."""
    why = (
        "Evaluation documents by how many of their runs of thirteen words stand in the training text: none, some, or "
        "half and more."
    )
    if not figures.exposures:
        words = "Nobody looked for the evaluation text in the training text, or the model was trained elsewhere."
        return section("contamination", "Seen before", why, element("p", words))
    known = [item.bits_per_byte for item in figures.exposures if not math.isnan(item.bits_per_byte)]
    top = max(known, default=0.0)
    rows: list[Row] = [
        [item.name, bits_cell(item.bits_per_byte, top), f"{item.documents:,}", size_of(item.n_bytes)]
        for item in figures.exposures
    ]
    body = scrolled(table(["", "bits per byte", "documents", "text"], rows, ""), "Seen before")
    return section("contamination", "Seen before", why, body)


def completions_section(figures: EvaluationFigures) -> str:
    """What it writes."""
    why = "The first words of evaluation documents, in grey, and what the model writes after them."
    if any(item.marks is not None for item in figures.completions):
        why += " Marked is what stands word for word in the training text, in spans of eight words or more."
    shown = "".join(element("div", written(item)) for item in figures.completions)
    body = element("div", shown, class_="texts") if shown else element("p", "Nothing was written.")
    if figures.echoes:
        chars = share(figures.echoes["completions/echo_chars"], 1)
        words = (
            f"{share(figures.echoes['completions/echo_share'], 1)} of all completions repeat thirteen words or more; "
        )
        words += f"{chars} of their characters lie in spans from the training text."
        body += element("p", escape(words), class_="told")
    return section("completions", "What it writes", why, body)


def lineage_section(figures: EvaluationFigures) -> str:
    """What was measured on what."""
    made = {"the model": figures.checkpoint, "the documents": figures.evalset, "this evaluation": figures.ref}
    rows: list[Row] = [
        [name, Cell(ref.stage, "left"), Cell(ref.key[:_KEY], "token left"), Cell(ref.digest[:_KEY], "token left")]
        for name, ref in made.items()
    ]
    body = scrolled(table(["", "stage", "key", "digest"], rows, ""), "Where it comes from")
    words = f"sheepfold why {figures.ref.stage}/{figures.ref.key[:_KEY]}"
    body += element("p", f"All of it, down to the files: <code>{escape(words)}</code>")
    others = "".join(
        element("li", element("a", escape(page.removesuffix(".html")), href=page)) for page in figures.pages
    )
    if others:
        body += f"<p>{counted(len(figures.pages), 'other report')} of this corpus:</p><ul>{others}</ul>"
    return section(
        "lineage", "Where it comes from", "Digests name contents, keys what something was computed from.", body
    )
