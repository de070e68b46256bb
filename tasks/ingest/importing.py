"""The stage `import`: rows of `documents:` sources become normalised documents, without extraction.

Its artefacts replace those of `extract` and `normalise`, so later stages read both alike: `extracts` has the status of
each row, `documents` the texts, and `pages` is empty.

Files are imported in parts: a range of lines of JSON Lines, a range of row groups of Parquet, or a whole file if it is
small or compressed, since compressed files can only be read from the beginning. The cuts depend on the file's bytes
alone. Finding them in a large file takes a full read, so they are cached in the home with the state of the file, which
is compared again when a part is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic.dataclasses import dataclass as checked_dataclass

from storage.atomic import write_file
from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, EXTRACTS, EXTRACTS_FILE, NORMALISED, PAGES, PAGES_FILE
from storage.store import Store
from storage.tables import TableWriter, stream_columns, write_table
from storage.tombstones import FORGOTTEN, Tombstone, Tombstones, read_tombstones
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.option import STRICT, option
from tasks.core.stage import Work, stage
from tasks.ingest.extract import document_id
from tasks.readers.decode import one_line
from tasks.readers.records import Extraction, ExtractionProblem, Kind
from tasks.readers.rows import GZIP, LINES, PARQUET, TEXT, ZSTD, Columns, Row, Table, list_columns, read_rows
from tasks.sources.folder import FileState, open_regular
from tasks.text.cleaning import normalise_text

KINDS: tuple[Kind, ...] = ("text", "code", "pdf", "image")
MOST_BYTES = 2**62  # sizes of files have 64 bits
SUFFIX = "documents:"  # the suffix of imported contents, in place of a file's
MAX_NAME_CHARS = 200
CHARACTERS_AT_ONCE = 2**20
PART_BYTES = 32 * 2**20
WHOLE_PARQUET_BYTES = 8 * 2**20  # smaller, because Parquet is compressed
_MAGICS = ((b"PAR1", PARQUET), (b"\x1f\x8b", GZIP), (b"\x28\xb5\x2f\xfd", ZSTD))
_BLOCK = 4 * 2**20

_Cut = tuple[int, int, int]  # start, stop and first row of a part
_Entry = tuple[dict[str, Any], dict[str, Any] | None]  # rows of `extracts` and, where there is a document, `documents`


@checked_dataclass(frozen=True, config=STRICT)
class DocumentsSettings:
    """Conversion of the rows of a `documents:` source to documents.

    Columns of JSON Lines are the names in each line's object. A column other than the text's may be missing or null in
    some rows, but not in all.
    """

    text_column: str = option("text", "Column of the text.", min_length=1)
    id_column: str = option("", "Column of a name for the row; it becomes part of the row's path, after its number.")
    title_column: str = option("", "Column of the title.")
    kind_column: str = option(
        "",
        "Column of the kind of document (text, code, pdf or image), which decides how the text is normalised and "
        "measured; null stands for `documents.kind`.",
    )
    kind: Literal["text", "code", "pdf", "image"] = option("text", "Kind of the rows for which no column gives one.")
    language_column: str = option("", "Column of the programming language of code.")
    max_row_bytes: int = option(256 * 2**20, "Refuse larger rows.", ge=1, le=MOST_BYTES)
    max_unpacked_bytes: int = option(
        64 * 2**30, "Bytes that one compressed file may unpack to; refuse what is beyond.", ge=1, le=MOST_BYTES
    )

    @property
    def columns(self) -> dict[str, str]:
        """Return the configured columns with the names of their settings, the text column first."""
        settings = ("text_column", "id_column", "title_column", "kind_column", "language_column")
        return {getattr(self, name): f"documents.{name}" for name in settings if getattr(self, name)}


@dataclass(frozen=True, order=True)
class Part:
    """A part of a file of documents.

    Attributes:
        sha256: Digest of the file.
        format: `parquet`, `jsonl`, or the compression of JSON Lines: `gzip`, `zstd`.
        number: Number of the part in its file, from 0.
        start: First byte of JSON Lines, or first row group of Parquet.
        stop: End, exclusive, in the same unit; 0 for the whole file.
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
        """Return True if this part covers its whole file."""
        return not self.stop


@dataclass(frozen=True)
class ImportSettings:
    """Settings of the stage: the parts and the options of the import.

    Attributes:
        repair_mojibake: Repair text that was decoded with the wrong encoding; never in code.
        parts: The parts of files, in order.
    """

    documents: DocumentsSettings
    repair_mojibake: bool
    parts: tuple[Part, ...]


@stage(
    "import",
    version=4,
    unit="file",
    tables={EXTRACTS_FILE: EXTRACTS, PAGES_FILE: PAGES, DOCUMENTS_FILE: NORMALISED},
    unkeyed=("locations",),
)
def import_segment(work: Work, settings: ImportSettings, *, locations: Sequence[str]) -> str:
    """Convert the rows of parts of files to documents."""
    made = work.in_subprocess(
        import_parts,
        sum(Path(location).stat().st_size for location in locations),
        parts=list(settings.parts),
        locations=list(locations),
        cache=work.home.cache,
        settings=settings.documents,
        repair=settings.repair_mojibake,
        out=work.out,
        forgotten=dict(read_tombstones(work.store).documents),
    )
    work.counts.update(rows=made["rows"], refused=made["refused"], units=len(settings.parts))
    return str(made["digest"])


def import_index(store: Store, settings: ImportSettings) -> dict[Part, ArtifactRef]:
    """Return the newest artefact of each file that was imported whole under these settings.

    Args:
        settings: Settings, whose parts are ignored.
    """
    wanted = asdict(settings) | {"parts": None}
    found = sorted(store.manifests(import_segment.name), key=lambda manifest: (manifest.created, manifest.key))
    index: dict[Part, ArtifactRef] = {}
    for manifest in found:
        if manifest.version == import_segment.version and manifest.settings | {"parts": None} == wanted:
            parts = (Part(**part) for part in manifest.settings["parts"])
            index.update((part, manifest.ref) for part in parts if part.whole)
    return index


# documents


def import_parts(
    parts: list[Part],
    locations: list[str],
    cache: Path,
    settings: DocumentsSettings,
    repair: bool,
    out: Path,
    progress: Callable[[int, int], None],
    forgotten: dict[str, Tombstone],
) -> dict[str, Any]:
    """Write the documents of some parts; return counts and a digest.

    Args:
        locations: Path of the file of each part.
        cache: Folder with the cached states of large files.
        forgotten: Tombstones of documents to leave out, by id.
    """
    left_out = Tombstones(forgotten)
    tables = out / DOCUMENTS_FILE, out / EXTRACTS_FILE
    with TableWriter(tables[0], NORMALISED) as documents, TableWriter(tables[1], EXTRACTS) as extracts:
        for done, (part, location) in enumerate(zip(parts, locations, strict=True), start=1):
            with unchanged(location, part, cache):
                _import_part(part, Path(location), settings, repair, documents, extracts, left_out)
            progress(done, len(parts))
    write_table(out / PAGES_FILE, PAGES, ())  # imported documents have none
    refused = extracts.count - documents.count - sum(not part.number for part in parts)
    return {"rows": documents.count, "refused": refused, "digest": sha256_json([*map(_rows_in_order, tables)])}


def _rows_in_order(table: Path) -> str:
    """Return a digest of the ids and digests of rows in their order, streamed, as there may be millions."""
    digest = hashlib.sha256()
    for columns in stream_columns(table, ["doc_id", "digest"]):
        digest.update("".join(chain.from_iterable(zip(*columns.values(), strict=True))).encode())
    return digest.hexdigest()


def _import_part(
    part: Part,
    location: Path,
    settings: DocumentsSettings,
    repair: bool,
    documents: TableWriter,
    extracts: TableWriter,
    forgotten: Tombstones,
) -> None:
    """Write the rows of one part, and with the first part of a file a record of the file."""
    table = Table(
        location,
        part.format,
        part.start,
        part.stop,
        part.first_row,
        errors="replace",
        max_row_bytes=settings.max_row_bytes,
        max_unpacked_bytes=settings.max_unpacked_bytes,
    )
    rows = read_rows(table, partial(_chosen_columns, part, settings))
    # unlike a loop, map keeps no reference to the last row
    entries = map(partial(_entry, part, settings, repair, forgotten), rows)
    file = Extraction("ok", kind="table", media_type=f"application/{part.format}", sha256=part.sha256)
    try:
        entry = next(entries, None)
    except ExtractionProblem as problem:
        if part.number == 0:
            extracts.write([_record(part, Extraction("ok", sha256=part.sha256).refuse(problem))])
        return
    if part.number == 0:
        if entry is None:
            file.refuse(ExtractionProblem("skipped", "empty", "the table holds no rows"))
        extracts.write([_record(part, file)])
    while entry is not None:
        record, document = entry
        if document is not None:
            documents.write([document])
        extracts.write([record])
        entry = next(entries, None)


def _chosen_columns(part: Part, settings: DocumentsSettings, columns: Columns) -> list[str]:
    """Return the configured columns.

    Raises:
        ExtractionProblem: One is missing, or the text column does not hold text.
    """
    for name, setting in settings.columns.items():
        if name not in columns:
            where = "among the columns" if part.format == PARQUET else "in the first lines"
            reason = f"no {name!r} ({setting}) {where}; there are: {list_columns(columns)}"
            raise ExtractionProblem("rejected", "no_column", reason)
    text = settings.text_column
    if part.format == PARQUET and columns[text] != TEXT:
        reason = f"the column {text!r} (documents.text_column) is of {columns[text]}, expected text"
        raise ExtractionProblem("rejected", "no_column", reason)
    return list(settings.columns)


def _entry(part: Part, settings: DocumentsSettings, repair: bool, forgotten: Tombstones, row: Row) -> _Entry:
    """Return the record of a row and its document, or None; keeps one copy of the text, which may be hundreds of MB."""
    try:
        raw = row.text(settings.text_column)
        kind = _kind(settings, row)
    except ExtractionProblem as problem:
        nothing = Extraction("ok", locator=str(row.number), sha256=hashlib.sha256(b"").hexdigest())
        return _record(part, nothing.refuse(problem)), None
    name = one_line(row.values.get(settings.id_column))
    locator = f"{row.number}:{name[:MAX_NAME_CHARS]}" if name else str(row.number)
    doc_id = document_id(part.sha256, locator)
    text = normalise_text(raw, kind, repair=repair)
    unchanged_text = text == raw
    data = text.encode()
    del text
    text_sha256 = hashlib.sha256(data).hexdigest()
    sha256, size = (text_sha256, len(data)) if unchanged_text else _raw_digest(raw)
    found = Extraction("ok", locator=locator, sha256=sha256, size=size)
    if forgotten.covers(doc_id, sha256):
        return _record(part, found.refuse(ExtractionProblem("skipped", FORGOTTEN, FORGOTTEN_REASON))), None
    if not data:
        return _record(part, found.refuse(ExtractionProblem("rejected", "no_text", "no text"))), None
    found.kind, found.media_type = kind, "text/plain"
    found.title = one_line(row.values.get(settings.title_column)) or None
    found.programming_language = one_line(row.values.get(settings.language_column)) or None
    content = {
        "kind": kind,
        "title": found.title,
        "programming_language": found.programming_language,
        "text_sha256": text_sha256,
        "n_bytes": len(data),
        "n_pages": 1,
        "ocr_share": 1.0 if kind == "image" else 0.0,
        "ocr_confidence": None,
    }
    document: dict[str, Any] = {
        "doc_id": doc_id,
        "text": data,
        **content,
        "roles": [],
        "digest": _digest(*content.values()),
    }
    return _record(part, found, n_pages=1), document


def _kind(settings: DocumentsSettings, row: Row) -> Kind:
    """Return the kind of a row.

    Raises:
        ExtractionProblem: The kind column holds another value.
    """
    given = row.values.get(settings.kind_column)
    if given is None:
        return settings.kind
    for kind in KINDS:
        if given == kind:
            return kind
    found = f"{row.place}: {settings.kind_column!r} is {str(given)[:80]!r}, expected {', '.join(KINDS)}"
    raise ExtractionProblem("rejected", "unsupported", found)


def _raw_digest(text: str) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for start in range(0, len(text), CHARACTERS_AT_ONCE):
        data = text[start : start + CHARACTERS_AT_ONCE].encode()
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size


def _record(part: Part, found: Extraction, n_pages: int = 0) -> dict[str, Any]:
    """Return a row of `extracts`."""
    outcome = {name: value for name, value in vars(found).items() if name != "pages"} | {"n_pages": n_pages}
    identity = {"doc_id": document_id(part.sha256, found.locator), "file_sha256": part.sha256, "suffix": SUFFIX}
    digest = _digest(*(outcome[name] for name in EXTRACTS.names if name in outcome))
    return {**identity, "attempt": 0, **outcome, "digest": digest}


def _digest(*values: object) -> str:
    """Return a digest of values whose text has no NUL."""
    return hashlib.sha256("\x00".join(map(str, values)).encode()).hexdigest()


# where files are cut


def parts_of(location: str, sha256: str, cache: Path) -> tuple[Part, ...]:
    """Divide a file into parts.

    Args:
        location: Path of the file.
        sha256: Its digest in the listing.
        cache: Folder with the cached cuts of large files.

    Raises:
        UserError: The file cannot be read, or changed since the listing.
    """
    try:
        with open_regular(Path(location)) as file:
            state = FileState.of(os.fstat(file.fileno()))
            form = _format(file)
            small = WHOLE_PARQUET_BYTES if form == PARQUET else PART_BYTES
            if form in (GZIP, ZSTD) or state.size <= small:
                return (Part(sha256, form),)
            cuts = _read_cuts(cache, sha256, state)
            if cuts is None:
                found, cuts = _line_cuts(file)
                if found != sha256:
                    raise _changed(location)
                if form == PARQUET:
                    cuts = _table_cuts(location)
                _write_cuts(cache, sha256, state, cuts)
    except OSError as error:
        raise UserError(f"{location} cannot be read: {error.strerror or error}") from error
    if len(cuts) <= 1:
        return (Part(sha256, form),)
    return tuple(Part(sha256, form, number, *cut) for number, cut in enumerate(cuts))


@contextmanager
def unchanged(location: str, part: Part, cache: Path) -> Iterator[None]:
    """Check that a file still has the digest of its part, before and after it is read.

    Raises:
        UserError: The file changed.
    """
    with open_regular(Path(location)) as file:
        before = FileState.of(os.fstat(file.fileno()))
        if part.whole:
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
        else:
            is_same = _read_cuts(cache, part.sha256, before) is not None
    if not is_same:
        raise _changed(location)
    yield
    if FileState.of(Path(location).stat()) != before:
        raise _changed(location)


def _format(file: FileIO) -> str:
    head = file.read(4)
    file.seek(0)
    return next((form for magic, form in _MAGICS if head.startswith(magic)), LINES)


def _line_cuts(file: FileIO) -> tuple[str, list[_Cut]]:
    """Return the digest of a file and its cuts, each after the line that fills a part."""
    digest = hashlib.sha256()
    cuts: list[_Cut] = []
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


def _table_cuts(location: str) -> list[_Cut]:
    """Return the cuts of a Parquet file, each after the row group that fills a part."""
    try:
        metadata = pq.read_metadata(location)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError):
        return []  # reading the file reports the damage
    cuts: list[_Cut] = []
    start = size = n_rows = 0
    first = 1
    for number, group in enumerate(groups):
        size += group.total_byte_size
        n_rows += group.num_rows
        if size >= PART_BYTES or number == len(groups) - 1:
            cuts.append((start, number + 1, first))
            start, size, first = number + 1, 0, n_rows + 1
    return cuts


def _cuts_file(cache: Path, sha256: str) -> Path:
    return cache / "corpora" / f"{sha256}.json"


def _read_cuts(cache: Path, sha256: str, state: FileState) -> list[_Cut] | None:
    """Return the cached cuts of a file; None if it was not cached in this state."""
    try:
        record = json.loads(_cuts_file(cache, sha256).read_bytes())
    except (OSError, ValueError):
        return None
    known = record["part_bytes"] == PART_BYTES and tuple(record["state"]) == tuple(state)
    return [(start, stop, first) for start, stop, first in record["cuts"]] if known else None


def _write_cuts(cache: Path, sha256: str, state: FileState, cuts: list[_Cut]) -> None:
    path = _cuts_file(cache, sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"part_bytes": PART_BYTES, "state": state, "cuts": cuts}).encode())


def _changed(location: str) -> UserError:
    return UserError(f"{location} changed while it was imported. Run again when no program writes to it.")
