"""Metrics of an evaluation and their tables; every metric is a quotient of two sums over documents.

metrics.parquet      metrics of the model and its baselines
documents.parquet    sums of each document
slices.parquet       sums and metrics by kind, language, source and method
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from model.metrics import NllSum, bits_per_byte
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, EVALUATED, METRICS, SLICES
from storage.store import Store
from storage.tables import read_rows, write_columns, write_table

BASELINES = ("uniform", "unigram", "ngram")


@dataclass(frozen=True)
class Sums:
    """Sums over the predicted tokens of some documents.

    Attributes:
        documents: number of documents.
        tokens: predicted tokens.
        bytes: UTF-8 bytes of the texts.
        lost_bytes: bytes that became unk or were dropped by the tokeniser.
        top1: tokens that were more likely than every other token.
        nll_nats: negative log-likelihood of the tokens, in nats.
        charged_nats: charge for first tokens that are not predicted, ln(vocab_size) each.
        uniform_nats: negative log-likelihood under the uniform baseline.
        unigram_nats: negative log-likelihood under the unigram baseline.
        ngram_nats: negative log-likelihood under the n-gram baseline; None if there is none.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    lost_bytes: int = 0
    top1: int = 0
    nll_nats: float = 0.0
    charged_nats: float = 0.0
    uniform_nats: float = 0.0
    unigram_nats: float = 0.0
    ngram_nats: float | None = 0.0

    @property
    def loss(self) -> float:
        """Nats per token; NaN without tokens."""
        return self.nll_nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """Exponential of the loss."""
        return NllSum(self.nll_nats, self.tokens).perplexity

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, including charges for lost bytes and first tokens; NaN without text."""
        return self._bits_per_byte(self.nll_nats)

    @property
    def top1_share(self) -> float:
        """Top-1 accuracy, 0 to 1."""
        return self.top1 / self.tokens if self.tokens else math.nan

    def baseline_loss(self, name: str) -> float | None:
        """Return the loss of one of `BASELINES` in nats per token; None if not measured."""
        nats = getattr(self, f"{name}_nats")
        return None if nats is None else nats / self.tokens if self.tokens else math.nan

    def baseline_bits_per_byte(self, name: str) -> float | None:
        """Return the bits per byte of one of `BASELINES`, with the same charges; None if not measured."""
        nats = getattr(self, f"{name}_nats")
        return None if nats is None else self._bits_per_byte(nats)

    def _bits_per_byte(self, nats: float) -> float:
        return bits_per_byte(nats + self.charged_nats, self.bytes, self.lost_bytes) if self.bytes else math.nan

    def figures(self) -> dict[str, float | None]:
        """Return all metrics by name; None for NaN."""
        found: dict[str, float | None] = {name: getattr(self, name) for name in FIGURES}
        found |= {f"{name}_bits_per_byte": self.baseline_bits_per_byte(name) for name in BASELINES}
        return {name: None if value is None or math.isnan(value) else value for name, value in found.items()}


SUMS = tuple(field.name for field in fields(Sums))
FIGURES = ("loss", "perplexity", "top1_share", "bits_per_byte")


def baselines_of(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the baselines of an evaluation, strongest first: name for people, name in metrics."""
    named = {"ngram": f"{metrics.get('val/ngram_order', 0):.0f}-gram", "unigram": "unigram", "uniform": "uniform"}
    return [(name, of) for of, name in named.items() if f"val/{of}_loss" in metrics]


METRICS_FILE = "metrics.parquet"
SLICES_FILE = "slices.parquet"
TABLES = {METRICS_FILE: METRICS, DOCUMENTS_FILE: EVALUATED, SLICES_FILE: SLICES}

DIMENSIONS = ("kind", "language", "source", "method")
MIN_SLICE_BYTES = 2_000  # of text; figures of smaller slices are noise and are not shown
OF_DOCUMENTS = tuple(name for name in SUMS if name != "documents")


@dataclass(frozen=True)
class Evaluated:
    """Sums of every evaluation document; all columns have n entries, in the order of `doc_id`.

    Attributes:
        doc_id: (n,) ids of the documents.
        labels: for each of `DIMENSIONS`, (n,) slice of each document.
        sums: for each field of `Sums` but `documents`, (n,) int64 or float64; `ngram_nats` only with that baseline.
    """

    doc_id: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    sums: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.doc_id)

    def total(self, rows: np.ndarray | slice = slice(None)) -> Sums:
        """Return the sums over all documents, or some rows."""
        values = {name: column[rows].sum().item() for name, column in self.sums.items()}
        return Sums(**{"ngram_nats": None, **values, "documents": len(self.sums["tokens"][rows])})

    def groups(self, dimension: str) -> list[tuple[str, np.ndarray]]:
        """Return the rows of each value of one of `DIMENSIONS`."""
        values, member = np.unique(np.array(self.labels[dimension], dtype=object), return_inverse=True)
        rows = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
        return list(zip(values.tolist(), rows, strict=True)) if len(self) else []

    def slices(self) -> list[Slice]:
        """Return the slices of each dimension, largest first."""
        found = []
        for dimension in DIMENSIONS:
            some = [Slice(dimension, value, self.total(rows)) for value, rows in self.groups(dimension)]
            found += sorted(some, key=lambda item: (-item.sums.bytes, item.value))
        return found


@dataclass(frozen=True)
class Slice:
    """The documents with one value, such as `pdf`, `en` or `letters/old`, of one of `DIMENSIONS`."""

    dimension: str
    value: str
    sums: Sums

    @property
    def shown(self) -> Sums:
        """The sums to show figures of; empty, so that all figures are NaN, if there is too little text."""
        return self.sums if self.sums.bytes >= MIN_SLICE_BYTES else Sums()


@dataclass(frozen=True)
class Evaluation:
    """Metrics and slices of an evaluation."""

    metrics: dict[str, float]
    slices: list[Slice]


def read_metrics(store: Store, ref: ArtifactRef) -> dict[str, float]:
    """Return the metrics of an evaluation."""
    return {row["metric"]: row["value"] for row in read_rows(store.folder(ref) / METRICS_FILE)}


def read_evaluation(store: Store, ref: ArtifactRef) -> Evaluation:
    """Return an evaluation without its documents."""
    slices = [
        Slice(row["dimension"], row["value"], Sums(**{name: row[name] for name in SUMS}))
        for row in read_rows(store.folder(ref) / SLICES_FILE)
    ]
    return Evaluation(read_metrics(store, ref), slices)


def read_documents(store: Store, ref: ArtifactRef) -> Evaluated:
    """Return the sums of each document of an evaluation."""
    table = pq.read_table(store.folder(ref) / DOCUMENTS_FILE)
    known = [name for name in OF_DOCUMENTS if not table[name].null_count or not len(table)]
    return Evaluated(
        doc_id=table["doc_id"].to_pylist(),
        labels={name: table[name].to_pylist() for name in DIMENSIONS},
        sums={name: table[name].to_numpy() for name in known},
    )


def write_evaluation(folder: Path, metrics: Mapping[str, float], documents: Evaluated) -> None:
    """Write all tables of an evaluation."""
    rows = [{"metric": name, "value": float(value)} for name, value in sorted(metrics.items())]
    write_table(folder / METRICS_FILE, METRICS, rows)
    missing = pa.nulls(len(documents), pa.float64())
    columns = {name: documents.sums.get(name, missing) for name in OF_DOCUMENTS}
    write_columns(folder / DOCUMENTS_FILE, EVALUATED, {"doc_id": documents.doc_id, **documents.labels, **columns})
    slices = [
        {"dimension": item.dimension, "value": item.value, **asdict(item.sums), **item.sums.figures()}
        for item in documents.slices()
    ]
    write_table(folder / SLICES_FILE, SLICES, slices)
