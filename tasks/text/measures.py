"""Measures that array operations take of many documents at once: characters, words, lines, paragraphs, repetition.

The texts are laid end to end with line feeds between them. Whatever is computed for a word, a line or a document
depends on its own characters alone, never on where in the batch it lies, so a document's measures do not depend on its
company. The class of a character decides what it counts as in every measure; the letters are the highest classes, so
that the highest class in a word says whether it has a letter.

A line is what line feeds separate; shares are of the lines that hold a word. A paragraph is a run of such lines. Lines
and paragraphs are alike if their words are: white space does not count. An n-gram can only recur where the (n-1)-grams
at its two ends recur, so each length looks only at what the length before it left: in ordinary text most work is done
at two words.

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

# letters of scripts that put no spaces between words; Hangul does
_UNSPACED_RANGES = (
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    *IDEOGRAPHIC_RANGES,
)
_LAST_ASSIGNED = 0x3FFFF  # above it there are no letters, digits or spaces: tags, selectors and private use

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

TOP_LENGTHS = (2, 3, 4)
LONGEST_NGRAM = 10  # those of five words and more are looked at for characters in repeated ones
PHRASE_WORDS = 5
MIN_WORDS_TO_JUDGE = 100  # short texts may well repeat themselves

SHORT_LINE = 30  # characters at most, FineWeb
FEW_WORDS = 5  # fewer than these, C4

LINE_FEED, DOT, ELLIPSIS = 10, ord("."), ord("…")
TERMINAL = ".!?…。！？｡؟।॥"
QUOTES = "\"'”’»」』"
BRACKETS = ")）"
BULLETS = "•‣◦▪▫■□●○◆◇▶►–—-*·"
_SURE_BULLETS = "•‣◦▪▫■□●○◆◇▶►"  # these mark an item without a space behind them, too

_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)

Mask = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]


@lru_cache(maxsize=1)
def _class_table() -> npt.NDArray[np.uint8]:
    """The class of every code point, as an array to index with them; built at the first use (a fifth of a second)."""
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
    """Documents as arrays; words are what white space separates.

    Attributes:
        codes, classes: code points of all texts, a line feed before, between and behind them, and the class of each.
        text_bounds: where each text begins, and one more; a text ends one before the next one's begin.
        class_counts: number of characters of each class, a row per document.
        word_starts, word_ends, word_lengths, word_hashes: place of each word, its characters, and 64 bits for it.
        word_documents: number of the document each word belongs to.
        word_bounds: number of the first word of each document, and one more.
        n_words, solid: number of words of each document, and of characters that are not white space.
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
        """Count things per document, or sum their weights; `documents` is the number of the document of each."""
        return np.bincount(documents, weights, minlength=len(self.n_words))


def make_batch(texts: Sequence[str]) -> TextArrays:
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
    """Return what array operations measure on some texts: a value for each, by the names of `storage.schemas.MEASURES`.

    `n_spaces`, the number of characters that are white space, is no column there.
    """
    batch = make_batch(texts)
    return {**_characters(batch), **_words(batch), **_lines(batch), **_phrases(batch)}


def share(part: npt.NDArray[Any], whole: npt.NDArray[Any], places: int = 4) -> npt.NDArray[np.float64]:
    """Return `part / whole` to some places; 0 where there is no whole."""
    return np.round(np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0), places)


def _sums_between(values: npt.NDArray[Any], bounds: I64) -> I64:
    """Return the sum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    return np.diff(running_sums(values)[bounds])


def _highest_between(values: npt.NDArray[Any], bounds: I64) -> I64:
    """Return the maximum of `values[bounds[i]:bounds[i + 1]]` for each i; empty stretches give 0."""
    highest = np.zeros(len(bounds) - 1, dtype=np.int64)
    filled = bounds[1:] > bounds[:-1]
    if filled.any():
        highest[filled] = np.maximum.reduceat(values, bounds[:-1][filled])
    return highest


def _characters(batch: TextArrays) -> Columns:
    """Shares of classes of characters; of those that are not white space, if nothing else is said."""
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
    """Lines or paragraphs that hold words: the first word of each, one beyond the last, and the document."""

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
    # lines that follow one another without an empty one between them are a paragraph
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
    """Shares of the lines by how they begin, end, and how long they are; and the number of sentences."""
    codes = batch.codes
    last, before = codes[batch.word_ends - 1], codes[batch.word_ends - 2]  # characters of each word
    stop, quote, bracket = (_among(last, characters) for characters in (TERMINAL, QUOTES, BRACKETS))
    after_stop = _among(before, TERMINAL)
    sentence_ends = (stop | ((quote | bracket) & after_stop)) & (batch.word_lengths > 1)
    closes_line = stop | quote | (bracket & after_stop)
    end_word = lines.last - 1
    start, end = batch.word_starts[lines.first], batch.word_ends[end_word]
    # the code point three before the first one of a batch is asked for in vain: `end` is at least 2
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
    """Shares of units that occurred earlier in their document, by number and by characters of their words."""
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
    """Things that occur more than once in their document."""

    places: I64  # index of each
    sizes: I64  # members of each group of things alike, two or more
    firsts: I64  # lowest index of each group

    def later(self, n: int) -> Mask:
        """Return a mask of `n` things: the second and later occurrences in each group."""
        mask = np.zeros(n, dtype=np.bool_)
        mask[self.places] = True
        mask[self.firsts] = False
        return mask


def _find_repeated(documents: I64, hashes: U64, places: I64) -> Repeated:
    """Find equal things of a document that occur more than once, by the document, hash and index of each thing."""
    keys = hashes ^ (documents.astype(np.uint64) * _MULTIPLIER)  # alike only within a document
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
    """Shares of the characters of words (white space apart) that lie in repeated n-grams of words.

    `top_Ngram_char_share`: occurrences times length of the most frequent n-gram, the longest of those equally frequent;
    0 if none recurs, at most 1. `duplicate_Ngram_char_share`: characters of the words in n-grams that occurred earlier
    in the document. `distinct_share`: distinct ones among the 5-grams; 1 for texts of fewer than a hundred words.
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
            # one number that orders by frequency and then by length; a batch holds far fewer than 2**31 characters
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
        # the run that begins one word on is of the same document, so the longer run is too
        places, grams = places[longer], grams[longer]
        grams = grams * _MULTIPLIER + hashes[places + n] if len(places) else grams
    return measures
