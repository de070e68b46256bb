"""Find near-duplicates: pairs of documents whose sets of shingles have at least a given Jaccard similarity.

Candidates share all values of a band of their MinHash signatures (locality-sensitive hashing). Bands are joined in
DuckDB, out of core, and every candidate is verified against the texts. The join dominates the time, unless very many
documents are similar: a bucket larger than `max_bucket` is compared with its best few members only, and reported.
Memory holds the pairs that pass the MinHash estimate.

A cluster is a connected component of pairs; splits keep clusters together. Only a document that is itself a
near-duplicate of a kept one is dropped, because the two ends of a long chain may have little in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.text.minhash import N_PERMUTATIONS, U32, shingle_sets
from tasks.text.words import I64, U64, distinct

if TYPE_CHECKING:
    import duckdb

F64 = npt.NDArray[np.float64]
MinhashesOf = Callable[[I64], tuple[U32, I64, U64]]
TextsOf = Callable[[Sequence[int]], list[str]]

MAX_BUCKET = 64
LEADERS = 8  # members of a giant bucket that all others are compared with
FOUND_SHARE = 0.995  # minimum probability that a pair at the threshold becomes a candidate
BLOCK_SHINGLES = 1 << 22  # shingles in memory while candidates are verified
MARGIN = 3.7  # standard errors below the threshold at which an estimate excludes a pair: 1 in 10,000

_AT_ONCE = 1 << 16  # documents or pairs whose minima are in memory
_BASE = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class Pairs:
    """Pairs of documents with their exact similarities.

    Attributes:
        first, second: Indices of the documents, `first < second`, sorted by both, without repetitions.
        similarity: Jaccard similarity of their sets of shingles.
    """

    first: I64
    second: I64
    similarity: F64

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def sorted(cls, one: I64, other: I64, similarity: F64) -> Self:
        """Sort distinct pairs of any order and direction."""
        first, second = np.minimum(one, other), np.maximum(one, other)
        order = np.lexsort((second, first))
        return cls(first[order], second[order], similarity[order])

    def at_least(self, threshold: float) -> Self:
        """Return the pairs of at least that similarity."""
        chosen = self.similarity >= threshold
        return type(self)(self.first[chosen], self.second[chosen], self.similarity[chosen])


NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class NearPairs:
    """Near-duplicates, with counts of the search.

    Attributes:
        pairs: Pairs of at least the threshold.
        verified: Every candidate with its similarity; as `known` of a later call it saves the verification.
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
    n: int,
    minhashes_of: MinhashesOf,
    texts_of: TextsOf,
    threshold: float = 0.8,
    *,
    max_bucket: int = MAX_BUCKET,
    known: Pairs | None = None,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> NearPairs:
    """Return all near-duplicates; at most one in 200 pairs at the threshold is missed.

    Args:
        n: Number of documents. Exact duplicates should be left out, to save time.
        minhashes_of: Returns for m documents, by ascending indices, (m, 120) MinHash values, (m,) numbers of distinct
            shingles and (m,) unique tie-breakers. A giant bucket is compared with its longest members, in the order of
            length, content and tie-breaker.
        texts_of: Returns texts of documents by ascending indices; called with some thousands at a time.
        threshold: Minimum Jaccard similarity of a pair, above 0 and at most 1.
        max_bucket: Largest number of documents in a band that are compared all against all.
        known: Similarities of pairs from earlier calls, in the indices of this one; they only save time.
        connection: Database for the bands, whose memory limit applies; by default one in memory.
    """
    import duckdb

    connection = connection or duckdb.connect()
    n_bands = _list_bands(connection, n, minhashes_of, band_rows(threshold))
    n_giant, largest = _pair_buckets(connection, n_bands, threshold, max_bucket)
    first, second, similarity = _likely_pairs(connection, minhashes_of, threshold, known or NO_PAIRS)
    unknown = np.flatnonzero(np.isnan(similarity))
    similarity[unknown] = _verify(connection, first[unknown], second[unknown], texts_of)
    connection.execute("drop table bands")
    verified = Pairs.sorted(first, second, similarity)
    return NearPairs(verified.at_least(threshold), verified, len(first), n_giant, largest)


def band_rows(threshold: float) -> int:
    """Return the largest number of values per band that finds a pair at the threshold with `FOUND_SHARE`.

    The probability is 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, 3.4).
    """
    rows = 1
    while rows < 16 and 1 - (1 - threshold ** (rows + 1)) ** (N_PERMUTATIONS // (rows + 1)) >= FOUND_SHARE:
        rows += 1
    return rows


def _list_bands(connection: duckdb.DuckDBPyConnection, n: int, minhashes_of: MinhashesOf, rows: int) -> int:
    """Create the table `bands` of documents with words and a hash per band; return the number of bands."""
    n_bands = N_PERMUTATIONS // rows
    names = ["number", "size", "tie", "content", *(f"band_{number}" for number in range(n_bands))]
    hashed = ", ".join(f"{name} ubigint" for name in names[2:])
    connection.execute(f"create or replace table bands (number bigint, size bigint, {hashed})")
    for first in range(0, n, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, n))
        minima, n_shingles, tie = minhashes_of(numbers)
        hashes = (_combined(minima, start, start + rows) for start in range(0, n_bands * rows, rows))
        content = _combined(minima, 0, N_PERMUTATIONS)
        connection.register("fresh", pa.table([numbers, n_shingles, tie, content, *hashes], names))
        connection.execute("insert into bands from fresh where size > 0")
        connection.unregister("fresh")
    return n_bands


def _combined(minima: U32, start: int, stop: int) -> U64:
    """Return (m,) a hash of the values `start` to `stop` of each document."""
    combined = np.zeros(len(minima), np.uint64)
    for number in range(start, stop):
        combined *= _BASE
        combined += minima[:, number]
        combined ^= combined >> np.uint64(29)
    combined *= _BASE
    return combined


def _pair_buckets(
    connection: duckdb.DuckDBPyConnection, n_bands: int, threshold: float, max_bucket: int
) -> tuple[int, int]:
    """Create the table `band_pairs` of documents that share a band and whose sizes allow the threshold.

    A giant bucket gives only the pairs with its first members. Returns the number of giant buckets and the size of the
    largest bucket.
    """
    n_giant, largest = 0, int(connection.execute("from bands limit 1").fetchone() is not None)
    connection.execute("create or replace table band_pairs (first bigint, second bigint)")
    for band in _repeated_bands(connection, [f"band_{number}" for number in range(n_bands)]):
        connection.execute(
            f"create or replace table bucket as select {band} as key, number, size, "
            "count(*) over (partition by key) as members, "
            "row_number() over (partition by key order by size desc, content, tie) as rank from bands "
            f"where key in (select {band} from bands group by {band} having count(*) > 1)"
        )
        connection.execute(
            "insert into band_pairs select least(one.number, other.number), greatest(one.number, other.number) "
            "from (from bucket where members <= $max_bucket or rank <= $leaders) as one join bucket as other "
            "on other.key = one.key and other.rank > one.rank "
            "where least(one.size, other.size) / greatest(one.size, other.size) >= $threshold",
            {"max_bucket": max_bucket, "leaders": min(LEADERS, max_bucket - 1), "threshold": threshold},
        )
        sizes = "select count(*) filter (members > $most and rank = 1), coalesce(max(members), 0) from bucket"
        ((giant, size),) = connection.execute(sizes, {"most": max_bucket}).fetchall()
        n_giant, largest = n_giant + giant, max(largest, size)
    connection.execute("drop table if exists bucket")
    return n_giant, largest


def _repeated_bands(connection: duckdb.DuckDBPyConnection, bands: list[str]) -> list[str]:
    """Return the bands of a few documents in which a hash is there twice; of many documents, all."""
    ((n,),) = connection.execute("select count(*) from bands").fetchall()
    if n > _AT_ONCE:
        return bands
    repeated = ", ".join(f"count(distinct {band}) < count(*)" for band in bands)
    (found,) = connection.execute(f"select {repeated} from bands").fetchall()
    return [band for band, is_repeated in zip(bands, found, strict=True) if is_repeated]


def _likely_pairs(
    connection: duckdb.DuckDBPyConnection, minhashes_of: MinhashesOf, threshold: float, known: Pairs
) -> tuple[I64, I64, F64]:
    """Return the pairs that the MinHash estimate does not exclude, with known similarities or NaN."""
    connection.register("known", pa.table(vars(known)))
    connection.execute(
        "create or replace table likely as select distinct first, second, coalesce(similarity, 'nan') as similarity "
        "from band_pairs left join known using (first, second); drop table band_pairs"
    )
    connection.unregister("known")
    least = threshold - MARGIN * math.sqrt(threshold * (1 - threshold) / N_PERMUTATIONS)
    reaching = [(NO_PAIRS.first, NO_PAIRS.second, NO_PAIRS.similarity)]
    with connection.cursor() as cursor:
        # in order, so that neighbouring pairs read minima of the same few segments
        for batch in cursor.sql("from likely order by first, second").to_arrow_reader(_AT_ONCE):
            first, second, similarity = (column.to_numpy() for column in batch.columns)
            ends = distinct(np.concatenate([first, second]))
            minima = minhashes_of(ends)[0]
            equal = minima[np.searchsorted(ends, first)] == minima[np.searchsorted(ends, second)]
            reach = np.count_nonzero(equal, axis=1) / N_PERMUTATIONS >= least
            reaching.append((first[reach], second[reach], similarity[reach]))
    connection.execute("drop table likely")
    first, second, similarity = map(np.concatenate, zip(*reaching, strict=True))
    return first, second, similarity


def _verify(connection: duckdb.DuckDBPyConnection, first: I64, second: I64, texts_of: TextsOf) -> F64:
    """Return the exact similarity of each pair, reading texts in blocks, ordered by cluster."""
    similarity = np.zeros(len(first))
    if not len(first):
        return similarity
    ends = distinct(np.concatenate([first, second]))
    connection.register("ends", pa.table({"number": ends}))
    sizes = connection.sql("select size from bands semi join ends using (number) order by number").fetchnumpy()["size"]
    connection.unregister("ends")
    one, other = np.searchsorted(ends, first), np.searchsorted(ends, second)
    labels = clusters(len(ends), Pairs(one, other, similarity))
    order = np.lexsort((first, second, labels[one]))
    for block in _blocks(one[order].tolist(), other[order].tolist(), sizes):
        pairs = order[block]
        similarity[pairs] = _jaccard(first[pairs], second[pairs], texts_of)
    return similarity


def _jaccard(first: I64, second: I64, texts_of: TextsOf) -> F64:
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
    """Yield ranges of pairs whose documents have at most `BLOCK_SHINGLES` shingles together."""
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


def clusters(n: int, pairs: Pairs) -> I64:
    """Return (n,) the cluster of each document: the smallest index among its members."""
    from scipy.sparse import coo_array  # only here: slow to import
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs), bool), (pairs.first, pairs.second)), (n, n))
    labels = connected_components(links, directed=False)[1]
    smallest = np.unique(labels, return_index=True)[1]
    return smallest[labels]


def keep_best(n: int, pairs: Pairs) -> tuple[npt.NDArray[np.bool_], I64]:
    """Choose from documents, best first, which to keep: each, unless it is a direct near-duplicate of one already kept.

    Returns:
        (n,) a mask of the kept documents, and (n,) the representative of each document: itself if it is kept, else
        the best kept document that it is a near-duplicate of.
    """
    kept, representative = np.ones(n, bool), np.arange(n)
    for one, other in zip(pairs.first, pairs.second, strict=True):
        if kept[one] and kept[other]:
            kept[other], representative[other] = False, one
    return kept, representative
