"""The stage `memorised`: spans of a model's completions that stand word for word in its training text.

memorised.parquet   per completion: characters that stand in training documents, and the longest span
spans.parquet       each of these spans, and where it stands in which document
metrics.parquet     the figures over all completions

`sheepfold why` shows the same spans of one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.catalog import read_state
from storage.digest import sha256_json
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS_FILE, MEMORISED, MEMORISED_SPANS, METRICS, SPANS_FILE
from storage.store import Store
from storage.tables import read_rows, write_table
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Work, stage
from tasks.lineage.anchors import FOUND_WORDS
from tasks.lineage.spans import SharedSpan, check_min_words, covered_chars, outstanding, shared_spans
from tasks.lineage.trace_index import TracedSegment, trace_indexes
from tasks.lineage.training_texts import datasets_of, sources_of, training_texts

MEMORISED_FILE = "memorised.parquet"
METRICS_FILE = "metrics.parquet"
MOST_DOCUMENTS = 3  # recorded for one span; a stock phrase stands in thousands
SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3
UNKNOWN = {
    "memorised": None,
    "memorised_unknown": "the model was not trained in this home, so its training text is unknown",
}


@dataclass(frozen=True)
class MemorisedSettings:
    """Lengths of spans.

    Attributes:
        min_words: Words of the shortest span that is recorded and whose characters are covered.
        reproduced_words: Words of a span from which on a completion counts as reproducing training text.
    """

    min_words: int = FOUND_WORDS
    reproduced_words: int = 13


@stage("memorised", version=1, keep_with=("completions",))
def memorised(
    work: Work, settings: MemorisedSettings, *, completions: ArtifactRef, texts: RefSet, indexes: RefSet
) -> str:
    """Find what of the completions stands in training text.

    The training texts come with the documents that count (`texts.live`), the indexes in the same order.
    """
    rows = read_rows(work.folder(completions) / COMPLETIONS_FILE, ["id", "sample", "text"])
    segments = load_segments(work.store, texts, indexes)
    found = shared_spans([row["text"] for row in rows], segments, texts.live or (), settings.min_words)
    covered = [_covered(row, spans) for row, spans in zip(rows, found, strict=True)]
    listed = [
        _span(row, span)
        for row, spans in zip(rows, found, strict=True)
        for group in outstanding(spans)
        for span in group[:MOST_DOCUMENTS]
    ]
    metrics = [{"metric": name, "value": value} for name, value in sorted(memorised_metrics(covered, settings).items())]
    work.counts["rows"] = write_table(work.out / MEMORISED_FILE, MEMORISED, covered)
    work.counts["spans"] = write_table(work.out / SPANS_FILE, MEMORISED_SPANS, listed)
    write_table(work.out / METRICS_FILE, METRICS, metrics)
    return sha256_json([covered, listed])


def load_segments(store: Store, texts: RefSet, indexes: RefSet) -> list[TracedSegment]:
    """Indexes of training texts, each beside the table with the texts."""
    return [
        TracedSegment.load(store.folder(index), store.folder(text))
        for text, index in zip(texts.refs, indexes.refs, strict=True)
    ]


def memorised_metrics(covered: list[dict[str, Any]], settings: MemorisedSettings) -> dict[str, float]:
    """The figures of a generation.

    Returns:
        `completions/memorised_share`, the share of completions with a span of `reproduced_words` or more;
        `completions/memorised_chars`, the share of all characters that lie in spans of `min_words` or more; and
        `completions/longest_memorised`, in words. Shares of nothing are 0.
    """
    n_chars = sum(row["n_chars"] for row in covered)
    reproducing = sum(row["longest"] >= settings.reproduced_words for row in covered)
    return {
        "completions/memorised_share": reproducing / max(1, len(covered)),
        "completions/memorised_chars": sum(row["covered_chars"] for row in covered) / max(1, n_chars),
        "completions/longest_memorised": float(max((row["longest"] for row in covered), default=0)),
    }


def read_memorised_metrics(folder: Path) -> dict[str, float]:
    """Figures of an artefact of the stage."""
    return {row["metric"]: row["value"] for row in read_rows(folder / METRICS_FILE)}


def _covered(row: dict[str, Any], spans: list[SharedSpan]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "sample": row["sample"],
        "n_chars": len(row["text"]),
        "covered_chars": covered_chars(spans),
        "longest": spans[0].words if spans else 0,
    }


def _span(row: dict[str, Any], span: SharedSpan) -> dict[str, Any]:
    names = ("start", "length", "words", "doc_id", "doc_start", "doc_length")
    return {"id": row["id"], "sample": row["sample"], **{name: getattr(span, name) for name in names}}


def explain_text(home: Home, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or `min_words` is less than what the indexes always find.
    """
    with Machine() as machine:
        run = Run(home, machine, corpus)
        datasets = read_state(run.store, corpus).get("dataset")
        if not datasets:
            raise UserError(
                f"corpus {corpus!r} has no dataset yet, so there is no training text to look into: run "
                "`sheepfold prepare SOURCE` or `run` first"
            )
        return {"text": text, "memorised": memorised_spans(run, text, datasets, min_words)}


def explain_memorised(home: Home, found: Mapping[str, Any], min_words: int) -> dict[str, Any]:
    """Return the spans that a completion shares with the training text of its model.

    Args:
        found: What `tasks.lineage.why.explain` returned for the completion.
    """
    with Machine() as machine:
        run = Run(home, machine)
        stage, _, key = found["artifact"].partition("/")
        made = run.store.find(stage, key)
        datasets = datasets_of(run.store, made.ref) if made is not None else []
        if not datasets:
            return UNKNOWN
        return {"memorised": memorised_spans(run, found["completion"]["text"], datasets, min_words)}


def memorised_spans(run: Run, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    """Return the longest spans that a text shares with training documents, each with the documents it stands in.

    Args:
        datasets: what the model was trained on; their texts are indexed when they are first asked for.
        min_words: length of the shortest span.
    """
    check_min_words(min_words)
    texts = training_texts(run.store, datasets)
    segments = load_segments(run.store, texts, trace_indexes(run, texts))
    spans = shared_spans([text], segments, texts.live or (), min_words)[0]
    groups = outstanding(spans)
    shown = [group[:SHOWN_DOCUMENTS] for group in groups[:SHOWN_SPANS]]
    sources = sources_of(run.store, datasets, texts, {span.doc_id for group in shown for span in group})
    places = ("doc_id", "doc_start", "doc_length", "before", "passage", "after")
    return {
        "characters": len(text),
        "covered": covered_chars(spans) / max(1, len(text)),
        "spans": [
            {
                "words": group[0].words,
                "start": group[0].start,
                "text": text[group[0].start : group[0].start + group[0].length],
                "documents": len({span.doc_id for span in whole}),
                "found_in": [
                    {**asdict(sources[span.doc_id]), **{name: getattr(span, name) for name in places}}
                    for span in group
                    if span.doc_id in sources
                ],
            }
            for group, whole in zip(shown, groups, strict=False)
        ],
        "more_spans": len(groups) - len(shown),
    }
