"""The stage `extract`: the pages of a batch of files, read in killable child processes; one segment of a corpus.

Each file goes to the pool of the machine, where a worker process (`tasks.ingest.worker`) reads it by
`tasks.readers.document.yield_document` into files that are also the journal of the segment: a kill loses only the
documents in work. Which files are in no segment yet is found by `tasks.ingest.segments`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from storage.digest import sha256_json
from storage.schemas import EXTRACTS, PAGES
from storage.tables import TableWriter, union_digest, write_table
from storage.tombstones import FORGOTTEN, Tombstones, read_tombstones
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.stage import Work, stage
from tasks.ingest.journal import Content, is_doubtful, lines_file, read_document, resume
from tasks.ingest.pool import ExtractJob
from tasks.readers.records import Extraction, ExtractOptions, PageText

QUEUED_PER_WORKER = 16  # of a segment: enough that none waits for us; what is queued takes kilobytes
HELD_BYTES = 12 * 2**20  # of documents whose rows are made while other files of a segment are still extracted
_BYTES_OF_ROW = 5_000  # what a document takes beside its text, about


@dataclass(frozen=True)
class SegmentSettings:
    """Settings of the stage: the contents of a segment and the options of extraction."""

    options: ExtractOptions
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class SourceFiles:
    """Paths, sizes and passwords of files, by their sha256; no part of the cache key.

    Attributes:
        paths: Place of each file, by sha256.
        sizes: Bytes of each file, by sha256.
        passwords: Tried on encrypted documents.
        passwords_noted: Digest of the passwords by the key of this home (see `passwords_digest`).
    """

    paths: Mapping[str, str]
    sizes: Mapping[str, int]
    passwords: tuple[str, ...] = field(default=(), repr=False)
    passwords_noted: str = ""

    def of(self, contents: Iterable[Content]) -> SourceFiles:
        """Return the part of some contents, such as those of one segment."""
        wanted = {content.sha256 for content in contents}
        paths = {sha256: self.paths[sha256] for sha256 in wanted if sha256 in self.paths}
        return replace(self, paths=paths, sizes={sha256: self.sizes[sha256] for sha256 in wanted})


def document_id(sha256: str, locator: str = "") -> str:
    """Identity of a document: the bytes of its file, and its place inside of it."""
    return hashlib.sha256(f"{sha256}\x00{locator}".encode()).hexdigest()


_Rows = tuple[dict[str, Any], list[dict[str, Any]]]  # of `extracts` and of `pages`


def extract_rows(
    content: Content, document: Iterable[Extraction], forgotten: Tombstones | None = None
) -> Iterator[_Rows]:
    """Rows of `extracts` for a file and the members in it, each with its rows of `pages`.

    Args:
        document: the file, then its members.
        forgotten: documents of which only that is told.
    """
    for found in document:
        row, pages = _extract_row(content, found)
        if forgotten is not None and forgotten.covers(row["doc_id"], row["sha256"]):
            row, pages = forgotten_row(row), []
        yield row, pages


def _extract_row(content: Content, extraction: Extraction) -> _Rows:
    doc_id = document_id(content.sha256, extraction.locator)
    # a document that was refused has no pages
    found = extraction.pages if extraction.status == "ok" else []
    pages = [_page_row(doc_id, page) for page in sorted(found, key=lambda page: page.page)]
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


def forgotten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of `extracts` that replaces the row of a forgotten document: identity, size and a reason."""
    kept = {name: row[name] for name in ("doc_id", "file_sha256", "locator", "sha256", "size", "media_type")}
    told = {"status": "skipped", "reason": FORGOTTEN_REASON, "reason_code": FORGOTTEN, "kind": "", "n_pages": 0}
    nothing = dict.fromkeys(("title", "programming_language", "encoding", "encoding_confidence"))
    digest = sha256_json([{**kept, **told, **nothing}, []])
    return {**kept, **told, **nothing, "suffix": row["suffix"], "attempt": row["attempt"], "digest": digest}


def _page_row(doc_id: str, page: PageText) -> dict[str, Any]:
    """A row of `pages`; the error's code stands in the document's row."""
    row = {"doc_id": doc_id, **page.to_dict()}
    del row["error_code"]
    return row


def _extract_contents(
    work: Work, settings: SegmentSettings, files: SourceFiles, journal: Path, forgotten: Tombstones
) -> dict[Content, list[_Rows]]:
    """Extract what the journal lacks, on all workers; return rows of those files for which there was room."""
    done = resume(journal, settings.contents)
    missing = [content for content in settings.contents if content not in done]
    made: dict[Content, list[_Rows]] = {}
    room = HELD_BYTES
    if not missing:
        return made
    pool = work.machine.pool()
    # the longest first, so that no process is left alone with one at the end
    waiting = iter(sorted(missing, key=lambda item: (-files.sizes.get(item.sha256, 0), item)))
    finished: SimpleQueue[Future[Extraction]] = SimpleQueue()
    jobs: dict[Future[Extraction], Content] = {}

    def submit(n: int) -> None:
        for content in islice(waiting, n):
            path, out = Path(files.paths[content.sha256]), journal / content.name
            future = pool.submit(
                ExtractJob(path, content.sha256, content.suffix, out, settings.options, files.passwords)
            )
            jobs[future] = content
            future.add_done_callback(finished.put)

    submit(QUEUED_PER_WORKER * work.machine.workers)
    for n_done in range(len(done) + 1, len(settings.contents) + 1):
        future = finished.get()
        content = jobs.pop(future)
        future.result()
        submit(1)
        size = _BYTES_OF_ROW + lines_file(journal / content.name).stat().st_size
        if size <= room:  # made now, while this process would wait, and not read again
            room -= size
            made[content] = list(extract_rows(content, read_document(journal / content.name), forgotten))
        work.progress.update(n_done, len(settings.contents), "files")
    return made


def extract_tools() -> dict[str, str]:
    """Versions of the engines that read documents; asked of their packages, for importing pypdf takes 0.2 s."""
    from tasks.readers.ocr import engine_version

    versions = {name: version(name) for name in ("pypdf", "pypdfium2")}
    return {**versions, "tesseract": engine_version() or "not found"}


@stage(
    "extract",
    version=4,
    unit="file",
    modules=("tasks.ingest.worker",),
    tables={"extracts.parquet": EXTRACTS, "pages.parquet": PAGES},
    unkeyed=("files",),
)
def extract(work: Work, settings: SegmentSettings, *, files: SourceFiles) -> str:
    """Extract the text of a batch of files, page by page, in killable child processes."""
    doubtful = 0
    journal = work.scratch / "documents"
    with TableWriter(work.out / "pages.parquet", PAGES) as pages:
        forgotten = read_tombstones(work.store)
        made = _extract_contents(work, settings, files, journal, forgotten)

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal doubtful
            for content in sorted(settings.contents):
                document = read_document(journal / content.name)
                for row, own_pages in made.pop(content, None) or extract_rows(content, document, forgotten):
                    doubtful += is_doubtful(row["status"], row["reason_code"])
                    pages.write(own_pages)
                    yield row

        work.counts["rows"] = write_table(work.out / "extracts.parquet", EXTRACTS, rows())
    work.counts["pages"] = pages.count
    work.counts["units"] = len(settings.contents)
    work.counts["doubtful"] = doubtful
    work.tools.update(extract_tools())
    work.tools["passwords"] = files.passwords_noted
    return union_digest([work.out / "extracts.parquet"])
