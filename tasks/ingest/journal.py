"""The journal of a segment in the making: finished documents on disk at once, so that a kill loses only those in work.

A file of JSON lines that only grows. A document is the lines of its members, one each, and then a line of its own,
which makes it whole; what a kill tore or left without its end counts as not written. Neither writing nor reading holds
more than one member in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, overload

from tasks.readers.records import Extraction

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
        """What is extracted: the bytes, under a suffix."""
        return self.sha256, self.suffix


def is_doubtful(status: str, reason_code: str) -> bool:
    """Whether another attempt may give a document more text: by time, memory, an engine or a password."""
    return status == "failed" or reason_code in _LOST_TO


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a document's lines are: the first one of its members, its own, and how many members there are."""

    members: int
    own: int
    n_members: int


class Journal:
    """Finished documents of a segment in the making.

    Of an earlier run's documents those that may go differently now are left out: the reason to run again may be the
    engine or the password that they lacked.

    Args:
        folder: scratch folder of the segment.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "journal.jsonl").open("a+b")
        self._places: dict[Content, _Place] = {}
        self._load()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, content: Content) -> bool:
        return content in self._places

    def save(self, content: Content, extraction: Extraction) -> None:
        """Record a finished document."""
        first = self._file.seek(0, os.SEEK_END)
        doubtful = is_doubtful(extraction.status, extraction.reason_code)
        for member in extraction.members:
            doubtful = doubtful or is_doubtful(member.status, member.reason_code)
            self._file.write(json.dumps(member.to_dict()).encode() + b"\n")
        place = _Place(first, self._file.tell(), len(extraction.members))
        name = {"sha256": content.sha256, "suffix": content.suffix, "attempt": content.attempt}
        self._file.write(json.dumps([name, extraction.to_dict_alone(), place.n_members, doubtful]).encode())
        self._file.write(b"\n")  # by itself, as joining them would copy what may be hundreds of MB
        self._file.flush()
        self._places[content] = place

    def load(self, content: Content) -> Extraction:
        """A finished document; its members are read one at a time.

        Raises:
            KeyError: if it is not there.
        """
        place = self._places[content]
        self._file.seek(place.own)
        extraction = Extraction.from_dict(json.loads(self._file.readline())[1])
        if place.n_members:
            extraction.members = _SavedMembers(self._file, place)
        return extraction

    def _load(self) -> None:
        """Find the documents that are whole, and cut off what follows them."""
        self._file.seek(0)
        first = place = 0
        n_members = 0
        for line in self._file:
            try:
                values = json.loads(line)
                is_member = isinstance(values, dict)
                content, counted, doubtful = (None, 0, False) if is_member else (Content(**values[0]), *values[2:])
            except (ValueError, TypeError, LookupError):
                break
            if not line.endswith(b"\n") or (content and counted != n_members):
                break
            if content is None:
                n_members += 1
            else:
                self._places.pop(content, None)
                if not doubtful:
                    self._places[content] = _Place(first, place, n_members)
                n_members = 0
            place += len(line)
            first = first if n_members else place
        self._file.truncate(first)


class _SavedMembers(Sequence[Extraction]):
    """The members of a document in a journal, which must stay open; meant to be read in order."""

    def __init__(self, file: IO[bytes], place: _Place) -> None:
        self._file = file
        self._n_members = place.n_members
        self._places = [place.members]  # of the members up to the first one that was not read yet

    def __len__(self) -> int:
        return self._n_members

    def __iter__(self) -> Iterator[Extraction]:
        return (self[number] for number in range(self._n_members))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, number: int) -> Extraction: ...
    @overload
    def __getitem__(self, number: slice) -> list[Extraction]: ...
    def __getitem__(self, number: int | slice) -> Extraction | list[Extraction]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(self._n_members))]
        place = range(self._n_members)[number]
        while len(self._places) <= place:
            self._line(len(self._places) - 1)
        return Extraction.from_dict(json.loads(self._line(place)))

    def _line(self, number: int) -> bytes:
        """The line of a member, whose place is known; notes the next one's place."""
        self._file.seek(self._places[number])
        line = self._file.readline()
        if number + 1 == len(self._places):
            self._places.append(self._places[number] + len(line))
        return line
