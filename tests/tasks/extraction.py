"""The extraction of a document in this process, from its first page to its outcome."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.readers.document import yield_document
from tasks.readers.records import Extraction, ExtractOptions, PageText


def extract_document(data: bytes, suffix: str, options: ExtractOptions, passwords: Sequence[str] = ()) -> Extraction:
    """Return the outcome with its pages and members, as the extraction pool gives it."""
    extraction = yield_document(data, suffix, options, passwords)
    pages: list[PageText] = []
    members: list[Extraction] = []
    while True:
        try:
            item = next(extraction)
        except StopIteration as end:
            outcome: Extraction = end.value
            outcome.pages, outcome.members = pages, members
            return outcome
        if isinstance(item, PageText):
            pages.append(item)
        elif isinstance(item, Extraction):
            members.append(item)
