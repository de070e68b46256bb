"""List the objects of a bucket (`s3://`) and copy those that changed into the cache; each row's location is the copy.

A copy is named by the digest of its key, because a key may be what no path can be (`../x`, `a//b`, both `a` and `a/b`).
It carries the object's time stamp: while size and time are equal, nothing is read. An object that changed shortly
before it was copied gets no such stamp, since a second change within the same second would go unseen. Objects over the
size limit are rejected by the listing, and a listing for a plan copies nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from storage.errors import UserError
from storage.locks import owner_lock
from tasks.sources.ignore import Patterns
from tasks.sources.walk import (
    EXCLUDED_FOLDERS,
    EXCLUDED_REASON,
    Filters,
    WalkedFile,
    encode_path,
    file_row,
    refuse_large,
)

N_DOWNLOADS = 8  # at once: most of the time is waiting
BATCH_OBJECTS = 1000  # that wait for a thread: a bucket may hold millions
BLOCK = 4 << 20
SETTLED_NS = 60 * 10**9  # Our clock and the server's may differ by so much.

_SAFE_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}")


@dataclass(frozen=True)
class ObjectSource:
    """Objects below a prefix.

    Attributes:
        address: `s3://bucket/prefix`, with pyarrow's options behind "?"; credentials come from the environment.
        include: Patterns for the keys below the prefix; they stand for the wildcards of the address.
    """

    address: str
    include: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if not parts.netloc:
            raise UserError(f"{self.address!r} names no bucket: write s3://bucket/prefix")
        if "@" in parts.netloc or "secret" in parts.query:
            raise UserError(
                f"the address s3://...@{parts.netloc.rpartition('@')[2]} holds credentials, which would be stored with "
                "every row: give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )

    def __str__(self) -> str:
        if not self.include:
            return self.address
        prefix, mark, query = self.address.partition("?")
        return f"{prefix}{self.include[0]}{mark}{query}"

    def root(self, cache: Path) -> ObjectRoot:
        """Open the filesystem; objects are listed and copied as the rows are asked for.

        Raises:
            UserError: The address is malformed.
        """
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        try:
            # A person writes a space or an umlaut as it is; what is already quoted stays so.
            filesystem, base = FileSystem.from_uri(quote(self.address, safe="%/:?&=@!$'()*+,;~#[]"))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot open {self.address}: {_first_line(error)}") from None
        folder = cache / "s3" / hashlib.sha256(os.fsencode(self.address)).hexdigest()[:24]
        include = Patterns(unquote(pattern) for pattern in self.include) if self.include else None
        return ObjectRoot(filesystem, base, folder, encode_path(str(self)), include)


@dataclass(frozen=True)
class ObjectRoot:
    """Objects of any pyarrow filesystem.

    Attributes:
        filesystem: Where they are.
        base: Path of their folder, or of a single object, in it.
        folder: Where the copies are kept.
        source: Address for the rows.
        include: Patterns of this root alone.
    """

    filesystem: Any
    base: str
    folder: Path
    source: str
    include: Patterns | None = None

    @property
    def name(self) -> str:
        """Return the first part of its files' paths, which is used where there are several roots."""
        return self.base.rstrip("/").rpartition("/")[2]

    @property
    def covers(self) -> tuple[str, ...]:
        """Return nothing: it holds no folder of this machine."""
        return ()

    def rows(self, label: str, filters: Filters, excluded: frozenset[str]) -> Iterator[WalkedFile | None]:
        """Yield its rows; see `tasks.sources.walk.Root`."""
        with owner_lock(self.folder / "lock") if filters.fetch else contextlib.nullcontext():
            objects = self._list()
            if filters.fetch:
                self._remove_gone({_copy_name(key) for key, info in objects if not refuse_large(info.size, filters)})
            wanted = []
            left_out: set[str] = set()
            prefix = f"{label}/" if label else ""
            for relative, info in objects:
                tool_folder = _tool_folder(relative)
                verdict = self._left_out_by(relative, filters) if relative else ""
                if tool_folder or verdict:
                    # A folder that is left out is one row, or counts once.
                    if (tool_folder or verdict) in left_out:
                        continue
                    left_out.add(tool_folder or verdict)
                if tool_folder:
                    path = prefix + encode_path(tool_folder)
                    location = f"{self.source}/{path}"
                    yield WalkedFile(path, self.source, location, status="skipped", reason=EXCLUDED_REASON)
                elif verdict:
                    yield None
                else:
                    wanted.append((relative, info))

            def row(item: tuple[str, Any]) -> WalkedFile:
                relative, info = item
                path = prefix + encode_path(relative) if relative else label or encode_path(self.name)
                return self._row(path, relative, info, filters)

            with ThreadPoolExecutor(max_workers=N_DOWNLOADS) as threads:
                for start in range(0, len(wanted), BATCH_OBJECTS):
                    yield from list(threads.map(row, wanted[start : start + BATCH_OBJECTS]))

    def _list(self) -> Sequence[tuple[str, Any]]:
        """The objects as (key below the base, its pyarrow FileInfo), sorted; the key is "" where the base is one."""
        import pyarrow as pa
        from pyarrow.fs import FileSelector, FileType

        try:
            top = self.filesystem.get_file_info(self.base)
            if top.type == FileType.File:
                return [("", top)]
            if top.type == FileType.NotFound:
                raise UserError(f"{self.source} does not exist: name a bucket and a prefix with objects")
            found = self.filesystem.get_file_info(FileSelector(self.base, recursive=True))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot list {self.source}: {_first_line(error)}") from None
        start = len(self.base.rstrip("/")) + 1 if self.base else 0
        return sorted(
            ((info.path[start:], info) for info in found if info.type == FileType.File), key=lambda item: item[0]
        )

    def _left_out_by(self, relative: str, filters: Filters) -> str:
        """The folder or key that patterns leave out, of which this key is part; "" if it is wanted."""
        parts = relative.split("/")
        included = {patterns: False for patterns in (self.include, filters.include) if patterns is not None}
        for number in range(1, len(parts) + 1):
            path, is_folder = "/".join(parts[:number]), number < len(parts)
            if filters.exclude is not None and filters.exclude.verdict(path, is_folder=is_folder):
                return path
            for patterns, above in included.items():
                verdict = patterns.verdict(path, is_folder=is_folder)
                included[patterns] = above if verdict is None else verdict
        return "" if all(included.values()) else relative

    def _row(self, path: str, relative: str, info: Any, filters: Filters) -> WalkedFile:
        copy = self.folder / _copy_name(relative)
        listed = WalkedFile(path, self.source, str(copy), info.size, info.mtime_ns or 0)
        if too_large := refuse_large(info.size, filters):
            return replace(listed, status="rejected", reason=too_large)
        status = _current_copy(copy, info, exact=filters.fetch)
        if status is None and not filters.fetch:
            state = f"{self.source}\x00{relative}\x00{info.size}\x00{info.mtime_ns}"
            return replace(listed, pending_digest=f"pending:{hashlib.sha256(os.fsencode(state)).hexdigest()}")
        if status is None:
            try:
                status = self._fetch(info, copy)
            except OSError as error:
                reason = f"object cannot be fetched: {_first_line(error)}"
                return WalkedFile(path, self.source, str(copy), status="failed", reason=reason)
        return file_row(path, self.source, str(copy), status, filters)

    def _fetch(self, info: Any, copy: Path) -> os.stat_result:
        temporary = copy.with_name(f"{copy.name}.part")
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            now = time.time_ns()
            with self.filesystem.open_input_stream(info.path) as stream, temporary.open("wb") as file:
                while block := stream.read(BLOCK):
                    file.write(block)
                size = file.tell()
            if info.mtime_ns is not None and size == info.size and info.mtime_ns < now - SETTLED_NS:
                os.utime(temporary, ns=(info.mtime_ns, info.mtime_ns))
            temporary.replace(copy)
            return copy.stat()
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise

    def _remove_gone(self, names: set[str]) -> None:
        for copy in self.folder.glob("??/*"):
            if f"{copy.parent.name}/{copy.name}" not in names:
                copy.unlink()


def _current_copy(copy: Path, info: Any, exact: bool) -> os.stat_result | None:
    """Return the state of a copy that is what the listing says of its object.

    Args:
        exact: Both time stamps must be equal. Otherwise a copy made after the object's last change is enough: good
            for a plan, although a change within the same second could have gone unseen.
    """
    try:
        status = copy.stat()
    except FileNotFoundError:
        return None
    if info.mtime_ns is None or status.st_size != info.size:
        return None
    is_current = status.st_mtime_ns == info.mtime_ns or (not exact and status.st_mtime_ns > info.mtime_ns)
    return status if is_current else None


def _copy_name(relative: str) -> str:
    """Name of the copy of an object, with a suffix for those who look at it."""
    digest = hashlib.sha256(os.fsencode(relative)).hexdigest()
    suffix = Path(relative).suffix
    return f"{digest[:2]}/{digest[2:]}{suffix if _SAFE_SUFFIX.fullmatch(suffix) else ''}"


def _tool_folder(relative: str) -> str:
    """The outermost excluded folder in a key; "" for none."""
    parts = relative.split("/")
    for number, part in enumerate(parts[:-1], 1):
        if part in EXCLUDED_FOLDERS:
            return "/".join(parts[:number])
    return ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
