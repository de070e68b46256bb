"""The figures of an evaluation, read from its artefact and those that stand beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import ancestors
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE, SPANS_FILE
from storage.store import Store
from storage.tables import read_rows, stream_rows
from tasks.evaluation.compare import all_nats, compare_evaluations
from tasks.evaluation.tables import DIMENSIONS, Evaluated, read_documents, read_evaluation
from tasks.lineage.attribution import first_paths
from tasks.lineage.contamination import by_exposure, read_contamination
from tasks.lineage.echoes import read_echo_metrics
from tasks.lineage.training_texts import datasets_of
from tasks.report.evaluation.figures import Completion, Document, EvaluationFigures, Mark, Rival

MOST_DOCUMENTS = 8  # of the best, and of the worst
MOST_COMPLETIONS = 8
PROMPT_CHARS = 2_000  # that are shown of a prompt: its end, which is what is continued
FEWEST_BYTES = 64  # of a document that is listed: figures of a few words say nothing


@dataclass(frozen=True)
class Measured:
    """A model that was measured, with all that was measured beside it.

    Attributes:
        model: what it is called.
        rival: what another champion is called, and its evaluation on the same documents.
        completions: an artefact of the stage `generate`.
        echoes, contamination: artefacts of these stages, where training text was looked at.
        texts: what the documents are called; empty for the frozen evaluation set.
        read: whether the model was trained on some of them.
    """

    model: str
    checkpoint: ArtifactRef
    evalset: ArtifactRef
    evaluation: ArtifactRef
    rival: tuple[str, ArtifactRef] | None = None
    completions: ArtifactRef | None = None
    echoes: ArtifactRef | None = None
    contamination: ArtifactRef | None = None
    texts: str = ""
    read: bool = False


def collect_evaluation(store: Store, measured: Measured, pages: Collection[str] = ()) -> EvaluationFigures:
    """Read all that the report shows.

    Args:
        pages: files of other reports that lie beside this one.

    Raises:
        StoreError: if something of it is gone.
    """
    documents = read_documents(store, measured.evaluation)
    seen = read_contamination(store.folder(measured.contamination)) if measured.contamination else None
    best, worst = _extremes(documents)
    listed = describe_documents(store, measured.evalset, documents, [*best, *worst], seen or {})
    return EvaluationFigures(
        model=measured.model,
        checkpoint=measured.checkpoint,
        evalset=measured.evalset,
        ref=measured.evaluation,
        evaluation=read_evaluation(store, measured.evaluation),
        best=listed[: len(best)],
        worst=listed[len(best) :],
        rival=_rival(store, measured),
        exposures=[] if seen is None else by_exposure(seen, _rows(documents)),
        completions=_completions(store, measured),
        echoes=read_echo_metrics(store.folder(measured.echoes)) if measured.echoes else {},
        pages=sorted(pages),
        texts=measured.texts,
        read=measured.read,
    )


def describe_documents(
    store: Store, evalset: ArtifactRef, documents: Evaluated, rows: Iterable[int], seen: Mapping[str, float]
) -> list[Document]:
    """Some documents of an evaluation, with their paths and the beginnings of their texts.

    Args:
        rows: which of them.
        seen: share of a document that stands in training text, as far as it is known.
    """
    chosen = list(rows)
    doc_ids = [documents.doc_id[row] for row in chosen]
    begins, paths = beginnings(store, evalset, doc_ids), paths_of(store, evalset, doc_ids)
    return [
        Document(
            doc_id=doc_id,
            path=paths.get(doc_id, ""),
            labels={name: documents.labels[name][row] for name in DIMENSIONS},
            sums=documents.total(np.array([row])),
            begins=begins[doc_id],
            seen=seen.get(doc_id),
        )
        for doc_id, row in zip(doc_ids, chosen, strict=True)
    ]


def beginnings(store: Store, evalset: ArtifactRef, doc_ids: Collection[str], length: int = 1_000) -> dict[str, str]:
    """The first characters of evaluation documents."""
    table = pq.read_table(store.folder(evalset) / "documents.parquet", columns=["doc_id", "text"])
    table = table.filter(pc.is_in(table["doc_id"], value_set=pa.array(sorted(set(doc_ids)), pa.string())))
    return {row["doc_id"]: row["text"][:length] for row in table.to_pylist()}


def paths_of(store: Store, ref: ArtifactRef, doc_ids: Collection[str]) -> dict[str, str]:
    """Where documents of an artefact were found; nothing of those that came from no corpus."""
    if not any(manifest.stage == "snapshot" for _, manifest in ancestors(store, ref)):
        return {}
    return first_paths(store, ref, sorted(set(doc_ids)))


def _extremes(documents: Evaluated) -> tuple[list[int], list[int]]:
    """Rows of the documents with the fewest and with the most bits per byte, none of them in both."""
    sizes = documents.sums["bytes"]
    rows = np.flatnonzero((sizes >= FEWEST_BYTES) & (documents.sums["tokens"] > 0))
    order = rows[np.argsort(all_nats(documents)[rows] / sizes[rows], kind="stable")].tolist()
    n = min(MOST_DOCUMENTS, len(order) // 2)
    return order[:n], order[::-1][: min(MOST_DOCUMENTS, len(order) - n)]


def _rows(documents: Evaluated) -> list[dict[str, object]]:
    names = ("nll_nats", "charged_nats", "bytes", "lost_bytes")
    columns = zip(documents.doc_id, *(documents.sums[name].tolist() for name in names), strict=True)
    return [dict(zip(("doc_id", *names), row, strict=True)) for row in columns]


def _rival(store: Store, measured: Measured) -> Rival | None:
    if measured.rival is None:
        return None
    name, evaluation = measured.rival
    found = compare_evaluations(store, measured.evaluation, evaluation, most=0)
    bits = {(item.dimension, item.value): item.b.bits_per_byte for item in found.slices}
    metrics = {name: value for name, (_, value) in found.metrics.items() if value is not None}
    return Rival(name, metrics, bits, found.difference)


def _completions(store: Store, measured: Measured) -> list[Completion]:
    if measured.completions is None:
        return []
    rows = first_completions(store, measured.completions)
    if measured.echoes is None:
        return [completion_of(row) for row in rows]
    spans = read_rows(store.folder(measured.echoes) / SPANS_FILE)
    paths = _training_paths(store, measured.checkpoint, {span["doc_id"] for span in spans})
    found = []
    for row in rows:
        places: dict[tuple[int, int, int], list[str]] = {}
        for span in spans:
            if (span["id"], span["sample"]) == (row["id"], row["sample"]):
                place = (span["words"], span["start"], span["length"])
                places.setdefault(place, []).append(paths.get(span["doc_id"], span["doc_id"][:12]))
        marks = [
            Mark(start, length, words, sources)
            for (words, start, length), sources in sorted(places.items(), key=lambda item: (-item[0][0], item[0][1]))
        ]
        found.append(completion_of(row, marks))
    return found


def first_completions(store: Store, made: ArtifactRef) -> list[dict[str, Any]]:
    """Rows of the completions that a page shows."""
    columns = ["id", "sample", "prompt", "text", "finish_reason", "error"]
    return list(islice(stream_rows(store.folder(made) / COMPLETIONS_FILE, columns), MOST_COMPLETIONS))


def completion_of(row: Mapping[str, Any], marks: Sequence[Mark] | None = None) -> Completion:
    """A completion as a page shows it, from a row of `first_completions`."""
    prompt = row["prompt"]
    shown = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
    return Completion(shown, row["text"], row["finish_reason"], marks, row["error"] or "")


def _training_paths(store: Store, checkpoint: ArtifactRef, doc_ids: Collection[str]) -> dict[str, str]:
    """Where training documents come from; those that a base was trained on among them."""
    found: dict[str, str] = {}
    for dataset in datasets_of(store, checkpoint):
        found = {**paths_of(store, dataset, [item for item in doc_ids if item not in found]), **found}
    return found
