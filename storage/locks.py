"""Owner locks: one process at a time works on one artefact.

The operating system holds the lock (`flock`) and releases it when its owner ends. The file's text names the owner in
messages.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from storage.errors import UserError

FIRST_ATTEMPT_SECONDS = 0.05  # before a wait is reported: another process may unlink the file between open and lock


def read_owner(path: Path) -> str:
    """Return the owner of a lock, such as `process 12 on HOST`."""
    try:
        return path.read_text(errors="replace") or "another process"
    except OSError:
        return "another process"


def _lock(path: Path) -> FileLock:
    # a soft lock would remain after its owner was killed, so a file system without flock is refused
    return FileLock(path, thread_local=False, fallback_to_soft=False)


def is_held(path: Path) -> bool:
    """Return True if a running process holds the lock file `path`."""
    if not path.exists():
        return False
    try:
        with _lock(path).acquire(blocking=False):
            return False
    except Timeout:
        return True


@contextmanager
def owner_lock(path: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, after waiting for its owner.

    Args:
        path: lock file; created and removed here.
        on_wait: called once before a wait, with a message that names the owner.

    Raises:
        UserError: if the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path)
    try:
        lock.acquire(timeout=FIRST_ATTEMPT_SECONDS, poll_interval=FIRST_ATTEMPT_SECONDS / 2)
    except Timeout:
        if on_wait is not None:
            on_wait(f"waiting for {read_owner(path)}, which works on {path.stem}")
        lock.acquire()
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise UserError(
            f"the file system of {path.parent} has no file locks, so two processes could overwrite each other's work: "
            "put the store on a local disk, on NFS version 4 or on S3"
        ) from error
    try:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # while it is held: a process that has opened it notices, and retries
        finally:
            lock.release()
