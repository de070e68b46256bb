"""The stage that imports: rows of corpora become documents in their normalised form, without extraction.

An artefact of it stands for an extraction segment and for what normalising makes of one: `extracts` says what became of
each row, `documents` holds the texts, and there are no `pages`. So everything behind it goes on as it does for files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, EXTRACTS, EXTRACTS_FILE, NORMALISED, PAGES, PAGES_FILE
from storage.store import Store
from storage.tables import ROW_GROUP_BYTES, ROW_GROUP_ROWS, write_table
from storage.tombstones import FORGOTTEN, Tombstone, Tombstones, read_tombstones
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.stage import Work, stage
from tasks.curate.hygiene import normalise_text
from tasks.ingest.extract import document_id
from tasks.ingest.import_settings import DocumentsSettings
from tasks.ingest.segments import cut_segments
from tasks.readers.decode import clean
from tasks.readers.row_parts import Part, unchanged
from tasks.readers.rows import Refusal, Row, Unusable, read_part
from tasks.tokens.text_arrays import text_array

SUFFIX = "documents:"  # stands for a suffix in the identity of what was read this way
MAX_NAME_CHARS = 200
CHARACTERS_AT_ONCE = 2**20
_OK = Refusal("ok", "", "")
_UNKNOWN = ("", "application/octet-stream", None, None, 0)
_REPEATED = {"kind", "programming_language", "file_sha256", "suffix", "status", "reason", "reason_code", "media_type"}


@dataclass(frozen=True)
class ImportSettings:
    """What is imported, and how.

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
    tables={EXTRACTS_FILE: EXTRACTS, PAGES_FILE: PAGES, "documents.parquet": NORMALISED},
    unkeyed=("locations",),
)
def import_segment(work: Work, settings: ImportSettings, *, locations: Sequence[str]) -> str:
    """Make documents of the rows of some corpora."""
    made = work.in_subprocess(
        import_parts,
        sum(Path(location).stat().st_size for location in locations),
        parts=[asdict(part) for part in settings.parts],
        locations=list(locations),
        cache=str(work.home.cache),
        settings=asdict(settings.documents),
        repair=settings.repair_mojibake,
        out=str(work.out),
        forgotten=[[item.doc_id, item.sha256] for item in read_tombstones(work.store).documents.values()],
    )
    work.counts.update(rows=made["rows"], refused=made["refused"], units=len(settings.parts))
    return str(made["digest"])


def cut_imports(parts: Iterable[Part], sizes: dict[str, int]) -> list[tuple[Part, ...]]:
    """Cut parts into segments: a part of a larger file is one, whole files are gathered.

    Args:
        sizes: Bytes of each file, by sha256.
    """
    return cut_segments(parts, sizes, alone=lambda part: not part.whole)


def import_index(store: Store, settings: ImportSettings) -> dict[Part, ArtifactRef]:
    """Where each whole file lies that was imported under these settings, in the newest artefact with it.

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


def import_parts(
    parts: list[dict[str, Any]],
    locations: list[str],
    cache: str,
    settings: dict[str, Any],
    repair: bool,
    out: str,
    progress: Callable[[int, int], None],
    forgotten: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
    """Write the documents of some parts; returns counts and a digest.

    Args:
        locations: Where the file of each part lies.
        cache: Folder that remembers the state of large files.
        forgotten: Documents that are left out: of each its id and the sha256 of its bytes.
    """
    left_out = Tombstones({doc_id: Tombstone(doc_id, sha256) for doc_id, sha256 in forgotten})
    chosen = DocumentsSettings(**settings)
    folder = Path(out)
    with _Columns(folder / DOCUMENTS_FILE, NORMALISED) as documents, _Columns(folder / EXTRACTS_FILE, EXTRACTS) as told:
        for done, (fields, location) in enumerate(zip(parts, locations, strict=True), start=1):
            part = Part(**fields)
            with unchanged(location, part, Path(cache)):
                _import_part(part, read_part(location, part, chosen), repair, documents, told, left_out)
            progress(done, len(parts))
    write_table(folder / PAGES_FILE, PAGES, ())  # what was never on a page
    digest = sha256_json([documents.digest.hexdigest(), told.digest.hexdigest()])
    refused = told.count - documents.count - sum(not part["number"] for part in parts)
    return {"rows": documents.count, "refused": max(0, refused), "digest": digest}


def _import_part(
    part: Part, rows: Iterator[Row], repair: bool, documents: _Columns, told: _Columns, forgotten: Tombstones
) -> None:
    """Write the rows of one part, and a record of the file with its first."""
    table = ("table", f"application/{part.format}", None, None, 0)
    entries = map(
        partial(_entry, part, repair, forgotten), rows
    )  # unlike a loop, it lets go of a row as soon as it was used
    try:
        entry = next(entries, None)
    except Unusable as problem:
        if part.number == 0:
            told.add(_record(part, document_id(part.sha256), "", part.sha256, 0, problem.refusal, _UNKNOWN))
        return
    if part.number == 0:
        refusal = None if entry is not None else Refusal("skipped", "empty", "the table holds no rows")
        told.add(_record(part, document_id(part.sha256), "", part.sha256, 0, refusal, table))
    while entry is not None:
        if entry.document is not None:
            documents.add(entry.document, entry.size)
        told.add(entry.record)
        entry = next(entries, None)


class _Entry(NamedTuple):
    """What is written of a row.

    Attributes:
        record: A row of `extracts`.
        document: A row of `documents`, its text as UTF-8; None where it is none.
        size: Bytes of the text.
    """

    record: tuple[Any, ...]
    document: tuple[Any, ...] | None = None
    size: int = 0


def _entry(part: Part, repair: bool, forgotten: Tombstones, row: Row) -> _Entry:
    """A document, or why there is none; of the text, which may be of hundreds of MB, one copy is left."""
    name = _tidy(row.name)
    locator = f"{row.number}:{name[:MAX_NAME_CHARS]}" if name else str(row.number)
    doc_id = document_id(part.sha256, locator)
    if row.refusal is not None:
        return _Entry(_record(part, doc_id, locator, hashlib.sha256(b"").hexdigest(), 0, row.refusal, _UNKNOWN))
    text = normalise_text(row.text, row.kind, repair=repair)
    as_it_was = text == row.text
    data = text.encode()
    del text
    text_sha256 = hashlib.sha256(data).hexdigest()
    sha256, size = (text_sha256, len(data)) if as_it_was else _raw_digest(row.text)
    if forgotten.covers(doc_id, sha256):
        refusal = Refusal("skipped", FORGOTTEN, FORGOTTEN_REASON)
        return _Entry(_record(part, doc_id, locator, sha256, size, refusal, _UNKNOWN))
    if not data:
        refusal = Refusal("rejected", "no_text", "no text")
        return _Entry(_record(part, doc_id, locator, sha256, size, refusal, _UNKNOWN))
    title, language = _tidy(row.title) or None, _tidy(row.language) or None
    share = 1.0 if row.kind == "image" else 0.0
    content = (row.kind, title, language, text_sha256, len(data), 1, share, None)
    return _Entry(
        _record(part, doc_id, locator, sha256, size, None, (row.kind, "text/plain", title, language, 1)),
        (doc_id, *content[:3], data, *content[3:], _digest(*content)),  # in the order of the schema
        len(data),
    )


def _raw_digest(text: str) -> tuple[str, int]:
    """The sha256 and the size of a text in UTF-8; lone surrogates count as what they would be replaced by.

    They stand in JSON as escapes.
    """
    digest, size = hashlib.sha256(), 0
    for start in range(0, len(text), CHARACTERS_AT_ONCE):
        data = text[start : start + CHARACTERS_AT_ONCE].encode("utf-8", "replace")
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size


def _record(
    part: Part,
    doc_id: str,
    locator: str,
    sha256: str,
    size: int,
    refusal: Refusal | None,
    known: tuple[str, str, str | None, str | None, int],
) -> tuple[Any, ...]:
    """A row of `extracts`, in the order of its schema.

    Args:
        known: Kind, media type, title, programming language and number of pages.
    """
    status, code, reason = refusal or _OK
    kind, media_type, title, language, n_pages = known
    outcome = (locator, sha256, size, status, reason, code, kind, media_type, title, language, None, None, n_pages)
    return (doc_id, part.sha256, SUFFIX, 0, *outcome, _digest(*outcome))


def _digest(*values: object) -> str:
    """Digest of values whose text holds no NUL."""
    return hashlib.sha256("\x00".join(map(str, values)).encode()).hexdigest()


def _tidy(value: str | None) -> str:
    """A name or title on one line."""
    return " ".join(clean(value).split()) if value else ""


class _Columns:
    """Writes rows to a table.

    Attributes:
        count: Rows so far.
        digest: Of the ids and digests of the rows, in their order: a compressed file may have millions.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.count = 0
        self.digest = hashlib.sha256()
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,  # twice as fast as the usual 3, which would be half of all the time there is
            use_dictionary=[name for name in schema.names if name in _REPEATED],
            write_statistics=False,
        )

    def add(self, row: tuple[Any, ...], size: int = 0) -> None:
        """Add a row.

        Args:
            row: Values in the order of the schema, the id first and the digest last; a long text as UTF-8.
            size: Bytes of its text.
        """
        self._rows.append(row)
        self.digest.update(f"{row[0]}{row[-1]}".encode())  # both of one length
        self.count += 1
        self._bytes += size
        if len(self._rows) == ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(self._schema, zip(*self._rows, strict=True), strict=True)
            arrays = [_array(values, field.type) for field, values in columns]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0

    def __enter__(self) -> _Columns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column; of long texts, which come as UTF-8, one that is alone is not copied."""
    return text_array(values, kind) if kind == pa.large_string() else pa.array(values, kind)
