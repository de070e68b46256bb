"""The extraction of a document in this process, from its first page to its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from tasks.ingest.journal import finish_document, part_file, read_document, write_lines
from tasks.readers.document import yield_document
from tasks.readers.records import Extraction, ExtractOptions, PageText


@dataclass
class Document(Extraction):
    """An outcome with its pages and, of a container, its members."""

    members: list[Extraction] = field(default_factory=list)


def with_members(outcome: Extraction, members: list[Extraction]) -> Document:
    return Document(**{item.name: getattr(outcome, item.name) for item in fields(outcome)}, members=members)


def alone(document: Extraction) -> Extraction:
    """The outcome with its pages, without the members."""
    return Extraction(**{item.name: getattr(document, item.name) for item in fields(Extraction)})


def extract_document(data: bytes, suffix: str, options: ExtractOptions, passwords: Sequence[str] = ()) -> Document:
    """Return the outcome with its pages and members, as the extraction pool gives it."""
    extraction = yield_document(data, suffix, options, passwords)
    pages: list[PageText] = []
    members: list[Extraction] = []
    while True:
        try:
            item = next(extraction)
        except StopIteration as end:
            outcome: Extraction = end.value
            outcome.pages = pages
            return with_members(outcome, members)
        if isinstance(item, PageText):
            pages.append(item)
        elif isinstance(item, Extraction):
            members.append(item)


def load(out: Path) -> Document:
    """A finished document of a journal."""
    outcome, *members = read_document(out)
    return with_members(outcome, members)


def save(out: Path, document: Extraction) -> None:
    """Write a finished document to a journal."""
    write_lines(part_file(out, 0), getattr(document, "members", None) or document.pages)
    finish_document(part_file(out, 0), out, replace(alone(document), pages=[]))
