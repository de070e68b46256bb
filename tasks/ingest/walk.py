"""Walks folders: every path that is not a folder gets a row, also those that cannot or must not be read.

Nothing is opened and no symbolic link is followed, so that a FIFO cannot block the walk and a loop cannot
trap it. The order is that of the paths, not of the file system, which makes two walks over the same files
equal.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EXCLUDED_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".sheepfold",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    }
)

_TO_ENCODE = re.compile("[%\udc80-\udcff]")
_SPECIAL_FILES = (
    (stat.S_ISLNK, "symbolic link, not followed"),
    (stat.S_ISFIFO, "named pipe, not a file"),
    (stat.S_ISSOCK, "socket, not a file"),
    (stat.S_ISCHR, "character device, not a file"),
    (stat.S_ISBLK, "block device, not a file"),
)


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """One path that was seen.

    Attributes:
        path: Relative to its source, with "/"; begins with the source's name where several sources are
            walked. "%" and bytes that are not UTF-8 are percent-encoded. Unique within one walk.
        source: The source's absolute path, encoded in the same way.
        absolute: Where it lies; opens the file even if its name is not UTF-8.
        size: In bytes; 0 where unknown.
        mtime_ns: Time of the last change in nanoseconds; 0 where unknown.
        status: "" for a file to extract, else "skipped" or "failed".
        reason: Why it is skipped or failed.
    """

    path: str
    source: str
    absolute: Path
    size: int
    mtime_ns: int
    status: Literal["", "skipped", "failed"] = ""
    reason: str = ""


def walk(sources: Sequence[Path], exclude: Sequence[Path] = ()) -> list[WalkedFile]:
    """Lists everything under the sources.

    Args:
        sources: Folders, or single files. They may overlap: no file is listed twice.
        exclude: Folders that are passed over without a row, such as the program's own.

    Returns:
        One row for each path that is not a folder, for each folder that is left out (see `EXCLUDED_FOLDERS`)
        and for each that cannot be read; sorted by path.

    Raises:
        FileNotFoundError: A source does not exist.
    """
    roots = _resolve(sources)
    excluded = {folder.resolve() for folder in exclude}
    labels = _labels(roots) if len(roots) > 1 else [""] * len(roots)
    seen: set[Path] = set()
    rows: list[WalkedFile] = []
    for root, label in zip(roots, labels, strict=True):
        for row in _walk_root(root, label, excluded):
            if row.absolute not in seen:
                seen.add(row.absolute)
                rows.append(row)
    # A folder left out by one source may be, or hold, another source: then its row would say what is not
    # true.
    walked_folders = {folder for root in roots for folder in (root, *root.parents)}
    return sorted(
        (row for row in rows if not (row.reason == "excluded folder" and row.absolute in walked_folders)),
        key=lambda row: row.path,
    )


def encode_path(path: str) -> str:
    """Returns a path with "%" and undecodable bytes percent-encoded: valid UTF-8, and still unique."""
    return _TO_ENCODE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", path)


def _resolve(sources: Sequence[Path]) -> list[Path]:
    """The sources as absolute paths, each once, in an order that does not depend on how they were given."""
    roots = set()
    for source in sources:
        try:
            # A source may itself be a link: somebody named it on purpose.
            roots.add(source.expanduser().resolve(strict=True))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"source {str(source)!r} does not exist (looked in {Path.cwd()}); name a folder or a file"
            ) from None
    return sorted(roots)


def _labels(roots: Sequence[Path]) -> list[str]:
    """A distinct first part of the path for each source: its name, numbered where two are called the same."""
    labels: list[str] = []
    for root in roots:
        label, number = root.name or "root", 1
        while label in labels:
            number += 1
            label = f"{root.stem}-{number}{root.suffix}"
        labels.append(label)
    return labels


def _walk_root(root: Path, label: str, excluded: set[Path]) -> Iterator[WalkedFile]:
    """The rows of one source."""
    source = encode_path(str(root))
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode):
        yield _row(encode_path(label or root.name), source, root, status)
        return
    pending = [root]
    while pending:
        folder = pending.pop()
        if folder in excluded:
            continue
        prefix = encode_path(str(Path(label, folder.relative_to(root))))
        if folder != root and folder.name in EXCLUDED_FOLDERS:
            yield WalkedFile(prefix, source, folder, 0, 0, "skipped", "excluded folder")
            continue
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            reason = f"folder cannot be read: {error.strerror}"
            yield WalkedFile(prefix, source, folder, 0, 0, "failed", reason)
            continue
        for name in names:
            path = folder / name
            row_path = encode_path(name) if prefix == "." else f"{prefix}/{encode_path(name)}"
            try:
                status = path.lstat()
            except OSError as error:
                yield WalkedFile(row_path, source, path, 0, 0, "failed", f"cannot be examined: {error.strerror}")
                continue
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            else:
                yield _row(row_path, source, path, status)


def _row(path: str, source: str, absolute: Path, status: os.stat_result) -> WalkedFile:
    """The row of a path that is not a folder."""
    for is_special, reason in _SPECIAL_FILES:
        if is_special(status.st_mode):
            return WalkedFile(path, source, absolute, 0, status.st_mtime_ns, "skipped", reason)
    return WalkedFile(path, source, absolute, status.st_size, status.st_mtime_ns)
