"""Repetition within documents, and their lines and paragraphs: how they begin, end, recur, and how long they are.

Sources: the quality and repetition filters of Gopher (Rae et al. 2021, appendix A1.1 and table A1), the line rules of
C4 (Raffel et al. 2020, section 2.2), and FineWeb's own filters (Penedo et al. 2024, section 3.4). A line is what line
feeds separate; shares are of the lines that hold a word. A paragraph is a run of such lines. Lines and paragraphs are
alike if their words are: white space does not count. An n-gram can only recur where the (n-1)-grams at its two ends
recur, so each length looks only at what the length before it left: in ordinary text most work is done at two words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tasks.text.batch import Batch, Hashes, Ints, Mask, highest_between, share, sums_between
from tasks.text.words import running_sums, span_hashes

TOP_LENGTHS = (2, 3, 4)
DUPLICATE_LENGTHS = (5, 6, 7, 8, 9, 10)
PHRASE_WORDS = 5
MIN_WORDS_TO_JUDGE = 100  # short texts may well repeat themselves

_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_BUCKET_BITS = 20


class Groups(NamedTuple):
    """Things that occur more than once in their document.

    Attributes:
        places: index of each such thing, those alike next to one another.
        starts: where in `places` each group of things alike begins.
        sizes: members of each group, two or more.
        firsts: lowest index of each group.
    """

    places: Ints
    starts: Ints
    sizes: Ints
    firsts: Ints


def find_repeated(documents: Ints, hashes: Hashes, places: Ints) -> Groups:
    """Group equal things of a document that occur more than once.

    Args:
        documents: document of each thing.
        hashes: hash of each thing.
        places: index of each thing, to report.
    """
    keys = _keys(documents, hashes)
    order = np.argsort(keys)
    keys = keys[order]
    new = np.ones(len(keys), dtype=np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=len(keys))
    several = sizes > 1
    kept = places[order][np.repeat(several, sizes)]
    sizes = sizes[several]
    starts = np.cumsum(sizes) - sizes
    firsts = np.minimum.reduceat(kept, starts) if len(kept) else kept
    return Groups(kept, starts, sizes, firsts)


def _keys(documents: Ints, hashes: Hashes) -> Hashes:
    """Hashes that are alike only within a document."""
    return hashes ^ (documents.astype(np.uint64) * _MULTIPLIER)


def repeat_mask(groups: Groups, n: int) -> Mask:
    """Return a mask of `n` things: the second and later occurrences in each group."""
    mask = np.zeros(n, dtype=np.bool_)
    mask[groups.places] = True
    mask[groups.firsts] = False
    return mask


def _lone_pairs_out(keys: Hashes) -> Mask:
    """False only where a key surely occurs once; spares most of them the sort."""
    buckets = (keys >> np.uint64(8)).astype(np.int64) & ((1 << _BUCKET_BITS) - 1)
    crowded: Mask = (np.bincount(buckets, minlength=1 << _BUCKET_BITS) > 1)[buckets]
    return crowded


def phrase_measures(batch: Batch) -> dict[str, np.ndarray]:
    """Return the shares of the characters of words (white space apart) that lie in repeated n-grams of words.

    `top_Ngram_char_share`: occurrences times length of the most frequent n-gram, the longest of those equally frequent;
    0 if none recurs, at most 1. `duplicate_Ngram_char_share`: characters of the words in n-grams that occurred earlier
    in the document. `distinct_share`: distinct ones among the 5-grams; 1 for texts of fewer than a hundred words.
    """
    n_words, documents = len(batch.word_lengths), batch.word_documents
    measures: dict[str, np.ndarray] = {}
    lengths = running_sums(batch.word_lengths)
    places = np.flatnonzero(documents[1:] == documents[:-1])
    hashes = batch.word_hashes
    pairs = hashes[places] * _MULTIPLIER + hashes[places + 1]
    crowded = _lone_pairs_out(_keys(documents[places], pairs))
    places, grams = places[crowded], pairs[crowded]
    repeats = np.zeros(n_words, dtype=np.bool_)
    for n in range(2, max(DUPLICATE_LENGTHS) + 1):
        groups = find_repeated(documents[places], grams, places)
        if n in TOP_LENGTHS:
            top = _top_characters(batch, groups, lengths, n)
            measures[f"top_{n}gram_char_share"] = np.minimum(share(top, batch.solid), 1.0)
        else:
            repeats = repeat_mask(groups, n_words)
            covered = _covered(repeats, n)
            characters = sums_between(np.where(covered, batch.word_lengths, 0), batch.word_bounds)
            measures[f"duplicate_{n}gram_char_share"] = share(characters, batch.solid)
        if n == PHRASE_WORDS:
            measures["distinct_share"] = _distinct_share(batch, repeats)
        recurring = np.zeros(n_words + 1, dtype=np.bool_)
        recurring[groups.places] = True
        longer = recurring[places] & recurring[places + 1]
        # the run that begins one word on is of the same document, so the longer run is too
        places, grams = places[longer], grams[longer]
        grams = grams * _MULTIPLIER + hashes[places + n] if len(places) else grams
    return measures


def _covered(starts: Mask, n: int) -> Mask:
    """Words that lie in a run of n words which begins at a marked one."""
    begun = np.zeros(len(starts) + n + 1, dtype=np.int64)
    begun[: len(starts)] += starts
    begun[n : n + len(starts)] -= starts
    covered: Mask = np.cumsum(begun[: len(starts)]) > 0
    return covered


def _top_characters(batch: Batch, groups: Groups, lengths: Ints, n: int) -> Ints:
    """Characters in the most frequent run of n words of each document."""
    members = groups.firsts
    characters = lengths[members + n] - lengths[members]
    best = np.zeros(batch.n_documents, dtype=np.int64)
    # one number that orders by frequency and then by length; a batch holds far fewer than 2**31 characters
    np.maximum.at(best, batch.word_documents[members], (groups.sizes << 32) | characters)
    return (best >> 32) * (best & 0xFFFFFFFF)


def _distinct_share(batch: Batch, repeats: Mask) -> np.ndarray:
    phrases = np.maximum(batch.n_words - PHRASE_WORDS + 1, 0)
    distinct = phrases - sums_between(repeats, batch.word_bounds)
    return np.where(batch.n_words < MIN_WORDS_TO_JUDGE, 1.0, share(distinct, phrases))


SHORT_LINE = 30  # characters at most, FineWeb
FEW_WORDS = 5  # fewer than these, C4

LINE_FEED, DOT, ELLIPSIS = 10, ord("."), ord("…")
TERMINAL = ".!?…。！？｡؟।॥"
CLOSING = "\"'”’»」』)）"
BULLETS = "•‣◦▪▫■□●○◆◇▶►–—-*·"
_SURE_BULLETS = "•‣◦▪▫■□●○◆◇▶►"  # these mark an item without a space behind them, too


def _among(codes: np.ndarray, characters: str) -> np.ndarray:
    return np.isin(codes, np.array([ord(char) for char in characters], dtype=np.uint32))


@dataclass(frozen=True)
class Units:
    """Lines or paragraphs that hold words: the first word of each, one beyond the last, and the document."""

    first: Ints
    last: Ints
    document: Ints


def line_measures(batch: Batch) -> dict[str, np.ndarray]:
    """Return the measures of lines and paragraphs of every document, by the names of their columns."""
    feeds = np.flatnonzero(batch.codes == LINE_FEED)
    starts, ends = feeds[:-1] + 1, feeds[1:]
    n_lines = np.diff(np.searchsorted(starts, batch.text_bounds))
    words = np.searchsorted(batch.word_starts, np.append(starts, feeds[-1:] + 1))
    filled = np.flatnonzero(np.diff(words))
    lines = Units(words[filled], words[filled + 1], batch.word_documents[words[filled]])
    paragraphs = _paragraphs(lines, filled)
    bounds = np.searchsorted(starts, batch.text_bounds)
    empty = np.diff(batch.text_bounds) == 1
    written = n_lines - empty  # a text without characters has no lines
    n_chars = np.diff(batch.text_bounds) - 1
    return {
        "n_lines": written,
        "n_paragraphs": np.bincount(paragraphs.document, minlength=batch.n_documents),
        "mean_line_length": np.round(
            np.divide(n_chars - written + ~empty, written, out=np.zeros(len(written)), where=written > 0), 2
        ),
        "longest_line": highest_between(ends - starts, bounds),
        "list_ratio": share(np.maximum(written - 1, 0), batch.n_words),
        **_shapes(batch, lines),
        **_duplicates(batch, lines, "line"),
        **_duplicates(batch, paragraphs, "paragraph"),
    }


def _paragraphs(lines: Units, numbers: Ints) -> Units:
    """Join lines that follow one another without an empty one between them."""
    new = np.ones(len(numbers), dtype=np.bool_)
    new[1:] = (np.diff(numbers) > 1) | (lines.document[1:] != lines.document[:-1])
    opening = np.flatnonzero(new)
    closing = np.append(opening[1:], len(numbers))[: len(opening)] - 1
    return Units(lines.first[opening], lines.last[closing], lines.document[opening])


def _shapes(batch: Batch, lines: Units) -> dict[str, np.ndarray]:
    def of_lines(mask: np.ndarray) -> np.ndarray:
        return share(np.bincount(lines.document[mask], minlength=batch.n_documents), n_lines)

    n_lines = np.bincount(lines.document, minlength=batch.n_documents)
    start, end = batch.word_starts[lines.first], batch.word_ends[lines.last - 1]
    begin, close = batch.codes[start], batch.codes[end - 1]
    # the code point three before the first one of a batch is asked for in vain: `end` is at least 2
    dots = (close == DOT) & (batch.codes[end - 2] == DOT) & (batch.codes[np.maximum(end - 3, 0)] == DOT)
    alone = batch.word_lengths[lines.first] == 1
    return {
        "bullet_line_share": of_lines((_among(begin, BULLETS) & alone) | _among(begin, _SURE_BULLETS)),
        "ellipsis_line_share": of_lines(dots | (close == ELLIPSIS)),
        "terminal_line_share": of_lines(_among(close, TERMINAL) | _closes_sentence(batch, end)),
        "few_words_line_share": of_lines(lines.last - lines.first < FEW_WORDS),
        "short_line_share": of_lines(end - start <= SHORT_LINE),
        "n_sentences": _sentences(batch),
    }


def _closes_sentence(batch: Batch, ends: Ints) -> np.ndarray:
    # a quotation mark, or a bracket behind a full stop
    close, before = batch.codes[ends - 1], batch.codes[ends - 2]
    quote = _among(close, CLOSING[:-2])
    return quote | (_among(close, CLOSING[-2:]) & _among(before, TERMINAL))


def _sentences(batch: Batch) -> Ints:
    """Words of two characters or more that end in a sentence's end, closing quotes and brackets behind it allowed."""
    close, before = batch.codes[batch.word_ends - 1], batch.codes[batch.word_ends - 2]
    ended = _among(close, TERMINAL) | (_among(close, CLOSING) & _among(before, TERMINAL))
    return sums_between(ended & (batch.word_lengths > 1), batch.word_bounds)


def _duplicates(batch: Batch, units: Units, name: str) -> dict[str, np.ndarray]:
    """Shares of units that occurred earlier in their document, by number and by characters of their words."""
    hashes = span_hashes(batch.word_hashes, units.first, units.last)
    groups = find_repeated(units.document, hashes, np.arange(len(hashes)))
    repeats = repeat_mask(groups, len(hashes))
    sums = running_sums(batch.word_lengths)
    characters = (sums[units.last] - sums[units.first])[repeats]
    documents = units.document[repeats]
    number = np.bincount(units.document, minlength=batch.n_documents)
    repeated = np.bincount(documents, minlength=batch.n_documents)
    in_repeats = np.bincount(documents, weights=characters, minlength=batch.n_documents)
    return {
        f"duplicate_{name}_share": share(repeated, number),
        f"duplicate_{name}_char_share": share(in_repeats, batch.solid),
    }
