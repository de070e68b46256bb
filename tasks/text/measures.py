"""Vectorised measures of a batch of documents: characters, words, lines, paragraphs, repetition.

The texts are concatenated with line feeds between them; each value depends only on the characters of its own word, line
or document, so a document's measures do not depend on the batch. Every character has a class; those of letters are the
highest, so the highest class in a word shows whether it has a letter.

Lines end in line feeds; shares are of the lines with a word. A paragraph is consecutive lines with words. Lines and
paragraphs are equal if their words are, regardless of white space. An n-gram can only recur if both (n-1)-grams in it
recur, so each length examines only what recurred at the length before: in ordinary text most work is done for 2-grams.

Sources: the quality and repetition filters of Gopher (Rae et al. 2021, appendix A1.1 and table A1), the line rules of
C4 (Raffel et al. 2020, section 2.2), and FineWeb's own filters (Penedo et al. 2024, section 3.4).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.text.words import I64, IDEOGRAPHIC_RANGES, U64, running_sums, span_hashes

SPACE, OTHER, MARK, SYMBOL, DIGIT, LETTER, UPPER, UNSPACED = range(8)
N_CLASSES = 8

# letters of scripts without spaces between words (Hangul has them)
_UNSPACED_RANGES = (
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    *IDEOGRAPHIC_RANGES,
)
_LAST_ASSIGNED = 0x3FFFF  # above it there are no letters, digits or spaces: tags, selectors and private use

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

TOP_LENGTHS = (2, 3, 4)
LONGEST_NGRAM = 10
PHRASE_WORDS = 5
MIN_WORDS_TO_JUDGE = 100  # shorter texts are not judged by their repetition

SHORT_LINE = 30  # characters at most (FineWeb)
FEW_WORDS = 5  # a line has fewer words (C4)

LINE_FEED, DOT, ELLIPSIS = 10, ord("."), ord("…")
TERMINAL = ".!?…。！？｡؟।॥"
QUOTES = "\"'”’»」』"
BRACKETS = ")）"
BULLETS = "•‣◦▪▫■□●○◆◇▶►–—-*·"
_SURE_BULLETS = "•‣◦▪▫■□●○◆◇▶►"  # these mark an item even without a space after them

_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)

Mask = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]


@lru_cache(maxsize=1)
def _class_table() -> npt.NDArray[np.uint8]:
    """Return (0x110000,) the class of every code point; building it takes a fifth of a second."""
    table = np.full(0x110000, OTHER, dtype=np.uint8)
    for point in range(_LAST_ASSIGNED + 1):
        char = chr(point)
        if char.isspace():
            table[point] = SPACE
        elif char.isalpha():
            table[point] = UPPER if char.isupper() else LETTER
        elif char.isdigit():
            table[point] = DIGIT
        elif unicodedata.category(char)[0] == "M":
            table[point] = MARK
        elif unicodedata.category(char)[0] in "PS":
            table[point] = SYMBOL
    table[0xE0100:0xE01F0] = MARK  # variation selectors
    for first, last in _UNSPACED_RANGES:
        block = table[first:last]
        block[block >= LETTER] = UNSPACED
    return table


@dataclass(frozen=True)
class TextArrays:
    """Documents as arrays; words are separated by white space.

    Attributes:
        codes, classes: Code points of all texts, with a line feed before, between and after them, and their classes.
        text_bounds: (n + 1,) start of each text; a text ends one before the start of the next.
        class_counts: (n, `N_CLASSES`) number of characters per document and class.
        word_starts, word_ends, word_lengths, word_hashes: Positions, numbers of characters and hashes of the words.
        word_documents: Document of each word.
        word_bounds: (n + 1,) first word of each document.
        n_words, solid: (n,) numbers of words and of characters that are not white space.
    """

    codes: npt.NDArray[np.uint32]
    classes: npt.NDArray[np.uint8]
    text_bounds: I64
    class_counts: I64
    word_starts: I64
    word_ends: I64
    word_lengths: I64
    word_hashes: U64
    word_documents: I64
    word_bounds: I64
    n_words: I64
    solid: I64

    def per_document(self, documents: I64, weights: I64 | None = None) -> I64:
        """Return (n,) the number of items per document, or the sum of their weights; `documents` has each item's."""
        return np.bincount(documents, weights, minlength=len(self.n_words))


def make_batch(texts: Sequence[str]) -> TextArrays:
    """Concatenate texts and find their words."""
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
    n_words = np.diff(bounds)
    return TextArrays(
        codes=codes,
        classes=classes,
        text_bounds=text_bounds,
        class_counts=class_counts,
        word_starts=starts,
        word_ends=ends,
        word_lengths=ends - starts,
        word_hashes=span_hashes(codes, starts, ends),
        word_documents=np.repeat(np.arange(len(texts)), n_words),
        word_bounds=bounds,
        n_words=n_words,
        solid=class_counts.sum(axis=1) - class_counts[:, SPACE],
    )


def array_measures(texts: Sequence[str]) -> Columns:
    """Return the vectorised measures, one value per text, by the column names of `storage.schemas.MEASURES`.

    `n_spaces`, the number of white space characters, is not a column there.
    """
    batch = make_batch(texts)
    return {**_characters(batch), **_words(batch), **_lines(batch), **_phrases(batch)}


def share(part: npt.NDArray[Any], whole: npt.NDArray[Any], places: int = 4) -> npt.NDArray[np.float64]:
    """Return `part / whole`, rounded to some places; 0 where `whole` is 0."""
    return np.round(np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0), places)


def _sums_between(values: npt.NDArray[Any], bounds: I64) -> I64:
    """Return the sum of `values[bounds[i]:bounds[i + 1]]` for each i; 0 for empty ranges."""
    return np.diff(running_sums(values)[bounds])


def _highest_between(values: npt.NDArray[Any], bounds: I64) -> I64:
    """Return the maximum of `values[bounds[i]:bounds[i + 1]]` for each i; 0 for empty ranges."""
    highest = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = bounds[1:] > bounds[:-1]
    if filled.any():
        highest[filled] = np.maximum.reduceat(values, bounds[:-1][filled])
    return highest


def _characters(batch: TextArrays) -> Columns:
    """Return shares of classes of characters, of those that are not white space unless noted."""
    counts = batch.class_counts
    letters = counts[:, LETTER] + counts[:, UPPER] + counts[:, UNSPACED]
    everything = counts.sum(axis=1)
    return {
        "n_spaces": counts[:, SPACE],
        "letter_share": share(letters, batch.solid),
        "digit_share": share(counts[:, DIGIT], batch.solid),
        "symbol_share": share(counts[:, SYMBOL], batch.solid),
        "upper_share": share(counts[:, UPPER], letters),  # of the letters
        "unspaced_share": share(counts[:, UNSPACED], batch.solid),
        "space_share": share(counts[:, SPACE], everything),  # of all characters, as the next one
        "alnum_share": share(letters + counts[:, DIGIT], everything),
    }


def _words(batch: TextArrays) -> Columns:
    lettered = _highest_between(batch.classes, np.append(batch.word_starts, len(batch.classes))) >= LETTER
    stop_words = make_batch([" ".join(STOP_WORDS)]).word_hashes
    present = [batch.per_document(batch.word_documents[batch.word_hashes == word]) > 0 for word in stop_words]
    return {
        "n_words": batch.n_words,
        "mean_word_length": share(batch.solid, batch.n_words, 3),
        "longest_word": _highest_between(batch.word_lengths, batch.word_bounds),
        "alpha_word_share": share(batch.per_document(batch.word_documents[lettered]), batch.n_words),
        "stop_words": np.sum(present, axis=0),  # different ones
    }


class Units(NamedTuple):
    """Lines or paragraphs with words: the first word of each, the last one + 1, and the document."""

    first: I64
    last: I64
    document: I64


def _lines(batch: TextArrays) -> Columns:
    feeds = np.flatnonzero(batch.codes == LINE_FEED)
    starts, ends = feeds[:-1] + 1, feeds[1:]
    bounds = np.searchsorted(starts, batch.text_bounds)
    words = np.searchsorted(batch.word_starts, np.append(starts, feeds[-1:] + 1))
    filled = np.flatnonzero(np.diff(words))
    lines = Units(words[filled], words[filled + 1], batch.word_documents[words[filled]])
    # a paragraph is consecutive lines without an empty one between them
    opens = np.ones(len(filled), dtype=np.bool_)
    opens[1:] = (np.diff(filled) > 1) | (lines.document[1:] != lines.document[:-1])
    opening = np.flatnonzero(opens)
    closing = np.append(opening[1:], len(filled))[: len(opening)] - 1
    paragraphs = Units(lines.first[opening], lines.last[closing], lines.document[opening])
    n_chars = np.diff(batch.text_bounds) - 1
    written = np.diff(bounds) - (n_chars == 0)  # a text without characters has no lines
    return {
        "n_lines": written,
        "n_paragraphs": batch.per_document(paragraphs.document),
        "mean_line_length": share(n_chars - written + (n_chars > 0), written, 2),
        "longest_line": _highest_between(ends - starts, bounds),
        "list_ratio": share(np.maximum(written - 1, 0), batch.n_words),
        **_shapes(batch, lines),
        **_duplicates(batch, lines, "line"),
        **_duplicates(batch, paragraphs, "paragraph"),
    }


def _among(codes: np.ndarray, characters: str) -> Mask:
    return np.isin(codes, np.array([ord(char) for char in characters], dtype=np.uint32))


def _shapes(batch: TextArrays, lines: Units) -> Columns:
    """Return shares of lines by beginning, end and length, and the number of sentences."""
    codes = batch.codes
    last, before = codes[batch.word_ends - 1], codes[batch.word_ends - 2]  # characters of each word
    stop, quote, bracket = (_among(last, characters) for characters in (TERMINAL, QUOTES, BRACKETS))
    after_stop = _among(before, TERMINAL)
    sentence_ends = (stop | ((quote | bracket) & after_stop)) & (batch.word_lengths > 1)
    closes_line = stop | quote | (bracket & after_stop)
    end_word = lines.last - 1
    start, end = batch.word_starts[lines.first], batch.word_ends[end_word]
    # `end` is at least 2; index 0 is a line feed
    dots = (codes[end - 1] == DOT) & (codes[end - 2] == DOT) & (codes[np.maximum(end - 3, 0)] == DOT)
    alone = batch.word_lengths[lines.first] == 1
    shapes = {
        "bullet_line_share": (_among(codes[start], BULLETS) & alone) | _among(codes[start], _SURE_BULLETS),
        "ellipsis_line_share": dots | (codes[end - 1] == ELLIPSIS),
        "terminal_line_share": closes_line[end_word],
        "few_words_line_share": lines.last - lines.first < FEW_WORDS,
        "short_line_share": end - start <= SHORT_LINE,
    }
    n_lines = batch.per_document(lines.document)
    shares: Columns = {name: share(batch.per_document(lines.document[mask]), n_lines) for name, mask in shapes.items()}
    return {**shares, "n_sentences": _sums_between(sentence_ends, batch.word_bounds)}


def _duplicates(batch: TextArrays, units: Units, name: str) -> Columns:
    """Return the shares of units that occurred earlier in their document, by number and by characters of words."""
    hashes = span_hashes(batch.word_hashes, units.first, units.last)
    repeats = _find_repeated(units.document, hashes, np.arange(len(hashes))).later(len(hashes))
    sums = running_sums(batch.word_lengths)
    characters = sums[units.last] - sums[units.first]
    documents = units.document[repeats]
    return {
        f"duplicate_{name}_share": share(batch.per_document(documents), batch.per_document(units.document)),
        f"duplicate_{name}_char_share": share(batch.per_document(documents, characters[repeats]), batch.solid),
    }


class Repeated(NamedTuple):
    """Items that occur more than once in their document."""

    places: I64  # index of each
    sizes: I64  # members of each group of equal items, two or more
    firsts: I64  # lowest index of each group

    def later(self, n: int) -> Mask:
        """Return (n,) a mask of the second and later occurrences in each group."""
        mask = np.zeros(n, dtype=np.bool_)
        mask[self.places] = True
        mask[self.firsts] = False
        return mask


def _find_repeated(documents: I64, hashes: U64, places: I64) -> Repeated:
    """Find items that recur in their document, from the document, hash and index of each item."""
    keys = hashes ^ (documents.astype(np.uint64) * _MULTIPLIER)  # equal only within a document
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    sizes = np.diff(starts, append=len(keys))
    several = sizes > 1
    kept = places[order][np.repeat(several, sizes)]
    sizes = sizes[several]
    firsts = np.minimum.reduceat(kept, np.cumsum(sizes) - sizes) if len(kept) else kept
    return Repeated(kept, sizes, firsts)


def _phrases(batch: TextArrays) -> Columns:
    """Return shares of characters, without white space, in repeated n-grams of words.

    `top_Ngram_char_share`: occurrences times length of the most frequent n-gram, the longest of those equally frequent;
    0 if none recurs, at most 1. `duplicate_Ngram_char_share`: characters of the words in n-grams that occurred earlier
    in the document. `distinct_share`: share of distinct 5-grams; 1 for texts of fewer than 100 words.
    """
    n_all, documents, hashes = len(batch.word_hashes), batch.word_documents, batch.word_hashes
    sums = running_sums(batch.word_lengths)
    measures: Columns = {}
    places = np.flatnonzero(documents[1:] == documents[:-1])
    grams = hashes[places] * _MULTIPLIER + hashes[places + 1]
    for n in range(2, LONGEST_NGRAM + 1):
        found = _find_repeated(documents[places], grams, places)
        if n in TOP_LENGTHS:
            characters = sums[found.firsts + n] - sums[found.firsts]
            best = np.zeros(len(batch.n_words), dtype=np.int64)
            # one number that orders by frequency, then by length; a batch has far fewer than 2**31 characters
            np.maximum.at(best, documents[found.firsts], (found.sizes << 32) | characters)
            top = (best >> 32) * (best & 0xFFFFFFFF)
            measures[f"top_{n}gram_char_share"] = np.minimum(share(top, batch.solid), 1.0)
        else:
            repeats = found.later(n_all)
            begun = running_sums(repeats)
            covered = begun[1:] > begun[np.maximum(np.arange(n_all) - n + 1, 0)]  # words in an n-gram that is repeated
            characters = _sums_between(np.where(covered, batch.word_lengths, 0), batch.word_bounds)
            measures[f"duplicate_{n}gram_char_share"] = share(characters, batch.solid)
            if n == PHRASE_WORDS:
                phrases = np.maximum(batch.n_words - n + 1, 0)
                distinct = share(phrases - _sums_between(repeats, batch.word_bounds), phrases)
                measures["distinct_share"] = np.where(batch.n_words < MIN_WORDS_TO_JUDGE, 1.0, distinct)
        recurring = np.zeros(n_all + 1, dtype=np.bool_)
        recurring[found.places] = True
        longer = recurring[places] & recurring[places + 1]
        # the n-gram that begins one word later is in the same document, so the longer one is too
        places, grams = places[longer], grams[longer]
        grams = grams * _MULTIPLIER + hashes[places + n] if len(places) else grams
    return measures
