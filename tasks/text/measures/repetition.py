"""Repetition within documents: of phrases, and of lines and paragraphs.

The definitions follow the repetition filters of Gopher (Rae et al. 2021, table A1). An n-gram can only recur where the
(n-1)-grams at its two ends recur, so each length looks only at what the length before it left: in ordinary text nearly
all the work is done at two words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.text.measures.batch import Batch, Hashes, Ints, Mask, share, sort_keys, sums_between

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
    """Group what is alike within a document and occurs more than once.

    Args:
        documents: document of each thing.
        hashes: hash of each thing.
        places: index of each thing, to report.
    """
    keys = sort_keys(documents, hashes)
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


def repeat_mask(groups: Groups, n: int) -> Mask:
    """True for the second and later occurrences of what recurs."""
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
    """Shares of the characters of words (white space apart) that lie in repeated phrases.

    `top_Ngram_char_share`: occurrences times length of the most frequent run of N words, the longest of those equally
    frequent; 0 if none recurs, at most 1. `duplicate_Ngram_char_share`: characters of the words that lie in a run of N
    words which occurred earlier in the document. `distinct_share`: distinct ones among the runs of five words; 1 for
    texts of fewer than a hundred words.
    """
    n_words, documents = len(batch.word_lengths), batch.word_documents
    measures: dict[str, np.ndarray] = {}
    lengths = np.zeros(n_words + 1, dtype=np.int64)
    np.cumsum(batch.word_lengths, out=lengths[1:])
    places = np.flatnonzero(documents[1:] == documents[:-1])
    hashes = batch.word_hashes
    # the document's number in the key keeps other documents' phrases out of its buckets more often than not
    pairs = hashes[places] * _MULTIPLIER + hashes[places + 1]
    crowded = _lone_pairs_out(pairs ^ (documents[places].astype(np.uint64) * _MULTIPLIER))
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
