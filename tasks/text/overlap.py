"""Overlap of texts: validation documents or external evaluation sets in training text.

Measured as containment, the share of a document's 13-grams that occur elsewhere. Similarity of whole documents misses
it: a page that is copied into a manual has a Jaccard similarity below 0.01 with the manual. Memory is proportional to
the smaller side (validation, evaluation set); training text is streamed in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tasks.text.minhash import GRAM_WORDS
from tasks.text.words import I64, U64, Hashes, distinct, word_pieces, word_runs

# Documents with fewer 13-grams (fewer than 25 words) are not judged by containment, since one stock phrase may be most
# of such a text. Exact deduplication finds copies of the whole text.
MIN_GRAMS = GRAM_WORDS

F64 = npt.NDArray[np.float64]

_AT_ONCE = 1 << 18


class GramIndex:
    """A set of hashes for lookups of long arrays.

    A table indexed by the leading bits excludes nearly all hashes that are not in the set with one memory access; the
    others are found by binary search.

    Attributes:
        values: The sorted distinct hashes.
    """

    def __init__(self, hashes: U64) -> None:
        self.values: U64 = distinct(hashes)
        bits = min(max(len(self.values).bit_length() + 4, 10), 28)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << bits, bool)
        self._seen[self.values >> self._shift] = True

    def __len__(self) -> int:
        return len(self.values)

    def find(self, hashes: U64) -> tuple[I64, I64]:
        """Return the indices in `hashes` of those in the set, and their indices in `values`."""
        where = [np.zeros(0, np.int64)]
        which = [np.zeros(0, np.int64)]
        for start in range(0, len(hashes), _AT_ONCE):
            part = hashes[start : start + _AT_ONCE]
            likely = np.flatnonzero(self._seen[part >> self._shift])
            wanted = part[likely]
            place = np.minimum(np.searchsorted(self.values, wanted), max(len(self.values) - 1, 0))
            hit = self.values[place] == wanted if len(place) else np.zeros(0, bool)
            where.append(likely[hit] + start)
            which.append(place[hit])
        return np.concatenate(where), np.concatenate(which)

    def count(self, documents: Hashes) -> I64:
        """Count the hashes of each document that are in the set, with repetitions."""
        return _count(self.find(documents.values)[0], documents.offsets)


def shared_grams(validation: Hashes, blocks: Iterable[Hashes]) -> tuple[I64, list[I64]]:
    """Count the 13-grams of each validation document in training, and of each document of the blocks in validation."""
    index = GramIndex(validation.values)
    in_training = np.zeros(len(index), bool)
    training = []
    for block in blocks:
        where, which = index.find(block.values)
        in_training[which] = True
        training.append(_count(where, block.offsets))
    where, which = index.find(validation.values)
    return _count(where[in_training[which]], validation.offsets), training


def common(one: U64, other: U64) -> U64:
    """Return the sorted distinct hashes in both arrays; only the smaller one is sorted."""
    small, large = sorted((one, other), key=len)
    index = GramIndex(small)
    return index.values[distinct(index.find(large)[1])]


def overlapping_spans(text: str, grams: U64) -> list[tuple[int, int]]:
    """Return the spans of a text whose 13-grams are in a set, as (start, length) in characters.

    A span covers whole words; adjacent and overlapping spans are merged. A long text is read in pieces, so memory is
    proportional to the result.

    Args:
        grams: Sorted hashes from `evaluation_grams`, which has none of shorter texts; so a text of fewer than 13
            words has no spans.
    """
    spans: list[tuple[int, int]] = []
    nothing = np.zeros(0, np.int64)
    tail: tuple[U64, I64, I64] = (
        np.zeros(0, np.uint64),
        nothing,
        nothing,
    )  # begins 13-grams of the next piece
    before = 0  # words of the text before the tail
    behind = -1  # the word after the last span
    for piece in word_pieces(text) if len(grams) else ():
        words, starts, ends = (np.concatenate(both) for both in zip(tail, piece, strict=True))
        for first, last in _covered(words, grams):
            if before + first <= behind:
                spans[-1] = (spans[-1][0], int(ends[last]))
            else:
                spans.append((int(starts[first]), int(ends[last])))
            behind = before + last + 1
        done = max(0, len(words) - (GRAM_WORDS - 1))
        tail = words[done:], starts[done:], ends[done:]
        before += done
    return [(start, end - start) for start, end in spans]


def _covered(words: U64, grams: U64) -> list[tuple[int, int]]:
    """Return the first and last word of each span of words whose 13-grams are among the sorted hashes."""
    if len(words) < GRAM_WORDS:
        return []
    runs = word_runs(Hashes(words, np.array([0, len(words)])), GRAM_WORDS).values
    hits = np.flatnonzero(grams[np.minimum(np.searchsorted(grams, runs), len(grams) - 1)] == runs)
    if not len(hits):
        return []
    gaps = np.flatnonzero(np.diff(hits) > GRAM_WORDS)
    firsts, lasts = hits[np.append(0, gaps + 1)], hits[np.append(gaps, len(hits) - 1)] + GRAM_WORDS - 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _count(where: I64, offsets: I64) -> I64:
    owner = np.searchsorted(offsets, where, side="right") - 1
    return np.bincount(owner, minlength=len(offsets) - 1)


def judged_share(hits: I64, counts: I64) -> F64:
    """Return (n,) `hits / counts` of 13-grams per document; 0 for documents that are too short to be judged."""
    share: F64 = np.where(counts >= MIN_GRAMS, hits / np.maximum(counts, 1), 0.0)
    return share
