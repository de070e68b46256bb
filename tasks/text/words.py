"""Words, word runs and paragraphs of texts as 64-bit hashes, without a Python object for any of them.

In go texts (NFC), out come flat numpy arrays with offsets. A word is a lower-cased run of `\\w` characters; a Chinese
or Japanese character is a word of its own, because nothing separates words there. Everything that deduplication
compares (shingles, 13-grams, paragraphs) is made of these.

How: the code points of many texts stand in one array, one table look-up per character tells words from the rest, and a
word's hash is a difference of prefix sums of `code * B**place`, scaled back by `B**-start` modulo 2**64. That scaling
is exact, so a word hashes the same wherever it stands, and a document the same in whatever company. The hashes are
stored: no constant here may ever change. (What is a letter is Python's own table: characters that a later Unicode
version adds are no words before it.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Chosen = Sequence[int] | npt.NDArray[np.integer] | npt.NDArray[np.bool_]

BATCH_CHARS = 1 << 17  # arrays of a batch stay in a core's cache; a longer text is read in pieces of this length
MIN_PARAGRAPH_CHARS = 80

_SEPARATOR = "\n\n"  # ends words and paragraphs alike
_SPACE = 1  # in the character table; no word character has this value
_ALONE = np.uint32(1 << 31)  # flag of characters that are words by themselves
_LAST_ASSIGNED = 0x40000  # the planes beyond hold no letters
_ALONE_RANGES = (
    (0x3005, 0x3008),  # iteration and number marks
    (0x3041, 0x3100),  # kana
    (0x3105, 0x3130),  # bopomofo
    (0x31A0, 0x31C0),
    (0x31F0, 0x3200),
    (0x3400, 0x4DC0),  # ideographs
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
    (0xFF66, 0xFFA0),  # half-width kana
    (0x1B000, 0x1B170),
    (0x20000, 0x40000),
)

_CHAR_BASE = 0x9E3779B97F4A7C15  # odd, without pattern: invertible modulo 2**64
_WORD_BASE = 0xD1342543DE82EF95
_TOKEN_BASE = 0xAF251AF3B0F025B5


@dataclass(frozen=True)
class Hashes:
    """Hashes of several documents in one array: those of document i are `values[offsets[i] : offsets[i + 1]]`."""

    values: U64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, document: int) -> U64:
        """Hashes of one document."""
        return self.values[self.offsets[document] : self.offsets[document + 1]]

    @property
    def counts(self) -> I64:
        """How many hashes each document has."""
        return np.diff(self.offsets)

    def take(self, documents: Chosen) -> Hashes:
        """A copy of the hashes of some documents, in the order given; an array of bool selects as in numpy."""
        places, offsets = self._places(documents)
        return Hashes(_copied(self.values, places), offsets)

    def _places(self, documents: Chosen) -> tuple[I64 | slice, I64]:
        """Where the hashes of some documents stand (a slice if they do so in a row), and their offsets when taken."""
        chosen = np.arange(len(self))[np.asarray(documents, None if len(documents) else np.int64)]
        counts = self.counts[chosen]
        taken = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(counts, out=taken[1:])
        if len(chosen) and (np.diff(chosen) == 1).all():
            return slice(int(self.offsets[chosen[0]]), int(self.offsets[chosen[-1] + 1])), taken
        return np.arange(taken[-1]) + np.repeat(self.offsets[chosen] - taken[:-1], counts), taken


@dataclass(frozen=True)
class Spanned(Hashes):
    """Hashes of stretches of text, with the stretches.

    Attributes:
        starts, lengths: of each stretch in its own document, in characters.
    """

    starts: I64
    lengths: I64

    def take(self, documents: Chosen) -> Spanned:
        """A copy of the stretches of some documents, in the order given; an array of bool selects as in numpy."""
        places, offsets = self._places(documents)
        starts, lengths = _copied(self.starts, places), _copied(self.lengths, places)
        return Spanned(_copied(self.values, places), offsets, starts, lengths)


Numbers = TypeVar("Numbers", U64, I64)


def _copied(values: Numbers, places: I64 | slice) -> Numbers:
    """What stands at the places, never as a view: one of a mapped file would keep the file open."""
    return values[places].copy() if isinstance(places, slice) else values[places]


def distinct(values: Numbers) -> Numbers:
    """Sorted values, each once: `np.unique` by sorting, which is many times faster than its way by hashing."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def joined(parts: Sequence[Hashes]) -> Hashes:
    """Documents of several parts, one after the other."""
    offsets = [np.zeros(1, np.int64)]
    total = 0
    for part in parts:
        offsets.append(part.offsets[1:] - part.offsets[0] + total)
        total += int(part.offsets[-1] - part.offsets[0])
    values = [part.values[part.offsets[0] : part.offsets[-1]] for part in parts]
    return Hashes(np.concatenate([np.zeros(0, np.uint64), *values]), np.concatenate(offsets))


@dataclass(frozen=True)
class Batch:
    """Some consecutive texts, as the words and paragraphs in them.

    Attributes:
        first, count: which of the texts.
    """

    first: int
    count: int
    words: Hashes
    paragraphs: Spanned


def read_batches(texts: Sequence[str], *, with_paragraphs: bool = False) -> Iterator[Batch]:
    """Words (and paragraphs, if asked for) of texts, in batches of bounded size; a long text is a batch of its own.

    Paragraphs are what stands between empty lines, white space folded, of at least 80 characters. Only in a text
    longer than `BATCH_CHARS` is a paragraph longer than that cut in several (at a line end, a space, or anywhere).
    """
    first = chars = 0
    for place, text in enumerate(texts):
        if place > first and chars + len(text) + len(_SEPARATOR) > BATCH_CHARS:
            yield _read_batch(texts[first:place], first, with_paragraphs)
            first, chars = place, 0
        chars += len(text) + len(_SEPARATOR)
    if first < len(texts):
        yield _read_batch(texts[first:], first, with_paragraphs)


def word_hashes(text: str) -> Spanned:
    """Words of one text: hashes, and where each stands."""
    return _spanned(list(word_pieces(text)), np.array([0, len(text) + 1]))


def word_pieces(text: str) -> Iterator[tuple[U64, I64, I64]]:
    """The same piece by piece, for texts of any length: hashes, and where each word begins and ends in the text."""
    for _, kinds, base in _code_points(_pieces(text)):
        yield _read_words(kinds, base)


def word_runs(words: Hashes, n: int) -> Hashes:
    """Hashes of all runs of `n` consecutive words, document by document, in order.

    A document of fewer words (but not none) has a single run, all its words; it equals no run of `n` words.
    """
    begins, ends = words.offsets[:-1], words.offsets[1:]
    counts = words.counts
    runs = _windows(words.values, n)
    if len(counts) == 1 and counts[0] >= n:  # perhaps a long document: no mask, no copy
        return Hashes(runs[: counts[0] - n + 1], np.array([0, counts[0] - n + 1]))
    whole = np.ones(len(runs), bool)
    tails = ends[:, None] - np.arange(1, n)  # a run that starts here would end in the next document
    whole[tails[tails >= begins[:, None]]] = False
    for short in range(1, n):
        where = begins[counts == short]
        if len(where):
            value = np.full(len(where), short, np.uint64)
            for place in range(short):
                value = value * np.uint64(_WORD_BASE) + words.values[where + place]
            runs[where] = _mix(value)
            whole[where] = True
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.where(counts >= n, counts - n + 1, np.minimum(counts, 1)), out=offsets[1:])
    return Hashes(runs[whole], offsets)


def _windows(values: U64, n: int) -> U64:
    """Hash of `values[i : i + n]` for every i, as if zeros followed; part by part, so that buffers stay small."""
    windows = np.empty(len(values), np.uint64)
    for start in range(0, len(values), BATCH_CHARS):
        part = windows[start : start + BATCH_CHARS]
        padded = np.zeros(len(part) + n - 1, np.uint64)
        own = values[start : start + len(padded)]
        padded[: len(own)] = own
        part[:] = _full_windows(padded, n)
    return windows


def _full_windows(values: U64, n: int) -> U64:
    """Hash of `values[i : i + n]` for every i where there are n values: by doubling, in log n steps."""
    size = len(values) - n + 1
    result = np.full(size, n, np.uint64)
    block, width, done = values, 1, 0
    while True:
        if n & width:
            result *= np.uint64(pow(_WORD_BASE, width, 1 << 64))
            result += block[done : done + size]
            done += width
        width *= 2
        if width > n:
            return _mix(result)
        half = width // 2
        block = block[:-half] * np.uint64(pow(_WORD_BASE, half, 1 << 64)) + block[half:]


def _mix(values: U64) -> U64:
    """Finaliser of splitmix64: every bit of the result depends on every bit of the value."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


@lru_cache(maxsize=1)
def _character_table() -> Codes:
    """For each code point: 0 for neither, 1 for white space, else the lower-case code point, flagged if it is alone."""
    table = np.zeros(sys.maxunicode + 1, np.uint32)
    for code in range(_LAST_ASSIGNED):
        char = chr(code)
        if char.isalnum() or char == "_":
            table[code] = ord(char.lower()[0])
        elif char.isspace():
            table[code] = _SPACE
    table[ord("ς")] = ord("σ")  # the same letter; which of them a capital becomes depends on the place in the word
    for begin, end in _ALONE_RANGES:
        block = table[begin:end]
        block[block > _SPACE] |= _ALONE
    table.flags.writeable = False
    return table


@lru_cache(maxsize=4)
def _powers(base: int) -> U64:
    """`base ** 0 ... base ** BATCH_CHARS` modulo 2**64: for every place in a piece of text."""
    size = BATCH_CHARS + 1
    powers = np.ones(size, np.uint64)
    done = 1
    while done < size:
        step = min(done, size - done)
        powers[done : done + step] = powers[:step] * np.uint64(pow(base, done, 1 << 64))
        done += step
    powers.flags.writeable = False
    return powers


def _stretches(values: U64, base: int, begins: I64, ends: I64) -> U64:
    """Polynomial hash of each `values[begin:end]`, the same wherever it stands."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(base)[: len(values)], out=sums[1:])
    return (sums[ends] - sums[begins]) * _powers(pow(base, -1, 1 << 64))[begins]


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces, cut where it separates most, by a rule that knows nothing but the text."""
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
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) + len(_SEPARATOR) for text in texts], out=bounds[1:])
    pieces = _pieces(texts[0]) if len(texts) == 1 else iter([_SEPARATOR.join(texts)])
    offsets = np.zeros(len(bounds), np.int64)
    words, paragraphs = [], []
    for codes, kinds, base in _code_points(pieces):
        values, begins, _ = _read_words(kinds, base)
        offsets += np.searchsorted(begins, bounds)  # how many begin before each text does
        words.append(values)
        if with_paragraphs:
            paragraphs.append(_read_paragraphs(codes, kinds, base))
    return Batch(first, len(texts), Hashes(_concatenated(words), offsets), _spanned(paragraphs, bounds))


def _code_points(pieces: Iterator[str]) -> Iterator[tuple[Codes, Codes, int]]:
    """Code points of each piece, what the character table says of them, and where the piece begins."""
    base = 0
    for piece in pieces:
        codes = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), np.uint32)
        yield codes, _character_table()[codes], base
        base += len(piece)


def _concatenated(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _spanned(pieces: list[tuple[U64, I64, I64]], bounds: I64) -> Spanned:
    """Hashes, starts and ends in the joined text, as those of documents that begin at the bounds."""
    if not pieces:
        nothing = np.zeros(0, np.int64)
        return Spanned(np.zeros(0, np.uint64), np.zeros(len(bounds), np.int64), nothing, nothing)
    values, starts, ends = (_concatenated(parts) for parts in zip(*pieces, strict=True))
    offsets = np.searchsorted(starts, bounds)
    lengths = ends - starts
    if len(bounds) > 2:
        starts = starts - np.repeat(bounds[:-1], np.diff(offsets))
    return Spanned(values, offsets.astype(np.int64), starts, lengths)


def _read_words(kinds: Codes, base: int) -> tuple[U64, I64, I64]:
    inside = kinds > _SPACE
    begins, ends = _runs(inside, kinds >= _ALONE)
    values = _mix(_stretches(kinds.astype(np.uint64), _CHAR_BASE, begins, ends))
    return values, begins + base, ends + base


def _runs(inside: npt.NDArray[np.bool_], alone: npt.NDArray[np.bool_] | None = None) -> tuple[I64, I64]:
    """Begins and ends of the runs of true places; places that are alone are runs by themselves."""
    framed = np.zeros(len(inside) + 2, bool)
    framed[1:-1] = inside
    if alone is None or not alone.any():
        edges = np.flatnonzero(framed[1:] != framed[:-1])
        return edges[::2], edges[1::2]
    apart = np.zeros(len(inside) + 2, bool)
    apart[1:-1] = alone
    cut = apart[1:] | apart[:-1]  # between a place and the one before it
    begins = np.flatnonzero(framed[1:] & (~framed[:-1] | cut))
    ends = np.flatnonzero(framed[:-1] & (~framed[1:] | cut))
    return begins, ends


def _read_paragraphs(codes: Codes, kinds: Codes, base: int) -> tuple[U64, I64, I64]:
    """Paragraphs as runs of tokens (what stands between white space), so that white space folds by itself."""
    begins, ends = _runs(kinds != _SPACE)
    lines_before = np.bincount(np.searchsorted(begins, np.flatnonzero(codes == 10)), minlength=len(begins) + 1)
    starts_paragraph = lines_before[: len(begins)] >= 2
    starts_paragraph[:1] = True
    first = np.flatnonzero(starts_paragraph)
    behind = np.append(first[1:], len(begins))
    chars = np.zeros(len(begins) + 1, np.int64)
    np.cumsum(ends - begins, out=chars[1:])
    folded = chars[behind] - chars[first] + (behind - first - 1)
    long_enough = folded >= MIN_PARAGRAPH_CHARS
    first, behind = first[long_enough], behind[long_enough]
    tokens = _mix(_stretches(codes.astype(np.uint64), _CHAR_BASE, begins, ends))
    values = _mix(_stretches(tokens, _TOKEN_BASE, first, behind))
    return values, begins[first] + base, ends[behind - 1] + base
