"""Segments of documents for the tests of tracing, and the plain Python that tracing has to agree with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dedup_samples import plain_words

from storage.schemas import REFINED
from storage.tables import write_table
from tasks.lineage.trace_index import TracedSegment, index_segment


def segment_at(folder: Path, texts: Mapping[str, str]) -> TracedSegment:
    """A segment with these documents by id, and its index."""
    (folder / "texts").mkdir(parents=True)
    (folder / "index").mkdir()
    rest = {"kind": "text", "n_bytes": 0, "redactions": 0, "cut_chars": 0, "mends": 0, "digest": ""}
    table = folder / "texts" / "documents.parquet"
    write_table(table, REFINED, [{"doc_id": doc_id, "text": text, **rest} for doc_id, text in texts.items()])
    index_segment(table, folder / "index", lambda done, total: None)
    return TracedSegment(folder / "index", folder / "texts")


def longest_shared(text: str, documents: Mapping[str, str], min_words: int) -> tuple[int, set[int]]:
    """Words of the longest stretch that a text shares with a document, and its words in stretches of `min_words`."""
    ours, longest, covered = plain_words(text), 0, set[int]()
    for document in documents.values():
        theirs = plain_words(document)
        before = [0] * (len(theirs) + 1)
        for place, word in enumerate(ours):
            row = [0] * (len(theirs) + 1)
            for other, their_word in enumerate(theirs):
                if word == their_word:
                    row[other + 1] = n = before[other] + 1
                    longest = max(longest, n)
                    if n >= min_words:
                        covered.update(range(place - n + 1, place + 1))
            before = row
    return longest, covered
