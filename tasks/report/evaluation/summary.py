"""An evaluation in a few lines of Markdown, for the run's own page; without words of documents, which prompts are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tasks.evaluation.tables import baselines_of
from tasks.report.evaluation.figures import EvaluationFigures
from tasks.report.evaluation.words import ZSTD, facts, lead, worries
from tasks.report.markdown import plain, table

_ROWS = 8  # of slices
_NOTES = 6


def evaluation_summary(figures: EvaluationFigures) -> str:
    """Figures, baselines, slices by kind, what to look at: at most 60 lines of Markdown."""
    found = figures.metrics
    lines = [plain(lead(figures), 600), ""]
    lines += table(["", ""], [[name, plain(value)] for name, value in facts(figures).items()])
    rows = [["this model", f"{figures.bits_per_byte:.4f}"]]
    if figures.rival is not None:
        rows.append([plain(figures.rival.name), f"{figures.rival.metrics['val/bits_per_byte']:.4f}"])
    rows += [[name, f"{found[f'val/{of}_bits_per_byte']:.4f}"] for name, of in baselines_of(found)]
    rows += [["zstd -19", f"{found[ZSTD]:.4f}"]] if ZSTD in found else []
    lines += ["", *table(["", "bits per byte"], rows)]
    kinds = [item for item in figures.evaluation.slices if item.dimension == "kind"][:_ROWS]
    cells = [[plain(item.value), f"{item.sums.bits_per_byte:.4f}", f"{item.sums.documents:,}"] for item in kinds]
    lines += ["", *table(["kind", "bits per byte", "documents"], cells)]
    listed = worries(figures)[:_NOTES]
    if listed:
        lines += ["", "Look at first:", "", *(f"- {plain(f'{item.title}. {item.remedy}'.strip())}" for item in listed)]
    return "\n".join(lines) + "\n"


def metrics_table(metrics: Mapping[str, float]) -> str:
    """A model's figures beside those of its baselines; empty without any."""
    if not metrics:
        return ""
    known = [("this model", ""), *((name, f"{of}_") for name, of in baselines_of(metrics))]
    if "val/champion_bits_per_byte" in metrics:
        known.insert(1, ("other champion", "champion_"))
    rows = []
    for name, of in known:
        loss, bits = metrics[f"val/{of}loss"], metrics[f"val/{of}bits_per_byte"]
        rows.append([name, f"{loss:.4f}", f"{math.exp(loss):.2f}", f"{bits:.4f}"])
    rows.append(["zstd -19", "", "", f"{metrics['val/zstd19_bits_per_byte']:.4f}"])
    below = (
        f"{100 * metrics['val/below_unigram']:.1f} % fewer bits per byte than the unigram baseline, on "
        f"{metrics['val/documents']:.0f} documents ({metrics['val/bytes']:,.0f} bytes)."
    )
    return "\n".join([*table(["", "loss", "perplexity", "bits per byte"], rows), "", below])
