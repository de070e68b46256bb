"""Segments: the extracted pages of a batch of files, append-only, each one artefact.

Extraction of a file is addressed by its bytes, its suffix and the options, never by its path. A run looks up which
contents are in no segment yet, sorts them by digest, and cuts them into segments; the cut depends on what stands in
the segment alone, so after a kill the same segments come out. Finished documents go to a journal on disk at once: a
kill loses only those in work, and memory holds none of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from storage.digest import plain, sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import EXTRACTS, PAGES
from storage.store import Store
from storage.tables import TableWriter, read_rows, union_digest, write_table
from tasks.ingest.parts import ExtractJob
from tasks.ingest.records import Extraction, ExtractOptions
from tasks.stage import Work, stage

SEGMENT_BYTES = 32 * 2**20
SEGMENT_FILES = 4096
LOST_TO = ("timeout", "memory", "crashed")  # what may go differently another time, also where only a page was lost


@dataclass(frozen=True, order=True, slots=True)
class Content:
    """One file content of a segment.

    Attributes:
        attempt: raised when a failed extraction is asked for again.
    """

    sha256: str
    suffix: str
    attempt: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """What is extracted: the bytes, under a suffix."""
        return self.sha256, self.suffix


@dataclass(frozen=True)
class SegmentSettings:
    """What a segment extracts, and how."""

    options: ExtractOptions
    contents: tuple[Content, ...]


def document_id(sha256: str, locator: str = "") -> str:
    """Identity of a document: the bytes of its file, and its place inside of it."""
    return hashlib.sha256(f"{sha256}\x00{locator}".encode()).hexdigest()


def cut_segments(contents: Iterable[Content], sizes: dict[str, int]) -> list[tuple[Content, ...]]:
    """Cut contents, sorted by digest, into segments.

    A segment ends with the file that fills it, so the cuts before and after a finished segment do not depend on it.

    Args:
        sizes: bytes of each content, by sha256.
    """
    segments: list[tuple[Content, ...]] = []
    current: list[Content] = []
    size = 0
    for content in sorted(contents):
        current.append(content)
        size += sizes[content.sha256]
        if size >= SEGMENT_BYTES or len(current) >= SEGMENT_FILES:
            segments.append(tuple(current))
            current, size = [], 0
    if current:
        segments.append(tuple(current))
    return segments


@dataclass(frozen=True, slots=True)
class Located:
    """A content that lies in a segment.

    Attributes:
        reason_code: why its extraction failed, in part or in whole; empty if it did not.
        tried: digest of the passwords that it did not open with; empty if it needs none.
    """

    content: Content
    segment: ArtifactRef
    reason_code: str = ""
    tried: str = ""


def passwords_digest(passwords: Iterable[str]) -> str:
    """What is noted of passwords that did not open a document: enough to see that others are given now."""
    return sha256_json(sorted(passwords))[:16]


def segment_index(store: Store, options: ExtractOptions) -> dict[tuple[str, str], Located]:
    """Where each content lies that was extracted under these options; the latest attempt counts, then the newest."""
    index: dict[tuple[str, str], Located] = {}
    wanted = plain(options)
    for manifest in sorted(store.manifests(extract.name), key=lambda found: (found.created, found.key)):
        if manifest.version != extract.version or manifest.settings["options"] != wanted:
            continue
        doubtful = _doubtful(store, manifest.ref) if manifest.counts.get("doubtful") else {}
        tried = manifest.tools.get("passwords", "")
        for entry in manifest.settings["contents"]:
            content = Content(**entry)
            known = index.get(content.identity)
            if known is None or known.content.attempt <= content.attempt:
                code = doubtful.get(content.sha256, "")
                index[content.identity] = Located(content, manifest.ref, code, tried if code == "encrypted" else "")
    return index


def _doubtful(store: Store, ref: ArtifactRef) -> dict[str, str]:
    """The reason codes of a segment's files that may be worth another attempt."""
    rows = read_rows(store.folder(ref) / "extracts.parquet", ["file_sha256", "status", "reason_code"])
    return {row["file_sha256"]: row["reason_code"] for row in rows if is_doubtful(row)}


def is_doubtful(row: dict[str, Any]) -> bool:
    """Whether another attempt may give a row of `extracts` more text: by time, memory, an engine or a password."""
    return bool(row["status"] == "failed" or row["reason_code"] in (*LOST_TO, "encrypted"))


def wants_retry(located: Located, retry_failed: bool, ocr_ready: bool, passwords: str) -> bool:
    """Whether a failed extraction is to be tried again.

    On request; by itself when the engine, language or password it lacked is there now, and when what failed was the
    path at that moment, which says nothing about the content.
    """
    if located.reason_code == "no_ocr_engine":
        return ocr_ready
    if located.reason_code == "encrypted":
        return located.tried != passwords
    if located.reason_code in ("changed", "unreadable"):
        return True
    return bool(located.reason_code) and retry_failed


def extract_rows(content: Content, extraction: Extraction) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Rows of `extracts` for a file and the members in it, each with its rows of `pages`."""
    yield _extract_row(content, extraction)
    for member in extraction.members:
        yield _extract_row(content, member)


def _extract_row(content: Content, extraction: Extraction) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    doc_id = document_id(content.sha256, extraction.locator)
    # a document that was refused has no pages
    found = extraction.pages if extraction.status == "ok" else []
    pages = [{"doc_id": doc_id, **page.to_dict()} for page in sorted(found, key=lambda page: page.page)]
    row = {
        "doc_id": doc_id,
        "file_sha256": content.sha256,
        "locator": extraction.locator,
        "sha256": extraction.sha256 or content.sha256,
        "size": extraction.size,
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
    digest = sha256_json([row, pages])
    return {**row, "suffix": content.suffix, "attempt": content.attempt, "digest": digest}, pages


class Journal:
    """Finished documents of a segment in the making.

    A file of JSON lines that only grows; a line torn by a kill counts as not written.

    Args:
        folder: scratch folder of the segment.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "journal.jsonl").open("a+b")
        self._places: dict[Content, int] = {}
        self._load()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, content: Content) -> bool:
        return content in self._places

    def save(self, content: Content, extraction: Extraction) -> None:
        """Record a finished document."""
        place = self._file.seek(0, 2)
        name = {"sha256": content.sha256, "suffix": content.suffix, "attempt": content.attempt}
        line = json.dumps([name, extraction.to_dict()]).encode()
        self._file.write(line + b"\n")
        self._file.flush()
        self._places[content] = place

    def load(self, content: Content) -> Extraction:
        """A finished document.

        Raises:
            KeyError: if it is not there.
        """
        self._file.seek(self._places[content])
        return Extraction.from_dict(json.loads(self._file.readline())[1])

    def _load(self) -> None:
        """Find the whole lines, and cut off what follows them."""
        self._file.seek(0)
        place = 0
        for line in self._file:
            try:
                content = Content(**json.loads(line)[0])
            except (ValueError, TypeError, LookupError):
                break
            if not line.endswith(b"\n"):
                break
            self._places[content] = place
            place += len(line)
        self._file.truncate(place)


def _extract_contents(work: Work, settings: SegmentSettings, journal: Journal) -> None:
    """Extract what the journal lacks, on all workers."""
    missing = [content for content in settings.contents if content not in journal]
    total = len(settings.contents)
    if not missing:
        return
    pool = work.resources.pool()
    jobs = {}
    # the longest first, so that no process is left alone with one at the end
    for content in sorted(missing, key=lambda item: (-work.resources.sizes.get(item.sha256, 0), item)):
        path = Path(work.resources.paths[content.sha256])
        job = ExtractJob(path, content.sha256, content.suffix, settings.options, work.resources.passwords)
        jobs[pool.submit(job)] = content
    for done, future in enumerate(as_completed(list(jobs)), start=total - len(missing) + 1):
        journal.save(jobs.pop(future), future.result())
        work.progress.update(done, total, "files")


def extract_tools() -> dict[str, str]:
    """Versions of the engines that read documents."""
    import pypdf
    import pypdfium2

    from tasks.ingest.ocr import engine_version

    versions = {"pypdf": pypdf.__version__, "pypdfium2": str(pypdfium2.version.PYPDFIUM_INFO)}
    return {**versions, "tesseract": engine_version() or "not found"}


@stage("extract", version=2, unit="file", modules=("tasks.ingest.worker",))
def extract(work: Work, settings: SegmentSettings) -> str:
    """Extract the text of a batch of files, page by page, in killable child processes."""
    doubtful = 0
    with Journal(work.scratch) as journal, TableWriter(work.out / "pages.parquet", PAGES) as pages:
        _extract_contents(work, settings, journal)

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal doubtful
            for content in sorted(settings.contents):
                for row, own_pages in extract_rows(content, journal.load(content)):
                    doubtful += is_doubtful(row)
                    pages.write(own_pages)
                    yield row

        work.counts["rows"] = write_table(work.out / "extracts.parquet", EXTRACTS, rows())
    work.counts["pages"] = pages.count
    work.counts["units"] = len(settings.contents)
    work.counts["doubtful"] = doubtful
    work.tools.update(extract_tools())
    work.tools["passwords"] = passwords_digest(work.resources.passwords)
    return union_digest([work.out / "extracts.parquet"])
