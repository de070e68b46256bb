"""A batch of documents as arrays: code points, character classes, words and their hashes, for all documents at once.

The texts are laid end to end with line feeds between them. Whatever is computed for a word, a line or a document
depends on its own characters alone, never on where in the batch it lies, so a document's measures do not depend on its
company. The class of a character decides what it counts as in every measure; the letters are the highest classes, so
that the highest class in a word says whether it has a letter.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tasks.text.words import running_sums, span_hashes

SPACE, OTHER, MARK, SYMBOL, DIGIT, LETTER, UPPER, UNSPACED = range(8)
N_CLASSES = 8

# letters of scripts that put no spaces between words; Hangul does
_UNSPACED_RANGES = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic iteration marks and zero
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width Katakana
    (0x20000, 0x3FFFF),
)
_LAST_ASSIGNED = 0x3FFFF  # above it there are no letters, digits or spaces: tags, selectors and private use


@lru_cache(maxsize=1)
def _class_table() -> npt.NDArray[np.uint8]:
    """The class of every code point, as an array to index with them; built at the first use (a fifth of a second)."""
    table = np.full(0x110000, OTHER, dtype=np.uint8)
    table[: _LAST_ASSIGNED + 1] = [_classify(chr(point)) for point in range(_LAST_ASSIGNED + 1)]
    table[0xE0100:0xE01F0] = MARK  # variation selectors
    for first, last in _UNSPACED_RANGES:
        block = table[first : last + 1]
        block[block >= LETTER] = UNSPACED
    return table


def _classify(char: str) -> int:
    if char.isspace():
        return SPACE
    if char.isalpha():
        return UPPER if char.isupper() else LETTER
    if char.isdigit():
        return DIGIT
    category = unicodedata.category(char)[0]
    if category == "M":
        return MARK
    return SYMBOL if category in "PS" else OTHER


T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


def sums_between(values: npt.NDArray[Any], bounds: Ints) -> Ints:
    """Return the sum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    sums = running_sums(values)
    return sums[bounds[1:]] - sums[bounds[:-1]]


def highest_between(values: npt.NDArray[Any], bounds: Ints) -> Ints:
    """Return the maximum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    highest = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = bounds[1:] > bounds[:-1]
    if filled.any():
        highest[filled] = np.maximum.reduceat(values, bounds[:-1][filled])
    return highest


def share(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return `part / whole` to four places; 0 where there is no whole."""
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


def bundles(
    items: Iterable[T], n_chars: Callable[[T], int], most_chars: int, most: int = sys.maxsize
) -> Iterator[list[T]]:
    """Yield consecutive items in lists of bounded size.

    Args:
        n_chars: Characters of an item.
        most_chars: Characters at which a list ends.
        most: Items at which it ends.
    """
    bundle: list[T] = []
    chars = 0
    for item in items:
        bundle.append(item)
        chars += n_chars(item)
        if len(bundle) >= most or chars >= most_chars:
            yield bundle
            bundle, chars = [], 0
    if bundle:
        yield bundle


def make_batch(texts: Sequence[str]) -> Batch:
    """Lay texts end to end and find their words."""
    joined = "\n".join(["", *texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    classes = _class_table()[codes]
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
