"""Records of extraction: a page, a document, the options.

Plain dataclasses, whose `vars` are JSON between processes and rows of tables. Options that change a result
(`ExtractOptions`) are part of its key; `Limits`, which only stop an extraction, are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.core.option import option

TEMPORARY_PREFIX = "sheepfold-extract-"  # of a pool's folder for temporary files

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

Status = Literal["ok", "rejected", "failed", "skipped"]
Kind = Literal["pdf", "image", "code", "text", "archive", "table", ""]
INVISIBLE_LAYER, OCR_FILE = "pypdfium2 (invisible layer)", "decoder (OCR)"
EARLIER_OCR = (INVISIBLE_LAYER, OCR_FILE)  # engines of text that another program read by OCR
CONTAINERS = ("archive", "table")  # kinds whose members are the documents
Method = Literal["text", "ocr", "both", "none", "deferred"]
ReasonCode = Literal[
    "",
    "empty",
    "unsupported",
    "encrypted",
    "no_text",
    "timeout",
    "memory",
    "crashed",
    "no_ocr_engine",
    "changed",
    "too_large",
    "unreadable",
    "corrupt",
    "too_many",
    "too_deep",
    "unsafe_path",
    "no_column",
    "forgotten",
]

LEAST_MEMORY_BYTES = 16 * 1024**2  # With less, even a small PDF cannot be opened.


@dataclass(frozen=True, slots=True)
class Detected:
    """Type of a file.

    Attributes:
        kind: "pdf", "image", "code" or "text"; "archive" or "table" for a container; empty for anything else.
        media_type: For example "text/markdown"; "application/octet-stream" when unknown. It selects the reader.
        programming_language: Its name, or None; code in an unknown language is of kind "text".
    """

    kind: Kind = ""
    media_type: str = "application/octet-stream"
    programming_language: str | None = None


LINE_BREAK = "\u2028"
BlockKind = Literal["paragraph", "item", "table", "code", "lines"]


@dataclass
class Block:
    """A part of a page.

    Attributes:
        kind: "paragraph", "item" of a list, "table", "code", or "lines" whose layout is not known.
        text: Its lines; of a table, Markdown. A line that was meant to end, as in verse, ends in `LINE_BREAK`.
        x0, y0, x1, y1: Left, lower, right and upper edge of its box, in points from the lower left corner of the page.
        size: Size of most of its text, in points.
        bold: Whether all its text is bold.
    """

    kind: BlockKind
    text: str
    x0: float = 0.0
    y0: float = 0.0
    x1: float = 0.0
    y1: float = 0.0
    size: float = 0.0
    bold: bool = False


@dataclass(frozen=True)
class PageText:
    """The text of one page, with the method that read it.

    Attributes:
        page: Number of the page, from 1. A frame of a TIFF is a page; code and text have one.
        text: The text; lines end in a line feed. Empty for a blank page.
        method: "text" from a text layer or a decoder, "ocr" from an image, "both" if each gave a part, "none" if
            there was nothing to read; "deferred" for a page that another process is to read by OCR.
        engine: Readers of the page, joined by " + ": "pypdfium2", "pypdf", "tesseract", "rapidocr", "pillow" (an image
            without OCR) or "decoder".
        confidence: Mean word confidence of OCR or the decoder's confidence, 0 to 1; None if there is none.
        error: Error on this page, or None. A page may have both a text and an error.
        error_code: Set if the page was lost for a reason that another attempt may not meet: a deadline, the memory
            limit, a missing OCR engine. It becomes the document's `reason_code`.
        blocks: `vars` of the blocks of its text, in reading order; none if its layout is not known.
        lines_again: Numbers, from 1, of the lines of its text that a second OCR engine read.
    """

    page: int
    text: str
    method: Method
    engine: str
    confidence: float | None = None
    error: str | None = None
    error_code: ReasonCode = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    lines_again: list[int] = field(default_factory=list)


@dataclass
class Extraction:
    """Outcome of one document.

    Attributes:
        status: "ok": there is text; "skipped": not read; "rejected": read and refused; "failed": an error, a deadline
            or a limit, which another attempt may not meet.
        reason: Reason of the status, in words; of a document that is ok, what is missing in it, such as a page.
        reason_code: The same for programs.
        kind: "pdf", "image", "code", "text", or a container: "archive", "table"; empty for other types.
        media_type: For example "application/pdf".
        title: Title from the document's own metadata, or None.
        programming_language: Name of the language for code, else None.
        encoding: Encoding of code and text, else None.
        encoding_confidence: 0 to 1; 1 where a byte-order mark or strict UTF-8 proves it.
        pages: The pages in order, each number once.
        locator: Place inside a container (a path in an archive, a row number in a table); empty for a file.
        size: Bytes of a member of a container; 0 for a file, whose size is in the listing.
        sha256: Digest of a member's bytes; empty for a file.
    """

    status: Status
    reason: str = ""
    reason_code: ReasonCode = ""
    kind: Kind = ""
    media_type: str = "application/octet-stream"
    title: str | None = None
    programming_language: str | None = None
    encoding: str | None = None
    encoding_confidence: float | None = None
    pages: list[PageText] = field(default_factory=list)
    locator: str = ""
    size: int = 0
    sha256: str = ""

    def refuse(self, problem: ExtractionProblem) -> Extraction:
        """Take over status and reason of a problem; return the record."""
        self.status, self.reason_code, self.reason = problem.status, problem.code, problem.reason
        return self


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """Options that change what is extracted; part of the key of a result."""

    markdown: bool = option(
        True, "Find headings, paragraphs, lists, tables and code of PDFs; their text becomes Markdown."
    )
    ocr: bool = option(True, "Read pages and images without a text layer by OCR.")
    ocr_languages: str = option("eng", 'Language codes of Tesseract, joined by "+", such as eng+deu.')
    ocr_second: bool = option(
        True, "Read doubtful lines and pages again by a second engine, where the extra `ocr` is installed."
    )
    ocr_dpi: int = option(300, "Resolution at which PDF pages are rendered for OCR, in dots per inch.", ge=1)
    ocr_page_segmentation: int = option(
        3, "Page segmentation mode of Tesseract; 3 detects columns and blocks.", ge=0, le=13
    )
    ocr_max_pixels: int = option(40_000_000, "Scale larger pages and images down to this many pixels for OCR.", ge=1)
    max_file_bytes: int = option(256 * 1024**2, "Refuse larger files.", ge=1)
    max_pages: int = option(5000, "Read at most this many pages of a document; its last page record says so.", ge=1)
    archive_depth: int = option(3, "Levels of nested archives; refuse members of deeper ones.", ge=1)
    archive_max_members: int = option(
        100_000, "Read at most this many members of an archive, rows of a table or `lines`; a row says so.", ge=1
    )
    archive_max_bytes: int = option(1024**3, "Bytes that all members of one file may unpack to.", ge=1)
    table_columns: str = option(
        "text,content,body", "Columns that hold documents in Parquet and JSON Lines, in order of preference."
    )
    lines: bool = option(False, "Make every line of a text file that is not blank a document of its own.")
    section_length: int = option(
        0,
        "Divide a text or Markdown file of at least twice as many characters into sections of about this length, each "
        "a document of its own, at blank lines; 0 divides none.",
        ge=0,
    )
    sqlite_query: str = option("", "Query whose rows are the documents of a SQLite file; empty skips such files.")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits at which an extraction is killed; not part of the key of a result."""

    page_seconds: float = option(
        60.0,
        "Longest time between two pages of a document. A page that takes longer, or ends its process, is lost; after "
        "50 lost pages or members the rest of the file is not read.",
        gt=0,
    )
    document_seconds: float = option(1800.0, "Longest time for a document or a member of a container.", gt=0)
    memory_bytes: int = option(
        2 * 1024**3,
        "Memory that a worker process may add to what it has at its start.",
        ge=LEAST_MEMORY_BYTES,
    )
    query_memory_bytes: int = option(
        2 * 1024**3,
        "Memory of queries over a whole corpus, as for near-duplicates and curation; beyond it they use the disk.",
        ge=2**28,
    )


def judge_pages(outcome: Extraction, seen: Sequence[PageText], ocr: bool) -> None:
    """Set the status and reason of a document from its pages.

    Args:
        outcome: The document, whose `kind` is set.
        seen: Its pages.
        ocr: Whether OCR is switched on.
    """
    outcome.status, outcome.reason_code, outcome.reason = "ok", "", ""
    lost = next((page for page in seen if page.error_code), None)
    if any(page.text.strip() for page in seen):
        if lost:
            # a document with lost pages stays ok; the loss is recorded
            error = lost.error or lost.error_code
            outcome.reason_code = lost.error_code
            outcome.reason = error if f"page {lost.page}" in error else f"page {lost.page}: {error}"
        return
    # the record of pages beyond the limit counts as neither a page nor a failure
    pages = [page for page in seen if page.error_code != "too_many"]
    failed = [page for page in pages if page.error]
    if failed:
        outcome.status, outcome.reason_code = "failed", lost.error_code if lost else "corrupt"
        first = f"page {failed[0].page}: {failed[0].error}"
        outcome.reason = f"no text; {len(failed)} of {len(pages)} pages failed, first {first}"
        return
    outcome.status, outcome.reason_code = "rejected", "no_text"
    outcome.reason = f"no text on any of {len(pages)} pages" if len(pages) > 1 else "no text"
    if len(pages) < len(seen):
        outcome.reason += f"; {seen[-1].error}"
    if outcome.kind in ("pdf", "image") and not ocr:
        outcome.reason += "; OCR is switched off"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a table in Markdown; the first one is the header."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    head, *others = rows
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, others)])


def stable_text(message: str) -> str:
    """Remove object addresses from a library's message, so that the same file always has the same row."""
    return _ADDRESS.sub("", message)


class ExtractionProblem(Exception):
    """Raised by a reader that cannot extract a document, with the status to record.

    Args:
        status: "rejected", "failed" or "skipped".
        code: Reason for programs.
        reason: Reason in words.
    """

    def __init__(self, status: Status, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = stable_text(reason)
