"""Near-duplicates: pairs of documents whose sets of shingles have at least a given Jaccard similarity.

In go signatures and a way to get at the texts; out come pairs, each verified against the texts, so that no pair is a
guess. Candidates are documents that share all values of a band of their MinHash signatures (locality-sensitive
hashing); bands are sorted, not put into dictionaries. The time is that of sorting, unless documents resemble each other
in masses: a bucket larger than `max_bucket` is compared with its best few members only, and reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.text.groups import Pairs, clusters
from tasks.text.minhash import N_PERMUTATIONS, U32, Signatures, estimate, shingle_sets
from tasks.text.words import I64, U64, distinct

TextsOf = Callable[[Sequence[int]], list[str]]

MAX_BUCKET = 64
LEADERS = 8  # members of a giant bucket that all others are compared with
FOUND_SHARE = 0.995  # least probability that a pair at the threshold becomes a candidate
BLOCK_SHINGLES = 1 << 22  # shingles in memory while candidates are verified
MARGIN = 3.7  # standard errors below the threshold at which an estimate rules a pair out: 1 in 10,000

_ESTIMATED_AT_ONCE = 1 << 14
_BASE = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class NearPairs:
    """What was found.

    Attributes:
        pairs: those of at least the threshold.
        verified: every pair whose similarity was computed; given as `known` to a later call, none is computed again.
        n_candidates: pairs that shared a band and passed the estimate.
        n_giant_buckets: buckets that were too large to compare all against all.
        largest_bucket: members of the largest.
    """

    pairs: Pairs
    verified: Pairs
    n_candidates: int
    n_giant_buckets: int
    largest_bucket: int


def near_pairs(
    signatures: Signatures,
    texts_of: TextsOf,
    threshold: float = 0.8,
    *,
    rank: npt.NDArray[np.generic] | None = None,
    max_bucket: int = MAX_BUCKET,
    known: Pairs | None = None,
) -> NearPairs:
    """All pairs of documents that are near-duplicates (a pair at the threshold is missed once in 200 or more rarely).

    Args:
        signatures: of n documents. Documents with the same text should be left out before; they cost time, no more.
        texts_of: texts of documents given by ascending indices; called with some thousands at a time.
        threshold: least Jaccard similarity of a pair, above 0 and at most 1.
        rank: of each document, lower is better; the best members of a giant bucket are those that the others are
            compared with. By default the longest. Documents of equal rank go by length and words, and only those
            of the same words by index: with ranks all different, the order of the documents never matters.
        max_bucket: largest number of documents that share a band and are compared all against all.
        known: similarities of pairs from earlier calls, in the indices of this one. They save time and change nothing.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold} is no Jaccard similarity: expected a number above 0 and at most 1")
    order = _best_first(signatures, rank)
    found = _candidates(signatures, order, threshold, max_bucket)
    first, second = np.divmod(found.codes, max(len(signatures), 1))
    similarity = np.full(len(first), np.nan)
    if known is not None:
        _recall(found.codes, len(signatures), known, similarity)
    unknown = np.flatnonzero(np.isnan(similarity))
    similarity[unknown] = _verify(first[unknown], second[unknown], signatures.n_shingles, texts_of)
    verified = Pairs.sorted(first, second, similarity)
    return NearPairs(verified.at_least(threshold), verified, len(first), found.n_giant, found.largest)


def band_rows(threshold: float) -> int:
    """Values per band: as many as still make a pair at the threshold share a band with probability `FOUND_SHARE`.

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


def _best_first(signatures: Signatures, rank: npt.NDArray[np.generic] | None) -> I64:
    """Documents with words, by rank, then length, then content."""
    content = _combined(signatures.minima)
    keys = [content, -signatures.n_shingles, *([] if rank is None else [rank])]
    order = np.lexsort(keys)
    return order[np.asarray(signatures.n_shingles)[order] > 0]


def _combined(minima: U32) -> U64:
    """One hash for the values of each row."""
    combined = np.zeros(len(minima), np.uint64)
    for column in range(minima.shape[1]):
        combined *= _BASE
        combined += minima[:, column]
        combined ^= combined >> np.uint64(29)
    return combined * _BASE


def _candidates(signatures: Signatures, order: I64, threshold: float, max_bucket: int) -> _Found:
    """Pairs that share a band and may reach the threshold by their estimates and by their sizes."""
    n = len(signatures)
    rows = band_rows(threshold)
    found = _Found(np.zeros(0, np.int64))
    for start in range(0, N_PERMUTATIONS - rows + 1, rows):
        keys = _combined(signatures.minima[:, start : start + rows])[order]
        fresh = [found.codes]
        for one, other in _bucket_pairs(keys, max_bucket, found):
            one, other = order[one], order[other]
            codes = np.minimum(one, other) * n + np.maximum(one, other)
            fresh.append(codes[_may_reach(signatures, one, other, threshold)])
        found.codes = distinct(np.concatenate(fresh))
    return found


def _bucket_pairs(keys: U64, max_bucket: int, found: _Found) -> Iterator[tuple[I64, I64]]:
    """Pairs of places with equal keys; of a giant bucket only those with its first members.

    Places stand in the low bits of the sorted keys, which puts each bucket in order without a slow stable sort. What
    is left of a key tells buckets apart well enough: a wrong pair does not survive its estimate.
    """
    low = np.uint64(max(len(keys) - 1, 1).bit_length())
    packed = np.sort((keys >> low << low) | np.arange(len(keys), dtype=np.uint64))
    places = (packed & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)
    keys = packed >> low
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


def _may_reach(signatures: Signatures, one: I64, other: I64, threshold: float) -> npt.NDArray[np.bool_]:
    """Whether neither sizes nor estimate rule a pair out."""
    ours, theirs = signatures.n_shingles[one], signatures.n_shingles[other]
    reach = np.minimum(ours, theirs) / np.maximum(ours, theirs) >= threshold  # divided, as the similarity will be
    least = threshold - MARGIN * math.sqrt(threshold * (1 - threshold) / N_PERMUTATIONS)
    open_pairs = np.flatnonzero(reach)
    for start in range(0, len(open_pairs), _ESTIMATED_AT_ONCE):
        part = open_pairs[start : start + _ESTIMATED_AT_ONCE]
        reach[part] = estimate(signatures.minima[one[part]], signatures.minima[other[part]]) >= least
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
    labels = clusters(int(second.max()) + 1, Pairs(first, second, similarity))
    order = np.lexsort((first, second, labels[first]))
    for block in _blocks(first[order].tolist(), second[order].tolist(), sizes):
        pairs = order[block]
        documents = distinct(np.concatenate([first[pairs], second[pairs]]))
        sets = shingle_sets(texts_of(documents.tolist()))
        bounds = sets.offsets.tolist()
        ours = np.searchsorted(documents, first[pairs]).tolist()
        theirs = np.searchsorted(documents, second[pairs]).tolist()
        for pair, a, b in zip(pairs.tolist(), ours, theirs, strict=True):
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
