"""From pairs of near-duplicates to clusters, and to the documents that are kept of each.

A cluster is everything joined by pairs, directly or through others; splits follow clusters. Dropping is stricter: only
a document that is itself the near-duplicate of a kept one is dropped, because the two ends of a long chain may have
little in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tasks.text.words import I64


@dataclass(frozen=True)
class Pairs:
    """Pairs of documents with their exact similarities.

    Attributes:
        first, second: indices, `first < second`, sorted by both; no pair twice.
        similarity: Jaccard similarity of their sets of shingles.
    """

    first: I64
    second: I64
    similarity: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def sorted(cls, one: I64, other: I64, similarity: npt.NDArray[np.float64]) -> Self:
        """Return distinct pairs of any order and direction in the order of this class."""
        first, second = np.minimum(one, other), np.maximum(one, other)
        order = np.lexsort((second, first))
        return cls(first[order], second[order], similarity[order])

    def at_least(self, threshold: float) -> Self:
        """Return the pairs of at least that similarity."""
        chosen = self.similarity >= threshold
        return type(self)(self.first[chosen], self.second[chosen], self.similarity[chosen])


def clusters(n: int, pairs: Pairs) -> I64:
    """Return the cluster of each of n documents: the smallest index among its members."""
    labels = np.arange(n)
    while True:
        ours, theirs = labels[pairs.first], labels[pairs.second]
        if np.array_equal(ours, theirs):
            return labels
        lowest = np.minimum(ours, theirs)
        np.minimum.at(labels, ours, lowest)
        np.minimum.at(labels, theirs, lowest)
        while not np.array_equal(labels, labels[labels]):
            labels = labels[labels]


def keep_best(n: int, pairs: Pairs, rank: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.bool_], I64]:
    """Choose the documents to keep: best first, each unless it is a direct near-duplicate of one already kept.

    Args:
        n: number of documents.
        pairs: verified pairs.
        rank: of each document, lower is better; of equals the lower index is better.

    Returns:
        A mask of the documents kept, and for each document the one that stands for it: itself if it is kept, else the
        best kept document that it nearly equals.
    """
    place = np.empty(n, np.int64)
    place[np.lexsort((np.arange(n), rank))] = np.arange(n)
    source = np.concatenate([pairs.first, pairs.second])
    target = np.concatenate([pairs.second, pairs.first])
    order = np.argsort(place[source], kind="stable")
    source, target = source[order], target[order]
    begins = np.flatnonzero(np.append(True, source[1:] != source[:-1])) if len(source) else np.zeros(0, np.int64)
    kept = np.ones(n, bool)
    stands_for = np.arange(n)
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(source)], strict=False):
        if kept[source[begin]]:
            neighbours = target[begin:end]
            fresh = neighbours[kept[neighbours]]  # all of them are worse, or this document would be gone
            kept[fresh] = False
            stands_for[fresh] = source[begin]
    return kept, stands_for
