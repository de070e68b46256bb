"""Owner locks: one process at a time works on one artefact.

The operating system holds the lock (`flock`) and frees it when its owner dies, so no dead process keeps a lock. The
file's text (host, pid, process start) is for the person who asks who works there.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from storage.errors import UserError

FIRST_ATTEMPT_SECONDS = 0.05  # before a wait is reported: a lock file may be unlinked between our open and our lock


def owner_record() -> dict[str, str | int]:
    """Return host, pid and start time (in ticks since boot; empty without /proc) of this process."""
    try:
        start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        start = ""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process_start": start}


def read_owner(path: Path) -> str:
    """Return the owner of a lock in words."""
    try:
        record = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        record = {}
    return f"process {record.get('pid', '?')} on {record.get('host', '?')}"


def _lock(path: Path, poll: float) -> FileLock:
    # without flock a soft lock would outlive a killed owner, so a file system that has none is refused
    return FileLock(path, thread_local=False, fallback_to_soft=False, poll_interval=poll)


def _release(lock: FileLock, path: Path) -> None:
    try:
        path.unlink(
            missing_ok=True
        )  # while we hold it: whoever opened it meanwhile sees that it has no name, and retries
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return True if a living owner holds the lock file `path`."""
    if not path.exists():
        return False
    lock = _lock(path, poll=0.01)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except FileNotFoundError:
        return False
    _release(lock, path)
    return False


@contextmanager
def owner_lock(path: Path, on_wait: Callable[[str], None] | None = None, poll: float = 0.2) -> Iterator[None]:
    """Hold the lock file `path`, waiting for a living owner.

    Args:
        path: lock file; created and removed here.
        on_wait: called once with a sentence that names the owner, before we wait for it.
        poll: seconds between two attempts.

    Raises:
        UserError: if the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path, poll)
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
        path.write_text(json.dumps(owner_record()))
        yield
    finally:
        _release(lock, path)
