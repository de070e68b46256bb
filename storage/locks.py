"""Owner locks: one process at a time works on one artefact.

The kernel holds the lock (`flock`), so it falls with its owner however that dies: nothing is ever left locked by a
process that is gone, and nobody has to guess whether an owner still lives. The file's text (host, pid, process start)
is for the person who asks who works there.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def _process_start() -> str:
    """When this process started, in the kernel's ticks; empty where /proc is not at hand."""
    try:
        return Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def owner_record() -> dict[str, str | int]:
    """Who we are, for others to read."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process_start": _process_start()}


def _open_locked(path: Path) -> int | None:
    """Open and lock `path`; None when another owner holds it.

    The name may be unlinked by an owner between our open and our lock; then the lock we got is on a file nobody can
    find any more, and we look again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
            except FileNotFoundError:
                pass  # unlinked by its last owner: try again with the new file
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def read_owner(path: Path) -> str:
    """The owner of a lock in words."""
    try:
        record = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        record = {}
    return f"process {record.get('pid', '?')} on {record.get('host', '?')}"


def is_held(path: Path) -> bool:
    """Whether a living owner holds the lock named `path`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def owner_lock(path: Path, on_wait: Callable[[str], None] | None = None, poll: float = 0.2) -> Iterator[None]:
    """Hold the lock named `path`, waiting for a living owner.

    Args:
        path: lock file; made and removed here.
        on_wait: told once, in words, whom we wait for.
        poll: seconds between two looks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_locked(path)
    if descriptor is None and on_wait is not None:
        on_wait(f"waiting for {read_owner(path)}, which works on {path.stem}")
    while descriptor is None:
        time.sleep(poll)
        descriptor = _open_locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner_record()).encode())
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)  # even if the name cannot go: else this process would wait for itself at a retry
