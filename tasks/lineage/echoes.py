"""Echoes: how much of a generation's completions stands word for word in the text that its model was trained on.

echoes.parquet    of each completion, how many of its characters stand in training documents, and the longest span
spans.parquet     each of these spans, and where it stands in which document
metrics.parquet   the figures over all completions
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS_FILE, ECHO_SPANS, ECHOES, METRICS, SPANS_FILE
from storage.store import Store
from storage.tables import read_rows, write_table
from tasks.core.stage import Work, stage
from tasks.lineage.anchors import FOUND_WORDS
from tasks.lineage.spans import SharedSpan, covered_chars, outstanding, shared_spans
from tasks.lineage.trace_index import TracedSegment

ECHOES_FILE = "echoes.parquet"
METRICS_FILE = "metrics.parquet"
MOST_DOCUMENTS = 3  # that are noted for one span; a stock phrase stands in thousands


@dataclass(frozen=True)
class EchoSettings:
    """What counts.

    Attributes:
        min_words: the shortest span that is noted and whose characters are covered.
        echo_words: a completion with a span of so many words reproduces training text.
    """

    min_words: int = FOUND_WORDS
    echo_words: int = 13


@stage("echoes", version=1, keep_with=("completions",))
def echoes(work: Work, settings: EchoSettings, *, completions: ArtifactRef, texts: RefSet, indexes: RefSet) -> str:
    """Find what of the completions stands in training text.

    The training texts come with the documents that count (`texts.live`), the indexes in the same order.
    """
    rows = read_rows(work.folder(completions) / COMPLETIONS_FILE, ["id", "sample", "text"])
    segments = load_segments(work.store, texts, indexes)
    found = shared_spans([row["text"] for row in rows], segments, texts.live or (), settings.min_words)
    echoed = [_echo(row, spans) for row, spans in zip(rows, found, strict=True)]
    listed = [
        _span(row, span)
        for row, spans in zip(rows, found, strict=True)
        for group in outstanding(spans)
        for span in group[:MOST_DOCUMENTS]
    ]
    metrics = [{"metric": name, "value": value} for name, value in sorted(echo_metrics(echoed, settings).items())]
    work.counts["rows"] = write_table(work.out / ECHOES_FILE, ECHOES, echoed)
    work.counts["spans"] = write_table(work.out / SPANS_FILE, ECHO_SPANS, listed)
    write_table(work.out / METRICS_FILE, METRICS, metrics)
    return sha256_json([echoed, listed])


def load_segments(store: Store, texts: RefSet, indexes: RefSet) -> list[TracedSegment]:
    """Indexes of training texts, each beside the table with the texts."""
    return [
        TracedSegment.load(store.folder(index), store.folder(text))
        for text, index in zip(texts.refs, indexes.refs, strict=True)
    ]


def echo_metrics(echoed: list[dict[str, Any]], settings: EchoSettings) -> dict[str, float]:
    """The figures of a generation.

    Returns:
        `completions/echo_share`, the share of completions with a span of `echo_words` or more;
        `completions/echo_chars`, the share of all characters that lie in spans of `min_words` or more; and
        `completions/longest_echo`, in words. Shares of nothing are 0.
    """
    n_chars = sum(row["n_chars"] for row in echoed)
    reproducing = sum(row["longest"] >= settings.echo_words for row in echoed)
    return {
        "completions/echo_share": reproducing / max(1, len(echoed)),
        "completions/echo_chars": sum(row["covered_chars"] for row in echoed) / max(1, n_chars),
        "completions/longest_echo": float(max((row["longest"] for row in echoed), default=0)),
    }


def read_echo_metrics(folder: Path) -> dict[str, float]:
    """Figures of an artefact of the stage."""
    return {row["metric"]: row["value"] for row in read_rows(folder / METRICS_FILE)}


def _echo(row: dict[str, Any], spans: list[SharedSpan]) -> dict[str, Any]:
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
