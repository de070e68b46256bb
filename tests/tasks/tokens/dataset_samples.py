"""A store with token shards made by hand, and the dataset stage over it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stage_samples import run_at

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.schemas import SELECTION, TOKENS
from storage.store import Store
from storage.tables import read_columns, read_rows, write_table
from tasks.core.run import Run
from tasks.core.stage import Work, stage
from tasks.tokens.dataset import DatasetIndexSettings, dataset
from tasks.tokens.index import Index, load_index

VOCAB = 16


@dataclass(frozen=True)
class Document:
    """A document of a hand-made corpus."""

    doc_id: str
    ids: np.ndarray
    split: str = "train"
    kept: bool = True
    segment: str = "segment-0"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.ids.astype("<u4").tobytes()).hexdigest()


def document(doc_id: str, n_ids: int, split: str = "train", **more: Any) -> Document:
    """A document whose ids follow from its name."""
    seed = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:4])
    return Document(doc_id, np.random.default_rng(seed).integers(0, VOCAB, n_ids).astype(np.uint8), split, **more)


@dataclass(frozen=True)
class Named:
    """Tells artefacts of the sample stages apart."""

    name: str


@stage("curate", version=1, unkeyed=("items",))
def selection(work: Work, settings: Named, *, items: Sequence[Document]) -> str:
    """Write the selection: the kept documents and their splits."""
    rows = [
        {
            "doc_id": item.doc_id,
            "segment": item.segment,
            "cluster": item.doc_id,
            "split": item.split,
            "kept": item.kept,
            "licence": None,
            "n_bytes": len(item.ids),
        }
        for item in items
    ]
    write_table(work.out / "selection.parquet", SELECTION, rows)
    return settings.name


@stage("tokenise", version=1, unkeyed=("items",))
def shelf(work: Work, settings: Named, *, items: Sequence[Document]) -> str:
    """A token shard."""
    lengths = np.array([len(item.ids) for item in items], dtype=np.int64)
    ids = np.concatenate([np.zeros(0, np.uint8), *(item.ids for item in items)])
    columns = {
        "doc_id": [item.doc_id for item in items],
        "offset": np.cumsum(lengths) - lengths,
        "length": lengths,
        "n_bytes": 2 * lengths,
        "lost_bytes": 0 * lengths,
        "digest": [item.digest for item in items],
    }
    pq.write_table(pa.table(columns, schema=TOKENS), work.out / "tokens.parquet")
    np.save(work.out / "tokens.npy", ids)
    np.save(work.out / "counts.npy", np.bincount(ids, minlength=VOCAB).astype(np.int64))
    return settings.name


@stage("tokenizer", version=1)
def vocabulary(work: Work, settings: Named) -> str:
    """Stands for a tokeniser of `VOCAB` ids, of which nothing is read but its name."""
    return settings.name


@stage("groups", version=1, unkeyed=("names",))
def grouping(work: Work, settings: Named, *, names: Mapping[str, str]) -> str:
    """Write the group of each document."""
    columns = {"doc_id": pa.array([*names], pa.string()), "group": pa.array([*names.values()], pa.string())}
    table = pa.table(columns)
    pq.write_table(table, work.out / "groups.parquet")
    return settings.name


@dataclass
class Corpus:
    """A store with documents in shards.

    Attributes:
        shelves: the documents of each shard; all in one where it is empty.
        segments: names of the segments behind the shards.
        live: the documents that are to be read in each shard, where it is said.
        groups: the group of each document, for a mix.
    """

    folder: Path
    documents: Sequence[Document]
    shelves: Sequence[Sequence[Document]] = ()
    segments: Sequence[str] = ()
    live: Sequence[set[str]] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def run(self) -> Run:
        return run_at(self.folder)

    @property
    def store(self) -> Store:
        return self.run.store

    def _name(self, *parts: Any) -> Named:
        return Named(hashlib.sha256(repr(parts).encode()).hexdigest())

    @cached_property
    def tokens(self) -> RefSet:
        shelves = self.shelves or [self.documents]
        names = [self._name(number, [(item.doc_id, item.digest) for item in row]) for number, row in enumerate(shelves)]
        made = [shelf(self.run, name, items=row) for name, row in zip(names, shelves, strict=True)]
        segments = self.segments or [f"segment-{number}" for number in range(len(shelves))]
        live = None if self.live is None else tuple(self.live)
        return RefSet(tuple(made), self._name(names).name, tuple(segments), live)

    @cached_property
    def curated(self) -> ArtifactRef:
        name = self._name([(item.doc_id, item.split, item.kept, item.segment) for item in self.documents])
        return selection(self.run, name, items=self.documents)

    def build(self, settings: DatasetIndexSettings) -> Built:
        """Run the stage."""
        made = vocabulary(self.run, self._name("vocabulary"))
        refs: tuple[ArtifactRef, ...] = ()
        if self.groups:
            refs = (grouping(self.run, self._name(sorted(self.groups.items())), names=self.groups),)
        groups = RefSet(refs, self._name(refs).name)
        inputs = {"curated": self.curated, "tokens": self.tokens, "tokenizer": made, "groups": groups}
        return Built(self, settings, manifest_of(self.store, dataset(self.run, settings, **inputs)))


@dataclass
class Built:
    """A dataset, with the means to look at it directly."""

    corpus: Corpus
    settings: DatasetIndexSettings
    manifest: Manifest

    @property
    def folder(self) -> Path:
        return self.corpus.store.folder(self.manifest.ref)

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @cached_property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / "dataset.json").read_text())
        return record

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.folder / "sequences.parquet")

    @cached_property
    def counts(self) -> list[int]:
        return read_columns(self.folder / "token_counts.parquet", ["count"])["count"]

    def index(self, split: str = "train") -> Index:
        return load_index(self.folder, split)

    def ids_of(self, row: Mapping[str, Any]) -> list[int]:
        """The ids of a piece."""
        shard = np.load(self.corpus.folder / "tokenise" / row["shard"] / "tokens.npy")
        return shard[row["start"] : row["start"] + row["length"]].tolist()
