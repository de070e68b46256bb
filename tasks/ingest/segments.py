"""Segments: the extracted pages of a batch of files, append-only, each one artefact.

Extraction of a file is addressed by its bytes, its suffix and the options, never by its path. A run looks up which
contents are in no segment yet, sorts them by digest, and cuts them into segments; the cut depends on what stands in
the segment alone, so after a kill the same segments come out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.digest import plain, sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import EXTRACTS, PAGES
from storage.store import Store
from storage.tables import read_rows, union_digest, write_table
from tasks.ingest.pool import ExtractJob
from tasks.ingest.records import Extraction, ExtractOptions
from tasks.stage import Work, stage

SEGMENT_BYTES = 16 * 2**20
SEGMENT_FILES = 256


@dataclass(frozen=True, order=True)
class Member:
    """One file content of a segment.

    Attributes:
        attempt: raised when a failed extraction is asked for again.
    """

    sha256: str
    suffix: str
    attempt: int = 0

    @property
    def content(self) -> tuple[str, str]:
        """What is extracted: the bytes, under a suffix."""
        return self.sha256, self.suffix


@dataclass(frozen=True)
class SegmentSettings:
    """What a segment extracts, and how."""

    options: ExtractOptions
    members: tuple[Member, ...]


def document_id(sha256: str, locator: str = "") -> str:
    """Identity of a document: the bytes of its file, and its place inside of it."""
    return hashlib.sha256(f"{sha256}\x00{locator}".encode()).hexdigest()


def cut_segments(members: Iterable[Member], sizes: dict[str, int]) -> list[tuple[Member, ...]]:
    """Cut contents, sorted by digest, into segments.

    A segment ends with the file that fills it, so the cuts before and after a finished segment do not depend on it.

    Args:
        sizes: bytes of each content, by sha256.
    """
    segments: list[tuple[Member, ...]] = []
    current: list[Member] = []
    size = 0
    for member in sorted(members):
        current.append(member)
        size += sizes[member.sha256]
        if size >= SEGMENT_BYTES or len(current) >= SEGMENT_FILES:
            segments.append(tuple(current))
            current, size = [], 0
    if current:
        segments.append(tuple(current))
    return segments


@dataclass(frozen=True)
class Located:
    """A content that lies in a segment."""

    member: Member
    segment: ArtifactRef
    reason_code: str


def segment_index(store: Store, options: ExtractOptions) -> dict[tuple[str, str], Located]:
    """Where each content lies that was extracted under these options; the latest attempt counts, then the newest."""
    index: dict[tuple[str, str], Located] = {}
    wanted = plain(options)
    for manifest in sorted(store.manifests(extract.name), key=lambda found: (found.created, found.key)):
        if manifest.version != extract.version or manifest.settings["options"] != wanted:
            continue
        failed = {}
        if manifest.counts.get("failed"):
            columns = ["sha256", "status", "reason_code"]
            rows = read_rows(store.folder(manifest.ref) / "extracts.parquet", columns)
            failed = {row["sha256"]: row["reason_code"] for row in rows if row["status"] == "failed"}
        for entry in manifest.settings["members"]:
            member = Member(**entry)
            known = index.get(member.content)
            if known is None or known.member.attempt <= member.attempt:
                index[member.content] = Located(member, manifest.ref, failed.get(member.sha256, ""))
    return index


def wants_retry(located: Located, retry_failed: bool, ocr_ready: bool) -> bool:
    """Whether a failed extraction is to be tried again.

    On request; by itself when the engine or language it lacked is there now, and when what failed was the path at that
    moment, which says nothing about the content.
    """
    if located.reason_code == "no_ocr_engine":
        return ocr_ready
    if located.reason_code in ("changed", "unreadable"):
        return True
    return bool(located.reason_code) and retry_failed


def extract_row(member: Member, extraction: Extraction, pages: list[dict[str, Any]]) -> dict[str, Any]:
    """Row of `extracts`."""
    row = {
        "doc_id": document_id(member.sha256),
        "sha256": member.sha256,
        "suffix": member.suffix,
        "attempt": member.attempt,
        "status": extraction.status,
        "reason": extraction.reason,
        "reason_code": extraction.reason_code,
        "kind": extraction.kind,
        "media_type": extraction.media_type,
        "title": extraction.title,
        "programming_language": extraction.programming_language,
        "encoding": extraction.encoding,
        "encoding_confidence": extraction.encoding_confidence,
        "n_pages": len(extraction.pages),
    }
    content = {name: value for name, value in row.items() if name not in ("suffix", "attempt")}
    return {**row, "digest": sha256_json([content, pages])}


def page_rows(member: Member, extraction: Extraction) -> list[dict[str, Any]]:
    """Rows of `pages`; a document that was refused has none."""
    if extraction.status != "ok":
        return []
    doc_id = document_id(member.sha256)
    return [{"doc_id": doc_id, **asdict(page)} for page in sorted(extraction.pages, key=lambda page: page.page)]


class Journal:
    """Finished documents of a segment in the making, so that a kill loses only those in work.

    Args:
        folder: scratch folder of the segment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, member: Member) -> Extraction | None:
        """A finished document, or None; a torn record counts as unfinished."""
        try:
            record = json.loads((self.folder / f"{member.sha256}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if record.get("suffix") != member.suffix:
            return None
        return Extraction.from_dict(record["extraction"])

    def save(self, member: Member, extraction: Extraction) -> None:
        """Record a finished document."""
        path = self.folder / f"{member.sha256}.json"
        temporary = path.with_suffix(".new")
        record = {"suffix": member.suffix, "extraction": extraction.to_dict()}
        temporary.write_text(json.dumps(record), encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105


def _extract_members(work: Work, settings: SegmentSettings) -> Iterator[tuple[Member, Extraction]]:
    """Extract what the journal lacks, on all workers; documents come as they are done."""
    journal = Journal(work.scratch)
    pool = None
    futures = {}
    for member in settings.members:
        known = journal.load(member)
        if known is not None:
            yield member, known
            continue
        pool = pool or work.resources.pool()
        path = work.resources.paths[member.sha256]
        job = ExtractJob(path=path, sha256=member.sha256, suffix=member.suffix, options=settings.options)
        futures[pool.submit(job)] = member
    for future in as_completed(futures):
        extraction = future.result()
        journal.save(futures[future], extraction)
        yield futures[future], extraction


def _tools() -> dict[str, str]:
    import pypdf
    import pypdfium2

    from tasks.ingest.ocr import engine_version

    versions = {"pypdf": pypdf.__version__, "pypdfium2": str(pypdfium2.version.PYPDFIUM_INFO)}
    return {**versions, "tesseract": engine_version() or "not found"}


@stage("extract", version=1, unit="file", modules=("tasks.ingest.worker",))
def extract(work: Work, settings: SegmentSettings) -> str:
    """Extract the text of a batch of files, page by page, in killable child processes."""
    total = len(settings.members)
    done: dict[Member, Extraction] = {}
    for member, extraction in _extract_members(work, settings):
        done[member] = extraction
        work.progress.update(len(done), total, "files")
    extracts = []
    pages = []
    for member in sorted(done):
        own = page_rows(member, done[member])
        extracts.append(extract_row(member, done[member], own))
        pages.extend(own)
    work.counts["rows"] = write_table(work.out / "extracts.parquet", EXTRACTS, extracts)
    work.counts["pages"] = write_table(work.out / "pages.parquet", PAGES, pages)
    work.counts["units"] = total
    work.counts["failed"] = sum(row["status"] == "failed" for row in extracts)
    work.tools.update(_tools())
    return union_digest([work.out / "extracts.parquet"])
