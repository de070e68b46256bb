"""The journal of a segment in the making: finished documents on disk at once, so that a kill loses only those in work.

A document is two files. `NAME.jsonl` has a line for each page, or for each member of a container with its pages; the
worker processes write it. `NAME.json` has the outcome and is written last, by the parent: it makes the document whole.
The lines are JSON and not Arrow, because a worker parses hostile files and a reader of Arrow trusts the offsets in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.core.child import write_message
from tasks.readers.records import Extraction, PageText

# What may go differently another time, also where only a page of a document that is there was lost to it.
_LOST_TO = ("timeout", "memory", "crashed", "no_ocr_engine", "changed", "unreadable", "encrypted")


@dataclass(frozen=True, order=True, slots=True)
class Content:
    """One file content of a segment.

    Attributes:
        attempt: raised when a failed extraction is asked for again.
    """

    sha256: str
    suffix: str
    attempt: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """Return what identifies an extraction: the bytes, under a suffix."""
        return self.sha256, self.suffix

    @property
    def name(self) -> str:
        """Name in the journal; a suffix may hold what no file name can."""
        suffix = hashlib.sha256(self.suffix.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{self.sha256}-{suffix}-{self.attempt}"


def is_doubtful(status: str, reason_code: str) -> bool:
    """Return True if another attempt may give a document more text: by time, memory, an engine or a password."""
    return status == "failed" or reason_code in _LOST_TO


def lines_file(out: Path) -> Path:
    """Return the file of a document's pages or members."""
    return out.with_name(f"{out.name}.jsonl")


def part_file(out: Path, number: int) -> Path:
    """Return the file that one worker process writes; a document may need several."""
    return out.with_name(f"{out.name}.{number}.part")


def _outcome_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def read_lines(file: Path, n_lines: int) -> Iterator[PageText | Extraction]:
    """Yield the first pages or members in a file; a process that was killed may have begun another line.

    Raises:
        ValueError: There are fewer, or one is damaged.
    """
    with file.open("rb") as lines:
        for _ in range(n_lines):
            values = json.loads(lines.readline())  # at the end of the file an empty line, which is no JSON
            yield PageText(**values) if "page" in values else Extraction.from_dict(values)


def write_lines(file: Path, items: Iterable[PageText | Extraction]) -> None:
    """Write pages or members."""
    with file.open("wb", buffering=0) as lines:
        for item in items:
            write_message(lines.fileno(), item.to_dict(), "replace")


def write_outcome(out: Path, outcome: Extraction, n_lines: int) -> Extraction:
    """Write the outcome of a document whose lines are written, and return it; from then on the document is finished."""
    begun = part_file(out, -1)
    begun.write_text(json.dumps([outcome.to_dict(), n_lines]), encoding="ascii")
    begun.replace(_outcome_file(out))
    return outcome


def read_document(out: Path) -> Iterator[Extraction]:
    """Yield the outcome of a finished document with its pages, then the members in it, one at a time in memory.

    Raises:
        ValueError: A file of the document is damaged.
    """
    values, n_lines = json.loads(_outcome_file(out).read_bytes())
    outcome = Extraction.from_dict(values)
    items = read_lines(lines_file(out), n_lines)
    first_member: Extraction | None = None
    for item in items:
        if isinstance(item, Extraction):
            first_member = item
            break
        outcome.pages.append(item)
    yield outcome
    if first_member is not None:  # a document has pages or members
        yield first_member
        yield from (item for item in items if isinstance(item, Extraction))


def resume(folder: Path, contents: Iterable[Content]) -> set[Content]:
    """Return the documents that are finished already, and remove what a kill left of others.

    Those that may go differently now are removed, too: the reason to run again may be the engine or the password that
    they lacked.
    """
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.part"):
        path.unlink()
    finished = set()
    for content in contents:
        out = folder / content.name
        if not _outcome_file(out).exists():
            continue
        try:
            doubtful = any(is_doubtful(found.status, found.reason_code) for found in read_document(out))
        except (ValueError, TypeError, OSError):  # the machine lost its power before all was on disk
            doubtful = True
        if doubtful:
            _outcome_file(out).unlink()
        else:
            finished.add(content)
    return finished
