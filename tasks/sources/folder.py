"""List a folder recursively: one row for every path that is not a folder, including those that cannot be read.

Only `.gitignore` files are opened and symbolic links are not followed, so that neither a FIFO nor a loop of links can
block the listing. Paths that patterns exclude have no row and are only counted.
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
# Matching takes time in proportion to the patterns; real files have a few hundred lines.
MAX_PATTERN_BYTES = 128 * 1024
MAX_PATTERN_LINES = 2000

Included = tuple[tuple[Patterns, bool], ...]  # patterns that a file must match, each with its result so far

_TO_ENCODE = re.compile("[%\udc80-\udcff]")
_SPECIAL_FILES = (
    (stat.S_ISLNK, "symbolic link, not followed"),
    (stat.S_ISFIFO, "named pipe, not a file"),
    (stat.S_ISSOCK, "socket, not a file"),
    (stat.S_ISCHR, "character device, not a file"),
    (stat.S_ISBLK, "block device, not a file"),
)


class FileState(NamedTuple):
    """Fields of a file's status that show a change."""

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
    """One path of a listing.

    Attributes:
        path: Relative to its source, with "/"; begins with the source's label if several sources are listed. "%" and
            bytes that are not UTF-8 are percent-encoded. Unique within one listing.
        source: The source's address, encoded in the same way.
        location: Absolute path, which opens the file even if its name is not UTF-8.
        state: Size in bytes, times of the last changes, and inode; zeros where unknown.
        status: "" for a file to extract, else "skipped", "rejected" or "failed".
        reason: Reason of the status.
        pending_digest: Placeholder for the digest of an object that was not downloaded; "" for a local file.
        label: The part of the path that names the source: the first component if several sources are listed, the
            whole path if the source is a file.
    """

    path: str
    source: str
    location: str  # a Path takes as much memory as the rest of the row
    state: FileState = UNKNOWN_STATE
    status: Literal["", "skipped", "rejected", "failed"] = ""
    reason: str = ""
    pending_digest: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One path of a listing, with its digest.

    Attributes:
        sha256: Digest of its bytes, or its `pending_digest`, which equals no digest of a content; None if there is a
            status.
        status: "skipped", "rejected" or "failed" if the listing decided so, else "".
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
        include: If set, only matching files and files in matching folders are listed.
        exclude: Matching files and folders are left out.
        respect_gitignore: Apply the `.gitignore` files of git work trees: folders with a `.git` that are the source
            or in it. A `.gitignore` above the source does not count: a folder that was named is wanted.
        max_bytes: Larger files are rejected by their listed size, without download or hashing.
        fetch: Download objects of buckets into the cache. Otherwise objects without a current copy get a
            `pending_digest`.
    """

    include: Patterns | None = None
    exclude: Patterns | None = None
    respect_gitignore: bool = False
    max_bytes: int | None = None
    fetch: bool = True

    def included(self, include: Patterns | None) -> Included:
        """Return the patterns that a file must match: those of its source and those of the settings."""
        return tuple((patterns, False) for patterns in (include, self.include) if patterns is not None)


def matched(included: Included, relative: str, is_folder: bool) -> Included:
    """Update the results of patterns for an entry of a folder; without a match it has the result of its parent."""
    verdicts = ((patterns, above, patterns.verdict(relative, is_folder=is_folder)) for patterns, above in included)
    return tuple((patterns, above if verdict is None else verdict) for patterns, above, verdict in verdicts)


def encode_path(path: str) -> str:
    """Percent-encode "%" and undecodable bytes of a path, which makes it valid UTF-8 and keeps it unique."""
    return _TO_ENCODE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", path)


def open_regular(path: Path) -> FileIO:
    """Open a regular file, unbuffered, without blocking if it was replaced by a FIFO since the listing.

    Raises:
        OSError: It cannot be opened, or it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            # the path is a separate argument: the stored reason must not depend on the file's location
            raise OSError(errno.EINVAL, "it is no regular file any more", str(path))
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_patterns(path: Path) -> Patterns | None:
    """Return the patterns of a file; None if it cannot be read, is not a regular file, or is too long."""
    try:
        with open_regular(path) as file:
            data = BufferedReader(file).read(MAX_PATTERN_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_PATTERN_BYTES or data.count(b"\n") > MAX_PATTERN_LINES:
        return None
    try:
        return Patterns(os.fsdecode(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    except re2.error:  # the expressions exceed the memory limit of RE2
        return None


@dataclass(slots=True)
class _Folder:
    """A folder that is still to be listed, with the patterns that apply in it.

    Attributes:
        prefix: Prefix of the paths of its entries, encoded, with "/" at the end.
        relative: Path below its source, not encoded, with "/" at the end, for patterns.
        wanted: Patterns that a file must match, with their results for the folder.
        ignores: `.gitignore` patterns of the folder and its parents, the nearest first, each with the length of
            `relative` of its folder.
        in_work_tree: Whether it belongs to a git work tree.
    """

    location: str
    prefix: str
    relative: str
    wanted: Included
    ignores: tuple[tuple[Patterns, int], ...] = ()
    in_work_tree: bool = False

    def enter(self, entries: list[os.DirEntry[str]]) -> None:
        """Read the folder's `.gitignore`."""
        names = {entry.name for entry in entries if entry.name in (".git", ".gitignore")}
        if ".git" in names:
            self.in_work_tree = True
            self.ignores = ()  # a nested repository has its own
        if self.in_work_tree and ".gitignore" in names:
            patterns = read_patterns(Path(self.location, ".gitignore"))
            if patterns:
                self.ignores = ((patterns, len(self.relative)), *self.ignores)

    def ignored_by_git(self, relative: str, is_folder: bool) -> bool:
        """Return True if the nearest `.gitignore` with a match ignores the path."""
        for patterns, start in self.ignores:
            verdict = patterns.verdict(relative[start:], is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False


@dataclass(frozen=True)
class FolderSource:
    """A local folder or file.

    Attributes:
        path: Absolute path.
        include: Patterns for the files in it, from the wildcards of the address.
    """

    path: Path
    include: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.path) + (self.include[0] if self.include else "")

    @property
    def name(self) -> str:
        """Return the first component of its paths, which is used if there are several sources."""
        return self.path.name

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Yield the rows; see `tasks.sources.address.Source`."""
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
        else:  # the source itself is a file: no pattern applies
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
    """Yield the rows of a folder, with None for each path that patterns exclude.

    Args:
        path: The folder, absolute.
        source: Address for the rows.
        prefix: Prefix of the paths, encoded, with "/" at the end; "" for none.
        excluded: Absolute paths of folders to skip without a row.
        include: Patterns that a file must match in addition to those of the filters.
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
    """Return the reason to reject a file of this size in bytes; "" if it is within the limit."""
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
