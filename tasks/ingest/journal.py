"""The journal of a segment in the making: finished documents on disk at once, so that a kill loses only those in work.

A document is one file. It has a line for each page, or for each member of a container with its pages, which a worker
process writes to `NAME.0.part`. The parent adds the outcome as the last line and renames the file to `NAME`.
The lines are JSON and not Arrow, because a worker parses hostile files and a reader of Arrow trusts the offsets in it.
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

_OUTCOME = "outcome"  # the name by which the last line is known
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
    def name(self) -> str:
        """Name of the file in the journal; a suffix may hold what no file name can."""
        suffix = hashlib.sha256(self.suffix.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{self.sha256}-{suffix}-{self.attempt}.jsonl"


def is_doubtful(status: str, reason_code: str) -> bool:
    """Return True if another attempt may give a document more text: by time, memory, an engine or a password."""
    return status == "failed" or reason_code in _LOST_TO


def part_file(out: Path, number: int) -> Path:
    """Return the file that one worker process writes; a document may need several."""
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
    """Write pages or members."""
    with file.open("wb", buffering=0) as lines:
        for item in items:
            write_message(lines.fileno(), vars(item), "replace")


def finish_document(written: Path, out: Path, outcome: Extraction) -> Extraction:
    """Add the outcome of a document to its pages or members, and return it; from then on the document is finished."""
    with written.open("ab", buffering=0) as lines:
        write_message(lines.fileno(), {_OUTCOME: outcome}, "replace")
    written.replace(out)
    return outcome


def read_document(out: Path) -> Iterator[Extraction]:
    """Yield the outcome of a finished document with its pages, then the members in it, one at a time in memory.

    Raises:
        ValueError: The file of the document is damaged.
    """
    with out.open("rb") as lines:
        last = json.loads(b"".join(deque(lines, 1)))
    if _OUTCOME not in last:
        raise ValueError(f"{out} ends without an outcome")
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
        if not out.exists():
            continue
        try:
            doubtful = any(is_doubtful(found.status, found.reason_code) for found in read_document(out))
        except (ValueError, TypeError, OSError):  # the machine lost its power before all was on disk
            doubtful = True
        if doubtful:
            out.unlink()
        else:
            finished.add(content)
    return finished
