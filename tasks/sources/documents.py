"""Sources whose rows are documents already: `documents:SOURCE`, with Parquet or JSON Lines files.

Their rows become documents as they are, without extraction. Here they are files like any others; what tells them apart
is the source in their row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tasks.sources.walk import Filters, Root, WalkedFile

SCHEME = "documents:"


class _Source(Protocol):
    """Any source."""

    def root(self, cache: Path) -> Root:
        """Return what is walked."""


@dataclass(frozen=True)
class DocumentsSource:
    """The files of another source, as corpora.

    Attributes:
        files: Where they are: a file, a folder, a pattern, a bucket, a repository.
    """

    files: _Source

    def __str__(self) -> str:
        return f"{SCHEME}{self.files}"

    def root(self, cache: Path) -> DocumentsRoot:
        """Return what is walked.

        Raises:
            UserError: It cannot be had.
        """
        return DocumentsRoot(self.files.root(cache))


@dataclass(frozen=True)
class DocumentsRoot:
    """The files of another root, marked."""

    files: Root

    @property
    def name(self) -> str:
        """Return the first part of its files' paths, which is used where there are several roots."""
        return self.files.name

    @property
    def covers(self) -> tuple[str, ...]:
        """Return the folders that are walked for it: the one it is, and those above."""
        return self.files.covers

    def rows(self, label: str, filters: Filters, excluded: frozenset[str]) -> Iterator[WalkedFile | None]:
        """Yield its rows, with None for each path that patterns leave out.

        A corpus may have any size: its rows are read one after the other.
        """
        for row in self.files.rows(label, replace(filters, max_bytes=None), excluded):
            yield row and replace(row, source=f"{SCHEME}{row.source}")


def is_corpus(source: str) -> bool:
    """Return True if a row's source says that the file's rows are documents."""
    return source.startswith(SCHEME)
