"""Near-duplicates: pairs of documents whose sets of shingles have at least a given Jaccard similarity.

Candidates are documents that share all values of a band of their MinHash signatures (locality-sensitive hashing); bands
are sorted, not put into dictionaries, and every candidate is verified against the texts, so that no pair is a guess.
The time is that of sorting, unless documents resemble each other in masses: a bucket larger than `max_bucket` is
compared with its best few members only, and reported. Memory holds some numbers of each document and one of its 120
MinHash values at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tasks.text.groups import Pairs, clusters
from tasks.text.minhash import N_PERMUTATIONS, U32, shingle_sets
from tasks.text.words import I64, U64, distinct

TextsOf = Callable[[Sequence[int]], list[str]]

MAX_BUCKET = 64
LEADERS = 8  # members of a giant bucket that all others are compared with
FOUND_SHARE = 0.995  # least probability that a pair at the threshold becomes a candidate
BLOCK_SHINGLES = 1 << 22  # shingles in memory while candidates are verified
MARGIN = 3.7  # standard errors below the threshold at which an estimate rules a pair out: 1 in 10,000

_PENDING_PAIRS = 1 << 24  # that wait for their estimate
_BASE = np.uint64(0xD1342543DE82EF95)


class Minhashes(Protocol):
    """MinHash signatures of n documents: `Signatures` in memory, or `MinhashFile` on disk."""

    @property
    def n_shingles(self) -> I64:
        """(n,) number of distinct shingles of each document."""

    def column(self, number: int) -> U32:
        """Return (n,) values of all documents under one permutation."""


class MinhashFile:
    """MinHash signatures of n documents in a file, column by column, so that memory holds one of 120 at a time.

    Args:
        path: Written anew.
        n: Number of documents.
    """

    def __init__(self, path: Path, n: int) -> None:
        self.n_shingles: I64 = np.zeros(n, np.int64)
        self._path = path
        self._n = n
        self._done = 0
        path.write_bytes(b"")

    def append(self, minima: U32, n_shingles: I64) -> None:
        """Add the (m, 120) values of the next documents."""
        with self._path.open("r+b") as file:
            for number in range(N_PERMUTATIONS):
                file.seek((number * self._n + self._done) * minima.itemsize)
                file.write(np.ascontiguousarray(minima[:, number]).data)
        self.n_shingles[self._done : self._done + len(minima)] = n_shingles
        self._done += len(minima)

    def column(self, number: int) -> U32:
        """Return (n,) values of all documents under one permutation."""
        return np.fromfile(self._path, np.uint32, self._n, offset=number * self._n * np.dtype(np.uint32).itemsize)


@dataclass(frozen=True)
class NearPairs:
    """Near-duplicates and how they were found.

    Attributes:
        pairs: Pairs of at least the threshold.
        verified: Every candidate with its similarity; given as `known` to a later call, none is computed again.
        n_candidates: Pairs that shared a band and passed the estimate.
        n_giant_buckets: Buckets that were too large to compare all against all.
        largest_bucket: Members of the largest bucket.
    """

    pairs: Pairs
    verified: Pairs
    n_candidates: int
    n_giant_buckets: int
    largest_bucket: int


def near_pairs(
    signatures: Minhashes,
    texts_of: TextsOf,
    threshold: float = 0.8,
    *,
    tie: npt.NDArray[np.generic] | None = None,
    max_bucket: int = MAX_BUCKET,
    known: Pairs | None = None,
) -> NearPairs:
    """Return all near-duplicates; a pair at the threshold is missed once in 200 or more rarely.

    Args:
        signatures: Of n documents. Documents with the same text should be left out before; they cost time, no more.
        texts_of: Texts of documents given by ascending indices; called with some thousands at a time.
        threshold: Least Jaccard similarity of a pair, above 0 and at most 1.
        tie: Of each document, a number, no two alike. The others of a giant bucket are compared with its longest
            members; of equal length those go by words, and only of the same words by this. By default the index.
        max_bucket: Largest number of documents that share a band and are compared all against all.
        known: Similarities of pairs from earlier calls, in the indices of this one. They save time and change nothing.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold} is no Jaccard similarity: expected a number above 0 and at most 1")
    n = len(signatures.n_shingles)
    found = _candidates(signatures, _best_first(signatures, tie), threshold, max_bucket)
    first, second = np.divmod(found.codes, max(n, 1))
    similarity = np.full(len(first), np.nan)
    if known is not None:
        _recall(found.codes, n, known, similarity)
    unknown = np.flatnonzero(np.isnan(similarity))
    similarity[unknown] = _verify(first[unknown], second[unknown], signatures.n_shingles, texts_of)
    verified = Pairs.sorted(first, second, similarity)
    return NearPairs(verified.at_least(threshold), verified, len(first), found.n_giant, found.largest)


def band_rows(threshold: float) -> int:
    """Return the values per band: as many as still make a pair at the threshold share a band with `FOUND_SHARE`.

    The probability is 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, 3.4).
    """
    rows = 1
    while rows < 16 and 1 - (1 - threshold ** (rows + 1)) ** (N_PERMUTATIONS // (rows + 1)) >= FOUND_SHARE:
        rows += 1
    return rows


@dataclass
class _Found:
    """Candidates as `lower index * n + higher index`, sorted, and what the buckets were like."""

    codes: I64
    n_giant: int = 0
    largest: int = 0


def _best_first(signatures: Minhashes, tie: npt.NDArray[np.generic] | None) -> I64:
    """Documents with words, by length, then content, then the tie."""
    content = _combined(signatures, 0, N_PERMUTATIONS)
    order = np.lexsort([*([] if tie is None else [tie]), content, -signatures.n_shingles])
    return order[signatures.n_shingles[order] > 0]


def _combined(signatures: Minhashes, start: int, stop: int) -> U64:
    """One hash for some of the values of each document."""
    combined = np.zeros(len(signatures.n_shingles), np.uint64)
    for number in range(start, stop):
        combined *= _BASE
        combined += signatures.column(number)
        combined ^= combined >> np.uint64(29)
    combined *= _BASE
    return combined


def _candidates(signatures: Minhashes, order: I64, threshold: float, max_bucket: int) -> _Found:
    """Pairs that share a band and may reach the threshold by their estimates and by their sizes."""
    n = len(signatures.n_shingles)
    rows = band_rows(threshold)
    found = _Found(np.zeros(0, np.int64))
    pending = [found.codes]
    for start in range(0, N_PERMUTATIONS - rows + 1, rows):
        keys = _combined(signatures, start, start + rows)[order]
        for one, other in _bucket_pairs(keys, max_bucket, found):
            one, other = order[one], order[other]
            ours, theirs = signatures.n_shingles[one], signatures.n_shingles[other]
            reach = np.minimum(ours, theirs) / np.maximum(ours, theirs) >= threshold  # divided, as the similarity is
            pending.append((np.minimum(one, other) * n + np.maximum(one, other))[reach])
        pending = [distinct(np.concatenate(pending))]
        if len(pending[0]) > _PENDING_PAIRS or start + 2 * rows > N_PERMUTATIONS:
            fresh = np.setdiff1d(pending[0], found.codes, assume_unique=True)
            found.codes = np.union1d(found.codes, fresh[_may_reach(signatures, fresh, threshold)])
            pending = [np.zeros(0, np.int64)]
    return found


def _bucket_pairs(keys: U64, max_bucket: int, found: _Found) -> Iterator[tuple[I64, I64]]:
    """Pairs of places with equal keys; of a giant bucket only those with its first members.

    Places stand in the low bits of the sorted keys, which puts each bucket in order without a slow stable sort. What
    is left of a key tells buckets apart well enough: a wrong pair does not survive its estimate.
    """
    low = np.uint64(max(len(keys) - 1, 1).bit_length())
    keys = keys >> low << low
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    places = (keys & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)
    keys >>= low
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)
    sizes = np.diff(np.append(begins, len(keys)))
    found.largest = max(found.largest, int(sizes.max(initial=0)))
    found.n_giant += int(np.count_nonzero(sizes > max_bucket))
    yield from _all_pairs(places, begins, sizes, (sizes > 1) & (sizes <= max_bucket), max_bucket)
    yield from _all_pairs(places, begins, sizes, sizes > max_bucket, min(LEADERS + 1, max_bucket))


def _all_pairs(
    places: I64, begins: I64, sizes: I64, chosen: npt.NDArray[np.bool_], leaders: int
) -> Iterator[tuple[I64, I64]]:
    """For each of the first members but one of each chosen bucket, its pairs with all that follow it."""
    begins, sizes = begins[chosen], sizes[chosen]
    for leader in range(leaders - 1):
        larger = sizes > leader + 1
        if not larger.any():
            return
        begins, sizes = begins[larger], sizes[larger]
        counts = sizes - leader - 1
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        yield np.repeat(places[begins + leader], counts), places[np.repeat(begins + leader + 1, counts) + within]


def _may_reach(signatures: Minhashes, codes: I64, threshold: float) -> npt.NDArray[np.bool_]:
    """Pairs that their estimates do not rule out."""
    least = threshold - MARGIN * math.sqrt(threshold * (1 - threshold) / N_PERMUTATIONS)
    one, other = np.divmod(codes, max(len(signatures.n_shingles), 1))
    equal = np.zeros(len(codes), np.uint8)
    for number in range(N_PERMUTATIONS if len(codes) else 0):
        values = signatures.column(number)
        equal += values[one] == values[other]
    reach: npt.NDArray[np.bool_] = equal / N_PERMUTATIONS >= least
    return reach


def _recall(codes: I64, n: int, known: Pairs, similarity: npt.NDArray[np.float64]) -> None:
    """Fill in the similarities that are known."""
    known_codes = known.first * n + known.second
    order = np.argsort(known_codes)
    place = np.minimum(np.searchsorted(known_codes, codes, sorter=order), max(len(order) - 1, 0))
    if len(order):
        same = known_codes[order[place]] == codes
        similarity[same] = known.similarity[order[place[same]]]


def _verify(first: I64, second: I64, sizes: I64, texts_of: TextsOf) -> npt.NDArray[np.float64]:
    """Exact similarity of each pair, reading the texts block by block, those that belong together in one."""
    similarity = np.zeros(len(first))
    if not len(first):
        return similarity
    ends = distinct(np.concatenate([first, second]))
    one, other = np.searchsorted(ends, first), np.searchsorted(ends, second)
    labels = clusters(len(ends), Pairs(one, other, similarity))
    order = np.lexsort((first, second, labels[one]))
    for block in _blocks(first[order].tolist(), second[order].tolist(), sizes):
        pairs = order[block]
        similarity[pairs] = _jaccard(first[pairs], second[pairs], texts_of)
    return similarity


def _jaccard(first: I64, second: I64, texts_of: TextsOf) -> npt.NDArray[np.float64]:
    documents = distinct(np.concatenate([first, second]))
    sets = shingle_sets(texts_of(documents.tolist()))
    bounds = sets.offsets.tolist()
    ours, theirs = np.searchsorted(documents, first).tolist(), np.searchsorted(documents, second).tolist()
    similarity = np.zeros(len(first))
    for pair, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        both = np.concatenate((sets.values[bounds[a] : bounds[a + 1]], sets.values[bounds[b] : bounds[b + 1]]))
        both.sort()
        common = np.count_nonzero(both[1:] == both[:-1])
        similarity[pair] = common / (len(both) - common)
    return similarity


def _blocks(first: list[int], second: list[int], sizes: I64) -> Iterator[slice]:
    """Runs of pairs whose documents have no more than `BLOCK_SHINGLES` shingles together."""
    start, held, load = 0, set[int](), 0
    for place, pair in enumerate(zip(first, second, strict=True)):
        fresh = [document for document in pair if document not in held]
        more = sum(int(sizes[document]) for document in fresh)
        if place > start and load + more > BLOCK_SHINGLES:
            yield slice(start, place)
            start, held, load = place, set(), 0
            fresh, more = list(pair), sum(int(sizes[document]) for document in pair)
        held.update(fresh)
        load += more
    yield slice(start, len(first))
