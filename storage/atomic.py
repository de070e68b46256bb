"""Atomic, durable writes: readers see the old state or the new one, also after a kill or a power failure.

The order is: write a temporary file next to the target, fsync it, rename it, fsync the folder. The parents of a new
folder are synced too, because its content would be lost with its directory entry.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

GONE = (FileNotFoundError, NotADirectoryError)


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of a file, or None if it is gone."""
    try:
        return path.read_bytes()
    except GONE:
        return None


def fsync_path(path: Path) -> None:
    """Flush a file's bytes, or a folder's directory entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush `folder` and every file and folder below it to the disk."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would skip a folder it cannot list, and its files would not be flushed

    for root, _, files in os.walk(folder, topdown=False, onerror=refuse):
        for name in files:
            fsync_path(Path(root, name))
        fsync_path(Path(root))


def _fsync_names(folder: Path, top: Path) -> None:
    """Flush the directory entries of `folder` and of its parents up to `top`."""
    for place in (folder, *folder.parents):
        fsync_path(place)
        if place == top:
            return


def make_folder(folder: Path, top: Path) -> None:
    """Create a folder and its parents up to `top` durably; existing ones are left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    _fsync_names(folder.parent, top)


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write `data` to `path` atomically.

    Args:
        mode: permissions, set before anything is written; None for the default of the process.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as handle:
            if mode is not None:
                os.fchmod(handle.fileno(), mode)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def publish(source: Path, target: Path, discard: Path) -> None:
    """Rename the complete folder `source` to `target`, durably.

    Args:
        source: a folder on the same file system.
        target: the final path; a folder that exists there is moved to `discard` first.
        discard: a free path in an existing folder, for the replaced folder; the caller deletes it.
    """
    top = Path(os.path.commonpath([source, target, discard]))
    fsync_tree(source)
    make_folder(target.parent, top)
    replacing = target.exists()
    if replacing:
        for parent in {source.parent, discard.parent}:  # between the renames only these entries lead to the two folders
            _fsync_names(parent, top)
        target.rename(discard)
    try:
        source.rename(target)
    except OSError:
        if replacing:
            discard.rename(target)  # a failed rename must not lose the replaced folder
        raise
    fsync_path(target.parent)
    fsync_path(source.parent)


def finish_publish(source: Path, target: Path, discard: Path) -> None:
    """Complete a `publish` that was killed between its renames: only `source` and `discard` exist then."""
    if discard.exists() and source.exists() and not target.exists():
        source.rename(target)
        fsync_path(target.parent)
