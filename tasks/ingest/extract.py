"""One document from bytes to pages: finds out what it is and hands it to the extractor for that.

Runs inside a worker process (see `tasks.ingest.worker`), where a document that hangs or crashes can be
killed.
"""

from __future__ import annotations

from collections.abc import Generator

from tasks.ingest.detect import HEAD_BYTES, Detected, detect
from tasks.ingest.image import extract_image
from tasks.ingest.pdf import extract_pdf
from tasks.ingest.records import Extraction, ExtractionProblem, ExtractOptions, PageText
from tasks.ingest.text import decode


def extract_document(data: bytes, suffix: str, options: ExtractOptions) -> Extraction:
    """Extracts one document in this process.

    Args:
        data: The file's bytes.
        suffix: The file's suffix with the dot, or "".
        options: What changes the result.

    Returns:
        The outcome with its pages. Damaged and refused documents are outcomes too, not exceptions.
    """
    extraction = yield_document(data, suffix, options)
    pages: list[PageText] = []
    while True:
        try:
            pages.append(next(extraction))
        except StopIteration as end:
            outcome: Extraction = end.value
            outcome.pages = pages
            return outcome


def yield_document(data: bytes, suffix: str, options: ExtractOptions) -> Generator[PageText, None, Extraction]:
    """Extracts one document page by page.

    Args:
        data: The file's bytes.
        suffix: The file's suffix with the dot, or "".
        options: What changes the result.

    Yields:
        Each page as soon as it is read.

    Returns:
        The outcome, without the pages.
    """
    if not data:
        return Extraction("skipped", "the file is empty", "empty")
    if len(data) > options.max_file_bytes:
        reason = f"the file has {len(data)} bytes; the limit is {options.max_file_bytes} (max_file_bytes)"
        return Extraction("rejected", reason, "too_large")
    detected = detect(data[:HEAD_BYTES], len(data), suffix)
    outcome = Extraction(
        "ok",
        kind=detected.kind,
        media_type=detected.media_type,
        programming_language=detected.programming_language,
    )
    tally = _Tally()
    try:
        for page in _run_extractor(data, detected, options, outcome):
            tally.add(page)
            yield page
    except ExtractionProblem as problem:
        outcome.status, outcome.reason_code, outcome.reason = problem.status, problem.code, problem.reason
    else:
        tally.judge(outcome, options)
    return outcome


def _run_extractor(
    data: bytes, detected: Detected, options: ExtractOptions, outcome: Extraction
) -> Generator[PageText, None, None]:
    """The pages by the extractor for the kind; what it learns of the whole document goes into the outcome."""
    if detected.kind == "pdf":
        outcome.title = yield from extract_pdf(data, options)
    elif detected.kind == "image":
        yield from extract_image(data, options)
    elif detected.kind in ("text", "code"):
        decoded = decode(data)
        outcome.encoding, outcome.encoding_confidence = decoded.encoding, decoded.confidence
        yield PageText(1, decoded.text, "text", "decoder", decoded.confidence)
    else:
        reason = f"not a PDF, an image, code or text, but {detected.media_type}"
        raise ExtractionProblem("skipped", "unsupported", reason)


class _Tally:
    """Counts pages while they pass, to judge the document at the end."""

    def __init__(self) -> None:
        self.n_pages = 0
        self.n_failed = 0
        self.any_text = False
        self.first_error = ""

    def add(self, page: PageText) -> None:
        """Counts one page."""
        self.n_pages += 1
        self.any_text = self.any_text or bool(page.text.strip())
        if page.error:
            self.n_failed += 1
            self.first_error = self.first_error or f"page {page.page}: {page.error}"

    def judge(self, outcome: Extraction, options: ExtractOptions) -> None:
        """Sets status and reason of a document whose extractor came to its end."""
        if self.any_text:
            return
        if self.n_failed:
            outcome.status, outcome.reason_code = "failed", "corrupt"
            outcome.reason = f"no text; {self.n_failed} of {self.n_pages} pages failed, first {self.first_error}"
            return
        outcome.status, outcome.reason_code = "rejected", "no_text"
        outcome.reason = f"no text on any of {self.n_pages} pages" if self.n_pages > 1 else "no text"
        if outcome.kind in ("pdf", "image") and not options.ocr:
            outcome.reason += "; OCR is switched off"
