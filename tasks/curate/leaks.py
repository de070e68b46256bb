"""Text on both sides: validation documents that stand in training text, training documents that stand in validation.

Clusters see documents that resemble each other as wholes; a page that stands word for word in a manual is no such
thing. What is compared are runs of thirteen words, which every segment keeps beside its measures.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from storage.schemas import DOCUMENTS_FILE, MEASURES_FILE
from storage.tables import read_columns, read_places
from tasks.curate.redaction import cut
from tasks.text import (
    GramIndex,
    Hashes,
    Signatures,
    containment,
    duplicate_paragraphs,
    load_signatures,
    overlapping_spans,
)
from tasks.text.words import joined

Span = tuple[int, int]


class SegmentSignatures:
    """Signatures of one segment, with the documents of it that are in use.

    Args:
        measures: folder of the measures and signatures.
        documents: folder of the texts, row for row the same.
        wanted: documents in use that are read here.
    """

    def __init__(self, measures: Path, documents: Path, wanted: Mapping[str, object]) -> None:
        ids = read_columns(measures / MEASURES_FILE, ["doc_id"])["doc_id"]
        self.places = [place for place, doc_id in enumerate(ids) if doc_id in wanted]
        self.doc_ids = [ids[place] for place in self.places]
        self._measures = measures
        self._documents = documents

    @property
    def signatures(self) -> Signatures:
        """Mapped anew at each use: held open, those of a hundred segments would use up the files a process may have."""
        return load_signatures(self._measures)

    def drop(self, gone: Container[str]) -> None:
        """Take documents out of use."""
        left = [n for n, doc_id in enumerate(self.doc_ids) if doc_id not in gone]
        self.places = [self.places[n] for n in left]
        self.doc_ids = [self.doc_ids[n] for n in left]

    def grams(self, chosen: Sequence[int]) -> Hashes:
        """Runs of thirteen words of some of the documents, by their numbers here."""
        return self.signatures.gram_hashes.take(np.array([self.places[number] for number in chosen], np.int64))

    def texts(self, chosen: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Texts of some of the documents."""
        by_place = {self.places[number]: number for number in chosen}
        for place, text in read_places(self._documents / DOCUMENTS_FILE, "text", sorted(by_place)).items():
            yield by_place[place], text


def contained(
    shelves: Sequence[SegmentSignatures], sides: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """How much of each validation document stands in training text, and of each training document in validation text.

    Args:
        sides: `train` or `validation` for each document in use.
    """
    places = {
        side: [[n for n, doc in enumerate(shelf.doc_ids) if sides[doc] == side] for shelf in shelves]
        for side in ("train", "validation")
    }
    held_out = joined([shelf.grams(chosen) for shelf, chosen in zip(shelves, places["validation"], strict=True)])
    found = containment(held_out, (shelf.grams(chosen) for shelf, chosen in zip(shelves, places["train"], strict=True)))
    names = [shelf.doc_ids[n] for shelf, chosen in zip(shelves, places["validation"], strict=True) for n in chosen]
    in_training = dict(zip(names, found.validation.tolist(), strict=True))
    in_validation = {
        shelf.doc_ids[n]: share
        for shelf, chosen, shares in zip(shelves, places["train"], found.training, strict=True)
        for n, share in zip(chosen, shares.tolist(), strict=True)
    }
    return in_training, in_validation


def evaluation_overlaps(
    shelves: Sequence[SegmentSignatures], grams: np.ndarray
) -> Iterator[tuple[str, list[Span], float]]:
    """Documents with text of an external evaluation set: the spans, and the share of the document that they are."""
    if not len(grams):
        return
    index = GramIndex(grams)
    for shelf in shelves:
        hits = index.count(shelf.grams(range(len(shelf.doc_ids))))
        for number, text in shelf.texts(np.flatnonzero(hits).tolist()):
            spans = overlapping_spans(text, index.values)
            if spans:
                yield shelf.doc_ids[number], spans, sum(length for _, length in spans) / len(text)


def repeated_paragraphs(
    shelves: Sequence[SegmentSignatures], order: Mapping[str, int]
) -> Iterator[tuple[str, list[Span], bool]]:
    """Paragraphs that stand in an earlier document as well, by document, and whether nothing is left without them.

    Args:
        order: the place of each document; lower is earlier.
    """
    taken = [shelf.signatures.take(np.array(shelf.places, np.int64)) for shelf in shelves]
    paragraphs = joined([part.paragraph_hashes for part in taken])
    names = [doc_id for shelf in shelves for doc_id in shelf.doc_ids]
    mask = duplicate_paragraphs(paragraphs, np.array([order[name] for name in names], np.int64))
    starts = np.concatenate([np.zeros(0, np.int64), *(part.paragraph_starts for part in taken)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(part.paragraph_lengths for part in taken)])
    number = 0
    for shelf in shelves:
        repeated: dict[int, list[Span]] = {}
        whole = []
        for place in range(len(shelf.doc_ids)):
            own = slice(int(paragraphs.offsets[number]), int(paragraphs.offsets[number + 1]))
            hit = np.flatnonzero(mask[own])
            if len(hit):
                repeated[place] = list(zip(starts[own][hit].tolist(), lengths[own][hit].tolist(), strict=True))
                if len(hit) == own.stop - own.start:
                    whole.append(place)
            number += 1
        emptied = {place for place, text in shelf.texts(whole) if not cut(text, repeated[place]).strip()}
        for place, spans in repeated.items():
            yield shelf.doc_ids[place], spans, place in emptied
