"""The tables of an evaluation, written and read.

metrics.parquet      the figures, baselines among them
documents.parquet    sums of each document
slices.parquet       the same by kind, language, source, method and length, with figures and baselines
calibration.parquet  how often the likeliest token is right, by how likely it was held
positions.parquet    loss by how much context there was
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.manifest import ArtifactRef
from storage.schemas import CALIBRATION, DOCUMENTS_FILE, EVALUATED, METRICS, POSITIONS, SLICES
from storage.store import Store
from storage.tables import read_rows, write_columns, write_table
from tasks.evaluation.sums import SUMS, Sums

METRICS_FILE = "metrics.parquet"
SLICES_FILE = "slices.parquet"
CALIBRATION_FILE = "calibration.parquet"
POSITIONS_FILE = "positions.parquet"
TABLES = {
    METRICS_FILE: METRICS,
    DOCUMENTS_FILE: EVALUATED,
    SLICES_FILE: SLICES,
    CALIBRATION_FILE: CALIBRATION,
    POSITIONS_FILE: POSITIONS,
}

DIMENSIONS = ("kind", "language", "source", "method", "length")
LENGTHS = ((2**10, "< 1 KiB"), (2**12, "1-4 KiB"), (2**14, "4-16 KiB"), (2**16, "16-64 KiB"))
LONGEST = ">= 64 KiB"
OF_DOCUMENTS = tuple(name for name in SUMS if name != "documents")


@dataclass(frozen=True)
class Evaluated:
    """Sums of every evaluation document; all columns have n entries, in the order of `doc_id`.

    Attributes:
        doc_id: (n,) names of the documents.
        labels: for each of `DIMENSIONS`, (n,) which slice each document is in.
        sums: for each sum of `Sums` but `documents`, (n,) int64 or float64; `ngram_nats` is missing where there is no
            such model.
    """

    doc_id: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    sums: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.doc_id)

    def total(self, rows: np.ndarray | slice = slice(None)) -> Sums:
        """Sums over all documents, or some."""
        values = {name: column[rows].sum().item() for name, column in self.sums.items()}
        return Sums(**{"ngram_nats": None, **values, "documents": len(self.sums["tokens"][rows])})

    def groups(self, dimension: str) -> list[tuple[str, np.ndarray]]:
        """The rows of each value of one of `DIMENSIONS`."""
        values, member = np.unique(np.array(self.labels[dimension], dtype=object), return_inverse=True)
        rows = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
        return list(zip(values.tolist(), rows, strict=True)) if len(self) else []

    def slices(self) -> list[Slice]:
        """The slices of each dimension, the largest first."""
        found = []
        for dimension in DIMENSIONS:
            some = [Slice(dimension, value, self.total(rows)) for value, rows in self.groups(dimension)]
            found += sorted(some, key=lambda item: (-item.sums.bytes, item.value))
        return found


@dataclass(frozen=True)
class Slice:
    """The documents that have one value in one dimension.

    Attributes:
        dimension: one of `DIMENSIONS`.
        value: such as `pdf`, `en`, `letters/old`, `ocr`, `1-4 KiB`.
    """

    dimension: str
    value: str
    sums: Sums


@dataclass(frozen=True)
class CalibrationBin:
    """Tokens whose likeliest rival was held for so likely.

    Attributes:
        begin, end: probabilities of the bin.
        tokens: how many predictions fall into it.
        hits: how many of them were right.
        confidence: the sum of their probabilities.
    """

    begin: float
    end: float
    tokens: int
    hits: int
    confidence: float


@dataclass(frozen=True)
class PositionBucket:
    """Tokens that were predicted from `begin` to `end` tokens of context, both included."""

    begin: int
    end: int
    tokens: int
    top1: int
    nll_nats: float

    @property
    def loss(self) -> float:
        """Nats per token; NaN where there are none."""
        return self.nll_nats / self.tokens if self.tokens else math.nan


@dataclass(frozen=True)
class Evaluation:
    """An evaluation as it is shown."""

    metrics: dict[str, float]
    slices: list[Slice]
    calibration: list[CalibrationBin]
    positions: list[PositionBucket]


def length_class(n_bytes: int) -> str:
    """The class of a text by its UTF-8 bytes."""
    return next((name for limit, name in LENGTHS if n_bytes < limit), LONGEST)


def read_metrics(store: Store, ref: ArtifactRef) -> dict[str, float]:
    """Figures of an evaluation."""
    return {row["metric"]: row["value"] for row in read_rows(store.folder(ref) / METRICS_FILE)}


def read_evaluation(store: Store, ref: ArtifactRef) -> Evaluation:
    """An evaluation, but for its documents."""
    folder = store.folder(ref)
    return Evaluation(
        metrics=read_metrics(store, ref),
        slices=[Slice(row["dimension"], row["value"], Sums.of(row)) for row in read_rows(folder / SLICES_FILE)],
        calibration=[CalibrationBin(**row) for row in read_rows(folder / CALIBRATION_FILE)],
        positions=[PositionBucket(**row) for row in read_rows(folder / POSITIONS_FILE)],
    )


def read_documents(store: Store, ref: ArtifactRef) -> Evaluated:
    """Sums of the documents of an evaluation."""
    table = pq.read_table(store.folder(ref) / DOCUMENTS_FILE)
    known = [name for name in OF_DOCUMENTS if not table[name].null_count or not len(table)]
    return Evaluated(
        doc_id=table["doc_id"].to_pylist(),
        labels={name: table[name].to_pylist() for name in DIMENSIONS},
        sums={name: table[name].to_numpy() for name in known},
    )


def write_evaluation(folder: Path, found: Evaluation, documents: Evaluated) -> None:
    """Write all tables of an evaluation."""
    rows = [{"metric": name, "value": float(value)} for name, value in sorted(found.metrics.items())]
    write_table(folder / METRICS_FILE, METRICS, rows)
    missing = pa.nulls(len(documents), pa.float64())
    columns = {name: documents.sums.get(name, missing) for name in OF_DOCUMENTS}
    write_columns(folder / DOCUMENTS_FILE, EVALUATED, {"doc_id": documents.doc_id, **documents.labels, **columns})
    write_table(
        folder / SLICES_FILE,
        SLICES,
        [
            {"dimension": item.dimension, "value": item.value, **asdict(item.sums), **item.sums.figures()}
            for item in found.slices
        ],
    )
    write_table(folder / CALIBRATION_FILE, CALIBRATION, map(asdict, found.calibration))
    write_table(folder / POSITIONS_FILE, POSITIONS, map(asdict, found.positions))
