"""The stage `extract`: read the pages of a batch of files in worker processes into one segment.

Each file goes to the pool of the machine, where a worker (`tasks.ingest.worker`) reads it with
`tasks.readers.document.yield_document` into a journal of finished documents, so that a killed run loses only the
documents in progress.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from storage.digest import sha256_json
from storage.schemas import EXTRACTS, EXTRACTS_FILE, PAGES, PAGES_FILE
from storage.tables import TableWriter, union_digest
from storage.tombstones import FORGOTTEN, Tombstones, read_tombstones
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.stage import Work, stage
from tasks.ingest.journal import Content, is_doubtful, read_document, resume
from tasks.ingest.pool import ExtractJob
from tasks.readers.records import Extraction, ExtractOptions

QUEUED_PER_WORKER = 16  # documents, so that no worker waits; a queued one takes kilobytes


@dataclass(frozen=True)
class SegmentSettings:
    """Settings of the stage: the contents of a segment and the options of extraction."""

    options: ExtractOptions
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class SourceFiles:
    """Paths, sizes and passwords of files; not part of the key.

    Attributes:
        paths: Path of each file, by sha256.
        sizes: Bytes of each file, by sha256.
        passwords: Tried on encrypted documents.
        passwords_noted: Keyed digest of the passwords (see `passwords_digest`).
    """

    paths: Mapping[str, str]
    sizes: Mapping[str, int]
    passwords: tuple[str, ...] = field(default=(), repr=False)
    passwords_noted: str = ""

    def of(self, contents: Iterable[Content]) -> SourceFiles:
        """Return the subset for some contents, such as those of one segment."""
        wanted = {content.sha256 for content in contents}
        paths = {sha256: self.paths[sha256] for sha256 in wanted if sha256 in self.paths}
        return replace(self, paths=paths, sizes={sha256: self.sizes[sha256] for sha256 in wanted})


def document_id(sha256: str, locator: str = "") -> str:
    """Return the id of a document, from the sha256 of its file and its place inside the file."""
    return hashlib.sha256(f"{sha256}\x00{locator}".encode()).hexdigest()


_Rows = tuple[dict[str, Any], list[dict[str, Any]]]  # of `extracts` and of `pages`


def extract_rows(content: Content, document: Iterable[Extraction], forgotten: Tombstones) -> Iterator[_Rows]:
    """Yield the row of `extracts` of a file and of each of its members, with the rows of `pages`.

    Args:
        document: The file, then its members.
        forgotten: Documents whose rows keep only their identity.
    """
    for found in document:
        doc_id = document_id(content.sha256, found.locator)
        row = dict(vars(found))
        pages = [dict(vars(page)) for page in sorted(row.pop("pages"), key=lambda page: page.page)]
        row |= {"doc_id": doc_id, "file_sha256": content.sha256, "n_pages": len(pages)}
        row["sha256"] = found.sha256 or content.sha256
        for page in pages:
            page["doc_id"] = doc_id
            del page["error_code"]  # it is in the document's row
        if found.status != "ok":
            pages = []
        digest = sha256_json([row, pages])
        row |= {"suffix": content.suffix, "attempt": content.attempt, "digest": digest}
        if forgotten.covers(doc_id, row["sha256"]):
            row, pages = forgotten_row(row), []
        yield row, pages


def forgotten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of `extracts` that replaces that of a forgotten document: identity, size and a reason."""
    kept = {name: row[name] for name in ("doc_id", "file_sha256", "locator", "sha256", "size", "media_type")}
    verdict = {"status": "skipped", "reason": FORGOTTEN_REASON, "reason_code": FORGOTTEN, "kind": "", "n_pages": 0}
    nothing = dict.fromkeys(("title", "programming_language", "encoding", "encoding_confidence"))
    digest = sha256_json([{**kept, **verdict, **nothing}, []])
    return {**kept, **verdict, **nothing, "suffix": row["suffix"], "attempt": row["attempt"], "digest": digest}


def _extract_contents(work: Work, settings: SegmentSettings, files: SourceFiles, journal: Path) -> None:
    """Extract the files that are not in the journal, on all workers."""
    done = resume(journal, settings.contents)
    # the largest first, so that all workers finish at about the same time
    missing = deque(
        sorted(set(settings.contents) - done, key=lambda content: (-files.sizes.get(content.sha256, 0), content))
    )
    pool = work.machine.pool() if missing else None
    finished: SimpleQueue[Future[Extraction]] = SimpleQueue()
    running = 0
    while pool and (missing or running):
        while missing and running < QUEUED_PER_WORKER * work.machine.workers:
            content = missing.popleft()
            path, out = Path(files.paths[content.sha256]), journal / content.name
            job = ExtractJob(path, content.sha256, content.suffix, out, settings.options, files.passwords)
            pool.submit(job).add_done_callback(finished.put)
            running += 1
        finished.get().result()  # raises errors of the pool; the documents themselves are in the journal
        running -= 1
        work.progress.update(len(settings.contents) - len(missing) - running, len(settings.contents), "files")


def extract_tools() -> dict[str, str]:
    """Return the versions of the reading engines, from package metadata, as importing pypdf takes 0.2 s."""
    from tasks.readers.ocr import engine_version
    from tasks.readers.second_ocr import ENGINE, version_of_second

    versions = {name: version(name) for name in ("lxml", "pypdf", "pypdfium2", "resiliparse")}
    ocr = {"tesseract": engine_version(), ENGINE: version_of_second()}
    return {**versions, **{name: found or "not found" for name, found in ocr.items()}}


@stage(
    "extract",
    version=10,
    unit="file",
    modules=("tasks.ingest.worker",),
    tables={EXTRACTS_FILE: EXTRACTS, PAGES_FILE: PAGES},
    unkeyed=("files",),
)
def extract(work: Work, settings: SegmentSettings, *, files: SourceFiles) -> str:
    """Extract the text of a batch of files, page by page, in worker processes."""
    journal = work.scratch / "documents"
    forgotten = read_tombstones(work.store)
    _extract_contents(work, settings, files, journal)
    doubtful = 0
    with (
        TableWriter(work.out / EXTRACTS_FILE, EXTRACTS) as extracts,
        TableWriter(work.out / PAGES_FILE, PAGES) as pages,
    ):
        for content in sorted(settings.contents):
            for row, own_pages in extract_rows(content, read_document(journal / content.name), forgotten):
                extracts.write([row])
                pages.write(own_pages)
                doubtful += is_doubtful(row["status"], row["reason_code"])
    work.counts.update(rows=extracts.count, pages=pages.count, units=len(settings.contents), doubtful=doubtful)
    work.tools.update(extract_tools())
    work.tools["passwords"] = files.passwords_noted
    return union_digest([work.out / EXTRACTS_FILE])
