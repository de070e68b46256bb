"""List the files of sources with the digests of their contents, without reading unchanged files again.

The digests of earlier runs are cached in a SQLite file, which may be deleted at any time. A file counts as unchanged
while its size, both time stamps and inode are the same. Files that changed just before they were hashed are not cached,
since a second change within the granularity of the clock would be missed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from os.path import splitext
from pathlib import Path
from typing import Any

from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.sources.address import DocumentsSource, Source, WalkSettings
from tasks.sources.folder import (
    EXCLUDED_REASON,
    FileState,
    Filters,
    FolderSource,
    ListedFile,
    WalkedFile,
    encode_path,
    open_regular,
)
from tasks.sources.git import GitSource

HASHING_THREADS = 2
DISTRUST_NS = 2_000_000_000  # FAT keeps times to two seconds; everything else is finer.
# Files per transaction, so that a killed run keeps most of its work; also the parameters of one query, of which some
# builds of SQLite allow 999.
BATCH_FILES = 900

_SCHEMA = """
create table if not exists digest (
    path blob primary key, size integer, mtime_ns integer, ctime_ns integer, inode integer, sha256 text
) without rowid
"""
_SELECT = "select path, size, mtime_ns, ctime_ns, inode, sha256 from digest"


@dataclass(frozen=True)
class Listed:
    """Files of the sources, with the digests of their contents.

    Attributes:
        files: One per path, sorted by path.
        locations: Path of a file with each content, by sha256; without pending objects.
        n_ignored: Files and whole folders that patterns or a `.gitignore` left out.
        n_pending: Objects of buckets that were not downloaded.
    """

    files: list[ListedFile]
    locations: dict[str, str]
    n_ignored: int
    n_pending: int


def list_sources(
    sources: Iterable[Source],
    settings: WalkSettings,
    max_file_bytes: int,
    cache: Path,
    memo: HashMemo,
    exclude: Sequence[Path] = (),
    forgotten: Collection[str] = (),
    fetch: bool = True,
) -> Listed:
    """List the files of all sources and hash those that changed.

    Args:
        sources: In any order.
        max_file_bytes: Larger files are rejected by their size, without download or hashing, except the files of a
            `documents:` source.
        cache: Folder for downloads.
        memo: Digests of earlier runs; updated.
        exclude: Folders that are skipped without a row.
        forgotten: sha256 of forgotten contents.
        fetch: Download objects of buckets. Otherwise they are only listed, and an object without a current copy in the
            cache counts as new content. Repositories are fetched in any case, since only a fetch lists their files.

    Raises:
        UserError: A source cannot be read, or a pattern is malformed.
    """
    filters = replace(settings.filters(), max_bytes=max_file_bytes, fetch=fetch)
    listed: list[ListedFile] = []
    locations: dict[str, str] = {}
    suffixes: dict[str, str] = {}  # interned: a few strings, each in thousands of rows
    n_ignored = n_pending = 0

    def wanted() -> Iterator[WalkedFile]:
        nonlocal n_ignored
        for row in walk_sources(sources, filters, cache, exclude):
            if row is None:
                n_ignored += 1
            else:
                yield row

    for file, digest in digest_files(wanted(), memo):
        status, reason, sha256 = str(file.status), file.reason, None
        if isinstance(digest, OSError):
            status, reason = "failed", f"cannot be read: {digest}"
        elif digest in forgotten:
            status, reason = "skipped", FORGOTTEN_REASON  # the snapshot compares with it
        elif digest is not None:
            sha256 = digest
            if file.pending_digest:
                n_pending += 1
            else:  # of several copies always the same one, for reproducibility
                locations[digest] = min(file.location, locations.get(digest, file.location))
        suffix = encode_path(splitext(file.location)[1].lower())  # noqa: PTH122 - a tenth of the time of a Path
        suffix = suffixes.setdefault(suffix, suffix)
        listed.append(ListedFile(file.path, file.source, file.label, file.state.size, sha256, suffix, status, reason))
    return Listed(sorted(listed, key=lambda file: file.path), locations, n_ignored, n_pending)


def walk_sources(
    sources: Iterable[Source], filters: Filters, cache: Path, exclude: Sequence[Path] = ()
) -> Iterator[WalkedFile | None]:
    """Fetch remote sources and yield the rows of all sources, with None for each path that patterns exclude.

    Args:
        cache: Folder for downloads; the files of remote sources stay there for at least a day. Exports of earlier
            listings that are no longer needed are removed.
        exclude: Folders that are skipped without a row, such as the home; the cache may be in one.

    Raises:
        UserError: A source cannot be read.
    """
    # in an order independent of the caller's: where sources overlap, the first yields the file
    ordered = sorted(_merged(sources), key=_order)
    several = len(ordered) > 1
    excluded = frozenset(str(folder.resolve()) for folder in exclude)
    places = [source.files if isinstance(source, DocumentsSource) else source for source in ordered]
    # a folder that is skipped in one source may be or contain another source; its row would be wrong
    folders = [place.path for place in places if isinstance(place, FolderSource)]
    covered = {str(path) for folder in folders for path in (folder, *folder.parents)}
    seen: set[str] = set()
    labels = _labels([source.name for source in ordered]) if several else [""]
    for source, label in zip(ordered, labels, strict=True):
        for row in source.rows(label, filters, excluded, cache):
            if row is None:
                yield None
                continue
            if several:
                if row.location in seen:
                    continue
                seen.add(row.location)
                row = replace(row, label=label)
            if row.reason != EXCLUDED_REASON or row.location not in covered:
                yield row
    for place in places:
        if isinstance(place, GitSource):  # after all rows: several sources may be commits of one repository
            place.tidy(cache)


def _merged(sources: Iterable[Source]) -> list[Source]:
    """Merge sources with several patterns for one folder: a file is selected if any of them matches."""
    merged: dict[str, Source] = {}
    for source in sources:
        key = str(source.path) if isinstance(source, FolderSource) else str(source)
        other = merged.get(key)
        if isinstance(source, FolderSource) and isinstance(other, FolderSource):
            both = source.include and other.include
            merged[key] = FolderSource(source.path, tuple(sorted({*source.include, *other.include})) if both else ())
        else:
            merged[key] = source
    return list(merged.values())


def _order(source: Source) -> tuple[int, tuple[str, ...]]:
    """Sort key: `documents:` sources, folders with parents before children, then the others."""
    if isinstance(source, DocumentsSource):
        return -1, (str(source),)
    if isinstance(source, FolderSource):
        return 0, source.path.parts
    return 1, (str(source),)


def _labels(names: Sequence[str]) -> list[str]:
    """Return a unique first path component per source: its encoded name, numbered where names repeat."""
    labels: list[str] = []
    for name in names:
        label, number = name or "root", 1
        while label in labels:
            number += 1
            label = f"{Path(name).stem}-{number}{Path(name).suffix}"
        labels.append(label)
    return [encode_path(label) for label in labels]


class HashMemo:
    """Cache of digests between runs; several processes may use the same file at once.

    Args:
        path: The SQLite file; created on first use, with its folder. A damaged file is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_many(self, states: dict[str, FileState]) -> dict[str, str]:
        """Return the cached digests of at most `BATCH_FILES` files, without those whose state changed.

        Args:
            states: The current states of the files, by location.
        """
        locations = {os.fsencode(location): location for location in states}
        query = f"{_SELECT} where path in ({','.join('?' * len(locations))})"
        rows = self._use(lambda memo: memo.execute(query, list(locations)))
        found = ((locations[path], tuple(state), sha256) for path, *state, sha256 in rows)
        return {location: sha256 for location, state, sha256 in found if state == states[location]}

    def put_many(self, digests: dict[str, tuple[FileState, str]]) -> None:
        """Store digests, by location, in one transaction."""
        rows = [(os.fsencode(location), *state, sha256) for location, (state, sha256) in digests.items()]
        self._use(lambda memo: memo.executemany("insert or replace into digest values (?, ?, ?, ?, ?, ?)", rows))

    def _use(self, query: Callable[[sqlite3.Connection], sqlite3.Cursor]) -> list[Any]:
        """Return the rows of a query, in one transaction; [] where the file cannot be used."""
        for _ in range(2):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as memo, memo:
                    memo.execute(_SCHEMA)
                    memo.execute(_SELECT + " limit 1").fetchone()
                    return query(memo).fetchall()
            except (sqlite3.OperationalError, OSError):  # such as a long lock, a full disk, or missing rights
                return []
            except sqlite3.DatabaseError:  # damaged, or not a SQLite file
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
        return []


def digest_files(files: Iterable[WalkedFile], memo: HashMemo) -> Iterator[tuple[WalkedFile, str | OSError | None]]:
    """Compute the SHA-256 of files, reading only those that changed; at most `BATCH_FILES` rows are held in memory.

    Args:
        files: Rows of a listing that was just made.
        memo: Digests of earlier runs; updated.

    Yields:
        Each row with the hexadecimal digest, the error that prevented reading the file, or None if the row has a
        status. For an object that was not downloaded, the digest is its `pending_digest`.
    """
    rest = iter(files)
    with ThreadPoolExecutor(max_workers=HASHING_THREADS) as threads:
        while batch := list(islice(rest, BATCH_FILES)):
            states = {file.location: file.state for file in batch if not (file.status or file.pending_digest)}
            found: dict[str, str | OSError] = {**memo.get_many(states)}
            to_read = [location for location in states if location not in found]
            fresh: dict[str, tuple[FileState, str]] = {}
            for location, outcome in zip(to_read, threads.map(_hash_or_error, to_read), strict=True):
                found[location], settled = outcome
                if settled is not None:
                    fresh[location] = (settled, str(found[location]))
            if fresh:
                memo.put_many(fresh)
            for file in batch:
                yield file, None if file.status else file.pending_digest or found[file.location]


def _hash_or_error(location: str) -> tuple[str | OSError, FileState | None]:
    """Return the digest or the error, and the state to cache the digest under; None if it must not be cached."""
    try:
        with open_regular(Path(location)) as file:
            now = time.time_ns()
            before = FileState.of(os.fstat(file.fileno()))
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            after = FileState.of(os.fstat(file.fileno()))
    except OSError as error:
        return error, None
    settled = before == after and max(before.mtime_ns, before.ctime_ns) < now - DISTRUST_NS
    return sha256, after if settled else None
