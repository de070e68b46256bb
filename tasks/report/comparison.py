"""Two models on the same documents: the page of their comparison, its table for a terminal and its JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.atomic import write_file
from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.store import Store
from tasks.evaluation.compare import Comparison, Difference, DocumentPair, SlicePair, compare_evaluations
from tasks.report.evaluation import (
    TITLES,
    Completion,
    beginning,
    beginnings,
    first_completions,
    paths_of,
)
from tasks.report.page import render
from tasks.report.wording import amount, decimals, integer

NAMES = {"top1": "top-1"}
FIRST = ("bits_per_byte", "loss", "perplexity", "top1")  # of the figures
_KEY = 8  # letters of each key in the name of a page


@dataclass(frozen=True)
class Side:
    """One of the two models.

    Attributes:
        name: what the person called it.
        completions: of the same prompts as the other's; None where none were asked for.
    """

    name: str
    checkpoint: ArtifactRef
    evaluation: ArtifactRef
    completions: ArtifactRef | None = None


@dataclass(frozen=True)
class PairFigures:
    """Everything that is shown of two models.

    Attributes:
        begins, paths: beginnings and paths of the documents that changed most, by id; a path that is not known is
            missing.
        completions: pairs of what either wrote after the same prompt.
        notes: what makes the comparison doubtful.
    """

    a: Side
    b: Side
    evalset: ArtifactRef
    comparison: Comparison
    begins: Mapping[str, str]
    paths: Mapping[str, str]
    completions: Sequence[tuple[Completion, Completion]] = ()
    notes: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two models, with a letter where both are the same."""
        if self.a.name == self.b.name:
            return f"{self.a.name} (A)", f"{self.b.name} (B)"
        return self.a.name, self.b.name

    def name_of(self, doc_id: str) -> str:
        """The path of a document, or the beginning of its id."""
        return self.paths.get(doc_id) or doc_id[:12]


def collect_pair(store: Store, a: Side, b: Side, evalset: ArtifactRef, notes: Sequence[str] = ()) -> PairFigures:
    """Compare two models that were measured on the same documents.

    Raises:
        UserError: if they were measured on different documents, or in another way.
        StoreError: if something of them is gone.
    """
    found = compare_evaluations(store, a.evaluation, b.evaluation)
    doc_ids = [item.doc_id for item in found.documents]
    completions = list(zip(*(first_completions(store, side.completions) for side in (a, b)), strict=True))
    return PairFigures(
        a, b, evalset, found, beginnings(store, evalset, doc_ids), paths_of(store, evalset, doc_ids), completions, notes
    )


def write_pair_page(folder: Path, figures: PairFigures, corpus: str) -> Path:
    """Write the page under a name of the models, the documents, and how they were measured and sampled."""
    sides = (figures.a, figures.b)
    how = [ref.key for side in sides for ref in (side.evaluation, side.completions) if ref is not None]
    keys = [*(side.checkpoint.key for side in sides), figures.evalset.key, sha256_json(how)]
    page = folder / f"{'-'.join(['comparison', *(key[:_KEY] for key in keys)])}.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(page, pair_page(figures, corpus).encode())
    return page


def pair_page(figures: PairFigures, corpus: str) -> str:
    """Return the page.

    Args:
        corpus: name of the corpus whose documents both were measured on.
    """
    return render(
        "comparison.html",
        title=f"Corpus {corpus}: {' and '.join(figures.names)}",
        figures=figures,
        titles=TITLES,
        beginning=beginning,
        **_figures_of_both(figures.comparison),
    )


def _figures_of_both(found: Comparison) -> dict[str, list[list[str]]]:
    """The figures that come `first`, and the `rest`."""
    first = [name for name in map("val/{}".format, FIRST) if name in found.metrics]
    names = {"first": first, "rest": [name for name in found.metrics if name not in first]}
    return {part: [_figure(name, *found.metrics[name]) for name in chosen] for part, chosen in names.items()}


def _figure(name: str, a: float | None, b: float | None) -> list[str]:
    """A figure of both, and how much the first is above the second."""
    whole = name.endswith(("tokens", "bytes", "documents", "_order"))
    one, other = (math.nan if value is None else value for value in (a, b))
    if one == other:
        change = "="
    elif abs(one - other) < 10_000 or math.isnan(one - other):
        change = decimals(one - other, sign=True)
    else:
        change = f"{'+' if one > other else '−'}{amount(abs(one - other))}"
    values = (integer(value) if whole and not math.isnan(value) else decimals(value) for value in (one, other))
    name = name.removeprefix("val/")
    return [NAMES.get(name, name.replace("_", " ")), *values, change]


def pair_table(figures: PairFigures) -> str:
    """Return the comparison as Markdown: verdict, figures, slices, documents, completions."""
    return render("comparison.md", figures=figures, **_figures_of_both(figures.comparison)).rstrip()


def pair_document(figures: PairFigures) -> dict[str, Any]:
    """Return the comparison as one JSON document; differences are those of a less b, in bits per byte."""
    found = figures.comparison
    completions = [
        {"prompt": a.prompt, "a": a.text, "b": b.text, "a_error": a.error or None, "b_error": b.error or None}
        for a, b in figures.completions
    ]
    document: dict[str, Any] = {
        **{name: _side(side) for name, side in (("a", figures.a), ("b", figures.b))},
        "evalset": f"{figures.evalset.stage}/{figures.evalset.key}",
        "difference": _difference(found.difference),
        "metrics": {name: {"a": a, "b": b} for name, (a, b) in found.metrics.items()},
        "slices": [
            {
                "dimension": item.dimension,
                "value": item.value,
                "documents": item.a.documents,
                "bytes": item.a.bytes,
                **_bits_per_byte(item),
                "difference": _difference(item.difference),
            }
            for item in found.slices
        ],
        "documents": [
            {
                "doc_id": item.doc_id,
                "path": figures.paths.get(item.doc_id),
                "bits": item.bits,
                **_bits_per_byte(item),
                "begins": figures.begins[item.doc_id],
            }
            for item in found.documents
        ],
        "completions": completions,
        "notes": list(figures.notes),
    }
    finite: dict[str, Any] = _finite(document)
    return finite


def _side(side: Side) -> dict[str, str]:
    refs = {"checkpoint": side.checkpoint, "evaluation": side.evaluation}
    return {"model": side.name, **{name: f"{ref.stage}/{ref.key}" for name, ref in refs.items()}}


def _bits_per_byte(item: SlicePair | DocumentPair) -> dict[str, float]:
    return {"a": item.a.bits_per_byte, "b": item.b.bits_per_byte}


def _difference(difference: Difference) -> dict[str, Any]:
    return {**asdict(difference), "clear": difference.is_clear}


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN, so that a number that is not known is null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
