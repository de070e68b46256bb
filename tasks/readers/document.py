"""One document from bytes to pages: finds out what it is and hands it to the extractor for that.

Runs inside a worker process (see `tasks.ingest.worker`), where a document that hangs or crashes can be killed. A
container (an archive, a table) has no pages; its members are documents of their own, and come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from tasks.readers.decode import Decoded, decode
from tasks.readers.detect import CONTAINERS, DOCX, ENCRYPTED_OFFICE, SQLITE_MEDIA, Detected, identify
from tasks.readers.markup import read_html, read_xml
from tasks.readers.members import Members
from tasks.readers.office import read_docx, read_notebook
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import Extraction, ExtractionProblem, ExtractOptions, MemberStarted, PageText, judge_pages

_Title = TypeVar("_Title")
_READERS: dict[str, Callable[[bytes, ExtractOptions], Decoded]] = {
    "text/html": lambda data, options: read_html(data),
    "application/xhtml+xml": lambda data, options: read_html(data),
    "application/xml": lambda data, options: read_xml(data),
    "image/svg+xml": lambda data, options: read_xml(data),
    "application/x-ipynb+json": lambda data, options: read_notebook(data),
    DOCX: read_docx,
}


def yield_document(
    data: bytes,
    suffix: str,
    options: ExtractOptions,
    passwords: Sequence[str] = (),
    skip: int = 0,
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText | MemberStarted | Extraction | None, None, Extraction]:
    """Extract one document page by page, or a container member by member.

    Args:
        data: The file's bytes.
        suffix: The file's suffix with the dot, or "".
        options: What changes the result.
        passwords: Tried on what is encrypted.
        skip: So many members of a container are passed over: they were done before.
        pages: Only these pages of a PDF or image; None for all.
        ocr_pages: After so many pages by OCR the others are put off, for other processes to read; None for never.

    Yields:
        Each page as soon as it is read. For each member of a container: `MemberStarted`, None after each of its
        pages, as a sign of life, and its outcome with its pages.

    Returns:
        The outcome, without pages and members. A container's is ok if it could be opened, whatever became of its
        members; its reason says what was left out.
    """
    if not data:
        return Extraction("skipped", "the file is empty", "empty")
    if len(data) > options.max_file_bytes:
        reason = f"the file has {len(data)} bytes; the limit is {options.max_file_bytes} (max_file_bytes)"
        return Extraction("rejected", reason, "too_large")
    detected = identify(data, suffix, options)
    if detected.kind not in CONTAINERS:
        return (yield from _yield_pages(data, detected, options, passwords, pages, ocr_pages))
    outcome = _outcome(detected)

    def extract(member: bytes, what: Detected) -> Generator[PageText, None, Extraction]:
        if not member:
            return Extraction("skipped", "the member is empty", "empty")
        # Nothing is put off inside a container: another process would have to unpack it all again.
        return (yield from _yield_pages(member, what, options, passwords))

    try:
        outcome.reason = yield from Members(data, detected, options, passwords, extract).run(skip)
    except ExtractionProblem as problem:
        outcome.status, outcome.reason_code, outcome.reason = problem.status, problem.code, problem.reason
    return outcome


def _outcome(detected: Detected) -> Extraction:
    return Extraction(
        "ok",
        kind=detected.kind,
        media_type=detected.media_type,
        programming_language=detected.programming_language,
    )


def _yield_pages(
    data: bytes,
    detected: Detected,
    options: ExtractOptions,
    passwords: Sequence[str],
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText, None, Extraction]:
    """The pages of a document that is no container; return its outcome without them."""
    outcome = _outcome(detected)
    seen: list[PageText] = []
    try:
        if detected.kind == "pdf":
            extraction = extract_pdf(data, options, passwords=passwords, pages=pages, ocr_pages=ocr_pages)
            outcome.title = yield from _noted(extraction, seen)
        elif detected.kind == "image":
            from tasks.readers.image import extract_image  # only here: Pillow is long to load

            yield from _noted(extract_image(data, options, pages=pages, ocr_pages=ocr_pages), seen)
        elif detected.kind in ("text", "code"):
            seen.append(_read_text(data, detected, options, outcome))
            yield seen[0]
        else:
            raise _unsupported(detected)
    except ExtractionProblem as problem:
        outcome.status, outcome.reason_code, outcome.reason = problem.status, problem.code, problem.reason
        return outcome
    note, outcome.pages = outcome.reason, seen
    judge_pages(outcome, options.ocr)
    outcome.pages = []
    outcome.reason = "; ".join(filter(None, (outcome.reason, note)))
    return outcome


def _noted(extraction: Generator[PageText, None, _Title], seen: list[PageText]) -> Generator[PageText, None, _Title]:
    """The same pages, noted on their way."""
    while True:
        try:
            page = next(extraction)
        except StopIteration as end:
            title: _Title = end.value
            return title
        seen.append(page)
        yield page


def _read_text(data: bytes, detected: Detected, options: ExtractOptions, outcome: Extraction) -> PageText:
    """The one page of text or code; what is learnt of the whole document goes into the outcome."""
    reader = _READERS.get(detected.media_type)
    found = decode(data) if reader is None else reader(data, options)
    outcome.encoding, outcome.title, outcome.reason = found.encoding, found.title, found.note
    outcome.encoding_confidence = found.confidence if found.encoding else None
    outcome.programming_language = found.programming_language or outcome.programming_language
    if found.media_type:
        outcome.kind, outcome.media_type = "text", found.media_type
    return PageText(1, found.text, "text", "decoder", found.confidence)


def _unsupported(detected: Detected) -> ExtractionProblem:
    """Why a file is not read that is neither a document nor a container of such."""
    if detected.media_type == ENCRYPTED_OFFICE:
        return ExtractionProblem("rejected", "encrypted", "an Office document that needs a password; save it without")
    if detected.media_type == SQLITE_MEDIA:
        reason = "a SQLite file is read by the query in sqlite_query, which is not set"
        return ExtractionProblem("skipped", "unsupported", reason)
    reason = f"not a PDF, an image, code, text or a container of such, but {detected.media_type}"
    return ExtractionProblem("skipped", "unsupported", reason)
