"""Walks folders: every path that is not a folder gets a row, also those that cannot or must not be read.

No file is opened but `.gitignore`, and no symbolic link is followed, so that a FIFO cannot block the walk and a loop
cannot trap it. The order is that of the paths, not of the file system, which makes two walks over the same files
equal. What patterns leave out has no row, since that is what was asked for; it is counted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tasks.sources.ignore import Patterns, read_patterns

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
EXCLUDED_REASON = "excluded folder"

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
        source: The source's address, encoded in the same way.
        location: Where it lies, absolute; opens the file even if its name is not UTF-8.
        size: In bytes; 0 where unknown.
        mtime_ns: Time of the last change in nanoseconds; 0 where unknown.
        ctime_ns: Time of the last change of content, name, or rights; 0 where unknown.
        inode: Its number in the file system; 0 where unknown.
        status: "" for a file to extract, else "skipped", "rejected" or "failed".
        reason: Why it is not extracted.
        pending_digest: Placeholder for the digest of an object that was not fetched; "" for a file that is at hand.
    """

    path: str
    source: str
    location: str  # no Path: that takes as much memory as the rest of the row
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    status: Literal["", "skipped", "rejected", "failed"] = ""
    reason: str = ""
    pending_digest: str = ""

    @property
    def absolute(self) -> Path:
        """Where it lies, as a path."""
        return Path(self.location)


@dataclass(frozen=True)
class Walk:
    """Result of a walk.

    Attributes:
        files: One row per path, sorted by path.
        n_ignored: Files and whole folders that patterns or a `.gitignore` left out.
    """

    files: list[WalkedFile]
    n_ignored: int


@dataclass(frozen=True)
class Filters:
    """Which paths are listed, and which of them are read.

    Attributes:
        include: If set, only files are listed that it takes, or that lie in a folder that it takes.
        exclude: What it takes is left out, a folder with all that is in it.
        respect_gitignore: Whether the `.gitignore` files of a git work tree leave out what they name. A work tree is
            a folder that has a `.git`, and is the source or lies in it. A `.gitignore` in a folder above the source
            does not count: who names a folder within a repository wants that folder.
        max_bytes: Larger files are rejected by their listed size: neither fetched nor hashed.
        fetch: Copy objects of buckets into the cache. Without it nothing is downloaded from a bucket, and objects
            without a current copy get a `pending_digest`.
    """

    include: Patterns | None = None
    exclude: Patterns | None = None
    respect_gitignore: bool = False
    max_bytes: int | None = None
    fetch: bool = True


EVERYTHING = Filters()


class Root(Protocol):
    """Something that holds files: a folder, a repository's tree, the objects of a bucket."""

    @property
    def name(self) -> str:
        """Return the first part of its files' paths, which is used where there are several roots."""

    @property
    def covers(self) -> tuple[str, ...]:
        """Return the folders that are walked for it: the one it is, and those above."""

    def rows(self, label: str, filters: Filters, excluded: frozenset[str]) -> Iterator[WalkedFile | None]:
        """Yield its rows, with None for each path that patterns leave out.

        Args:
            label: First part of the paths, encoded; "" for none.
            filters: Which paths are wanted.
            excluded: Locations of folders to pass over without a row.
        """


def walk_roots(roots: Sequence[Root], exclude: Sequence[Path] = (), filters: Filters = EVERYTHING) -> Walk:
    """Lists everything under roots that filters want.

    Args:
        roots: In an order that does not depend on how they were given: where they overlap, the first has the file.
        exclude: Folders that are passed over without a row, such as the program's own.
        filters: Which paths are wanted.
    """
    excluded = frozenset(str(folder.resolve()) for folder in exclude)
    names = _labels([root.name for root in roots]) if len(roots) > 1 else [""] * len(roots)
    files: list[WalkedFile] = []
    seen: set[str] = set()
    n_ignored = 0
    for root, name in zip(roots, names, strict=True):
        for row in root.rows(encode_path(name), filters, excluded):
            if row is None:
                n_ignored += 1
            elif len(roots) == 1:
                files.append(row)
            elif row.location not in seen:
                seen.add(row.location)
                files.append(row)
    # A folder left out by one source may be, or hold, another source: then its row would say what is not true.
    covered = {location for root in roots for location in root.covers}
    files = [row for row in files if row.reason != EXCLUDED_REASON or row.location not in covered]
    files.sort(key=lambda row: row.path)
    return Walk(files, n_ignored)


def encode_path(path: str) -> str:
    """Return a path with "%" and undecodable bytes percent-encoded: valid UTF-8, and still unique."""
    return _TO_ENCODE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", path)


def _labels(names: Sequence[str]) -> list[str]:
    """A distinct first part of the path for each source: its name, numbered where two are called the same."""
    labels: list[str] = []
    for name in names:
        label, number = name or "root", 1
        while label in labels:
            number += 1
            label = f"{Path(name).stem}-{number}{Path(name).suffix}"
        labels.append(label)
    return labels


class _Folder:
    """A folder that is still to be walked, and which rules apply in it.

    Attributes:
        location: Where it lies.
        prefix: What the paths of its entries begin with, encoded, with "/" at the end.
        relative: The same below its source, not encoded, for patterns.
        wanted: Patterns that a file must match, and whether a folder above already did.
        ignores: `.gitignore` files of it and of the folders above, the nearest first, each with the length of
            `relative` where it lies.
        in_work_tree: Whether it belongs to a git work tree.
    """

    __slots__ = ("ignores", "in_work_tree", "location", "prefix", "relative", "wanted")

    def __init__(
        self,
        location: str,
        prefix: str,
        relative: str,
        wanted: tuple[tuple[Patterns, bool], ...],
        ignores: tuple[tuple[Patterns, int], ...] = (),
        in_work_tree: bool = False,
    ) -> None:
        self.location = location
        self.prefix = prefix
        self.relative = relative
        self.wanted = wanted
        self.ignores = ignores
        self.in_work_tree = in_work_tree

    def enter(self, entries: list[os.DirEntry[str]]) -> None:
        """Take up the `.gitignore` that lies in it."""
        names = {entry.name for entry in entries if entry.name in (".git", ".gitignore")}
        if ".git" in names:
            self.in_work_tree = True
            self.ignores = ()  # a repository within another one has its own rules
        if self.in_work_tree and ".gitignore" in names:
            patterns = read_patterns(Path(self.location, ".gitignore"))
            if patterns:
                self.ignores = ((patterns, len(self.relative)), *self.ignores)

    def ignored_by_git(self, relative: str, is_folder: bool) -> bool:
        """Whether the nearest `.gitignore` that names a path leaves it out."""
        for patterns, start in self.ignores:
            verdict = patterns.verdict(relative[start:], is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False

    def matched(self, relative: str, is_folder: bool) -> tuple[tuple[Patterns, bool], ...]:
        """`wanted` as it is for one of its entries."""
        matched = []
        for patterns, above in self.wanted:
            verdict = patterns.verdict(relative, is_folder=is_folder)
            matched.append((patterns, above if verdict is None else verdict))
        return tuple(matched)


@dataclass(frozen=True)
class FolderRoot:
    """A folder, or a single file, of the local file system.

    Attributes:
        path: Where it lies, absolute.
        source: Address for its rows; by default its path.
        called: Name for its rows; by default that of its path.
        within: What paths begin with, below the name, such as the folder of a repository; with "/" at the end.
        include: Patterns of this root alone; they apply besides those of the filters.
        extra: Paths that are no files here, with the reasons, such as a repository's submodules.
    """

    path: Path
    source: str = ""
    called: str = ""
    within: str = ""
    include: Patterns | None = None
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Return the first part of its files' paths, which is used where there are several roots."""
        return self.called or self.path.name

    @property
    def covers(self) -> tuple[str, ...]:
        """Return the folders that are walked for it: the one it is, and those above."""
        return tuple(str(folder) for folder in (self.path, *self.path.parents))

    def rows(self, label: str, filters: Filters, excluded: frozenset[str]) -> Iterator[WalkedFile | None]:
        """Yield its rows; see `Root`."""
        source = self.source or encode_path(str(self.path))
        try:
            status = self.path.lstat()
        except OSError as error:
            yield _unreadable(label or encode_path(self.name), source, str(self.path), error)
            return
        if not stat.S_ISDIR(status.st_mode):
            # Named itself: no pattern applies.
            yield file_row(label or encode_path(self.name), source, str(self.path), status, filters)
            return
        within = f"{label}/{self.within}" if label else self.within
        for path, reason in self.extra:
            yield WalkedFile(within + path, source, f"{self.path}/{path}", status="skipped", reason=reason)
        wanted = tuple((patterns, False) for patterns in (self.include, filters.include) if patterns is not None)
        pending = [] if str(self.path) in excluded else [_Folder(str(self.path), within, "", wanted)]
        while pending:
            yield from _walk_folder(pending.pop(), source, filters, excluded, pending)


def _walk_folder(
    folder: _Folder, source: str, filters: Filters, excluded: frozenset[str], pending: list[_Folder]
) -> Iterator[WalkedFile | None]:
    """The rows of one folder; the folders in it are added to `pending`."""
    try:
        with os.scandir(folder.location) as scan:
            entries = list(scan)
    except OSError as error:
        reason = f"folder cannot be read: {error.strerror}"
        path = folder.prefix.removesuffix("/") or "."
        yield WalkedFile(path, source, folder.location, status="failed", reason=reason)
        return
    if filters.respect_gitignore:
        folder.enter(entries)
    for entry in entries:
        name, location = entry.name, entry.path
        path = folder.prefix + encode_path(name)
        relative = folder.relative + name
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            status = None if is_folder else entry.stat(follow_symlinks=False)
        except OSError as error:
            yield _unreadable(path, source, location, error)
            continue
        if is_folder and location in excluded:
            continue
        if is_folder and name in EXCLUDED_FOLDERS:
            yield WalkedFile(path, source, location, status="skipped", reason=EXCLUDED_REASON)
            continue
        if folder.ignores and folder.ignored_by_git(relative, is_folder):
            yield None
            continue
        if filters.exclude is not None and filters.exclude.verdict(relative, is_folder=is_folder):
            yield None
            continue
        wanted = folder.matched(relative, is_folder) if folder.wanted else ()
        if status is None:
            pending.append(_Folder(location, f"{path}/", f"{relative}/", wanted, folder.ignores, folder.in_work_tree))
        elif all(match for _, match in wanted):
            yield file_row(path, source, location, status, filters)
        else:
            yield None


def refuse_large(size: int, filters: Filters) -> str:
    """Return why a file of this size is rejected; "" if it is not. Hashing a terabyte of holes takes an hour."""
    if filters.max_bytes is None or size <= filters.max_bytes:
        return ""
    return f"the file has {size} bytes; the limit is {filters.max_bytes} (extract.max_file_bytes)"


def file_row(path: str, source: str, location: str, status: os.stat_result, filters: Filters) -> WalkedFile:
    """Return the row of a path that is not a folder."""
    mode, size, mtime_ns = status.st_mode, status.st_size, status.st_mtime_ns
    if stat.S_ISREG(mode):
        reason = refuse_large(size, filters)
        times = mtime_ns, status.st_ctime_ns, status.st_ino
        return WalkedFile(path, source, location, size, *times, "rejected" if reason else "", reason)
    reason = next((reason for is_special, reason in _SPECIAL_FILES if is_special(mode)), "")
    return WalkedFile(path, source, location, 0, mtime_ns, status="skipped", reason=reason or "not a regular file")


def _unreadable(path: str, source: str, location: str, error: OSError) -> WalkedFile:
    return WalkedFile(path, source, location, status="failed", reason=f"cannot be examined: {error.strerror}")
