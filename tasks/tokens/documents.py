"""The kept documents in token shards (where, how long, on which side), and how often each token id occurs in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.manifest import ArtifactRef, RefSet
from storage.schemas import SHARD_COUNTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store
from tasks.curate.corpus import Corpus, tables_of

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
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated))
        corpus.locate(tables_of(store, tokens), TOKENS_FILE, ["offset", "length", "n_bytes", "digest"], tokens.live)
        rows = corpus.arrow(
            "select doc_id, located.digest as digest, split = 'train' as train, part::bigint as part, "
            '"offset", length, located.n_bytes as n_bytes from located join wanted using (doc_id) order by doc_id'
        )
    documents = TokenDocuments(
        ids=_whole(rows["doc_id"]),
        digests=_whole(rows["digest"]),
        train=rows["train"].to_numpy(),
        shard=rows["part"].to_numpy(),
        offset=rows["offset"].to_numpy(),
        length=rows["length"].to_numpy(),
        n_bytes=rows["n_bytes"].to_numpy(),
    )
    del rows
    pa.default_memory_pool().release_unused()  # else what was read stands beside the index, and is as large
    return documents


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def count_ids(folders: Sequence[Path], shard: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Count the occurrences of each id in spans of token shards.

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
