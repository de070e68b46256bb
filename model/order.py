"""In which order training reads its sequences: a pure function from (seed, position) to a sequence.

Goes in: the groups of sequences with the number of reads that each gets per epoch, a seed, and positions counted over
all epochs. Comes out: the sequences at these positions. Nothing is shuffled and nothing is stored: a keyed permutation
is computed at the places that are asked for, so that position 10**12 costs as much as position 0, a run resumes from
one number, and any number of ranks and workers that share the positions out read the same sequences.

The permutation is a Feistel network (Luby and Rackoff 1988) with cycle walking (Black and Rogaway 2002) over two
digits of nearly equal range instead of two halves of bits, so that hardly any place has to walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Enough that the distances between neighbours are uniform within one per cent from 10 sequences on, and that each
# order of six occurs; with 6 rounds it is four per cent, with 4 sixteen. More rounds only cost time. An even number, so
# that both digits end where they began.
ROUNDS = 8
MAX_SEQUENCES = 2**62  # keeps both digits below 2**32, so that no product overflows
_BLOCK = 2**15  # places that are computed at a time: what they need then stays in the processor's cache

_U64 = np.uint64
_HALF = _U64(32)
_SPREAD = _U64(0xD6E8FEB86659FD93)  # any odd number whose bits show no pattern
# 2**64 / g, 2**64 / g**2, 2**64 / g**3 with g**4 = g + 1: small multiples of the three never add up to the same number.
_STEPS = np.array([0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8CB92BA72F3D8DD7], dtype=_U64)
_ROUND_STEPS = np.arange(ROUNDS, dtype=_U64)[:, None] * _STEPS[2]

Places = np.ndarray  # int64 of any shape


class Permutation:
    """A permutation of 0, ..., n - 1 that depends on nothing but the arguments.

    n, epoch and stream may be arrays, one value for each position that the permutation is called with: then each
    position has a permutation of its own.

    Args:
        n: number of sequences, at least 1.
        seed: of the order; any whole number.
        epoch: number of the epoch; each has another permutation.
        stream: tells permutations of one epoch apart.

    Raises:
        ValueError: n is below 1 or above MAX_SEQUENCES.
    """

    def __init__(self, n: int | Places, seed: int, epoch: int | Places = 0, stream: int | Places = 0) -> None:
        self.n = _column(n)
        self.seed = seed
        self.epoch = _column(epoch)
        self.stream = _column(stream)
        if not (self.n >= 1).all():
            raise ValueError("there are no sequences to bring into an order; the dataset is empty")
        if not (self.n <= MAX_SEQUENCES).all():
            raise ValueError(f"{self.n.max()} sequences are more than the {MAX_SEQUENCES} that an order can hold")

    def __call__(self, positions: int | Places) -> Places:
        """The sequences at these positions, int64 of the same shape.

        Raises:
            IndexError: a position does not lie in [0, n).
        """
        given = np.asarray(positions, dtype=np.int64)
        flat = given.reshape(-1)
        found = np.empty(len(flat), dtype=np.int64)
        for first in range(0, len(flat), _BLOCK):
            block = slice(first, first + _BLOCK)
            n, epoch, stream = (_part(column, block) for column in (self.n, self.epoch, self.stream))
            places, n = flat[block].astype(_U64), n.astype(_U64)
            outside = places >= n  # a negative position has become a huge one
            if outside.any():
                raise IndexError(f"position {flat[block][outside][0]} lies outside of the {self.n.max()} sequences")
            found[block] = _permute(places, n, _round_keys(self.seed, epoch, stream))
        return found.reshape(given.shape)


def order(n: int, seed: int, epoch: int) -> Places:
    """All of n sequences in the order of one epoch: (n,) int64."""
    return Permutation(n, seed, epoch)(np.arange(n, dtype=np.int64))


@dataclass(frozen=True)
class Group:
    """Sequences that lie side by side and are read equally often.

    Attributes:
        first: number of the first one.
        count: how many there are.
        reads: how many sequences of the group an epoch reads: count for each once; more repeat all of them as often
            as they go into it and some of them once more; fewer leave some out, others in each epoch.
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

    An epoch has as many positions as its groups have reads. All of them are mixed by one permutation; the reads of a
    group then are as many full passes over it as they hold, and one over a part of it that differs between epochs.

    Args:
        groups: what is read how often.
        seed: of the order; any whole number.

    Raises:
        ValueError: there is nothing to read.
    """

    def __init__(self, groups: Sequence[Group], seed: int) -> None:
        self.groups = tuple(groups)
        self.seed = seed
        self.epoch_size = sum(group.reads for group in self.groups)
        if self.epoch_size < 1:
            raise ValueError("there are no sequences to train on; the dataset is empty")
        read = [group for group in self.groups if group.reads]
        self._first = np.array([group.first for group in read], dtype=np.int64)
        self._count = np.array([group.count for group in read], dtype=np.int64)
        self._end = np.cumsum([group.reads for group in read], dtype=np.int64)
        self._begin = self._end - np.array([group.reads for group in read], dtype=np.int64)
        self._in_full = (self._end - self._begin) // self._count * self._count  # reads that belong to full passes

    def at(self, positions: int | Places) -> Places:
        """The sequences at these positions, int64 of the same shape.

        Args:
            positions: from 0 on, over all epochs, in any order.

        Raises:
            ValueError: a position is negative.
        """
        given = np.asarray(positions, dtype=np.int64)
        flat = given.reshape(-1)
        if len(flat) and flat.min() < 0:
            raise ValueError(f"position {flat.min()}; expected a number of at least 0")
        found = np.empty(len(flat), dtype=np.int64)
        for first in range(0, len(flat), _BLOCK):
            found[first : first + _BLOCK] = self._block(flat[first : first + _BLOCK])
        return found.reshape(given.shape)

    def _block(self, positions: Places) -> Places:
        epoch = positions // self.epoch_size
        read = Permutation(self.epoch_size, self.seed, epoch)(positions - epoch * self.epoch_size)
        if len(self._end) == 1 and self._end[0] == self._count[0]:
            return read + self._first[0]  # every sequence once
        group = np.searchsorted(self._end, read, side="right")
        read -= self._begin[group]
        count = self._count[group]
        sequence = read % count
        partial = read >= self._in_full[group]
        if partial.any():
            # which ones a part of a pass takes is another question than when: a permutation of its own
            chosen = Permutation(count[partial], self.seed, epoch[partial], group[partial] + 1)
            sequence[partial] = chosen(sequence[partial])
        return sequence + self._first[group]


def _column(values: int | Places) -> Places:
    """A number as an array that broadcasts; an array as one column."""
    return np.atleast_1d(np.asarray(values, dtype=np.int64)).reshape(-1)


def _part(column: Places, block: slice) -> Places:
    """A column's values for a block of positions; one value if they are all the same."""
    if len(column) == 1:
        return column
    part = column[block]
    return part[:1] if (part == part[0]).all() else part


def _permute(places: np.ndarray, n: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where these places go; n (1,) or (m,) and keys (ROUNDS, 1) or (ROUNDS, m) for m places, all uint64."""
    high = np.ceil(np.sqrt(n.astype(np.float64))).astype(_U64)
    low = (n + high - _U64(1)) // high
    found = _feistel(places, high, low, keys)
    # The network permutes the high * low >= n places of a slightly larger range. A place that leaves the first n is
    # sent on until it is back; that is a permutation too, because its way can only come from one start.
    astray = np.flatnonzero(found >= n)
    while len(astray):
        ours = slice(None) if len(n) == 1 else astray
        key = keys if keys.shape[1] == 1 else keys[:, astray]
        moved = _feistel(found[astray], high[ours], low[ours], key)
        found[astray] = moved
        astray = astray[moved >= n[ours]]
    return found


def _feistel(places: np.ndarray, high: np.ndarray, low: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A permutation of [0, high * low): each round shifts one digit by a hash of the other one and the round's key."""
    left = places // low
    right = places - left * low
    hashed, upper = np.empty_like(left), np.empty_like(left)
    size, other = high, low
    for key in keys:
        np.add(right, key, out=hashed)
        np.multiply(hashed, _SPREAD, out=hashed)
        np.right_shift(hashed, _HALF, out=upper)
        np.bitwise_xor(hashed, upper, out=hashed)
        np.multiply(hashed, _SPREAD, out=hashed)
        np.right_shift(hashed, _HALF, out=hashed)
        np.multiply(hashed, size, out=hashed)  # a fraction of 2**32 becomes one of the digit's range
        np.right_shift(hashed, _HALF, out=hashed)
        np.add(left, hashed, out=left)
        np.subtract(left, size, out=hashed)  # wraps round to a huge number where left is below size
        np.minimum(left, hashed, out=left)
        left, right = right, left
        size, other = other, size
    return left * low + right


def _round_keys(seed: int, epoch: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """(ROUNDS, 1) or, where epochs or streams differ, (ROUNDS, m) uint64."""
    start = _mix(np.array([seed % 2**64], dtype=_U64) + _STEPS[0])
    return _mix(start + epoch.astype(_U64) * _STEPS[0] + stream.astype(_U64) * _STEPS[1] + _ROUND_STEPS)


def _mix(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (the finaliser of SplitMix64, Steele et al. 2014)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))
