"""Words, n-grams and paragraphs of texts as 64-bit hashes in flat NumPy arrays with offsets.

A word is a lower-cased sequence of `\\w` characters of a text in NFC; a Chinese or Japanese character is a word by
itself, as these scripts do not separate words. The code points of many texts are in one array; the hash of a span is a
difference of prefix sums of `code * B**place`, scaled by `B**-start` modulo 2**64, which is exact and thus independent
of the position. The hashes are stored, so no constant here may change. (Letters are those of Python's Unicode version.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
T = TypeVar("T")
Chosen = Sequence[int] | npt.NDArray[np.integer] | npt.NDArray[np.bool_]

BATCH_CHARS = 1 << 17  # arrays of a batch fit in a core's cache; a longer text is read in pieces of this length
MIN_PARAGRAPH_CHARS = 80

_SEPARATOR = "\n\n"  # ends words and paragraphs
_SPACE = 1  # in the character table; no word character has this value
_ALONE = np.uint32(1 << 31)  # flag of characters that are words by themselves
_LAST_ASSIGNED = 0x40000  # later planes have no letters
IDEOGRAPHIC_RANGES = (
    (0x3005, 0x3008),  # iteration and number marks
    (0x3041, 0x3100),  # kana
    (0x31F0, 0x3200),
    (0x3400, 0x4DC0),  # ideographs
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
    (0xFF66, 0xFFA0),  # half-width kana
    (0x20000, 0x40000),
)
# and bopomofo and the rarer kana
_ALONE_RANGES = (*IDEOGRAPHIC_RANGES, (0x3105, 0x3130), (0x31A0, 0x31C0), (0x1B000, 0x1B170))

_CHAR_BASE = 0x9E3779B97F4A7C15  # odd, so invertible modulo 2**64
_WORD_BASE = 0xD1342543DE82EF95
_TOKEN_BASE = 0xAF251AF3B0F025B5


@dataclass(frozen=True)
class Hashes:
    """Hashes of several documents; those of document i are `values[offsets[i] : offsets[i + 1]]`."""

    values: U64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> I64:
        """Return (n,) the number of hashes of each document."""
        return np.diff(self.offsets)

    def take(self, documents: Chosen) -> Hashes:
        """Copy the hashes of some documents, in the order given; an array of bool selects as in NumPy."""
        places, offsets = flat_places(self.offsets, documents)
        return Hashes(self.values[places], offsets)  # a copy: a view of a mapped file would keep the file open


def running_sums(values: Sequence[int] | npt.NDArray[Any]) -> I64:
    """Return (n + 1,) the sums of the first 0, 1, ... n values."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def flat_places(offsets: I64, documents: Chosen) -> tuple[I64, I64]:
    """Return the indices of the values of some documents in a flat array, and the offsets of the selection."""
    chosen = np.arange(len(offsets) - 1)[np.asarray(documents, None if len(documents) else np.int64)]
    counts = np.diff(offsets)[chosen]
    taken = running_sums(counts)
    return np.arange(taken[-1]) + np.repeat(offsets[chosen] - taken[:-1], counts), taken


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sorted distinct values; sorting is many times faster here than the hashing of `np.unique`."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def joined(parts: Sequence[Hashes]) -> Hashes:
    """Concatenate the documents of several parts."""
    values = np.concatenate([np.zeros(0, np.uint64), *(part.values for part in parts)])
    return Hashes(values, running_sums(np.concatenate([np.zeros(0, np.int64), *(part.counts for part in parts)])))


class Batch(NamedTuple):
    """Consecutive texts as words and paragraphs.

    Attributes:
        first: Index of the first of the texts.
        words: Hashes of the words of each text.
        paragraphs: Hashes of the paragraphs of each text.
        starts, lengths: Position of each paragraph in its text, in characters.
    """

    first: int
    words: Hashes
    paragraphs: Hashes
    starts: I64
    lengths: I64


def bundles(
    items: Iterable[T], n_chars: Callable[[T], int], most_chars: int, most: int = sys.maxsize
) -> Iterator[list[T]]:
    """Yield consecutive items in lists, each ending at `most_chars` characters or `most` items."""
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


def read_batches(texts: Sequence[str], *, with_paragraphs: bool = False) -> Iterator[Batch]:
    """Yield the words (and paragraphs, on request) of texts in batches of bounded size; a long text is its own batch.

    A paragraph is text between empty lines, white space folded, of at least 80 characters. One longer than
    `BATCH_CHARS` is cut, at a line end or space if possible.
    """
    first = chars = 0
    for place, text in enumerate(texts):
        if place > first and chars + len(text) + len(_SEPARATOR) > BATCH_CHARS:
            yield _read_batch(texts[first:place], first, with_paragraphs)
            first, chars = place, 0
        chars += len(text) + len(_SEPARATOR)
    if first < len(texts):
        yield _read_batch(texts[first:], first, with_paragraphs)


def word_pieces(text: str) -> Iterator[tuple[U64, I64, I64]]:
    """Yield the words of a text of any length, piece by piece: hashes, starts and ends in characters."""
    for *_, words in _read_pieces(_pieces(text)):
        yield words


def word_hashes(text: str) -> tuple[U64, I64, I64]:
    """Return the words of one text: hashes, starts and ends in characters."""
    values, starts, ends = (np.concatenate(parts) for parts in zip(*word_pieces(text), strict=True))
    return values, starts, ends


def word_runs(words: Hashes, n: int) -> Hashes:
    """Return the hashes of all n-grams of words, document by document, in order.

    A document of 1 to n-1 words has a single hash, of all its words, which equals no n-gram's.
    """
    begins, ends = words.offsets[:-1], words.offsets[1:]
    counts = words.counts
    runs = _windows(words.values, n)
    if len(counts) == 1 and counts[0] >= n:  # perhaps a long document: without a mask or copy
        return Hashes(runs[: counts[0] - n + 1], np.array([0, counts[0] - n + 1]))
    whole = np.ones(len(runs), bool)
    tails = ends[:, None] - np.arange(1, n)  # n-grams from here would extend into the next document
    whole[tails[tails >= begins[:, None]]] = False
    for short in range(1, n):
        where = begins[counts == short]
        if len(where):
            value = np.full(len(where), short, np.uint64)
            for place in range(short):
                value = value * np.uint64(_WORD_BASE) + words.values[where + place]
            runs[where] = _mix(value)
            whole[where] = True
    return Hashes(runs[whole], running_sums(np.where(counts >= n, counts - n + 1, np.minimum(counts, 1))))


def _windows(values: U64, n: int) -> U64:
    """Return the hash of `values[i : i + n]` for every i, padded with zeros; in parts, for small buffers."""
    windows = np.full(len(values), n, np.uint64)
    padded = np.append(values, np.zeros(n - 1, np.uint64))
    for start in range(0, len(values), BATCH_CHARS):
        part = windows[start : start + BATCH_CHARS]
        for place in range(start, start + n):
            part *= np.uint64(_WORD_BASE)
            part += padded[place : place + len(part)]
        part[:] = _mix(part)
    return windows


def _mix(values: U64) -> U64:
    """Apply the finaliser of splitmix64, in which every output bit depends on every input bit."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


@lru_cache(maxsize=1)
def _character_table() -> Codes:
    """Return for each code point 1 for white space, the lower-case code point for word characters, 0 for others.

    Characters that are words by themselves have the flag `_ALONE`.
    """
    table = np.zeros(sys.maxunicode + 1, np.uint32)
    for code in range(_LAST_ASSIGNED):
        char = chr(code)
        if char.isalnum() or char == "_":
            table[code] = ord(char.lower()[0])
        elif char.isspace():
            table[code] = _SPACE
    table[ord("ς")] = ord("σ")  # the lower case of a capital sigma depends on its position
    for begin, end in _ALONE_RANGES:
        block = table[begin:end]
        block[block > _SPACE] |= _ALONE
    table.flags.writeable = False
    return table


def span_hashes(values: npt.NDArray[Any], begins: I64, ends: I64, base: int = _CHAR_BASE) -> U64:
    """Return a hash of each `values[begin:end]`, independent of its position.

    Args:
        values: Numbers; trailing zeros of a span do not change its hash.
        begins: Start of each span.
        ends: End of each span, exclusive.
        base: Odd base of the polynomial.
    """
    terms = _powers(base, len(values))
    terms *= values.astype(np.uint64, copy=False)
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    return _mix((sums[ends] - sums[begins]) * _powers(pow(base, -1, 1 << 64), len(values) + 1)[begins])


def _powers(base: int, n: int) -> U64:
    """Return (n,) the powers 0 to n-1 of a number modulo 2**64."""
    factors = np.full(n, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def _pieces(text: str) -> Iterator[str]:
    """Yield a long text in pieces, cut after the last empty line, line or space in each; depends only on the text."""
    start = 0
    while len(text) - start > BATCH_CHARS:
        limit = start + BATCH_CHARS
        for separator in (_SEPARATOR, "\n", " "):
            end = text.rfind(separator, start + 1, limit) + len(separator)
            if end > start + len(separator):
                break
        else:
            end = limit
        yield text[start:end]
        start = end
    yield text[start:]


def _read_batch(texts: Sequence[str], first: int, with_paragraphs: bool) -> Batch:
    bounds = running_sums([len(text) + len(_SEPARATOR) for text in texts])
    pieces = _pieces(texts[0]) if len(texts) == 1 else iter([_SEPARATOR.join(texts)])
    offsets = np.zeros(len(bounds), np.int64)
    nothing = np.zeros(0, np.int64)
    words, paragraphs = [], [(np.zeros(0, np.uint64), nothing, nothing)]
    for codes, kinds, base, (values, begins, _) in _read_pieces(pieces):
        offsets += np.searchsorted(begins, bounds)  # words that begin before each text
        words.append(values)
        if with_paragraphs:
            paragraphs.append(_read_paragraphs(codes, kinds, base))
    hashes, starts, ends = (np.concatenate(parts) for parts in zip(*paragraphs, strict=True))
    places = np.searchsorted(starts, bounds).astype(np.int64)
    own = starts - np.repeat(bounds[:-1], np.diff(places))
    whole = words[0] if len(words) == 1 else np.concatenate(words)
    return Batch(first, Hashes(whole, offsets), Hashes(hashes, places), own, ends - starts)


def _read_pieces(pieces: Iterator[str]) -> Iterator[tuple[Codes, Codes, int, tuple[U64, I64, I64]]]:
    """Yield of each piece its code points, their entries in the character table, its start, and its words."""
    base = 0
    for piece in pieces:
        codes = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = _character_table()[codes]
        begins, ends = _runs(kinds > _SPACE, kinds >= _ALONE)
        yield codes, kinds, base, (span_hashes(kinds, begins, ends), begins + base, ends + base)
        base += len(piece)


def _runs(inside: npt.NDArray[np.bool_], alone: npt.NDArray[np.bool_] | None = None) -> tuple[I64, I64]:
    """Return starts and ends of the runs of True; items in `alone` are runs by themselves."""
    framed = np.zeros(len(inside) + 2, bool)
    framed[1:-1] = inside
    cut = np.zeros(len(inside) + 1, bool)  # between a place and the one before it
    if alone is not None:
        cut[1:] = alone
        cut[:-1] |= alone
    begins = np.flatnonzero(framed[1:] & (~framed[:-1] | cut))
    ends = np.flatnonzero(framed[:-1] & (~framed[1:] | cut))
    return begins, ends


def _read_paragraphs(codes: Codes, kinds: Codes, base: int) -> tuple[U64, I64, I64]:
    """Return hashes, starts and ends of paragraphs, hashed over their tokens, which ignores the kind of white space."""
    begins, ends = _runs(kinds != _SPACE)
    lines_before = np.bincount(np.searchsorted(begins, np.flatnonzero(codes == 10)), minlength=len(begins) + 1)
    starts_paragraph = lines_before[: len(begins)] >= 2
    starts_paragraph[:1] = True
    first = np.flatnonzero(starts_paragraph)
    behind = np.append(first[1:], len(begins))
    chars = running_sums(ends - begins)
    folded = chars[behind] - chars[first] + (behind - first - 1)
    long_enough = folded >= MIN_PARAGRAPH_CHARS
    first, behind = first[long_enough], behind[long_enough]
    tokens = span_hashes(codes, begins, ends)
    values = span_hashes(tokens, first, behind, _TOKEN_BASE)
    return values, begins[first] + base, ends[behind - 1] + base
