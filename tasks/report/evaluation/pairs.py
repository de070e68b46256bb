"""Two models on the same documents: what the comparison's page, table and JSON document show, and where it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.manifest import ArtifactRef
from storage.store import Store
from tasks.evaluation.compare import Comparison, Difference, compare_evaluations
from tasks.report.evaluation.collect import beginnings, completion_of, first_completions, paths_of
from tasks.report.evaluation.figures import Completion


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
        """What the two are called; told apart where the person gave one name twice."""
        if self.a.name == self.b.name:
            return f"{self.a.name} (A)", f"{self.b.name} (B)"
        return self.a.name, self.b.name


def collect_pair(store: Store, a: Side, b: Side, evalset: ArtifactRef, notes: Sequence[str] = ()) -> PairFigures:
    """Compare two models that were measured on the same documents.

    Raises:
        UserError: if they were measured on different documents, or in another way.
        StoreError: if something of them is gone.
    """
    found = compare_evaluations(store, a.evaluation, b.evaluation)
    doc_ids = [item.doc_id for item in found.documents]
    completions = list(zip(_written(store, a), _written(store, b), strict=True))
    return PairFigures(
        a, b, evalset, found, beginnings(store, evalset, doc_ids), paths_of(store, evalset, doc_ids), completions, notes
    )


def _written(store: Store, side: Side) -> list[Completion]:
    if side.completions is None:
        return []
    return [completion_of(row) for row in first_completions(store, side.completions)]


def pair_document(figures: PairFigures) -> dict[str, Any]:
    """The comparison as one JSON document; differences are those of a less b, in bits per byte."""
    found = figures.comparison
    return {
        **{name: _side(side) for name, side in (("a", figures.a), ("b", figures.b))},
        "evalset": f"{figures.evalset.stage}/{figures.evalset.key}",
        "difference": difference_document(found.difference),
        "metrics": {name: {"a": _plain(a), "b": _plain(b)} for name, (a, b) in found.metrics.items()},
        "slices": [
            {
                "dimension": item.dimension,
                "value": item.value,
                "documents": item.a.documents,
                "bytes": item.a.bytes,
                "a": _plain(item.a.bits_per_byte),
                "b": _plain(item.b.bits_per_byte),
                "difference": difference_document(item.difference),
            }
            for item in found.slices
        ],
        "documents": [
            {
                "doc_id": item.doc_id,
                "path": figures.paths.get(item.doc_id),
                "bits": item.bits,
                "a": _plain(item.a.bits_per_byte),
                "b": _plain(item.b.bits_per_byte),
                "begins": figures.begins[item.doc_id],
            }
            for item in found.documents
        ],
        "completions": [
            {"prompt": a.prompt, "a": a.text, "b": b.text, "a_error": a.error or None, "b_error": b.error or None}
            for a, b in figures.completions
        ],
        "notes": list(figures.notes),
    }


def _side(side: Side) -> dict[str, str]:
    refs = {"checkpoint": side.checkpoint, "evaluation": side.evaluation}
    return {"model": side.name, **{name: f"{ref.stage}/{ref.key}" for name, ref in refs.items()}}


def difference_document(difference: Difference) -> dict[str, Any]:
    """A difference with its interval; JSON has no infinity, so that a bound that is not known is null."""
    return {
        "value": _plain(difference.value),
        "low": _plain(difference.low),
        "high": _plain(difference.high),
        "documents": difference.documents,
        "clear": difference.is_clear,
    }


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
