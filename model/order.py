"""Order of training: the sequence at each position is a pure function of (seed, epoch, position).

A run resumes from a number of steps, and any number of ranks that share the positions read the same sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def order(n: int, seed: int, epoch: int, stream: int = 0) -> np.ndarray:
    """Return a permutation of 0, ..., n - 1: (n,) int64.

    Args:
        seed: any whole number.
        epoch: each has another permutation.
        stream: tells permutations of one epoch apart.
    """
    return _generator(seed, epoch, stream).permutation(n)


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    # the highest word of the counter: streams of one key never meet
    key, counter = (np.array(words, np.uint64) for words in ([seed % 2**64, epoch], [0, 0, 0, stream]))
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@dataclass(frozen=True)
class Group:
    """Sequences that lie side by side and are read equally often.

    Attributes:
        first: number of the first one.
        count: number of sequences.
        reads: sequences of the group that an epoch reads: `count` for each once; more repeat all of them and some once
            more; fewer leave some out, others in each epoch.
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
        groups: reads of an epoch.
        seed: any whole number.

    Raises:
        ValueError: there is nothing to read.
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
