"""The stage `trace_index`: an index of 6-grams of one segment's documents, so that text which stands in them is found.

    anchors.npy         sorted anchors, mapped: a look-up reads a few pages of them
    traced.parquet      number of anchors of each document, in the order in which they are numbered

An anchor is the 6-gram at every third word of a document. Any stretch of eight words holds a whole anchor, wherever it
begins, so looking up all 6-grams of a text finds what it shares with a document for eight words or more, with an index
a third of the size of all 6-grams. An anchor is one 64-bit number: the upper half of its hash, then its number in the
segment. Sorting those numbers sorts the hashes; 6-grams whose upper halves collide are told apart when the documents
themselves are compared.

Held-out documents are indexed too: the split follows from the whole corpus, and is asked when something is looked up.
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
FOUND_WORDS = ANCHOR_WORDS + STRIDE - 1  # the shortest shared stretch that is found wherever it stands
MOST_PLACES = 512  # of one 6-gram in one segment that are looked at: what stands in more places is a stock phrase

ANCHORS_FILE = "anchors.npy"
TRACED_FILE = "traced.parquet"
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@stage("trace_index", version=1, unit="segment", keep_with=("documents",))
def trace_index(work: Work, settings: NoSettings, *, documents: ArtifactRef) -> str:
    """Index the documents of one segment, so that text which stands in them is found."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(index_segment, unpacked_size(source), source=source, out=work.out)
    work.counts.update(made)
    return sha256_json([ANCHOR_WORDS, STRIDE, documents.digest])


def trace_indexes(run: Run, texts: RefSet) -> RefSet:
    """Return the indexes of training texts, in their order; they are made when they are first asked for."""
    return RefSet.of(trace_index.map(run, [Call(NoSettings(), {"documents": ref}) for ref in texts.refs]))


def index_segment(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, int]:
    """Write the index of a table of documents; returns counts.

    Raises:
        UserError: if there are more anchors than a half of 64 bits can number.
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
                raise UserError(f"a segment has more than {2**32:,} anchors, which is {STRIDE} times as many words")
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
        doc_ids: Ids of the documents, as the anchors number them.
        texts: Table that holds their texts.
    """

    def __init__(self, index: Path, texts: Path) -> None:
        columns = read_columns(index / TRACED_FILE, ["doc_id", "anchors"])
        self.doc_ids: list[str] = columns["doc_id"]
        self.texts = texts / DOCUMENTS_FILE
        self._anchors: U64 = np.asarray(np.load(index / ANCHORS_FILE, mmap_mode="r", allow_pickle=False))
        self._firsts = np.zeros(len(self.doc_ids) + 1, np.int64)
        np.cumsum(columns["anchors"], out=self._firsts[1:])

    def find(self, words: U64, counting: npt.NDArray[np.bool_]) -> I64:
        """Return the places where 6-grams of a text stand in the documents.

        Args:
            words: Hashes of the text's words.
            counting: (documents,) True for documents that count; the others are left out.

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
            # of a thousand near copies only one may count: what does not is left out before places are
            kept = np.flatnonzero(counting[document])[:MOST_PLACES]
            document = document[kept]
            word = (number[kept] - self._firsts[document]) * STRIDE
            found.append(np.column_stack([document, np.full(len(kept), query), word]))
        return np.concatenate(found)


def _grams(words: Hashes, stride: int) -> Hashes:
    """Return every so manyth 6-gram of each document; none of a document with fewer words."""
    grams = word_runs(words, ANCHOR_WORDS)
    whole = np.where(words.counts >= ANCHOR_WORDS, grams.counts, 0)
    place = np.arange(len(grams.values)) - np.repeat(grams.offsets[:-1], grams.counts)
    keep = (place % stride == 0) & (np.repeat(whole, grams.counts) > 0)
    offsets = np.zeros(len(whole) + 1, np.int64)
    np.cumsum(-(-whole // stride), out=offsets[1:])
    return Hashes(grams.values[keep], offsets)
