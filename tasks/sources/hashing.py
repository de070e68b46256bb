"""Content digests of files, with a memo that spares unchanged files from being read again.

The memo is a small SQLite file that may be deleted at any time; it only ever saves work. A file counts as
unchanged while size, both time stamps and inode are the same. Files that changed just before they were hashed
are not remembered, since a second change within the clock's granularity would go unseen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from tasks.sources.opening import open_regular
from tasks.sources.walk import WalkedFile

DISTRUST_NS = 2_000_000_000  # FAT keeps times to two seconds; everything else is finer.
BATCH_FILES = 1000  # Files between two writes to the memo, so that a killed run keeps most of its work.
MAX_KEYS = 900  # Parameters of one query; some builds of SQLite allow 999.
LARGEST_INTEGER = 2**63 - 1  # SQLite's integers are signed; some file systems number inodes up to 2**64.

_SCHEMA = """
create table if not exists digest (
    path blob primary key, size integer, mtime_ns integer, ctime_ns integer, inode integer, sha256 text
) without rowid
"""
_SELECT = "select path, size, mtime_ns, ctime_ns, inode, sha256 from digest"

Result = TypeVar("Result")


class FileState(NamedTuple):
    """State of a file that differs after a change."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state in a stat result."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & LARGEST_INTEGER)

    @classmethod
    def walked(cls, file: WalkedFile) -> FileState:
        """Return the state that a walk saw."""
        return cls(file.size, file.mtime_ns, file.ctime_ns, file.inode & LARGEST_INTEGER)


class HashMemo:
    """Remember digests between runs; several processes may use the same file at once.

    Args:
        path: The SQLite file; made, with its folder, when first written. A damaged file is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_many(self, states: dict[str, FileState]) -> dict[str, str]:
        """Look up many files at once.

        Args:
            states: The files' states now, by location.

        Returns:
            The digests of those that have not changed since they were remembered.
        """
        locations = {os.fsencode(location): location for location in states}

        def look_up(connection: sqlite3.Connection) -> dict[str, str]:
            known: dict[str, str] = {}
            keys = list(locations)
            for start in range(0, len(keys), MAX_KEYS):
                some = keys[start : start + MAX_KEYS]
                query = f"{_SELECT} where path in ({','.join('?' * len(some))})"
                for path, *state, sha256 in connection.execute(query, some):
                    location = locations[path]
                    if tuple(state) == states[location]:
                        known[location] = sha256
            return known

        return self._use(look_up, otherwise={})

    def put_many(self, digests: dict[str, tuple[FileState, str]]) -> None:
        """Remember many digests, by location, in one transaction."""
        rows = [(os.fsencode(location), *state, sha256) for location, (state, sha256) in digests.items()]

        def store(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("insert or replace into digest values (?, ?, ?, ?, ?, ?)", rows)

        self._use(store, otherwise=None)

    def _use(self, action: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Run an action on the memo; return `otherwise` where the memo cannot be used."""
        for _ in range(2):
            try:
                with contextlib.closing(self._open()) as connection:
                    return action(connection)
            except (sqlite3.OperationalError, OSError):
                # Locked for long, a full disk, a folder that cannot be written.
                return otherwise
            except sqlite3.DatabaseError:
                # Damaged, or no database at all.
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
        return otherwise

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            connection.execute(_SCHEMA)
            connection.execute(_SELECT + " limit 1").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def digest_files(files: Sequence[WalkedFile], memo: HashMemo, workers: int = 4) -> list[str | OSError | None]:
    """Find the SHA-256 of files, reading only those that changed.

    Args:
        files: Rows of a walk that was just taken: what the memo knows about a file is asked by the state that the
            walk saw.
        memo: Digests of earlier runs; updated.
        workers: Threads to read with.

    Returns:
        For each row the digest in hexadecimal, or the error that kept the file from being read; None for rows with a
        status, which are passed over. Objects that were not fetched keep their `pending_digest`.
    """
    outcomes: list[str | OSError | None] = []
    with ThreadPoolExecutor(max_workers=max(1, workers)) as threads:
        for start in range(0, len(files), BATCH_FILES):
            batch = files[start : start + BATCH_FILES]
            found = _digest_batch([file for file in batch if not (file.status or file.pending_digest)], memo, threads)
            outcomes.extend(None if file.status else file.pending_digest or found[file.location] for file in batch)
    return outcomes


def _digest_batch(files: Sequence[WalkedFile], memo: HashMemo, threads: ThreadPoolExecutor) -> dict[str, str | OSError]:
    known = memo.get_many({file.location: FileState.walked(file) for file in files})
    results: dict[str, str | OSError] = dict(known)
    to_read = [file.location for file in files if file.location not in known]
    fresh: dict[str, tuple[FileState, str]] = {}
    for location, outcome in zip(to_read, threads.map(_hash_or_error, to_read), strict=True):
        if isinstance(outcome, OSError):
            results[location] = outcome
            continue
        state, sha256, settled = outcome
        results[location] = sha256
        if settled:
            fresh[location] = (state, sha256)
    if fresh:
        memo.put_many(fresh)
    return results


def _hash_or_error(location: str) -> tuple[FileState, str, bool] | OSError:
    """Return the state, the digest, and True if both may be remembered; or the error."""
    try:
        with open_regular(Path(location)) as file:
            now = time.time_ns()
            before = FileState.of(os.fstat(file.fileno()))
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            after = FileState.of(os.fstat(file.fileno()))
    except OSError as error:
        return error
    settled = before == after and max(before.mtime_ns, before.ctime_ns) < now - DISTRUST_NS
    return after, sha256, settled
