"""Walk a folder: every path that is not a folder gets a row, also those that cannot or must not be read.

No file is opened but `.gitignore`, and no symbolic link is followed, so that a FIFO cannot block the walk and a loop
cannot trap it. The order is that of the paths, not of the file system, which makes two walks over the same files
equal. What patterns leave out has no row, since that is what was asked for; it is counted.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Literal, NamedTuple

import re2

from storage.errors import UserError
from tasks.sources.ignore import Patterns

_TOOLS = ".git .hg .mypy_cache .nox .pytest_cache .ruff_cache .sheepfold .svn .tox .venv __pycache__ node_modules venv"
EXCLUDED_FOLDERS = frozenset(_TOOLS.split())
EXCLUDED_REASON = "excluded folder"
LARGEST_INTEGER = 2**63 - 1  # SQLite's integers are signed; some file systems number inodes up to 2**64.
# A path costs time in proportion to the patterns; files in use have a few hundred lines.
MAX_PATTERN_BYTES = 128 * 1024
MAX_PATTERN_LINES = 2000

Included = tuple[tuple[Patterns, bool], ...]  # patterns that a file must match, and whether it or one above it does

_TO_ENCODE = re.compile("[%\udc80-\udcff]")
_SPECIAL_FILES = (
    (stat.S_ISLNK, "symbolic link, not followed"),
    (stat.S_ISFIFO, "named pipe, not a file"),
    (stat.S_ISSOCK, "socket, not a file"),
    (stat.S_ISCHR, "character device, not a file"),
    (stat.S_ISBLK, "block device, not a file"),
)


class FileState(NamedTuple):
    """State of a file that differs after a change."""

    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state in a stat result."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & LARGEST_INTEGER)


UNKNOWN_STATE = FileState()


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """One path that was seen.

    Attributes:
        path: Relative to its source, with "/"; begins with the source's name where several sources are
            walked. "%" and bytes that are not UTF-8 are percent-encoded. Unique within one walk.
        source: The source's address, encoded in the same way.
        location: Where it lies, absolute; opens the file even if its name is not UTF-8.
        state: Its size in bytes, times of its last changes, and number in the file system; zeros where unknown.
        status: "" for a file to extract, else "skipped", "rejected" or "failed".
        reason: Why it is not extracted.
        pending_digest: Placeholder for the digest of an object that was not fetched; "" for a file that is at hand.
        label: What of the path stands for the source: its first part where several sources are walked, the whole path
            of a source that is a file.
    """

    path: str
    source: str
    location: str  # no Path: that takes as much memory as the rest of the row
    state: FileState = UNKNOWN_STATE
    status: Literal["", "skipped", "rejected", "failed"] = ""
    reason: str = ""
    pending_digest: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One path of a walk, with its content.

    Attributes:
        sha256: Digest of its bytes, or its `pending_digest`, which equals no known content; None where there is a
            status.
        status: Set where the walk itself decided (`skipped`, `rejected`, `failed`), else empty.
    """

    path: str
    source: str
    label: str
    size: int
    sha256: str | None
    suffix: str
    status: str
    reason: str


@dataclass(frozen=True)
class Filters:
    """Selection of the paths that are listed, and of those that are read.

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

    def included(self, include: Patterns | None) -> Included:
        """Return the patterns that a file must match, of which some are those of its source."""
        return tuple((patterns, False) for patterns in (include, self.include) if patterns is not None)


def matched(included: Included, relative: str, is_folder: bool) -> Included:
    """Return the patterns as they are for an entry of a folder: the last one on its way that says something counts."""
    verdicts = ((patterns, above, patterns.verdict(relative, is_folder=is_folder)) for patterns, above in included)
    return tuple((patterns, above if verdict is None else verdict) for patterns, above, verdict in verdicts)


def encode_path(path: str) -> str:
    """Return a path with "%" and undecodable bytes percent-encoded: valid UTF-8, and still unique."""
    return _TO_ENCODE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", path)


def open_regular(path: Path) -> FileIO:
    """Open a file, unbuffered; what was a file a moment ago may be a FIFO now, on which opening does not block.

    Raises:
        OSError: It cannot be opened, or it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            # The path apart from the words: what is kept of a document must not depend on where its file lies.
            raise OSError(errno.EINVAL, "it is no regular file any more", str(path))
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_patterns(path: Path) -> Patterns | None:
    """Return the patterns of a file; None where it cannot be read, is no regular file, or is too long.

    The files below are walked then, which loses nothing.
    """
    try:
        with open_regular(path) as file:
            data = BufferedReader(file).read(MAX_PATTERN_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_PATTERN_BYTES or data.count(b"\n") > MAX_PATTERN_LINES:
        return None
    try:
        return Patterns(os.fsdecode(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    except re2.error:  # the expressions need more memory than RE2 is given
        return None


@dataclass(slots=True)
class _Folder:
    """A folder that is still to be walked, and which rules apply in it.

    Attributes:
        prefix: What the paths of its entries begin with, encoded, with "/" at the end.
        relative: The same below its source, not encoded, for patterns.
        wanted: Patterns that a file must match, as they are for the folder.
        ignores: `.gitignore` files of it and of the folders above, the nearest first, each with the length of
            `relative` where it lies.
        in_work_tree: Whether it belongs to a git work tree.
    """

    location: str
    prefix: str
    relative: str
    wanted: Included
    ignores: tuple[tuple[Patterns, int], ...] = ()
    in_work_tree: bool = False

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
        """Return True if the nearest `.gitignore` that names a path leaves it out."""
        for patterns, start in self.ignores:
            verdict = patterns.verdict(relative[start:], is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False


@dataclass(frozen=True)
class FolderSource:
    """A folder or a file of this machine.

    Attributes:
        path: Where it is, absolute.
        include: Patterns for the files in it; they stand for the wildcards of the address.
    """

    path: Path
    include: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.path) + (self.include[0] if self.include else "")

    @property
    def name(self) -> str:
        """Return the first part of its files' paths, which is used where there are several sources."""
        return self.path.name

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Yield its rows; see `tasks.sources.address.Source`."""
        source = encode_path(str(self.path))
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            raise UserError(
                f"source {str(self.path)!r} does not exist: name a folder or a file with documents"
            ) from None
        except OSError as error:
            yield _unreadable(label or encode_path(self.name), source, str(self.path), error)
            return
        if stat.S_ISDIR(status.st_mode):
            include = Patterns(self.include) if self.include else None
            yield from walk_folder(self.path, source, f"{label}/" if label else "", filters, excluded, include)
        else:  # Named itself: no pattern applies.
            name = label or encode_path(self.name)
            yield replace(file_row(name, source, str(self.path), status, filters), label=name)


def walk_folder(
    path: Path,
    source: str,
    prefix: str,
    filters: Filters,
    excluded: frozenset[str] = frozenset(),
    include: Patterns | None = None,
) -> Iterator[WalkedFile | None]:
    """Yield the rows of a folder, with None for each path that patterns leave out.

    Args:
        path: The folder, absolute.
        source: Address for the rows.
        prefix: First part of the paths, encoded, with "/" at the end; "" for none.
        excluded: Locations of folders to pass over without a row.
        include: Patterns of this folder alone; they apply besides those of the filters.
    """
    pending = [] if str(path) in excluded else [_Folder(str(path), prefix, "", filters.included(include))]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder.location) as scan:
                entries = list(scan)
        except OSError as error:
            reason = f"folder cannot be read: {error.strerror}"
            top = folder.prefix.removesuffix("/") or "."
            yield WalkedFile(top, source, folder.location, status="failed", reason=reason)
            continue
        if filters.respect_gitignore:
            folder.enter(entries)
        for entry in entries:
            name, location = entry.name, entry.path
            encoded = folder.prefix + encode_path(name)
            relative = folder.relative + name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                status = None if is_folder else entry.stat(follow_symlinks=False)
            except OSError as error:
                yield _unreadable(encoded, source, location, error)
                continue
            if is_folder and location in excluded:
                continue
            if is_folder and name in EXCLUDED_FOLDERS:
                yield WalkedFile(encoded, source, location, status="skipped", reason=EXCLUDED_REASON)
                continue
            excluded_by_pattern = filters.exclude is not None and filters.exclude.verdict(relative, is_folder=is_folder)
            if excluded_by_pattern or folder.ignored_by_git(relative, is_folder):
                yield None
                continue
            wanted = matched(folder.wanted, relative, is_folder)
            if status is None:
                pending.append(
                    _Folder(location, f"{encoded}/", f"{relative}/", wanted, folder.ignores, folder.in_work_tree)
                )
            elif all(match for _, match in wanted):
                yield file_row(encoded, source, location, status, filters)
            else:
                yield None


def refuse_large(size: int, filters: Filters) -> str:
    """Return why a file of this size is rejected; "" if it is not. Hashing a terabyte of holes takes an hour."""
    if filters.max_bytes is None or size <= filters.max_bytes:
        return ""
    return f"the file has {size} bytes; the limit is {filters.max_bytes} (extract.max_file_bytes)"


def file_row(path: str, source: str, location: str, status: os.stat_result, filters: Filters) -> WalkedFile:
    """Return the row of a path that is not a folder."""
    if stat.S_ISREG(status.st_mode):
        reason = refuse_large(status.st_size, filters)
        return WalkedFile(path, source, location, FileState.of(status), "rejected" if reason else "", reason)
    reason = next((reason for is_special, reason in _SPECIAL_FILES if is_special(status.st_mode)), "not a regular file")
    return WalkedFile(path, source, location, status="skipped", reason=reason)


def _unreadable(path: str, source: str, location: str, error: OSError) -> WalkedFile:
    return WalkedFile(path, source, location, status="failed", reason=f"cannot be examined: {error.strerror}")
