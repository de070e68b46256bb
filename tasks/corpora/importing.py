"""The stage that imports: rows of corpora become documents in their normalised form, without extraction.

An artefact of it stands for an extraction segment and for what normalising makes of one: `extracts` says what became of
each row, `documents` holds the texts, and there are no `pages`. So everything behind it goes on as it does for files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import EXTRACTS, NORMALISED, PAGES
from storage.store import Store
from storage.tables import ROW_GROUP_BYTES, ROW_GROUP_ROWS, write_table
from tasks.corpora.parts import PART_BYTES, Part, unchanged
from tasks.corpora.rows import Refusal, Row, Unusable, read_part
from tasks.corpora.settings import DocumentsSettings
from tasks.curate.hygiene import normalise_text
from tasks.curate.normalise import DOCUMENTS_FILE
from tasks.ingest.segments import SEGMENT_FILES, document_id
from tasks.ingest.text import clean
from tasks.stage import Work, stage

EXTRACTS_FILE = "extracts.parquet"
PAGES_FILE = "pages.parquet"
SUFFIX = "documents:"  # stands for a suffix in the identity of what was read this way
MAX_NAME_CHARS = 200
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


@stage("import", version=1, unit="file")
def import_segment(work: Work, settings: ImportSettings) -> str:
    """Make documents of the rows of some corpora."""
    locations = [work.resources.paths[part.sha256] for part in settings.parts]
    made = work.apart(
        import_parts,
        sum(Path(location).stat().st_size for location in locations),
        parts=[asdict(part) for part in settings.parts],
        locations=locations,
        cache=str(work.resources.home.cache),
        settings=asdict(settings.documents),
        repair=settings.repair_mojibake,
        out=str(work.out),
    )
    work.counts.update(rows=made["rows"], refused=made["refused"], units=len(settings.parts))
    return str(made["digest"])


def cut_imports(parts: Iterable[Part], sizes: dict[str, int]) -> list[tuple[Part, ...]]:
    """Cut parts into segments: a part of a larger file is one, whole files are gathered.

    A segment ends with the file that fills it, so the cuts before and after a finished segment do not depend on it.

    Args:
        sizes: Bytes of each file, by sha256.
    """
    segments: list[tuple[Part, ...]] = []
    current: list[Part] = []
    size = 0
    for part in sorted(parts):
        if not part.whole:
            segments.append((part,))
            continue
        current.append(part)
        size += sizes[part.sha256]
        if size >= PART_BYTES or len(current) >= SEGMENT_FILES:
            segments.append(tuple(current))
            current, size = [], 0
    if current:
        segments.append(tuple(current))
    return segments


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
) -> dict[str, Any]:
    """Write the documents of some parts; returns counts and a digest.

    Args:
        locations: Where the file of each part lies.
        cache: Folder that remembers the state of large files.
    """
    chosen = DocumentsSettings(**settings)
    folder = Path(out)
    with _Columns(folder / DOCUMENTS_FILE, NORMALISED) as documents, _Columns(folder / EXTRACTS_FILE, EXTRACTS) as told:
        for done, (fields, location) in enumerate(zip(parts, locations, strict=True), start=1):
            part = Part(**fields)
            with unchanged(location, part, Path(cache)):
                _import_part(part, read_part(location, part, chosen), repair, documents, told)
            progress(done, len(parts))
    write_table(folder / PAGES_FILE, PAGES, ())  # what was never on a page
    digest = sha256_json([documents.digest.hexdigest(), told.digest.hexdigest()])
    refused = told.count - documents.count - sum(not part["number"] for part in parts)
    return {"rows": documents.count, "refused": max(0, refused), "digest": digest}


def _import_part(part: Part, rows: Iterator[Row], repair: bool, documents: _Columns, told: _Columns) -> None:
    """Write the rows of one part, and a record of the file with its first."""
    prefix = hashlib.sha256(f"{part.sha256}\x00".encode())  # what `document_id` begins with
    table = ("table", f"application/{part.format}", None, None, 0)
    try:
        first = next(rows, None)
    except Unusable as problem:
        if part.number == 0:
            told.add(_record(part, document_id(part.sha256), "", part.sha256, 0, problem.refusal, _UNKNOWN))
        return
    if part.number == 0:
        refusal = None if first is not None else Refusal("skipped", "empty", "the table holds no rows")
        told.add(_record(part, document_id(part.sha256), "", part.sha256, 0, refusal, table))
    while first is not None:
        _import_row(part, prefix, first, repair, documents, told)
        first = next(rows, None)


def _import_row(part: Part, prefix: hashlib._Hash, row: Row, repair: bool, documents: _Columns, told: _Columns) -> None:
    name = _tidy(row.name)
    locator = f"{row.number}:{name[:MAX_NAME_CHARS]}" if name else str(row.number)
    identity = prefix.copy()
    identity.update(locator.encode())
    doc_id = identity.hexdigest()
    if row.refusal is not None:
        told.add(_record(part, doc_id, locator, hashlib.sha256(b"").hexdigest(), 0, row.refusal, _UNKNOWN))
        return
    text = normalise_text(row.text, row.kind, repair=repair)
    encoded = text.encode()
    text_sha256 = hashlib.sha256(encoded).hexdigest()
    # lone surrogates stand in JSON as escapes; they count as what they would be replaced by
    raw = encoded if text == row.text else row.text.encode("utf-8", "replace")
    sha256 = text_sha256 if raw is encoded else hashlib.sha256(raw).hexdigest()
    if not text:
        refusal = Refusal("rejected", "no_text", "no text")
        told.add(_record(part, doc_id, locator, sha256, len(raw), refusal, _UNKNOWN))
        return
    title, language = _tidy(row.title) or None, _tidy(row.language) or None
    share = 1.0 if row.kind == "image" else 0.0
    content = (row.kind, title, language, text_sha256, len(encoded), 1, share, None)
    documents.add(
        (doc_id, *content[:3], text, *content[3:], _digest(*content)),  # in the order of the schema
        len(encoded),
    )
    told.add(_record(part, doc_id, locator, sha256, len(raw), None, (row.kind, "text/plain", title, language, 1)))


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
            row: Values in the order of the schema, the id first and the digest last.
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
            arrays = [pa.array(values, field.type) for field, values in columns]
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
