"""Readers of a dataset's files: the sequences as spans of token shards, and the reads of each group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.schemas import DATASET_FILE, LEARNT_FILE, SEQUENCES_FILE, SHARD_FILE
from tasks.text.words import flat_places
from tasks.tokens.packing import is_isolated
from tasks.tokens.tokenizer_kinds import PAD

if TYPE_CHECKING:
    from model.data import Batch, Group, SequenceSource, SpanSource


@dataclass(frozen=True)
class Index:
    """The sequences of one split, each of one or more pieces (spans of token shards).

    Attributes:
        shards: keys of the token artefacts of the pieces.
        shard: (p,) int64, number of each piece's artefact in `shards`.
        start: (p,) int64, first id in the shard.
        length: (p,) int32, number of ids, including the look-ahead.
        ahead: (p,) int8, 1 if the last id is only a label.
        offsets: (n + 1,) int64, first piece of each sequence, then the number of pieces.
        isolated: True if attention and labels stay within a piece.
    """

    shards: list[str]
    shard: np.ndarray
    start: np.ndarray
    length: np.ndarray
    ahead: np.ndarray
    offsets: np.ndarray
    isolated: bool

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def labels(self) -> np.ndarray:
        """(n,) int64, number of labels of each sequence."""
        ends = np.append(0, np.cumsum(self.length, dtype=np.int64))[self.offsets]
        return np.diff(ends) - (np.diff(self.offsets) if self.isolated else 1)

    @property
    def piece_labels(self) -> np.ndarray:
        """(p,) int64, number of labels that are ids of each piece."""
        unpredicted = np.ones(len(self.length), dtype=np.int64)
        if not self.isolated:
            unpredicted[:] = 0
            unpredicted[self.offsets[:-1]] = 1
        return self.length - unpredicted

    def take(self, sequences: np.ndarray) -> Index:
        """Return some of the sequences, in this order."""
        rows, offsets = flat_places(self.offsets, sequences)
        pieces = (self.shard[rows], self.start[rows], self.length[rows], self.ahead[rows])
        return Index(self.shards, *pieces, offsets, self.isolated)


def read_record(folder: Path) -> dict[str, Any]:
    """Return the content of a dataset's `dataset.json`."""
    record: dict[str, Any] = json.loads((folder / DATASET_FILE).read_text(encoding="utf-8"))
    return record


def groups_of(folder: Path) -> list[Group]:
    """Return the groups with reads, in the order of their sequences; a single one without a mix."""
    from model.data import Group

    groups = read_record(folder)["groups"]
    return [Group(group["first"], group["count"], group["reads"]) for group in groups if group["reads"]]


def load_index(folder: Path, split: str, limit: int | None = None) -> Index:
    """Read the sequences of one split of a dataset, `train` or `validation`; a fixed sample of more than `limit`."""
    names = ["sequence", "split", "shard", "start", "length", "ahead"]
    table = pq.read_table(folder / SEQUENCES_FILE, columns=names, read_dictionary=["split", "shard"])
    table = table.filter(pc.equal(table["split"], split)).unify_dictionaries()
    sequence = table["sequence"].to_numpy()
    opens = np.flatnonzero(np.diff(sequence, prepend=-1))
    shards = sorted(pc.unique(table["shard"]).to_pylist())
    index = Index(
        shards=shards,
        shard=pc.index_in(table["shard"], value_set=pa.array(shards, pa.string())).to_numpy().astype(np.int64),
        start=table["start"].to_numpy(),
        length=table["length"].to_numpy(),
        ahead=table["ahead"].to_numpy(),
        offsets=np.append(opens, len(sequence)),
        isolated=is_isolated(read_record(folder)["packing"]),
    )
    if limit is None or len(index) <= limit:
        return index
    from model.data import order

    return index.take(np.sort(order(len(index), seed=0, epoch=0)[:limit]))


def open_sequences(
    dataset: Path,
    shard_folders: Mapping[str, Path],
    split: str,
    seq_len: int,
    limit: int | None = None,
    counted: np.ndarray | None = None,
) -> SequenceSource:
    """Open the sequences of one split, memory-mapped; a fixed sample if there are more than `limit`.

    Args:
        dataset: folder of the dataset.
        shard_folders: folder of each token shard, by key.
        split: `train` or `validation`.
        seq_len: context of the network.
        counted: (p,) bool, True for the pieces to open: without sequences that have none of them, and without the
            labels of the other pieces. None opens all.
    """
    from model.data import SpanSource

    index = load_index(dataset, split, limit)
    if counted is not None:
        chosen = np.flatnonzero(np.add.reduceat(counted, index.offsets[:-1]))
        counted, index = counted[flat_places(index.offsets, chosen)[0]], index.take(chosen)
    folders = [shard_folders[key] for key in index.shards]
    shards, learnt = (
        [np.load(folder / name, mmap_mode="r", allow_pickle=False) for folder in folders if (folder / name).is_file()]
        for name in (SHARD_FILE, LEARNT_FILE)
    )
    single = len(index) == len(index.shard)  # sequences of one piece need no mask
    source = SpanSource(
        shards,
        index.shard,
        index.start,
        index.length,
        seq_len,
        PAD,
        offsets=None if single else index.offsets,
        ahead=index.ahead,
        isolated=index.isolated and not single,
        learnt=learnt or None,
    )
    return source if counted is None or counted.all() else CountedSource(source, index, counted)


@dataclass(frozen=True)
class CountedSource:
    """Sequences of which only some pieces have labels.

    Attributes:
        index: the sequences of the source.
        counted: (p,) bool, True for these pieces.
    """

    source: SpanSource
    index: Index
    counted: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the sequences with these numbers."""
        from model.data import IGNORE

        batch = self.source.batch(indices)
        for labels, sequence in zip(batch.labels, indices, strict=True):
            begin = 0
            for piece in range(*self.index.offsets[sequence : sequence + 2]):
                if not self.counted[piece]:
                    labels[max(begin - 1, 0) : begin - 1 + self.index.length[piece]] = IGNORE
                begin += self.index.length[piece] - self.index.ahead[piece]
        return batch
