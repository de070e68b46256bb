"""List the objects of a bucket (`s3://`) and download those that changed into the cache.

A copy is named by the digest of its key, because a key may not be a valid path (`../x`, `a//b`, both `a` and `a/b`). It
has the object's time stamp and is current while size and time are equal. The copy of an object that changed shortly
before the download has no such time stamp, since a second change within the same second would be missed. Objects over
the size limit are rejected by the listing, and `plan` downloads nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from storage.errors import UserError
from storage.locks import owner_lock
from tasks.sources.folder import (
    EXCLUDED_FOLDERS,
    EXCLUDED_REASON,
    FileState,
    Filters,
    WalkedFile,
    encode_path,
    file_row,
    matched,
    refuse_large,
)
from tasks.sources.ignore import Patterns

N_DOWNLOADS = 8  # threads, which mostly wait for the server
BATCH_OBJECTS = 1000  # queued at a time: a bucket may have millions
BLOCK = 4 << 20
SETTLED_NS = 60 * 10**9  # allowed difference between the local clock and the server's

_SAFE_SUFFIX = re.compile(r"\.[A-Za-z0-9+]{1,16}")


@dataclass(frozen=True)
class ObjectSource:
    """Objects below a prefix.

    Attributes:
        address: `s3://bucket/prefix`, with pyarrow's options after "?"; credentials come from the environment.
        include: Patterns for the keys below the prefix, from the wildcards of the address.
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

    @property
    def name(self) -> str:
        """Return the first component of its paths, which is used if there are several sources."""
        return unquote(self.address.partition("?")[0]).rstrip("/").rpartition("/")[2]

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Download changed objects and yield the rows; see `tasks.sources.address.Source`.

        Raises:
            UserError: The address is malformed, or its objects cannot be listed.
        """
        filesystem, base = open_bucket(self.address)
        folder = cache / "s3" / hashlib.sha256(os.fsencode(self.address)).hexdigest()[:24]
        source, prefix = encode_path(str(self)), f"{label}/" if label else ""
        include = Patterns(unquote(pattern) for pattern in self.include) if self.include else None
        with owner_lock(folder / "lock") if filters.fetch else contextlib.nullcontext():
            objects = _list(filesystem, base, source)
            if filters.fetch:
                kept = {_copy_name(key or info.path) for key, info in objects if not refuse_large(info.size, filters)}
                for copy in folder.glob("??/*"):
                    if f"{copy.parent.name}/{copy.name}" not in kept:
                        copy.unlink()
            wanted = []
            left_out: set[str] = set()
            for relative, info in objects:
                above, reason = _left_out(relative, filters, include) if relative else ("", "")
                if not above:
                    wanted.append((relative, info))
                elif above not in left_out:  # one row, or one count, per folder
                    left_out.add(above)
                    path = prefix + encode_path(above)
                    skipped = WalkedFile(path, source, f"{source}/{path}", status="skipped", reason=reason)
                    yield skipped if reason else None

            def row(item: tuple[str, Any]) -> WalkedFile:
                relative, info = item
                path = prefix + encode_path(relative) if relative else label or encode_path(self.name)
                copy = folder / _copy_name(relative or info.path)
                own = "" if relative else path  # the source is the object
                listed = WalkedFile(path, source, str(copy), FileState(info.size), label=own)
                if too_large := refuse_large(info.size, filters):
                    return replace(listed, status="rejected", reason=too_large)
                status = _current_copy(copy, info, exact=filters.fetch)
                if status is None and not filters.fetch:
                    state = f"{source}\x00{relative}\x00{info.size}\x00{info.mtime_ns}"
                    return replace(listed, pending_digest=f"pending:{hashlib.sha256(os.fsencode(state)).hexdigest()}")
                try:
                    status = status or _fetch(filesystem, info, copy)
                except OSError as error:
                    reason = f"object cannot be fetched: {_first_line(error)}"
                    return WalkedFile(path, source, str(copy), status="failed", reason=reason, label=own)
                return replace(file_row(path, source, str(copy), status, filters), label=own)

            with ThreadPoolExecutor(max_workers=N_DOWNLOADS) as threads:
                for start in range(0, len(wanted), BATCH_OBJECTS):
                    yield from list(threads.map(row, wanted[start : start + BATCH_OBJECTS]))


def open_bucket(address: str) -> tuple[Any, str]:
    """Return the pyarrow filesystem of an address, and the path in it.

    Raises:
        UserError: The address is malformed.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        # quotes spaces and umlauts, and leaves what is quoted already
        filesystem, base = FileSystem.from_uri(quote(address, safe="%/:?&=@!$'()*+,;~#[]"))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot open {address}: {_first_line(error)}") from None
    return filesystem, base


def _list(filesystem: Any, base: str, source: str) -> list[tuple[str, Any]]:
    """Return sorted pairs (key below the base, pyarrow FileInfo); the key is "" if the base is an object itself."""
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileType

    try:
        top = filesystem.get_file_info(base)
        if top.type == FileType.File:
            return [("", top)]
        if top.type == FileType.NotFound:
            raise UserError(f"{source} does not exist: name a bucket and a prefix with objects")
        found = filesystem.get_file_info(FileSelector(base, recursive=True))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot list {source}: {_first_line(error)}") from None
    start = len(base.rstrip("/")) + 1 if base else 0
    return sorted(((info.path[start:], info) for info in found if info.type == FileType.File), key=lambda item: item[0])


def _left_out(relative: str, filters: Filters, include: Patterns | None) -> tuple[str, str]:
    """Return the outermost excluded folder of a key, or the excluded key, and the reason for its row.

    The reason is "" if patterns exclude it; both are "" for a selected key.
    """
    parts = relative.split("/")
    included = filters.included(include)
    for number in range(1, len(parts) + 1):
        path, is_folder = "/".join(parts[:number]), number < len(parts)
        if is_folder and parts[number - 1] in EXCLUDED_FOLDERS:
            return path, EXCLUDED_REASON
        if filters.exclude is not None and filters.exclude.verdict(path, is_folder=is_folder):
            return path, ""
        included = matched(included, path, is_folder)
    return ("", "") if all(match for _, match in included) else (relative, "")


def _fetch(filesystem: Any, info: Any, copy: Path) -> os.stat_result:
    temporary = copy.with_name(f"{copy.name}.part")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        with filesystem.open_input_stream(info.path) as stream, temporary.open("wb") as file:
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


def _current_copy(copy: Path, info: Any, exact: bool) -> os.stat_result | None:
    """Return the status of a copy that agrees with the listing; None if there is no such copy.

    Args:
        exact: Require equal time stamps. Otherwise a copy made after the object's last change is enough, for `plan`,
            although it may miss a change within the same second.
    """
    try:
        status = copy.stat()
    except FileNotFoundError:
        return None
    if info.mtime_ns is None or status.st_size != info.size:
        return None
    is_current = status.st_mtime_ns == info.mtime_ns or (not exact and status.st_mtime_ns > info.mtime_ns)
    return status if is_current else None


def _copy_name(key: str) -> str:
    """Return the name of an object's copy; it keeps the suffix, which the choice of a reader depends on."""
    digest = hashlib.sha256(os.fsencode(key)).hexdigest()
    suffix = Path(key).suffix
    return f"{digest[:2]}/{digest[2:]}{suffix if _SAFE_SUFFIX.fullmatch(suffix) else ''}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
