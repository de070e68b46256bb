"""Texts as numbers: which words and pairs of neighbouring words they hold, in hashed buckets.

In go texts, out comes a sparse matrix with a row for each. A word or pair falls into one of 2**18 buckets by its hash
(Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning"), a bucket counts `1 + log(frequency)`,
and a row has length one, so that a long text weighs no more than a short one. Words are those of deduplication, whose
hashes are made without a Python object for any of them. A row does not depend on the other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.text.words import I64, Hashes, distinct, read_batches, word_runs

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

BUCKET_BITS = 18
BUCKETS = 1 << BUCKET_BITS
READ_CHARS = 100_000  # of a text; what a text is like shows in these, and one text always is one batch of words


@dataclass(frozen=True)
class Features:
    """A sparse matrix, the places that are not zero in order of rows, then of columns.

    Products are sums in that order, never those of a linear algebra library: what it gives in the last digits depends
    on its number of threads.

    Attributes:
        rows, columns, values: of each place that is not zero.
        n_rows, n_columns: how large the matrix is.
    """

    rows: I32
    columns: I32
    values: F64
    n_rows: int
    n_columns: int = BUCKETS

    def times(self, vector: F64) -> F64:
        """Product with a vector of `n_columns` numbers."""
        return _sums(self.rows, self.values * vector[self.columns], self.n_rows)

    def transposed_times(self, vector: F64) -> F64:
        """Product of the transposed matrix with a vector of `n_rows` numbers."""
        return _sums(self.columns, self.values * vector[self.rows], self.n_columns)

    def narrowed(self) -> tuple[Features, I64]:
        """The matrix without columns of zeros, and which columns are left."""
        kept = distinct(self.columns.astype(np.int64))
        place = np.zeros(self.n_columns, np.int32)
        place[kept] = np.arange(len(kept), dtype=np.int32)
        return Features(self.rows, place[self.columns], self.values, self.n_rows, len(kept)), kept


def featurise(texts: Sequence[str]) -> Features:
    """Features of texts; a text without words has none."""
    parts: list[Features] = []
    firsts: list[int] = []
    for batch in read_batches([text[:READ_CHARS] for text in texts]):
        parts.append(_count(batch.words))
        firsts.append(batch.first)
    rows = [part.rows + np.int32(first) for part, first in zip(parts, firsts, strict=True)]
    return Features(
        np.concatenate([np.zeros(0, np.int32), *rows]),
        np.concatenate([np.zeros(0, np.int32), *(part.columns for part in parts)]),
        np.concatenate([np.zeros(0, np.float64), *(part.values for part in parts)]),
        len(texts),
    )


def _count(words: Hashes) -> Features:
    """Features of the documents of a batch."""
    places = np.sort(np.concatenate([_places(words), _places(word_runs(words, 2))]))
    first = np.ones(len(places), bool)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    places = places[begins]
    rows = (places >> np.uint64(BUCKET_BITS)).astype(np.int32)
    columns = (places & np.uint64(BUCKETS - 1)).astype(np.int32)
    values = 1 + np.log(np.diff(begins, append=len(first)))
    lengths = np.sqrt(_sums(rows, values * values, len(words)))
    return Features(rows, columns, values / lengths[rows], len(words))


def _sums(places: I32, values: F64, size: int) -> F64:
    """The sum of the values at each place, added one after the other."""
    return np.asarray(np.bincount(places, values, minlength=size), np.float64)


def _places(hashes: Hashes) -> npt.NDArray[np.uint64]:
    """Row and bucket of every hash, as one number."""
    rows = np.repeat(np.arange(len(hashes), dtype=np.uint64) << np.uint64(BUCKET_BITS), hashes.counts)
    return rows | (hashes.values & np.uint64(BUCKETS - 1))
