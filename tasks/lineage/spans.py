"""Find spans of a text in training documents: looked up by anchors, verified and extended in the documents.

Anchors that follow each other at the same distance in text and document belong to one stretch. Of the stretches that
may be long enough the longest are looked at, and further ones for words that none of those covers; so a stock phrase
costs no more than a rare one, the longest span is found, and so is what is covered at all. What is reported was
compared word by word with the document, and goes as far to both sides as the words agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from storage.errors import UserError
from storage.tables import read_columns
from tasks.lineage.anchors import ANCHOR_WORDS, FOUND_WORDS, STRIDE, Hits
from tasks.lineage.trace_index import TracedSegment
from tasks.text.words import I64, U64, word_hashes

MOST_STRETCHES = 16  # of a block of a text that are looked at in each segment, beside those that cover further words
BLOCK_WORDS = 2048  # words of a text that are looked up at once
AROUND = 100  # characters of a document that are kept on either side of a span


_Words = tuple[U64, I64, I64]  # hashes, first characters, ends


@dataclass(frozen=True)
class SharedSpan:
    """A stretch of a text that stands in a document, as long as their words agree; places are in characters.

    Attributes:
        start, length: where it stands in the text.
        words: how many it has.
        doc_id: of the document.
        doc_start, doc_length: where it stands there; white space and punctuation may differ.
        before, passage, after: the document's text there, and what surrounds it.
    """

    start: int
    length: int
    words: int
    doc_id: str
    doc_start: int
    doc_length: int
    before: str
    passage: str
    after: str


@dataclass(frozen=True)
class _Stretch:
    """A place in a text and in a document from which on words seem to agree."""

    text: int
    query: int
    word: int


def check_min_words(min_words: int) -> int:
    """The shortest span that is asked for, if the anchors can find it.

    Raises:
        UserError: if it is shorter than what is always found.
    """
    if min_words < FOUND_WORDS:
        raise UserError(
            f"spans of {min_words} word(s) are asked for, expected {FOUND_WORDS} or more: shorter ones are not all "
            "found, and stand in any text"
        )
    return min_words


def shared_spans(
    texts: Sequence[str],
    segments: Sequence[TracedSegment],
    live: Sequence[Container[str]],
    min_words: int = FOUND_WORDS,
) -> list[list[SharedSpan]]:
    """Stretches of texts that stand in documents.

    Args:
        texts: such as completions.
        segments: where to look.
        live: for each segment, the ids of the documents that count.
        min_words: the shortest span that counts.

    Returns:
        For each text its spans, the longest first; those of one stretch in several documents are all there.

    Raises:
        UserError: if shorter spans are asked for than are always found.
    """
    check_min_words(min_words)
    words = [word_hashes(text) for text in texts]
    found: list[set[SharedSpan]] = [set() for _ in texts]
    for segment, wanted in zip(segments, live, strict=True):
        counts = np.array([doc_id in wanted for doc_id in segment.doc_ids], bool)
        stretches: dict[str, list[_Stretch]] = defaultdict(list)
        for number, own in enumerate(words):
            for document, query, word in _candidates(segment, own[0], counts, min_words):
                stretches[segment.doc_ids[document]].append(_Stretch(number, query, word))
        for doc_id, document_text in _texts_of(segment.texts, stretches):
            for number, span in _verified(doc_id, document_text, words, stretches[doc_id], min_words):
                found[number].add(span)
    return [sorted(spans, key=lambda span: (-span.words, span.start, span.doc_id, span.doc_start)) for spans in found]


def outstanding(spans: Sequence[SharedSpan]) -> list[list[SharedSpan]]:
    """Spans without those that lie within a longer one; those of one stretch of the text together.

    Args:
        spans: of one text, the longest first.
    """
    outer, reached = set(), 0
    places = {(span.start, span.start + span.length) for span in spans}
    for start, end in sorted(places, key=lambda place: (place[0], -place[1])):
        if end > reached:  # else one that begins no later ends no sooner
            outer.add((start, end))
            reached = end
    groups: dict[tuple[int, int], list[SharedSpan]] = {}
    for span in spans:
        place = (span.start, span.start + span.length)
        if place in outer:
            groups.setdefault(place, []).append(span)
    return list(groups.values())


def covered_chars(spans: Sequence[SharedSpan]) -> int:
    """Characters of the text that lie in any of its spans."""
    covered = reached = 0
    for start, end in sorted((span.start, span.start + span.length) for span in spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _candidates(
    segment: TracedSegment, words: U64, counts: np.ndarray, min_words: int
) -> Iterator[tuple[int, int, int]]:
    """Row of a document, word of the text and word of the document, for each stretch that is worth a look."""
    for begin in range(0, len(words), BLOCK_WORDS):
        first, reach = _stretches(segment.index.find(words[begin : begin + BLOCK_WORDS + ANCHOR_WORDS - 1], counts))
        # at best a stretch goes on to where the next anchors would be, on both sides, but for a word
        worth = np.flatnonzero((reach + ANCHOR_WORDS + 2 * (STRIDE - 1) >= min_words) | _at_edge(first, reach, words))
        covered = np.zeros(BLOCK_WORDS + ANCHOR_WORDS, bool)
        taken = 0
        for place in worth[np.argsort(-reach[worth], kind="stable")].tolist():
            row, query, word = first[place].tolist()
            own = slice(query, query + int(reach[place]) + ANCHOR_WORDS)
            if taken < MOST_STRETCHES or not covered[own].all():
                covered[own] = True
                taken += 1
                yield row, begin + query, word


def _at_edge(first: I64, reach: I64, words: U64) -> np.ndarray:
    """Stretches that a block of the text cuts, which may be longer than they seem."""
    if len(words) <= BLOCK_WORDS:
        return np.zeros(len(first), bool)
    edge: np.ndarray = (first[:, 1] < STRIDE) | (first[:, 1] + reach >= BLOCK_WORDS - STRIDE)
    return edge


def _stretches(hits: Hits) -> tuple[I64, I64]:
    """Hits of one document that go on with one another.

    Returns:
        (n, 3) document, word of the text and word of the document that each begins with, and (n,) how many words
        farther on its last hit begins.
    """
    if not len(hits.query):
        return np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
    distance = hits.word - hits.query
    order = np.lexsort((hits.query, distance, hits.document))
    query, document, distance = hits.query[order], hits.document[order], distance[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(document) != 0) | (np.diff(distance) != 0) | (np.diff(query) > STRIDE)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    return np.column_stack([document[first], query[first], hits.word[order][first]]), query[last] - query[first]


def _texts_of(table: Path, wanted: Container[str]) -> Iterator[tuple[str, str]]:
    """The texts of some documents, a row group at a time in memory; groups without any of them are not read."""
    doc_ids = read_columns(table, ["doc_id"])["doc_id"]
    begin = 0
    with pq.ParquetFile(table) as file:
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            places = [place for place in range(begin, end) if doc_ids[place] in wanted]
            if places:
                column = file.read_row_group(group, columns=["text"]).column("text")
                for place in places:
                    yield doc_ids[place], column[place - begin].as_py()
            begin = end


def _verified(
    doc_id: str, text: str, words: Sequence[_Words], stretches: Sequence[_Stretch], min_words: int
) -> Iterator[tuple[int, SharedSpan]]:
    """Compare stretches with the words of the document; yields verified spans by number of the text."""
    theirs = word_hashes(text)
    for stretch in stretches:
        ours = words[stretch.text]
        back, ahead = _agreement(ours[0], theirs[0], stretch.query, stretch.word)
        if back + ahead < min_words:
            continue
        start, length = _chars(ours, stretch.query - back, back + ahead)
        doc_start, doc_length = _chars(theirs, stretch.word - back, back + ahead)
        end = doc_start + doc_length
        yield (
            stretch.text,
            SharedSpan(
                start=start,
                length=length,
                words=back + ahead,
                doc_id=doc_id,
                doc_start=doc_start,
                doc_length=doc_length,
                before=text[max(0, doc_start - AROUND) : doc_start],
                passage=text[doc_start:end],
                after=text[end : end + AROUND],
            ),
        )


def _agreement(ours: U64, theirs: U64, query: int, word: int) -> tuple[int, int]:
    """Count the words that agree before two places, and from them on."""
    n = min(len(ours) - query, len(theirs) - word)
    differ = np.flatnonzero(ours[query : query + n] != theirs[word : word + n])
    ahead = int(differ[0]) if len(differ) else n
    if not ahead:
        return 0, 0  # their anchors agree in half of their bits only
    n = min(query, word)
    differ = np.flatnonzero(ours[query - n : query] != theirs[word - n : word])
    return n - 1 - int(differ[-1]) if len(differ) else n, ahead


def _chars(words: _Words, first: int, n: int) -> tuple[int, int]:
    """Start and length in characters of some words."""
    _, starts, ends = words
    start = int(starts[first])
    return start, int(ends[first + n - 1]) - start
