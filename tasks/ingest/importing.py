"""The stage that imports: rows of corpora become documents in their normalised form, without extraction.

An artefact of it stands for an extraction segment and for what normalising makes of one: `extracts` says what became of
each row, `documents` holds the texts, and there are no `pages`. So everything behind it goes on as it does for files.

Corpora are imported in parts: a run of lines of a JSON Lines file, a run of row groups of a Parquet file, or a whole
file: small ones, and compressed ones, which can only be read from their beginning. The cuts follow from the file's
bytes alone. To find them in a large file of lines it has to be read once, so they are remembered beside the store, with
the state of the file that was read: a part is read long after its file was hashed, and whether it is still that file
must be known.
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
MOST_BYTES = 2**62  # what a file's size is counted in has 64 bits
SUFFIX = "documents:"  # stands for a suffix in the identity of what was read this way
MAX_NAME_CHARS = 200
CHARACTERS_AT_ONCE = 2**20
PART_BYTES = 32 * 2**20
WHOLE_PARQUET_BYTES = 8 * 2**20  # a compressed table is several times larger when it is read
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
        """The columns that are named, each with the setting that names it, the text's first."""
        settings = ("text_column", "id_column", "title_column", "kind_column", "language_column")
        return {getattr(self, name): f"documents.{name}" for name in settings if getattr(self, name)}


@dataclass(frozen=True, order=True)
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
        """True if this part covers its whole file."""
        return not self.stop


@dataclass(frozen=True)
class ImportSettings:
    """Identity of an import: its parts and settings.

    Attributes:
        repair_mojibake: Whether text that was once decoded wrongly is repaired; never in code.
        parts: What of which files, in order.
    """

    documents: DocumentsSettings
    repair_mojibake: bool
    parts: tuple[Part, ...]


@stage(
    "import",
    version=1,
    unit="file",
    tables={EXTRACTS_FILE: EXTRACTS, PAGES_FILE: PAGES, DOCUMENTS_FILE: NORMALISED},
    unkeyed=("locations",),
)
def import_segment(work: Work, settings: ImportSettings, *, locations: Sequence[str]) -> str:
    """Make documents of the rows of some corpora."""
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
    """Locate each wholly imported file under these settings, in the newest artefact that has it.

    Args:
        settings: Their parts do not count.
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
    """Write the documents of some parts; returns counts and a digest.

    Args:
        locations: Where the file of each part lies.
        cache: Folder that remembers the state of large files.
        forgotten: Documents that are left out, by id.
    """
    left_out = Tombstones(forgotten)
    tables = out / DOCUMENTS_FILE, out / EXTRACTS_FILE
    with TableWriter(tables[0], NORMALISED) as documents, TableWriter(tables[1], EXTRACTS) as extracts:
        for done, (part, location) in enumerate(zip(parts, locations, strict=True), start=1):
            with unchanged(location, part, cache):
                _import_part(part, Path(location), settings, repair, documents, extracts, left_out)
            progress(done, len(parts))
    write_table(out / PAGES_FILE, PAGES, ())  # what was never on a page
    refused = extracts.count - documents.count - sum(not part.number for part in parts)
    return {"rows": documents.count, "refused": refused, "digest": sha256_json([*map(_rows_in_order, tables)])}


def _rows_in_order(table: Path) -> str:
    """Digest of the ids and digests of rows, in their order: a compressed file may have millions."""
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
    """Write the rows of one part, and a record of the file with its first."""
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
    # unlike a loop, it lets go of a row as soon as it was used
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
    """The columns that the settings name.

    Raises:
        ExtractionProblem: One is not there, or that of the text holds none.
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
    """The document of a row, or why there is none; of the text, which may be of hundreds of MB, one copy is left."""
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
    as_it_was = text == raw
    data = text.encode()
    del text
    text_sha256 = hashlib.sha256(data).hexdigest()
    sha256, size = (text_sha256, len(data)) if as_it_was else _raw_digest(raw)
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
    document = {"doc_id": doc_id, "text": data, **content, "digest": _digest(*content.values())}
    return _record(part, found, n_pages=1), document


def _kind(settings: DocumentsSettings, row: Row) -> Kind:
    """The kind of document that a row is.

    Raises:
        ExtractionProblem: Its column says something else.
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
    """A row of `extracts`."""
    outcome = {name: value for name, value in vars(found).items() if name != "pages"} | {"n_pages": n_pages}
    identity = {"doc_id": document_id(part.sha256, found.locator), "file_sha256": part.sha256, "suffix": SUFFIX}
    digest = _digest(*(outcome[name] for name in EXTRACTS.names if name in outcome))
    return {**identity, "attempt": 0, **outcome, "digest": digest}


def _digest(*values: object) -> str:
    """Digest of values whose text holds no NUL."""
    return hashlib.sha256("\x00".join(map(str, values)).encode()).hexdigest()


# where files are cut


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
                if found != sha256:
                    raise _changed(location)
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
    """Check that a file is what its digest says, before and after something is read from it.

    Raises:
        UserError: It is another file by now.
    """
    with open_regular(Path(location)) as file:
        before = FileState.of(os.fstat(file.fileno()))
        if part.whole:
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
        else:
            is_same = _recall(cache, part.sha256, before) is not None
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
    """The digest of a file, and where it is cut: behind the line that fills a part."""
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
    """Return the row groups after which a Parquet file is cut: those that fill a part."""
    try:
        metadata = pq.read_metadata(location)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError):
        return []  # whoever reads it says what is wrong with it
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


def _memo(cache: Path, sha256: str) -> Path:
    return cache / "corpora" / f"{sha256}.json"


def _recall(cache: Path, sha256: str, state: FileState) -> list[_Cut] | None:
    """The cuts of a file if it was found in this state; None where that is not known."""
    try:
        record = json.loads(_memo(cache, sha256).read_bytes())
    except (OSError, ValueError):
        return None
    known = record["part_bytes"] == PART_BYTES and tuple(record["state"]) == tuple(state)
    return [(start, stop, first) for start, stop, first in record["cuts"]] if known else None


def _remember(cache: Path, sha256: str, state: FileState, cuts: list[_Cut]) -> None:
    path = _memo(cache, sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"part_bytes": PART_BYTES, "state": state, "cuts": cuts}).encode())


def _changed(location: str) -> UserError:
    return UserError(f"{location} changed while it was imported: run again when nothing writes to it")
