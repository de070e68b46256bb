"""Find leaks between validation and training, text of external evaluation sets, and repeated paragraphs.

Clusters only contain documents that are similar as a whole; a page that is copied into a manual is not. So 13-grams are
compared, which the stage `measure` stores per segment. Memory holds one segment at a time, and a bounded number of
13-grams of validation documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.schemas import DOCUMENTS_FILE
from storage.tables import read_places
from tasks.curate.corpus import Corpus
from tasks.text.minhash import load_signatures
from tasks.text.overlap import GramIndex, judged_share, overlapping_spans, shared_grams
from tasks.text.words import I64, Hashes, flat_places, joined, running_sums

Span = tuple[int, int]
SHARES = pa.schema([("number", pa.int64()), ("share", pa.float64())])
_PARAGRAPHS = pa.schema([("number", pa.int64()), ("hash", pa.uint64()), ("start", pa.int64()), ("length", pa.int64())])


@dataclass(frozen=True)
class SegmentSignatures:
    """Signatures of the documents of one segment that are in use."""

    measures: Path  # folder of the measures and signatures
    documents: Path  # folder of the texts, with the same rows
    places: I64  # (n,) the rows of the documents, ascending
    numbers: I64  # (n,) their numbers in the selection

    def grams(self) -> Hashes:
        """Return a copy of the 13-grams, which does not keep the mapped file open."""
        return load_signatures(self.measures).gram_hashes.take(self.places)

    def gram_counts(self) -> I64:
        """Return (n,) the number of 13-grams of each document."""
        offsets = load_signatures(self.measures).gram_offsets
        return offsets[self.places + 1] - offsets[self.places]

    def paragraphs(self) -> pa.Table:
        """Return `number`, `hash`, `start` and `length` of all paragraphs."""
        signatures = load_signatures(self.measures)
        places, offsets = flat_places(signatures.paragraph_offsets, self.places)
        values = (signatures.paragraphs, signatures.paragraph_starts, signatures.paragraph_lengths)
        numbers = np.repeat(self.numbers, np.diff(offsets))
        return pa.table([numbers, *(array[places] for array in values)], schema=_PARAGRAPHS)

    def texts(self, chosen: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yield number and text of some documents, given by their indices here."""
        numbers = dict(zip(self.places[chosen].tolist(), self.numbers[chosen].tolist(), strict=True))
        for place, text in read_places(self.documents / DOCUMENTS_FILE, "text", list(numbers)).items():
            yield numbers[place], text


def contained(
    held_out: Sequence[SegmentSignatures],
    trained: Callable[[], Iterable[SegmentSignatures]],
    limit: float,
    grams_at_once: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Return the validation documents contained in training text, and the training documents contained in validation.

    Args:
        held_out: The validation documents.
        trained: Yields the training documents, in the same order at each call.
        limit: Largest allowed share of a document's 13-grams on the other side.
        grams_at_once: Approximate number of 13-grams of validation documents in memory; with more, all documents are
            read several times, once per residue class of the hashes. 0 for all at once.

    Returns:
        Two tables with the `number` and the `share` of those above the limit.
    """
    none = np.zeros(0, np.int64)
    own_counts = np.concatenate([none, *(segment.gram_counts() for segment in held_out)])
    turns = 1 + int(own_counts.sum()) // grams_at_once if grams_at_once else 1
    own_hits, hits = list[I64](), list[I64]()
    for turn in range(turns):
        own = joined([_share_of(segment.grams(), turn, turns) for segment in held_out])
        own_found, found = shared_grams(own, (_share_of(segment.grams(), turn, turns) for segment in trained()))
        own_hits.append(own_found)
        hits.append(np.concatenate([none, *found]))
    own_numbers = np.concatenate([none, *(segment.numbers for segment in held_out)])
    numbers, counts = [none], [none]
    for segment in trained():
        numbers.append(segment.numbers)
        counts.append(segment.gram_counts())
    return (
        _above(limit, own_numbers, judged_share(np.sum(own_hits, axis=0), own_counts)),
        _above(limit, np.concatenate(numbers), judged_share(np.sum(hits, axis=0), np.concatenate(counts))),
    )


def _share_of(grams: Hashes, turn: int, turns: int) -> Hashes:
    """Return the hashes with residue `turn` modulo `turns`."""
    if turns == 1:
        return grams
    chosen = grams.values % np.uint64(turns) == turn
    return Hashes(grams.values[chosen], running_sums(chosen)[grams.offsets])


def _above(limit: float, numbers: I64, shares: npt.NDArray[np.float64]) -> pa.Table:
    return pa.table([numbers[shares > limit], shares[shares > limit]], schema=SHARES)


def evaluation_overlaps(
    segments: Iterable[SegmentSignatures], grams: np.ndarray
) -> Iterator[tuple[int, list[Span], float]]:
    """Yield number, overlapping spans and their share of the text, of documents with text of an evaluation set."""
    index = GramIndex(grams)
    for segment in segments:
        hits = index.count(segment.grams())
        for number, text in segment.texts(np.flatnonzero(hits).tolist()):
            spans = overlapping_spans(text, index.values)
            if spans:
                yield number, spans, sum(length for _, length in spans) / len(text)


def repeated_paragraphs(corpus: Corpus, segments: Iterable[SegmentSignatures]) -> None:
    """Create the table `repeated` of paragraphs that a document of a lower number also has.

    Documents whose paragraphs are all repeated are in the table `whole`, with their `spans`.
    """
    corpus.insert("paragraphs", _PARAGRAPHS.empty_table())
    for segment in segments:
        corpus.insert("paragraphs", segment.paragraphs())
    corpus.sql(
        "create table repeated as select number, start, length from paragraphs join (select hash, min(number) as first "
        "from paragraphs group by hash having min(number) < max(number)) using (hash) where number > first"
    )
    corpus.sql(
        "create table whole as select number, spans from "
        "(select number, count(*) as n, list([start, length]) as spans from repeated group by number) "
        "join (select number, count(*) as n from paragraphs group by number) using (number, n)"
    )
    corpus.sql("drop table paragraphs")
