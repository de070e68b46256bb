"""Journal of a segment during extraction: finished documents are files, so a kill loses only those in progress.

The file of a document has a line for each page, or for each member of a container with its pages, which a worker writes
to `NAME.0.part`. The parent adds the outcome as the last line and renames the file to `NAME`. The lines are JSON and
not Arrow, because workers parse hostile files and a reader of Arrow trusts the offsets in it.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tasks.core.child import write_message
from tasks.readers.records import Extraction, PageText

_OUTCOME = "outcome"  # the key of the last line
# Reasons that another attempt may not meet, also of documents that are ok but for lost pages.
_TRANSIENT = ("timeout", "memory", "crashed", "no_ocr_engine", "changed", "unreadable", "encrypted")


@dataclass(frozen=True, order=True, slots=True)
class Content:
    """One file content of a segment.

    Attributes:
        attempt: Number of earlier attempts at the extraction.
    """

    sha256: str
    suffix: str
    attempt: int = 0

    @property
    def name(self) -> str:
        """Return the name of its file in the journal, with a hash of the suffix, which may not be a valid file name."""
        suffix = hashlib.sha256(self.suffix.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{self.sha256}-{suffix}-{self.attempt}.jsonl"


def is_doubtful(status: str, reason_code: str) -> bool:
    """Return True if another attempt may give more text, with more time, memory, an OCR engine or a password."""
    return status == "failed" or reason_code in _TRANSIENT


def part_file(out: Path, number: int) -> Path:
    """Return the path of the file that a worker writes for part `number` of a document."""
    return out.with_name(f"{out.name}.{number}.part")


def read_lines(file: Path) -> Iterator[PageText | Extraction]:
    """Yield the pages or members in a file.

    Raises:
        ValueError: A line is damaged.
    """
    with file.open("rb") as lines:
        for line in lines:
            values = json.loads(line)
            if "page" in values:
                yield PageText(**values)
            elif _OUTCOME not in values:
                yield Extraction(**values | {"pages": [PageText(**page) for page in values["pages"]]})


def write_lines(file: Path, items: Iterable[PageText | Extraction]) -> None:
    """Write pages or members to a new file."""
    with file.open("wb", buffering=0) as lines:
        for item in items:
            write_message(lines.fileno(), vars(item), "replace")


def finish_document(written: Path, out: Path, outcome: Extraction) -> Extraction:
    """Append the outcome of a document to its pages or members and rename the file; return the outcome."""
    with written.open("ab", buffering=0) as lines:
        write_message(lines.fileno(), {_OUTCOME: outcome}, "replace")
    written.replace(out)
    return outcome


def read_document(out: Path) -> Iterator[Extraction]:
    """Yield the outcome of a finished document with its pages, then its members, one at a time in memory.

    Raises:
        ValueError: The file of the document is damaged.
    """
    with out.open("rb") as lines:
        last = json.loads(b"".join(deque(lines, 1)))
    if _OUTCOME not in last:
        raise ValueError(f"{out} has no outcome in its last line; delete it and run again")
    outcome = Extraction(**last[_OUTCOME])
    items: Iterator[Any] = read_lines(out)
    for item in items:  # a document has pages or members
        if isinstance(item, Extraction):
            items = chain([item], items)
            break
        outcome.pages.append(item)
    yield outcome
    yield from items


def resume(folder: Path, contents: Iterable[Content]) -> set[Content]:
    """Return the finished documents, and remove unfinished files.

    Finished documents for which another attempt may give more text are removed, too: the engine or password that they
    lacked may be the reason for the new run.
    """
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.part"):
        path.unlink()
    finished = set()
    for content in contents:
        out = folder / content.name
        if not out.exists():
            continue
        try:
            doubtful = any(is_doubtful(found.status, found.reason_code) for found in read_document(out))
        except (ValueError, TypeError, OSError):  # damaged by a power failure
            doubtful = True
        if doubtful:
            out.unlink()
        else:
            finished.add(content)
    return finished
