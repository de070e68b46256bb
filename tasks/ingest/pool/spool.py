"""The members of one container on their way from a worker to the tables: few in memory, many in a temporary file.

What an archive unpacks to may be a hundred times its size, and the pool's own process waits for many archives at once;
so beyond a few MiB of text the members of each go to a file as they arrive. It has no name, so that nothing is left of
it however the process ends.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from tasks.readers.records import Extraction

SPOOL_CHARACTERS = 4 * 1024**2  # Of text, held in memory by each container.
_EXTRA_CHARACTERS = 500  # What a member takes beside its text, about.


class MemberSpool(Sequence[Extraction]):
    """Finished members in the order in which they came; each is read back when it is asked for.

    Args:
        folder: Where the temporary file is made, if one is needed; None for the system's folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: list[Extraction] = []
        self._n_characters = 0
        self._file: IO[bytes] | None = None
        self._places: list[int] = []

    def append(self, member: Extraction) -> None:
        """Add a member."""
        if self._file is not None:
            self._write(member)
            return
        self._held.append(member)
        self._n_characters += sum(len(page.text) for page in member.pages) + _EXTRA_CHARACTERS
        if self._n_characters > SPOOL_CHARACTERS:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed when nobody has the members
            for held in self._held:
                self._write(held)
            self._held = []

    def result(self) -> Sequence[Extraction]:
        """Return the members: as a plain list where they are few."""
        return self._held if self._file is None else self

    def __len__(self) -> int:
        return len(self._held) + len(self._places)

    def __iter__(self) -> Iterator[Extraction]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, number: int) -> Extraction: ...
    @overload
    def __getitem__(self, number: slice) -> list[Extraction]: ...
    def __getitem__(self, number: int | slice) -> Extraction | list[Extraction]:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        if self._file is None:
            return self._held[number]
        self._file.seek(self._places[number])
        return Extraction.from_dict(json.loads(self._file.readline()))

    def _write(self, member: Extraction) -> None:
        assert self._file is not None
        self._places.append(self._file.seek(0, os.SEEK_END))
        self._file.write(json.dumps(member.to_dict()).encode("ascii") + b"\n")
