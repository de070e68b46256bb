"""Read the entries of archives: ZIP, TAR, and a TAR or single file compressed with GZIP, BZIP2 or XZ.

Entries are read in memory, one at a time, in the order of the archive. Nothing that an archive declares is trusted,
neither sizes, names, counts nor offsets: bytes are counted as they leave the decompressor, nothing is written under an
entry's name, and damage costs only the entries that it affects, as far as the format allows. An entry's locator is its
path in the container, or its row number, made unique, valid UTF-8, and free of "..".
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, cast

from tasks.readers.records import Detected, ExtractionProblem, ExtractOptions
from tasks.sources.folder import encode_path

TAR_BLOCK = 512
_DECOMPRESSORS: dict[str, Callable[[IO[bytes]], Any]] = {
    "application/gzip": lambda file: gzip.GzipFile(fileobj=file),
    "application/x-bzip2": bz2.BZ2File,
    "application/x-xz": lzma.LZMAFile,
}
CHUNK_BYTES = 1024 * 1024
LONGEST_LOCATOR = 2048  # Characters; formats allow names of 64 KiB and more.

_SEPARATORS = re.compile(r"[/\\]+")
_DRIVE = re.compile(r"[A-Za-z]:")

_ZIP_ENTRY = b"PK\x01\x02"
_ENTRIES_PER_MEMBER = 10  # A ZIP directory with this many times the member limit is refused unread.
_SMALL_CHUNK = 64  # Bytes; a block of BZIP2 may be as small, and expand to 45 MB.
_BUFFER_BYTES = 256 * 1024
_LONGEST_TAR_HEADER = 32 * 1024  # Names and attributes; tarfile's search in them is quadratic in the worst case.
_OUT_OF_MEMORY = "unpacking the member needs more memory than is allowed"
_ENCRYPTED_FLAG = 0x1
_AES_METHOD = 99
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    RecursionError,
    IndexError,
)
_TAR_KINDS = {
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "named pipe",
}
# Headers that describe the next header; tarfile reads their content into memory.
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_OCTAL = re.compile(rb"[ \x00]*([0-7]{1,7})[ \x00]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a container.

    Attributes:
        locator: Place inside the container, unique there; of a member of nested containers, place inside the file.
        data: Bytes of the entry of an archive.
        text: Text of the row of a table; None for the entry of an archive.
        suffix: Suffix of its name, with the dot and in lower case, or "".
        problem: Reason why it was not read, or None.
        detected: Its type, once detected.
    """

    locator: str
    data: bytes = b""
    text: str | None = None
    suffix: str = ""
    problem: ExtractionProblem | None = None
    detected: Detected = field(default_factory=Detected)


class Budget:
    """Bytes that one file may still unpack to, over all its entries and nested archives.

    Decompressed bytes are counted; declared sizes are not trusted.

    Args:
        options: `archive_max_bytes` limits the file, `max_file_bytes` each entry.
    """

    def __init__(self, options: ExtractOptions) -> None:
        self._total = self._left = options.archive_max_bytes
        self._entry_bytes = options.max_file_bytes

    @property
    def spent(self) -> bool:
        """Return True if the budget is exceeded."""
        return self._left < 0

    def take(self, n_bytes: int) -> None:
        """Subtract unpacked bytes.

        Raises:
            ExtractionProblem: They exceed the budget ("too_large"), which is `spent` from then on.
        """
        self._left -= n_bytes
        if self.spent:
            reason = f"unpacking stopped: the members so far come to more than {self._total} bytes (archive_max_bytes)"
            raise ExtractionProblem("rejected", "too_large", reason)

    def read(self, next_chunk: Callable[[], bytes], metered: bool = False) -> bytes:
        """Return the bytes of one entry.

        Args:
            next_chunk: Returns the next decompressed bytes of the entry; b"" at its end.
            metered: Whether the underlying stream subtracts its bytes from the budget itself.

        Raises:
            ExtractionProblem: The entry, or all entries together, are too large; decompression stops there.
        """
        whole = io.BytesIO()
        while chunk := next_chunk():
            if not metered:
                self.take(len(chunk))
            if whole.tell() + len(chunk) > self._entry_bytes:
                reason = f"the member unpacks to more than {self._entry_bytes} bytes (max_file_bytes)"
                raise ExtractionProblem("rejected", "too_large", reason)
            whole.write(chunk)
        return whole.getvalue()


def unique_locator(locator: str, seen: dict[str, int]) -> str:
    """Return the locator, with the first free number if it was `seen` before; updates `seen`."""
    found = locator
    while found in seen:
        # continues from the last number, so that n entries of one name take O(n) steps
        number = seen[locator] = seen[locator] + 1
        found = numbered(locator, number)
    seen[found] = 1
    return found


def read_archive(
    data: bytes, media_type: str, options: ExtractOptions, budget: Budget, passwords: Sequence[str] = ()
) -> Iterator[Entry]:
    """Read an archive entry by entry, without folders.

    Args:
        data: The archive.
        media_type: Its type by `tasks.readers.detect`.
        options: Limits.
        budget: Bytes left for the outermost file. The caller stops after the entry that exceeds it.
        passwords: Tried on encrypted entries.

    Yields:
        The entries; one that cannot or must not be read has a `problem`.

    Raises:
        ExtractionProblem: The archive cannot be read, or no further entry of it.
    """
    if media_type == "application/x-tar":
        yield from _read_tar(io.BytesIO(data), options, budget, metered=False)
    elif media_type in _DECOMPRESSORS:
        yield from _read_compressed(data, media_type, options, budget)
    else:
        yield from _read_zip(data, options, budget, passwords)


def is_tar_header(block: bytes) -> bool:
    """Return True if the first 512 bytes of a file are a TAR header with a valid checksum."""
    match = _OCTAL.fullmatch(block[148:156])
    if len(block) < TAR_BLOCK or match is None or not block[0]:
        return False
    # The checksum counts its own eight bytes as spaces.
    return int(match[1], 8) == sum(block[:148]) + 8 * ord(" ") + sum(block[156:TAR_BLOCK])


def _corrupt(what: str, error: Exception) -> ExtractionProblem:
    detail = "headers without end" if isinstance(error, RecursionError) else str(error) or type(error).__name__
    return ExtractionProblem("failed", "corrupt", f"{what}: {detail}")


def _limit_entries(n_entries: int, options: ExtractOptions) -> None:
    if n_entries > _ENTRIES_PER_MEMBER * options.archive_max_members:
        reason = (
            f"the archive has more than {_ENTRIES_PER_MEMBER} times as many entries as the "
            f"{options.archive_max_members} members that are read of one file (archive_max_members)"
        )
        raise ExtractionProblem("rejected", "too_many", reason)


def numbered(locator: str, number: int) -> str:
    """Return a locator with a number; unlike any name, since "%" in names is percent-encoded."""
    return f"{locator}%23{number}"


def _suffix_of(name: str) -> str:
    """Return the suffix of an entry's name by the rules for files: in lower case, with the dot, encoded."""
    last = _SEPARATORS.split(name)[-1]
    stem, dot, suffix = last.rpartition(".")
    return encode_path(f".{suffix}".lower()) if dot and suffix and stem.strip(".") else ""


def _unsafe_name(name: str) -> str:
    """Return the reason why unpacking under a name could write outside the target folder; "" for a safe name."""
    if _DRIVE.match(name):
        return "its name begins with a drive letter"
    parts = _SEPARATORS.split(name)
    if len(parts) > 1 and not parts[0]:
        return "its name is an absolute path"
    if ".." in parts:
        return 'its name climbs out of the archive with ".."'
    return ""


def _refuse_unsafe(name: str, kind: str) -> None:
    unsafe = f"it is a {kind}" if kind else _unsafe_name(name)
    if unsafe:
        raise ExtractionProblem("rejected", "unsafe_path", f"the member is not read: {unsafe}")


def _encode_name(name: str) -> str:
    """Convert a name to a locator: no empty, "." or ".." parts, at most about `LONGEST_LOCATOR` characters."""
    if _unsafe_name(name):
        encoded = encode_path(name).replace("..", "%2E%2E").replace(":", "%3A")
        if encoded.startswith(("/", "\\")):
            encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    else:
        encoded = encode_path("/".join(part for part in name.split("/") if part not in ("", ".")))
    # a name may contain lone surrogates, or be empty
    encoded = encoded.encode("utf-8", "replace").decode("utf-8")
    if len(encoded) > LONGEST_LOCATOR:
        digest = hashlib.sha256(encoded.encode("utf-8")).hexdigest()
        encoded = f"{encoded[: LONGEST_LOCATOR // 2]}%23{digest}"
    return encoded or "%23"


# ZIP


def _read_zip(data: bytes, options: ExtractOptions, budget: Budget, passwords: Sequence[str]) -> Iterator[Entry]:
    _limit_entries(data.count(_ZIP_ENTRY), options)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (*_DAMAGE, NotImplementedError) as error:
        raise _corrupt("the ZIP archive cannot be opened", error) from None
    seen: dict[str, int] = {}
    with archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            locator = unique_locator(_encode_name(info.filename), seen)
            try:
                content = _read_zip_entry(archive, info, budget, passwords)
                yield Entry(locator, content, suffix=_suffix_of(info.filename))
            except ExtractionProblem as problem:
                yield Entry(locator, problem=problem)


def _read_zip_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, passwords: Sequence[str]) -> bytes:
    _refuse_unsafe(info.filename, "symbolic link" if stat.S_ISLNK(info.external_attr >> 16) else "")
    if info.compress_type == _AES_METHOD:
        raise ExtractionProblem("rejected", "encrypted", "the member is encrypted with AES, which is not supported")
    if not info.flag_bits & _ENCRYPTED_FLAG:
        return _decompress(archive, info, budget, None)
    for password in passwords:
        try:
            return _decompress(archive, info, budget, password.encode("utf-8"))
        except ExtractionProblem as problem:
            # the check is one byte: one wrong password in 256 passes, and decompression fails
            if problem.code != "corrupt":
                raise
    tried = f"; none of {len(passwords)} passwords opens it" if passwords else ""
    raise ExtractionProblem("rejected", "encrypted", f"the member needs a password{tried}")


def _decompress(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, password: bytes | None) -> bytes:
    try:
        with cast("zipfile.ZipExtFile", archive.open(info, pwd=password)) as stream:
            if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return budget.read(partial(stream.read, CHUNK_BYTES))
            # zipfile passes at least 4 KiB to the decompressors of BZIP2 and LZMA, which may expand to gigabytes. These
            # attributes are undocumented; if they lose their effect, the test of the memory of a ZIP bomb fails.
            stream.MIN_READ_SIZE = stream.MAX_N = _SMALL_CHUNK
            return budget.read(partial(stream.read1, -1))
    except NotImplementedError as error:
        raise ExtractionProblem("skipped", "unsupported", f"the member cannot be unpacked: {error}") from None
    except (*_DAMAGE, RuntimeError) as error:
        raise _corrupt("the member is damaged", error) from None
    except MemoryError:
        raise ExtractionProblem("failed", "memory", _OUT_OF_MEMORY) from None


# GZIP, BZIP2, XZ


class _MeteredStream(io.RawIOBase):
    """A decompressing stream that subtracts its bytes from the budget."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream = stream
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        chunk = self._stream.read(len(buffer))
        self._budget.take(len(chunk))
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _read_compressed(data: bytes, media_type: str, options: ExtractOptions, budget: Budget) -> Iterator[Entry]:
    name = _gzip_name(data) if media_type == "application/gzip" else ""
    unpacked = _DECOMPRESSORS[media_type](io.BytesIO(data))
    stream = io.BufferedReader(cast("io.RawIOBase", _MeteredStream(unpacked, budget)), _BUFFER_BYTES)
    locator = _encode_name(name or "content")
    try:
        is_tar = is_tar_header(stream.peek(TAR_BLOCK)[:TAR_BLOCK])
        if not is_tar:
            yield Entry(locator, budget.read(partial(stream.read, CHUNK_BYTES), metered=True), suffix=_suffix_of(name))
    except ExtractionProblem as problem:
        yield Entry(locator, problem=problem)
        return
    except _DAMAGE as error:
        raise _corrupt("the compressed data is damaged", error) from None
    except MemoryError:
        raise ExtractionProblem("failed", "memory", _OUT_OF_MEMORY) from None
    if is_tar:
        yield from _read_tar(stream, options, budget, metered=True)


def _gzip_name(data: bytes) -> str:
    """Return the original file name in a GZIP header, without folders; "" for none."""
    flags, extra_length = int.from_bytes(data[3:4], "little"), 0  # the file may end before its header does
    if not flags & 0x08:
        return ""
    if flags & 0x04:
        extra_length = 2 + int.from_bytes(data[10:12], "little")
    start = 10 + extra_length
    end = data.find(b"\x00", start, start + 1024)
    name = data[start:end].decode("latin-1") if end > 0 else ""
    return re.split(r"[/\\]", name)[-1].strip(". ")


# TAR


class _TarHeader(tarfile.TarInfo):
    """A header whose damage is an error and not the end of the archive, without negative or unbounded sizes."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _TarHeader:
        try:
            header = super().fromtarfile(tarfile_)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            # tarfile would silently end the archive here
            raise ValueError(str(error)) from None
        if header.size < 0 or tarfile_.offset < header.offset:
            raise ValueError("a member has a negative size")
        return header

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _TarHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENSIONS and header.size > _LONGEST_TAR_HEADER):
            raise ValueError(f"a header of {header.size} bytes")
        return header


def _read_tar(stream: IO[bytes], options: ExtractOptions, budget: Budget, metered: bool) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    n_headers = 0
    try:
        archive = tarfile.open(  # noqa: SIM115 - close() would read to the end; the caller owns the stream
            fileobj=stream, mode="r|", tarinfo=_TarHeader, errors="surrogateescape", encoding="utf-8"
        )
        while (header := archive.next()) is not None:
            # tarfile keeps every header, of which there may be millions
            archive.members.clear()  # type: ignore[attr-defined]
            n_headers += 1
            _limit_entries(n_headers, options)
            if header.isdir():
                continue
            locator = unique_locator(_encode_name(header.name), seen)
            try:
                content = _read_tar_entry(archive, header, budget, metered)
                yield Entry(locator, content, suffix=_suffix_of(header.name))
            except ExtractionProblem as problem:
                yield Entry(locator, problem=problem)
            except _DAMAGE as error:
                # the next header cannot be found without the end of this member
                yield Entry(locator, problem=_corrupt("the member is damaged", error))
                return
    except _DAMAGE as error:
        raise _corrupt("the TAR archive is damaged", error) from None


def _read_tar_entry(archive: tarfile.TarFile, header: tarfile.TarInfo, budget: Budget, metered: bool) -> bytes:
    _refuse_unsafe(header.name, _TAR_KINDS.get(header.type, ""))
    content = archive.extractfile(header)
    if content is None:
        reason = f"the member is of the unknown type {header.type!r}"
        raise ExtractionProblem("skipped", "unsupported", reason)
    # the holes of a sparse member do not pass through the stream
    return budget.read(partial(content.read, CHUNK_BYTES), metered=metered and not header.issparse())
