"""Lines and paragraphs of a batch: how they begin, end, recur, and how long they are.

Sources: the quality and repetition filters of Gopher (Rae et al. 2021, appendix A1.1), the line rules of C4 (Raffel et
al. 2020, section 2.2), and FineWeb's own filters (Penedo et al. 2024, section 3.4). A line is what line feeds separate;
shares are of the lines that hold a word. A paragraph is a run of such lines. Lines and paragraphs are alike if their
words are: white space does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.text.measures.batch import Batch, Ints, highest_between, share, sums_between
from tasks.text.measures.repetition import find_repeated, repeat_mask
from tasks.text.words import span_hashes

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
    """The measures of lines and paragraphs of every document, by the names of their columns."""
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
    """How lines begin and end, and how short they are."""

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
    """Whether a word ends in a quotation mark, or in a bracket behind a full stop."""
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
    sums = np.zeros(len(batch.word_lengths) + 1, dtype=np.int64)
    np.cumsum(batch.word_lengths, out=sums[1:])
    characters = (sums[units.last] - sums[units.first])[repeats]
    documents = units.document[repeats]
    number = np.bincount(units.document, minlength=batch.n_documents)
    repeated = np.bincount(documents, minlength=batch.n_documents)
    in_repeats = np.bincount(documents, weights=characters, minlength=batch.n_documents)
    return {
        f"duplicate_{name}_share": share(repeated, number),
        f"duplicate_{name}_char_share": share(in_repeats, batch.solid),
    }
