"""Sequences for training and evaluation, their batches, and their order.

A sequence consists of spans over flat token shards (usually memory-mapped arrays), which are copied only when a batch
is built. The order of training is a pure function of (seed, epoch, position), so that a run resumes from a step number
alone and any number of ranks read the same sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
U = TypeVar("U")

IGNORE = -100  # label of a position without a next token; the default ignore_index of torch's cross_entropy


class Batch(NamedTuple):
    """A batch of sequences, as arrays or as tensors in pinned memory.

    Attributes:
        inputs: (B, T) int64 token ids.
        labels: (B, T) int64, the id after each input; -100 where there is none.
        documents: lengths of the consecutive documents in each row, which do not attend to each other; None where each
            row is one text.
    """

    inputs: Any
    labels: Any
    documents: list[list[int]] | None = None


class SequenceSource(Protocol):
    """Source of sequences for training and evaluation."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the sequences with these numbers, in this order."""
        ...


@dataclass(frozen=True)
class Part:
    """A part of the validation sequences whose bits per byte are measured beside those of the rest.

    Attributes:
        source: the sequences with labels of the part; all other labels are -100.
        size, rest: UTF-8 bytes of the labels of the part and of the rest, and how many of them the tokeniser lost.
    """

    source: SequenceSource
    size: tuple[int, int]
    rest: tuple[int, int]


class SpanSource:
    """Sequences of one or more pieces; a piece is a span [start, start + length) of a token shard.

    The pieces of a sequence are concatenated to at most seq_len inputs and padded. The label of an input is the next
    id, also across pieces unless they are isolated. The last piece of a full sequence may have one id more, the
    lookahead id, which is only the label of the last input.

    Args:
        shards: 1-D arrays of unsigned token ids.
        shard: (n,) number of the shard of each piece.
        start: (n,) first id of each piece in its shard.
        length: (n,) number of ids of each piece, the lookahead id included.
        seq_len: T, the width of a batch.
        pad_id: id of padding, whose label is -100.
        offsets: (n_sequences + 1,) pieces offsets[i] to offsets[i + 1] - 1 form sequence i; None means one piece per
            sequence.
        ahead: (n,) 1 where the last id of a piece is a lookahead id, else 0; None means where a piece is longer than
            seq_len.
        isolated: pieces do not attend to each other: no label crosses from one into the next, and batches have the
            lengths of their documents.
        learnt: for each shard, 1 at each id that is a label, else 0; None where all are labels.

    Raises:
        ValueError: the arrays do not match, or a piece does not fit seq_len or its shard.
    """

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        shard: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        seq_len: int,
        pad_id: int,
        *,
        offsets: np.ndarray | None = None,
        ahead: np.ndarray | None = None,
        isolated: bool = False,
        learnt: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.shards = [np.asarray(ids) for ids in shards]  # slices of an np.memmap are slower
        self.learnt = None if learnt is None else [np.asarray(marks) for marks in learnt]
        self.shard = np.asarray(shard, dtype=np.int64)
        self.start = np.asarray(start, dtype=np.int64)
        self.length = np.asarray(length, dtype=np.int64)
        self.ahead = self.length > seq_len if ahead is None else np.asarray(ahead, dtype=bool)
        self.offsets = None if offsets is None else np.asarray(offsets, dtype=np.int64)
        self.seq_len = seq_len
        self.pad_id = pad_id
        self.isolated = isolated
        self._check_spans()
        self._check_sequences()
        self._dtype = _common_dtype(self.shards, pad_id)

    def _check_spans(self) -> None:
        what = "sequence" if self.offsets is None else "piece"
        sizes = [len(column) for column in (self.shard, self.start, self.length, self.ahead)]
        if self.learnt is not None and [len(ids) for ids in self.shards] != [len(marks) for marks in self.learnt]:
            raise ValueError("learnt has other lengths than the shards; expected a mark for each id")
        if len(set(sizes)) > 1:
            raise ValueError(
                f"shard, start, length and ahead have {', '.join(map(str, sizes))} entries; expected one of each for "
                f"every {what}"
            )
        ends = np.array([len(ids) for ids in self.shards], dtype=np.int64)
        for row in np.flatnonzero((self.length < 1) | (self.length > self.seq_len + 1))[:1]:
            raise ValueError(f"{what} {row} has {self.length[row]} ids; expected 1 to seq_len + 1 = {self.seq_len + 1}")
        for row in np.flatnonzero((self.shard < 0) | (self.shard >= len(ends)))[:1]:
            raise ValueError(f"{what} {row} lies in shard {self.shard[row]}, but there are {len(ends)} shards")
        if not len(self.shard):
            return
        for row in np.flatnonzero((self.start < 0) | (self.start + self.length > ends[self.shard]))[:1]:
            raise ValueError(
                f"{what} {row} spans [{self.start[row]}, {self.start[row] + self.length[row]}) of shard "
                f"{self.shard[row]}, which has {ends[self.shard[row]]} ids; index and shard do not match"
            )

    def _check_sequences(self) -> None:
        n_pieces = len(self.shard)
        offsets = np.arange(n_pieces + 1) if self.offsets is None else self.offsets
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != n_pieces or (np.diff(offsets) < 1).any():
            raise ValueError(
                f"offsets do not divide the {n_pieces} pieces into sequences; expected numbers that rise from 0 to "
                f"{n_pieces}"
            )
        if not n_pieces:
            return
        inputs = self.length - self.ahead
        filled = np.add.reduceat(inputs, offsets[:-1])
        for row in np.flatnonzero(filled > self.seq_len)[:1]:
            raise ValueError(f"sequence {row} has {filled[row]} inputs; expected at most seq_len = {self.seq_len}")
        lookaheads = np.add.reduceat(self.ahead, offsets[:-1], dtype=np.int64)
        misplaced = (lookaheads > self.ahead[offsets[1:] - 1]) | ((lookaheads > 0) & (filled < self.seq_len))
        for row in np.flatnonzero(misplaced)[:1]:
            raise ValueError(
                f"sequence {row} has a lookahead id before another piece or padding; expected it only at the end of a "
                f"sequence with seq_len = {self.seq_len} inputs"
            )
        if self.isolated:
            for row in np.flatnonzero(inputs < 1)[:1]:
                raise ValueError(f"isolated piece {row} has a lookahead id and no input; expected at least one input")

    def __len__(self) -> int:
        return len(self.shard) if self.offsets is None else len(self.offsets) - 1

    def batch(self, indices: np.ndarray) -> Batch:
        """Return inputs and labels (B, seq_len) of these sequences, with `documents` if the pieces are isolated.

        `documents` is None if every row has one piece, because causal attention is the same then.
        """
        indices = np.asarray(indices, dtype=np.int64)
        n_rows, width = len(indices), self.seq_len + 1
        if self.offsets is None:
            pieces, row, place = indices, np.arange(n_rows), np.zeros(n_rows, dtype=np.int64)
            used = self.length[pieces]
        else:
            pieces, row, place, last = self._pieces(indices)
            used = (place + self.length[pieces])[last]
        flat = np.full(n_rows * width, self.pad_id, dtype=self._dtype)
        begin = row * width + place
        self._copy(self.shards, pieces, begin, flat)
        ids = flat.reshape(n_rows, width)
        inputs, labels = ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)
        if (used < width).any():
            labels[np.arange(1, width) >= used[:, None]] = IGNORE
        if self.learnt is not None:
            marks = np.zeros(n_rows * width, dtype=bool)
            self._copy(self.learnt, pieces, begin, marks)
            labels[~marks.reshape(n_rows, width)[:, 1:]] = IGNORE
        if not self.isolated or len(pieces) == n_rows:
            return Batch(inputs, labels)
        follows = place > 0
        labels[row[follows], place[follows] - 1] = IGNORE
        lengths = self.length[pieces] - self.ahead[pieces]
        return Batch(inputs, labels, [part.tolist() for part in np.split(lengths, last[:-1] + 1)])

    def _pieces(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the pieces of these sequences, the row and column of each, and the index of each row's last piece."""
        assert self.offsets is not None
        first = self.offsets[indices]
        counts = self.offsets[indices + 1] - first
        ends = np.cumsum(counts)
        begins = ends - counts
        row = np.repeat(np.arange(len(indices)), counts)
        pieces = np.arange(len(row)) + (first - begins)[row]
        inputs = self.length[pieces] - self.ahead[pieces]
        before = np.cumsum(inputs) - inputs  # inputs of all pieces before each
        return pieces, row, before - before[begins][row], ends - 1

    def _copy(self, shards: Sequence[np.ndarray], pieces: np.ndarray, begin: np.ndarray, flat: np.ndarray) -> None:
        """Copy the entries of each piece into `flat` at its place in `begin`."""
        start, length = self.start[pieces], self.length[pieces]
        columns = (self.shard[pieces], start, start + length, begin, begin + length)
        for shard, first, end, left, right in zip(*(column.tolist() for column in columns), strict=True):
            flat[left:right] = shards[shard][first:end]


def _common_dtype(shards: Sequence[np.ndarray], pad_id: int) -> np.dtype:
    """Return the smallest integer type for the ids of all shards and of padding."""
    found = np.result_type(np.min_scalar_type(pad_id), *dict.fromkeys(ids.dtype for ids in shards))
    return found if found.kind in "iu" else np.dtype(np.int64)  # uint64 with a signed type promotes to float


def trim(batch: Batch) -> Batch:
    """Remove the trailing columns without a label, which do not affect the loss, because attention is causal."""
    used = np.flatnonzero((batch.labels != IGNORE).any(axis=0))
    width = int(used[-1]) + 1 if len(used) else 1
    inputs, labels = (np.ascontiguousarray(ids[:, :width]) for ids in (batch.inputs, batch.labels))
    documents = None if batch.documents is None else [_shortened(lengths, width) for lengths in batch.documents]
    return Batch(inputs, labels, documents)


def _shortened(lengths: Sequence[int], width: int) -> list[int]:
    """Return the lengths of documents in a row that is cut to `width` tokens."""
    found = []
    for length in lengths:
        if width <= 0:
            break
        found.append(min(length, width))
        width -= length
    return found


def read_ahead(build: Callable[[T], U], items: Iterable[T], depth: int) -> Generator[U, None, None]:
    """Yield build(item) of each item, computed in a thread up to `depth` items ahead.

    Raises:
        Exception: any error of `build`, in place of its result.
    """
    with ThreadPoolExecutor(1, "batches") as thread:
        queued: deque[Future[U]] = deque()
        try:
            for item in items:
                queued.append(thread.submit(build, item))
                if len(queued) > depth:
                    yield queued.popleft().result()
            while queued:
                yield queued.popleft().result()
        finally:
            for one in queued:
                one.cancel()


def order(n: int, seed: int, epoch: int, stream: int = 0) -> np.ndarray:
    """Return a permutation of 0, ..., n - 1: (n,) int64.

    Args:
        n: length.
        seed: any whole number.
        epoch: number of the epoch.
        stream: number of the random stream; each has another permutation of the epoch.
    """
    return _generator(seed, epoch, stream).permutation(n)


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    # streams differ in the counter's highest word, so that their ranges do not overlap
    key, counter = (np.array(words, np.uint64) for words in ([seed % 2**64, epoch], [0, 0, 0, stream]))
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@dataclass(frozen=True)
class Group:
    """A range of sequences with a sampling weight.

    Attributes:
        first: number of the first sequence.
        count: number of sequences.
        reads: reads of the group per epoch. `count` reads each sequence once. The remainder modulo `count` is a random
            choice, which differs between epochs.
    """

    first: int
    count: int
    reads: int

    def __post_init__(self) -> None:
        if min(self.first, self.count, self.reads) < 0 or (self.reads and not self.count):
            raise ValueError(
                f"a group of {self.count} sequences from number {self.first} on cannot be read {self.reads} times an "
                f"epoch; expected numbers of at least 0, and sequences where there are reads"
            )


class Order:
    """The sequence at each position of a training, over all epochs.

    One epoch is held in memory, 8 bytes a sequence.

    Args:
        groups: groups of sequences with their reads per epoch.
        seed: any whole number.

    Raises:
        ValueError: the groups have no reads.
    """

    def __init__(self, groups: Sequence[Group], seed: int) -> None:
        self.groups = tuple(groups)
        self.seed = seed
        self.epoch_size = sum(group.reads for group in self.groups)
        if self.epoch_size < 1:
            raise ValueError("there are no sequences to train on; the dataset is empty")
        self._held: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def at(self, positions: int | np.ndarray) -> np.ndarray:
        """Return the sequences at these positions, int64 of the same shape.

        Raises:
            ValueError: a position is negative.
        """
        given = np.asarray(positions, dtype=np.int64)
        if given.size and given.min() < 0:
            raise ValueError(f"position {given.min()}; expected a number of at least 0")
        epochs, places = np.divmod(given, self.epoch_size)
        found = np.empty_like(given)
        for epoch in np.unique(epochs).tolist():
            ours = epochs == epoch
            found[ours] = self._epoch(epoch)[places[ours]]
        return found

    def _epoch(self, epoch: int) -> np.ndarray:
        if self._held[0] != epoch:
            reads = np.empty(self.epoch_size, np.int64)
            end = 0
            for number, group in enumerate(self.groups, 1):
                whole, part = divmod(group.reads, group.count) if group.reads else (0, 0)
                for _ in range(whole):
                    reads[end : end + group.count] = np.arange(group.first, group.first + group.count)
                    end += group.count
                if part:
                    reads[end : end + part] = order(group.count, self.seed, epoch, number)[:part] + group.first
                    end += part
            _generator(self.seed, epoch, 0).shuffle(reads)
            self._held = (epoch, reads)
        return self._held[1]
