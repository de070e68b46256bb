"""Results of a walk, as lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.sources.address import Source
from tasks.sources.folder import Filters, WalkedFile
from tasks.sources.listing import HashMemo, digest_files, walk_sources


def rows_of(sources: Iterable[Source], filters: Filters, cache: Path, exclude: Sequence[Path] = ()) -> list[WalkedFile]:
    """The rows of all sources, sorted by path."""
    found = walk_sources(sources, filters, cache, exclude)
    return sorted((row for row in found if row is not None), key=lambda row: row.path)


def digests_of(files: Iterable[WalkedFile], memo: HashMemo) -> list[str | OSError | None]:
    """The digest of each file, in their order."""
    return [digest for _, digest in digest_files(files, memo)]
