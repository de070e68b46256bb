"""Where training reads its sequences, and in which order.

A sequence is a span over a flat token shard (usually a memory-mapped array), so nothing is copied or packed
in advance. The order is a pure function of (seed, position): a resumed run needs one number to go on exactly
where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

IGNORE = -100  # label of a position that has no next token; torch's cross_entropy leaves it out


class SequenceSource(Protocol):
    """Anything that training and evaluation can read sequences from."""

    def __len__(self) -> int:
        """Number of sequences."""
        ...

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of the sequences with these numbers.

        Returns:
            Inputs (B, T) int64 and labels (B, T) int64, labels -100 where there is nothing to predict.
        """
        ...


class SpanSource:
    """Sequences that are spans [start, start + length) of token shards.

    A span of seq_len + 1 ids carries one id to look ahead, so each of its seq_len inputs has a label. A span
    that ends its document is at most seq_len long, and its last id has no label.

    Args:
        shards: 1-D arrays of unsigned token ids.
        shard: (n,) number of the shard of each sequence.
        start: (n,) first id of each sequence in its shard.
        length: (n,) number of ids, 1 to seq_len + 1.
        seq_len: T, the width of a batch.
        pad_id: fills inputs behind a short span; its label is always -100.

    Raises:
        ValueError: the arrays differ in length, or a span does not fit seq_len or its shard.
    """

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        shard: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        seq_len: int,
        pad_id: int,
    ) -> None:
        self.shards = shards
        self.shard = np.asarray(shard, dtype=np.int64)
        self.start = np.asarray(start, dtype=np.int64)
        self.length = np.asarray(length, dtype=np.int64)
        self.seq_len = seq_len
        self.pad_id = pad_id
        self._check()

    def _check(self) -> None:
        if not len(self.shard) == len(self.start) == len(self.length):
            raise ValueError(
                f"shard, start and length have {len(self.shard)}, {len(self.start)} and {len(self.length)} "
                f"entries; expected one of each for every sequence"
            )
        sizes = np.array([len(shard) for shard in self.shards], dtype=np.int64)
        for row in np.flatnonzero((self.length < 1) | (self.length > self.seq_len + 1))[:1]:
            raise ValueError(
                f"sequence {row} has {self.length[row]} ids; expected 1 to seq_len + 1 = {self.seq_len + 1}"
            )
        for row in np.flatnonzero((self.shard < 0) | (self.shard >= len(sizes)))[:1]:
            raise ValueError(f"sequence {row} lies in shard {self.shard[row]}, but there are {len(sizes)} shards")
        if not len(self.shard):
            return
        for row in np.flatnonzero((self.start < 0) | (self.start + self.length > sizes[self.shard]))[:1]:
            raise ValueError(
                f"sequence {row} spans [{self.start[row]}, {self.start[row] + self.length[row]}) of shard "
                f"{self.shard[row]}, which has {sizes[self.shard[row]]} ids; index and shard do not match"
            )

    def __len__(self) -> int:
        return len(self.shard)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels (B, seq_len) int64 of these sequences; labels are the inputs shifted by one."""
        ids = np.full((len(indices), self.seq_len + 1), self.pad_id, dtype=np.int64)
        lengths = self.length[indices]
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            start = self.start[index]
            ids[row, :length] = self.shards[self.shard[index]][start : start + length]
        labels = ids[:, 1:].copy()
        labels[np.arange(1, self.seq_len + 1) >= lengths[:, None]] = IGNORE
        return np.ascontiguousarray(ids[:, :-1]), labels


def order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order of n sequences in one epoch: a permutation that depends on nothing but the arguments."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    return generator.permutation(n)


@lru_cache(maxsize=2)  # an epoch's permutation serves many batches; two, because a batch may straddle epochs
def _cached_order(n: int, seed: int, epoch: int) -> np.ndarray:
    permutation = order(n, seed, epoch)
    permutation.setflags(write=False)
    return permutation


def batch_indices(n: int, batch_size: int, seed: int, position: int) -> np.ndarray:
    """Which sequences micro-batch number `position` holds.

    Epochs follow each other without a gap: a batch that reaches the end of one goes on into the next, so
    every sequence is read exactly once per epoch.

    Args:
        n: number of sequences.
        batch_size: sequences per micro-batch.
        seed: of the order.
        position: number of the micro-batch, from 0, over all epochs.

    Returns:
        (batch_size,) int64.

    Raises:
        ValueError: there are no sequences.
    """
    if n < 1:
        raise ValueError("there are no sequences to train on; the dataset is empty")
    parts, first, left = [], position * batch_size, batch_size
    while left:
        epoch, offset = divmod(first, n)
        part = _cached_order(n, seed, epoch)[offset : offset + left]
        parts.append(part)
        first, left = first + len(part), left - len(part)
    return np.concatenate(parts)


def trim(inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the trailing columns in which no row has a label.

    Attention is causal, so they cannot change any loss; they would only cost time.
    """
    used = np.flatnonzero((labels != IGNORE).any(axis=0))
    width = int(used[-1]) + 1 if len(used) else 1
    return np.ascontiguousarray(inputs[:, :width]), np.ascontiguousarray(labels[:, :width])
