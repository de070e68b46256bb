"""Durable writes: a reader sees the old state or the new one, after a kill or a power failure at any moment.

The order is always the same: write beside the target, fsync, rename, fsync the folder that holds the name. A new folder
is forced to the disk in the same way: what lies in it would be lost with its name.
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
    """Force a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Force every file and folder below `folder`, and `folder` itself, to the disk."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would pass over a folder it cannot list, and its files would not be forced to the disk

    for root, _, files in os.walk(folder, topdown=False, onerror=refuse):
        for name in files:
            fsync_path(Path(root, name))
        fsync_path(Path(root))


def _fsync_names(folder: Path, top: Path) -> None:
    """Force the names in `folder` and in its parents up to `top` to the disk."""
    for place in (folder, *folder.parents):
        fsync_path(place)
        if place == top:
            return


def make_folder(folder: Path, top: Path) -> None:
    """Make a folder and its parents up to `top`, durably; harmless if they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    _fsync_names(folder.parent, top)


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace `path` by `data` in one step.

    Args:
        mode: permissions, set before anything is written; by default those of every new file.
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
    """Give the finished folder `source` its final name `target`.

    Args:
        source: a complete folder on the same file system.
        target: the name readers look for; a folder of this name is moved to `discard` first.
        discard: a free name, in an existing folder, for the replaced folder; the caller deletes it.
    """
    top = Path(os.path.commonpath([source, target, discard]))
    fsync_tree(source)
    make_folder(target.parent, top)
    replacing = target.exists()
    if replacing:
        for parent in {source.parent, discard.parent}:  # between the renames nothing else leads to the two folders
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
    """Complete a `publish` of these folders that was killed after its first rename.

    In that state the final name is free, and both other folders exist and are complete.
    """
    if discard.exists() and source.exists() and not target.exists():
        source.rename(target)
        fsync_path(target.parent)
