"""Cutting corpora into parts that are imported each on its own.

A part is a run of lines of a JSON Lines file, a run of row groups of a Parquet file, or a whole file: small ones, and
compressed ones, which can only be read from their beginning. The cuts follow from the file's bytes alone. To find them
in a large file of lines it has to be read once, so they are remembered beside the store, with the state of the file
that was read: a part is read long after its file was hashed, and whether it is still that file must be known.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from storage.atomic import write_file
from storage.errors import UserError
from tasks.sources.hashing import FileState
from tasks.sources.opening import open_regular

PARQUET, LINES, GZIP, ZSTD = "parquet", "jsonl", "gzip", "zstd"
PART_BYTES = 32 * 2**20
WHOLE_PARQUET_BYTES = 8 * 2**20  # a compressed table is several times larger when it is read
_MAGICS = ((b"PAR1", PARQUET), (b"\x1f\x8b", GZIP), (b"\x28\xb5\x2f\xfd", ZSTD))
_BLOCK = 4 * 2**20

Cut = tuple[int, int, int]  # start, stop and first row of a part


@dataclass(frozen=True, order=True, slots=True)
class Part:
    """A part of a corpus.

    Attributes:
        sha256: Of the file.
        format: `parquet`, `jsonl`, or how JSON Lines are compressed: `gzip`, `zstd`.
        number: Of the part in its file, from 0.
        start: Where it begins: a byte of a JSON Lines file, a row group of a Parquet file.
        stop: Where it ends, in the same unit; 0 where it is the whole file.
        first_row: Number of its first row in the file, from 1; for JSON Lines the number of the line.
    """

    sha256: str
    format: str
    number: int = 0
    start: int = 0
    stop: int = 0
    first_row: int = 1

    @property
    def whole(self) -> bool:
        """Whether it is all of its file."""
        return not self.stop


def parts_of(location: str, sha256: str, cache: Path) -> tuple[Part, ...]:
    """The parts of a file.

    Args:
        location: Where it lies.
        sha256: What its bytes were found to be.
        cache: Folder that remembers the cuts of large files.

    Raises:
        UserError: The file cannot be read, or is another one by now.
    """
    try:
        with open_regular(Path(location)) as file:
            state = FileState.of(os.fstat(file.fileno()))
            form = _format(file)
            small = WHOLE_PARQUET_BYTES if form == PARQUET else PART_BYTES
            if form in (GZIP, ZSTD) or state.size <= small:
                return (Part(sha256, form),)
            cuts = _recall(cache, sha256, state)
            if cuts is None:
                found, cuts = _line_cuts(file)
                _check_digest(location, sha256, found)
                if form == PARQUET:
                    cuts = _table_cuts(location)
                _remember(cache, sha256, state, cuts)
    except OSError as error:
        raise UserError(f"{location} cannot be read: {error.strerror or error}") from error
    if len(cuts) <= 1:
        return (Part(sha256, form),)
    return tuple(Part(sha256, form, number, *cut) for number, cut in enumerate(cuts))


@contextmanager
def unchanged(location: str, part: Part, cache: Path) -> Iterator[None]:
    """Sees that a file is what its digest says, before and after something is read from it.

    Raises:
        UserError: It is another file by now.
    """
    with open_regular(Path(location)) as file:
        before = FileState.of(os.fstat(file.fileno()))
        if part.whole:
            _check_digest(location, part.sha256, hashlib.file_digest(file, "sha256").hexdigest())
        elif _recall(cache, part.sha256, before) is None:
            raise _changed(location)
    yield
    if FileState.of(Path(location).stat()) != before:
        raise _changed(location)


def _format(file: FileIO) -> str:
    head = file.read(4)
    file.seek(0)
    return next((form for magic, form in _MAGICS if head.startswith(magic)), LINES)


def _line_cuts(file: FileIO) -> tuple[str, list[Cut]]:
    """The digest of a file, and where it is cut: behind the line that fills a part."""
    digest = hashlib.sha256()
    cuts: list[Cut] = []
    start = at = n_lines = 0
    first = 1
    while block := file.read(_BLOCK):
        digest.update(block)
        done = 0
        while (end := block.find(b"\n", max(done, start + PART_BYTES - at))) >= 0:
            n_lines += block.count(b"\n", done, end + 1)
            cuts.append((start, at + end + 1, first))
            start, done, first = at + end + 1, end + 1, n_lines + 1
        n_lines += block.count(b"\n", done)
        at += len(block)
    if start < at:
        cuts.append((start, at, first))
    return digest.hexdigest(), cuts


def _table_cuts(location: str) -> list[Cut]:
    """Where a Parquet file is cut: behind the row group that fills a part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(location)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError):
        return []  # whoever reads it says what is wrong with it
    cuts: list[Cut] = []
    start = size = n_rows = 0
    first = 1
    for number, group in enumerate(groups):
        size += group.total_byte_size
        n_rows += group.num_rows
        if size >= PART_BYTES or number == len(groups) - 1:
            cuts.append((start, number + 1, first))
            start, size, first = number + 1, 0, n_rows + 1
    return cuts


def _memo(cache: Path, sha256: str) -> Path:
    return cache / "corpora" / f"{sha256}.json"


def _recall(cache: Path, sha256: str, state: FileState) -> list[Cut] | None:
    """The cuts of a file if it was found in this state; None where that is not known."""
    try:
        record = json.loads(_memo(cache, sha256).read_bytes())
    except (OSError, ValueError):
        return None
    known = record["part_bytes"] == PART_BYTES and tuple(record["state"]) == tuple(state)
    return [(start, stop, first) for start, stop, first in record["cuts"]] if known else None


def _remember(cache: Path, sha256: str, state: FileState, cuts: list[Cut]) -> None:
    path = _memo(cache, sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"part_bytes": PART_BYTES, "state": state, "cuts": cuts}).encode())


def _check_digest(location: str, wanted: str, found: str) -> None:
    if found != wanted:
        raise _changed(location)


def _changed(location: str) -> UserError:
    return UserError(f"{location} changed while it was imported: run again when nothing writes to it")
