"""Anchors: runs of six words at every third word of a document, sorted by their hash, so that they can be looked up.

Any stretch of eight words holds a whole anchor, wherever it begins. So when all runs of six words of a text are looked
up, whatever it shares with a document for eight words or more is found: the index is a third of what all runs would
take, and nothing long is missed. An anchor is one 64-bit number, the upper half of its hash above its number in the
segment; sorting those numbers sorts the hashes, and equal upper halves of different runs are told apart when the
documents themselves are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import UserError
from tasks.text.words import I64, U64, Hashes, read_batches, word_runs

ANCHOR_WORDS = 6
STRIDE = 3
FOUND_WORDS = ANCHOR_WORDS + STRIDE - 1  # the shortest shared stretch that is found wherever it stands
MOST_PLACES = 512  # of one run in one segment that are looked at: what stands in more places is a stock phrase

ANCHORS_FILE = "anchors.npy"
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class Hits:
    """Places where runs of a text stand in a segment; all arrays are of one length.

    Attributes:
        query: number of the text's word that the run begins with.
        document: row of the document.
        word: number of the document's word that the run begins with.
    """

    query: I64
    document: I64
    word: I64


class AnchorIndex:
    """The anchors of one segment.

    Args:
        anchors: sorted, as `build_anchors` makes them.
        counts: how many each document has.
    """

    def __init__(self, anchors: U64, counts: I64) -> None:
        self.anchors = anchors
        self._firsts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._firsts[1:])

    @classmethod
    def load(cls, folder: Path, counts: I64) -> AnchorIndex:
        """The anchors of a folder, mapped: a look-up reads a few pages of them."""
        return cls(np.load(folder / ANCHORS_FILE, mmap_mode="r", allow_pickle=False), counts)

    def find(self, words: U64, counting: npt.NDArray[np.bool_]) -> Hits:
        """Look up the 6-grams of a text.

        Args:
            words: hashes of the text's words.
            counting: (documents,) which documents count; the others are left out.
        """
        runs = _runs(Hashes(words, np.array([0, len(words)])), stride=1).values
        wanted = runs >> _HALF << _HALF
        first = np.searchsorted(self.anchors, wanted)
        counts = np.searchsorted(self.anchors, wanted | _LOW, side="right") - first
        stock = np.flatnonzero(counts > MOST_PLACES)
        # of a thousand near copies only one may count: what does not is left out before places are
        places = [self._counting(first[run], first[run] + counts[run], counting)[:MOST_PLACES] for run in stock]
        counts[stock] = 0
        query = np.repeat(np.arange(len(runs)), counts)
        within = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        place = np.concatenate([first[query] + within, *places])
        query = np.concatenate([query, np.repeat(stock, [len(some) for some in places])])
        number, document = self._anchors_at(place)
        kept = counting[document]
        query, number, document = query[kept], number[kept], document[kept]
        return Hits(query, document, (number - self._firsts[document]) * STRIDE)

    def _counting(self, first: int, last: int, counting: npt.NDArray[np.bool_]) -> I64:
        """Those of the anchors from first to last that are of documents which count."""
        place = np.arange(first, last)
        return place[counting[self._anchors_at(place)[1]]]

    def _anchors_at(self, place: I64) -> tuple[I64, I64]:
        """Number of each of these anchors in the segment, and its document."""
        number = (self.anchors[place] & _LOW).astype(np.int64)
        return number, np.searchsorted(self._firsts, number, side="right") - 1


def build_anchors(batches: Iterable[Sequence[str]]) -> tuple[U64, I64]:
    """Anchors of a segment's documents.

    Args:
        batches: the texts, some at a time.

    Returns:
        The sorted anchors, and how many each document has.

    Raises:
        UserError: if there are more than a half of 64 bits can number.
    """
    kept, counts, total = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
    for texts in batches:
        for batch in read_batches(texts):
            runs = _runs(batch.words, STRIDE)
            numbers = np.arange(total, total + len(runs.values), dtype=np.uint64)
            total += len(numbers)
            if total > 2**32:
                raise UserError(f"a segment has more than {2**32:,} anchors, which is {STRIDE} times as many words")
            kept.append(runs.values >> _HALF << _HALF | numbers)
            counts.append(runs.counts)
    anchors = np.concatenate(kept)
    del kept
    anchors.sort()
    return anchors, np.concatenate(counts)


def _runs(words: Hashes, stride: int) -> Hashes:
    """Every so manyth run of six words of each document; none of a document with fewer words."""
    runs = word_runs(words, ANCHOR_WORDS)
    whole = np.where(words.counts >= ANCHOR_WORDS, runs.counts, 0)
    place = np.arange(len(runs.values)) - np.repeat(runs.offsets[:-1], runs.counts)
    keep = (place % stride == 0) & (np.repeat(whole, runs.counts) > 0)
    offsets = np.zeros(len(whole) + 1, np.int64)
    np.cumsum(-(-whole // stride), out=offsets[1:])
    return Hashes(runs.values[keep], offsets)
