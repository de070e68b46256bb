"""A batch of documents as arrays: code points, character classes, words and their hashes, for all documents at once.

The texts are laid end to end with line feeds between them. Whatever is computed for a word, a line or a document
depends on its own characters alone, never on where in the batch it lies, so a document's measures do not depend on its
company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.text.measures.characters import N_CLASSES, SPACE, classes_of
from tasks.text.words import span_hashes

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

MAX_DOCUMENTS = 1024  # of a batch: a document's number takes ten bits of a sort key
_NUMBER_BITS = 10


def sort_keys(documents: Ints, hashes: Hashes) -> Hashes:
    """Keys that sort by document, and within it by hash."""
    keys: Hashes = (documents.astype(np.uint64) << np.uint64(64 - _NUMBER_BITS)) | (hashes >> np.uint64(_NUMBER_BITS))
    return keys


def sums_between(values: npt.NDArray[Any], bounds: Ints) -> Ints:
    """Sum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums[bounds[1:]] - sums[bounds[:-1]]


def highest_between(values: npt.NDArray[Any], bounds: Ints) -> Ints:
    """Maximum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    highest = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = bounds[1:] > bounds[:-1]
    if filled.any():
        highest[filled] = np.maximum.reduceat(values, bounds[:-1][filled])
    return highest


def share(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """`part / whole` to four places; 0 where there is no whole."""
    return np.round(np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0), 4)


@dataclass(frozen=True)
class Batch:
    """Documents as arrays.

    Attributes:
        codes: code points of all texts, a line feed before, between and behind them.
        classes: class of each code point.
        text_bounds: where each text begins, and one more; a text ends one before the next one's begin.
        class_counts: number of characters of each class, a row per document.
        word_starts, word_ends: words are what white space separates; the end is one beyond.
        word_lengths: characters of each word.
        word_hashes: 64 bits for each word.
        word_documents: number of the document each word belongs to.
        word_bounds: number of the first word of each document, and one more.
        solid: characters of each document that are not white space.
    """

    codes: npt.NDArray[np.uint32]
    classes: npt.NDArray[np.uint8]
    text_bounds: Ints
    class_counts: Ints
    word_starts: Ints
    word_ends: Ints
    word_lengths: Ints
    word_hashes: Hashes
    word_documents: Ints
    word_bounds: Ints
    solid: Ints

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.text_bounds) - 1

    @property
    def n_words(self) -> Ints:
        """Number of words of each document."""
        return np.diff(self.word_bounds)


def make_batch(texts: Sequence[str]) -> Batch:
    """Lay texts end to end and find their words.

    Raises:
        ValueError: for more texts than a batch takes.
    """
    if len(texts) > MAX_DOCUMENTS:
        raise ValueError(f"{len(texts)} texts, but a batch takes at most {MAX_DOCUMENTS}: measure them in several")
    joined = "\n".join(["", *texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    classes = classes_of(codes)
    text_bounds = np.cumsum([1, *(len(text) + 1 for text in texts)], dtype=np.int64)
    counts = [
        np.bincount(classes[first : last - 1], minlength=N_CLASSES)
        for first, last in zip(text_bounds[:-1].tolist(), text_bounds[1:].tolist(), strict=True)
    ]
    class_counts = np.array(counts, dtype=np.int64).reshape(-1, N_CLASSES)
    solid = classes != SPACE
    edges = np.flatnonzero(solid[1:] != solid[:-1]) + 1
    starts, ends = edges[::2], edges[1::2]
    bounds = np.searchsorted(starts, text_bounds)
    return Batch(
        codes=codes,
        classes=classes,
        text_bounds=text_bounds,
        class_counts=class_counts,
        word_starts=starts,
        word_ends=ends,
        word_lengths=ends - starts,
        word_hashes=span_hashes(codes, starts, ends),
        word_documents=np.repeat(np.arange(len(texts)), np.diff(bounds)),
        word_bounds=bounds,
        solid=class_counts.sum(axis=1) - class_counts[:, SPACE],
    )
