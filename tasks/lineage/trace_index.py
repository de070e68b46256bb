"""The stage `trace_index`: an index of 6-grams of one segment's documents, to find shared text.

    anchors.npy         sorted anchors, memory-mapped: a lookup reads a few pages
    traced.parquet      number of anchors of each document, in the order of their numbers

An anchor is the 6-gram at every third word of a document. Any eight consecutive words contain a whole anchor, so
looking up all 6-grams of a text finds every span of at least eight words that it shares with a document, with an index
a third of the size. An anchor is a 64-bit number: the upper half of its hash, then its number in the segment, so that
sorting the numbers sorts the hashes. Collisions of the upper halves are detected by comparing the documents.

Held-out documents are indexed too, because the split depends on the whole corpus; it is applied at lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, TRACED
from storage.tables import count_rows, read_columns, stream_columns, unpacked_size, write_columns
from tasks.core.stage import Call, NoSettings, Work, stage
from tasks.text.words import I64, U64, Hashes, read_batches, word_runs

if TYPE_CHECKING:
    from tasks.core.run import Run

ANCHOR_WORDS = 6
STRIDE = 3
FOUND_WORDS = ANCHOR_WORDS + STRIDE - 1  # the shortest shared span that is always found
MOST_PLACES = 512  # places of a 6-gram in a segment that are examined; one with more is a stock phrase

ANCHORS_FILE = "anchors.npy"
TRACED_FILE = "traced.parquet"
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@stage("trace_index", version=1, unit="segment", tables={TRACED_FILE: TRACED}, keep_with=("documents",))
def trace_index(work: Work, settings: NoSettings, *, documents: ArtifactRef) -> str:
    """Index the 6-grams of the documents of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(index_segment, unpacked_size(source), source=source, out=work.out)
    work.counts.update(made)
    return sha256_json([ANCHOR_WORDS, STRIDE, documents.digest])


def trace_indexes(run: Run, texts: RefSet) -> RefSet:
    """Return the indexes of training texts, in their order; they are computed on first use."""
    return RefSet.of(trace_index.map(run, [Call(NoSettings(), {"documents": ref}) for ref in texts.refs]))


def index_segment(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, int]:
    """Write the index of a table of documents; return counts.

    Raises:
        UserError: There are more than 2**32 anchors.
    """
    doc_ids: list[str] = []
    kept, counts, total = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
    n_rows = count_rows(source)
    for rows in stream_columns(source, ["doc_id", "text"]):
        for batch in read_batches(rows["text"]):
            grams = _grams(batch.words, STRIDE)
            numbers = np.arange(total, total + len(grams.values), dtype=np.uint64)
            total += len(numbers)
            if total > 2**32:
                raise UserError(f"a segment has more than {2**32:,} anchors, of which there is one for {STRIDE} words")
            kept.append(grams.values >> _HALF << _HALF | numbers)
            counts.append(grams.counts)
        doc_ids += rows["doc_id"]
        progress(len(doc_ids), n_rows)
    anchors = np.concatenate(kept)
    del kept
    anchors.sort()
    np.save(out / ANCHORS_FILE, anchors, allow_pickle=False)
    write_columns(out / TRACED_FILE, TRACED, {"doc_id": doc_ids, "anchors": np.concatenate(counts).tolist()})
    return {"rows": len(doc_ids), "anchors": len(anchors)}


class TracedSegment:
    """An index with its documents.

    Args:
        index: Folder of the index.
        texts: Folder with the texts of the documents, in any order.

    Attributes:
        doc_ids: Ids of the documents, in the order of the anchors' numbers.
        texts: Table with their texts.
    """

    def __init__(self, index: Path, texts: Path) -> None:
        columns = read_columns(index / TRACED_FILE, ["doc_id", "anchors"])
        self.doc_ids: list[str] = columns["doc_id"]
        self.texts = texts / DOCUMENTS_FILE
        self._anchors: U64 = np.asarray(np.load(index / ANCHORS_FILE, mmap_mode="r", allow_pickle=False))
        self._firsts = np.zeros(len(self.doc_ids) + 1, np.int64)
        np.cumsum(columns["anchors"], out=self._firsts[1:])

    def find(self, words: U64, counting: npt.NDArray[np.bool_]) -> I64:
        """Return the occurrences of a text's 6-grams in the documents.

        Args:
            words: Hashes of the text's words.
            counting: (documents,) mask of the documents to search.

        Returns:
            (n, 3) row of the document, first word of the 6-gram in the text, and in the document.
        """
        wanted = _grams(Hashes(words, np.array([0, len(words)])), stride=1).values >> _HALF << _HALF
        first = np.searchsorted(self._anchors, wanted)
        last = np.searchsorted(self._anchors, wanted | _LOW, side="right")
        found = [np.zeros((0, 3), np.int64)]
        for query in np.flatnonzero(last > first).tolist():
            number = (self._anchors[first[query] : last[query]] & _LOW).astype(np.int64)
            document = np.searchsorted(self._firsts, number, side="right") - 1
            # masked before `MOST_PLACES` is applied: of a thousand near-duplicates only one may be searched
            kept = np.flatnonzero(counting[document])[:MOST_PLACES]
            document = document[kept]
            word = (number[kept] - self._firsts[document]) * STRIDE
            found.append(np.column_stack([document, np.full(len(kept), query), word]))
        return np.concatenate(found)


def _grams(words: Hashes, stride: int) -> Hashes:
    """Return every `stride`-th 6-gram of each document; none of a document with fewer than 6 words."""
    grams = word_runs(words, ANCHOR_WORDS)
    whole = np.where(words.counts >= ANCHOR_WORDS, grams.counts, 0)
    place = np.arange(len(grams.values)) - np.repeat(grams.offsets[:-1], grams.counts)
    keep = (place % stride == 0) & (np.repeat(whole, grams.counts) > 0)
    offsets = np.zeros(len(whole) + 1, np.int64)
    np.cumsum(-(-whole // stride), out=offsets[1:])
    return Hashes(grams.values[keep], offsets)
