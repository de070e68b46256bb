"""The kept documents as they lie in token shards: where, how long, on which side; and how often each id occurs in them.

The same question as `tasks.curate.kept` answers, by the same rules, but for all documents at once in Arrow and NumPy:
what is asked here of a hundred thousand documents must not cost more than a moment when one more comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.manifest import ArtifactRef, RefSet
from storage.schemas import SHARD_COUNTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store, StoreError
from storage.tables import members
from tasks.curate.kept import shelves_of

IDS_AT_ONCE = 2**21
LONG_SPAN = 2**14  # ids from which on a span is counted by itself: one count costs as much as the vocabulary is large
WORTH_A_SLICE = 2**5  # ids from which on copying a span by itself takes less than telling the place of each id


@dataclass(frozen=True)
class TokenDocuments:
    """Kept documents in the order of their ids.

    Attributes:
        ids, digests: (n,) Arrow strings, the digests of the documents' ids.
        train: (n,) bool, whether it is trained on; else it is held out.
        shard: (n,) int64, number of the token artefact that it is read from.
        offset: (n,) int64, its first id in that shard.
        length, n_bytes: (n,) int64, of its ids and of its text.
    """

    ids: pa.Array
    digests: pa.Array
    train: np.ndarray
    shard: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    n_bytes: np.ndarray


def kept_tokens(store: Store, curated: ArtifactRef, tokens: RefSet) -> TokenDocuments:
    """Find the kept documents in the token shards.

    Args:
        tokens: per-segment artefacts; the same document may lie in several, one of which is the live one.

    Raises:
        StoreError: if a document lies in none of them, or in several none of which is the noted one.
    """
    selection = pq.read_table(
        store.folder(curated) / "selection.parquet",
        columns=["doc_id", "segment", "split", "kept"],
        read_dictionary=["segment", "split"],
        use_threads=False,
    )
    selection = selection.filter(selection["kept"])
    ids = _whole(selection["doc_id"])
    if not pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py():  # curation writes them in order, and sorting takes long
        selection = selection.sort_by("doc_id")
        ids = _whole(selection["doc_id"])
    columns = ["doc_id", "offset", "length", "n_bytes", "digest"]
    tables = [pq.read_table(store.folder(ref) / TOKENS_FILE, columns=columns, use_threads=False) for ref in tokens.refs]
    rows = pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.string()) for name in columns})
    shelf = np.repeat(np.arange(len(tables)), [len(table) for table in tables]).astype(np.int64)
    place = _places(rows["doc_id"], ids)
    kept = np.flatnonzero(place >= 0)
    place, shelf = place[kept], shelf[kept]
    if tokens.live is not None:
        told = [members(table["doc_id"], names) for table, names in zip(tables, tokens.live, strict=True)]
        live = np.concatenate([np.zeros(0, dtype=bool), *told])[kept]
    else:
        live = _noted(store, tokens, ids, selection["segment"], place, shelf)
    found = np.flatnonzero(live)[::-1]  # of several that are live, the first counts
    row = np.full(len(ids), -1, dtype=np.int64)
    row[place[found]] = found
    for missing in np.flatnonzero(row < 0)[:1]:
        raise _misplaced(ids[missing].as_py(), 0, len(tables))
    shelf, row = shelf[row], kept[row]
    documents = TokenDocuments(
        ids=ids,
        digests=_whole(rows["digest"].take(row)),
        train=pc.equal(selection["split"], "train").to_numpy(),
        shard=shelf,
        offset=rows["offset"].to_numpy()[row],
        length=rows["length"].to_numpy()[row],
        n_bytes=rows["n_bytes"].to_numpy()[row],
    )
    del selection, rows, tables, ids
    pa.default_memory_pool().release_unused()  # else what was read stands beside the index, and is as large
    return documents


def _places(values: pa.Array | pa.ChunkedArray, ids: pa.Array) -> np.ndarray:
    """Where each value stands among the ids; -1 for those that do not."""
    return np.asarray(pc.fill_null(pc.index_in(values, value_set=ids), -1).to_numpy().astype(np.int64))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _noted(
    store: Store, tokens: RefSet, ids: pa.Array, segments: pa.ChunkedArray, place: np.ndarray, shelf: np.ndarray
) -> np.ndarray:
    """(r,) whether each row is the only one of its document, or that of the segment noted for it.

    Args:
        segments: (n,) segment noted for each document.
        place: (r,) document of each row.
        shelf: (r,) artefact of each row.
    """
    of_shelf = pa.array([item.segment for item in shelves_of(store, tokens)], pa.string())
    number = _places(of_shelf, of_shelf)  # artefacts of one segment count as one segment
    own = number[shelf] == _places(segments, of_shelf)[place]
    times = np.bincount(place, minlength=len(ids))
    for document in np.flatnonzero((times > 1) & (np.bincount(place[own], minlength=len(ids)) != 1))[:1]:
        raise _misplaced(ids[document].as_py(), int(times[document]), len(of_shelf))
    return np.asarray(own | (times[place] == 1))


def _misplaced(doc_id: str, n_found: int, n_shelves: int) -> StoreError:
    return StoreError(
        f"document {doc_id} lies in {n_found} of the {n_shelves} token shards in use, expected one: "
        "compute the listing again with `--refresh snapshot,curate`"
    )


def count_ids(folders: Sequence[Path], shard: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How often each id occurs in spans of token shards.

    Of a shard that is nearly all in use, what is left out is counted, and taken from the shard's own counts.

    Args:
        folders: of the token artefacts, all of one tokeniser; at least one.
        shard: (n,) number of the artefact of each span.
        begin, end: (n,) places in the shard; spans do not overlap.

    Returns:
        (vocab_size,) int64.
    """
    vocab_size = len(np.load(folders[0] / SHARD_COUNTS_FILE, mmap_mode="r", allow_pickle=False))
    counts = np.zeros(vocab_size, dtype=np.int64)
    rows = np.flatnonzero(begin < end)
    rows = rows[np.lexsort((begin[rows], shard[rows]))]
    bounds = np.searchsorted(shard[rows], np.arange(len(folders) + 1))
    for number, folder in enumerate(folders):
        own = rows[bounds[number] : bounds[number + 1]]
        if not len(own):
            continue
        ids = np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False)
        left_begin, left_end = np.append(0, end[own]), np.append(begin[own], len(ids))
        if (left_end - left_begin).sum() < (end[own] - begin[own]).sum():
            whole = np.load(folder / SHARD_COUNTS_FILE, allow_pickle=False)
            counts += whole - _count(ids, left_begin, left_end, vocab_size)
        else:
            counts += _count(ids, begin[own], end[own], vocab_size)
    return counts


def _count(ids: np.ndarray, begin: np.ndarray, end: np.ndarray, vocab_size: int) -> np.ndarray:
    """Occurrences of each id in some spans of a shard, a few million ids at a time."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    plain = np.asarray(ids)  # slicing a memory map costs more than slicing an array over it
    long = end - begin >= LONG_SPAN
    for first, last in zip(begin[long].tolist(), end[long].tolist(), strict=True):
        for start in range(first, last, IDS_AT_ONCE):
            counts += np.bincount(plain[start : min(start + IDS_AT_ONCE, last)], minlength=vocab_size)
    some = ~long & (end - begin >= WORTH_A_SLICE)
    for rows in _blocks((end - begin)[some]):
        spans = zip(begin[some][rows].tolist(), end[some][rows].tolist(), strict=True)
        counts += np.bincount(np.concatenate([plain[first:last] for first, last in spans]), minlength=vocab_size)
    few = ~long & ~some
    begin, length = begin[few], (end - begin)[few]
    for rows in _blocks(length):
        ends = np.cumsum(length[rows])
        place = np.arange(ends[-1]) + np.repeat(begin[rows] - (ends - length[rows]), length[rows])
        counts += np.bincount(plain[place], minlength=vocab_size)
    return counts


def _blocks(length: np.ndarray) -> Iterator[slice]:
    """Consecutive spans with about `IDS_AT_ONCE` ids together."""
    block = np.cumsum(length) // IDS_AT_ONCE
    bounds = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    return (slice(first, last) for first, last in pairwise(bounds) if first < last)
