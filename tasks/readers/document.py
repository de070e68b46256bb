"""Extract one document from bytes to pages: detect its type and call the reader for it.

Runs in a worker process (`tasks.ingest.worker`), which is killed if a document hangs. A container (an archive, a table)
has no pages; its members, including those of nested archives, are documents of their own. An exception in a member
becomes the row of that member, and the next one is read. Members that a limit or damage leaves out have a row, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from tasks.readers.archives import Budget, Entry, numbered, read_archive, unique_locator
from tasks.readers.chat_rows import SYNTHETIC_COLUMN, conversation_columns, spoken_text
from tasks.readers.decode import Decoded, clean, decode
from tasks.readers.detect import (
    EML,
    ENCRYPTED_OFFICE,
    JSON_LINES,
    MBOX,
    PARQUET_MEDIA,
    SQLITE_MEDIA,
    WARC,
    identify,
)
from tasks.readers.mail import read_mail
from tasks.readers.markup import read_notebook, read_xml
from tasks.readers.packages import PACKAGES
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import (
    CONTAINERS,
    Detected,
    Extraction,
    ExtractionProblem,
    ExtractOptions,
    PageText,
    judge_pages,
)
from tasks.readers.rows import (
    LINES,
    PARQUET,
    SQLITE,
    TEXT,
    Columns,
    Row,
    Table,
    document_column,
    list_columns,
    read_rows,
)
from tasks.readers.rtf import read_rtf
from tasks.readers.transcriptions import read_html_or_hocr, read_xml_or_transcription
from tasks.readers.warc import read_warc

_FORMS = {PARQUET_MEDIA: PARQUET, SQLITE_MEDIA: SQLITE, JSON_LINES: LINES}
_LINE = re.compile("^.*$", re.MULTILINE)  # for finditer, as a large text may have a hundred million lines
_READERS: dict[str, Callable[[bytes], Decoded]] = {
    "text/html": read_html_or_hocr,
    "application/xhtml+xml": read_html_or_hocr,
    "application/xml": read_xml_or_transcription,
    "image/svg+xml": read_xml,
    "application/x-ipynb+json": read_notebook,
    "application/rtf": read_rtf,
}


def yield_document(
    data: bytes,
    suffix: str,
    options: ExtractOptions,
    passwords: Sequence[str] = (),
    skip: int = 0,
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText | str | Extraction | None, None, Extraction]:
    """Extract one document page by page, or a container member by member.

    Args:
        data: The file's bytes.
        suffix: The file's suffix with the dot, or "".
        options: Options of the extraction.
        passwords: Tried on encrypted documents and members.
        skip: Number of members of a container to skip, which are done already.
        pages: Only these pages of a PDF or image, from 1; None for all.
        ocr_pages: After this many pages by OCR, further ones are deferred to other processes; None for no limit.

    Yields:
        Each page as soon as it is read. For each member of a container: its locator, so that a member that kills the
        process can be named; None after each of its pages, to show progress; its outcome, with its pages.

    Returns:
        The outcome, without pages and members. A container that could be opened is ok, whatever the status of its
        members; its reason says which were left out.
    """
    if not data:
        return Extraction("skipped", "the file is empty", "empty")
    detected = identify(data, suffix, options)
    outcome = Extraction("ok", **asdict(detected))
    try:
        if detected.kind in CONTAINERS:
            outcome.reason = yield from _Members(options, passwords).read(data, detected, skip)
        else:
            parsed = _parse(data, outcome, options, passwords, pages, ocr_pages)
            yield from _judged(parsed, outcome, options)
    except ExtractionProblem as problem:
        outcome.refuse(problem)
    return outcome


def _judged(pages: Iterable[PageText], outcome: Extraction, options: ExtractOptions) -> Iterator[PageText]:
    """Yield the pages of a document and complete its outcome."""
    seen: list[PageText] = []
    for page in pages:
        seen.append(page)
        yield page
    note = outcome.reason
    judge_pages(outcome, seen, options.ocr)
    outcome.reason = "; ".join(filter(None, (outcome.reason, note)))


def _parse(
    data: bytes,
    outcome: Extraction,
    options: ExtractOptions,
    passwords: Sequence[str],
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Iterator[PageText]:
    """Yield the pages of a document that is not a container; sets title, encoding and language of the outcome."""
    if outcome.kind == "pdf":
        outcome.title = yield from extract_pdf(data, options, passwords, pages, ocr_pages)
    elif outcome.kind == "image":
        from tasks.readers.image import extract_image  # only here: Pillow is slow to import

        yield from extract_image(data, options, pages, ocr_pages)
    elif outcome.kind in ("text", "code"):
        package = PACKAGES.get(outcome.media_type)
        found = package(data, options) if package else _READERS.get(outcome.media_type, decode)(data)
        outcome.title, outcome.encoding, outcome.reason = found.title, found.encoding, found.note
        outcome.encoding_confidence = found.confidence if found.encoding else None
        outcome.programming_language = found.programming_language or outcome.programming_language
        if found.media_type:
            outcome.kind, outcome.media_type = "text", found.media_type
        yield PageText(1, found.text, "text", found.engine, found.confidence)
    elif outcome.media_type == ENCRYPTED_OFFICE:
        raise ExtractionProblem("rejected", "encrypted", "an Office document that needs a password; save it without")
    elif outcome.media_type == SQLITE_MEDIA:
        reason = "a SQLite file is read by the query in sqlite_query, which is not set"
        raise ExtractionProblem("skipped", "unsupported", reason)
    else:
        reason = f"not a PDF, an image, code, text or a container of such, but {outcome.media_type}"
        raise ExtractionProblem("skipped", "unsupported", reason)


class _Members:
    """The members of a file, including those of nested containers, within one budget of bytes."""

    def __init__(self, options: ExtractOptions, passwords: Sequence[str]) -> None:
        self._options = options
        self._passwords = passwords
        self._budget = Budget(options)

    def read(self, data: bytes, detected: Detected, skip: int) -> Generator[str | Extraction | None, None, str]:
        """Extract all members but the first `skip`; return a sentence on members left out, or ""."""
        # over all containers: a member of `a.zip` and an entry named "a.zip/..." beside it have the same path
        seen: dict[str, int] = {}
        number, left_out = 0, ""
        for entry in self._leaves(data, detected, "", 1):
            number += 1
            entry = replace(entry, locator=unique_locator(entry.locator, seen))
            if number > self._options.archive_max_members:
                left_out = (
                    f"members from {entry.locator} on were not read: more than {self._options.archive_max_members} in "
                    "one file (archive_max_members)"
                )
                entry = replace(entry, problem=ExtractionProblem("rejected", "too_many", left_out))
            elif self._budget.spent:
                left_out = (
                    f"members after {entry.locator} were not read: all together they unpack to more than "
                    f"{self._options.archive_max_bytes} bytes (archive_max_bytes)"
                )
            if number > skip:
                yield entry.locator
                yield from self._read_member(entry)
            if left_out:
                break
        if number == 0:
            raise ExtractionProblem("skipped", "empty", f"the {detected.kind} holds no members")
        return left_out

    def _read_member(self, entry: Entry) -> Iterator[Extraction | None]:
        """Yield None after each page, to show progress to the pool, then the member's outcome."""
        outcome = Extraction("ok", **asdict(entry.detected), locator=entry.locator)
        if entry.problem is not None:
            yield outcome.refuse(entry.problem)
            return
        if not entry.data and entry.text is None:
            outcome = Extraction("skipped", "the member is empty", "empty", locator=entry.locator)
        outcome.size, outcome.sha256 = len(entry.data), hashlib.sha256(entry.data).hexdigest()
        if entry.text is not None:
            outcome.encoding, outcome.encoding_confidence = "utf-8", 1.0
            outcome.pages = [PageText(1, clean(entry.text), "text", "decoder", 1.0)]
            judge_pages(outcome, outcome.pages, self._options.ocr)
        elif entry.data:
            try:
                # no page is deferred inside a container: another process would have to unpack it again
                parsed = _parse(entry.data, outcome, self._options, self._passwords)
                for page in _judged(parsed, outcome, self._options):
                    outcome.pages.append(page)
                    yield None
            except Exception as error:  # noqa: BLE001 - see `_as_problem`
                outcome.refuse(_as_problem(error))
        yield outcome

    def _leaves(self, data: bytes, detected: Detected, prefix: str, depth: int) -> Iterator[Entry]:
        """Yield the members of a container, with nested containers replaced by their members."""
        n_entries = 0
        problem = None
        try:
            for entry in self._entries(data, detected):
                n_entries += 1
                entry = replace(entry, locator=prefix + entry.locator)
                damage = None
                try:
                    yield from self._of_entry(entry, depth)
                except Exception as error:  # noqa: BLE001 - see `_as_problem`
                    damage = _as_problem(error)
                if damage is not None:
                    yield replace(entry, problem=damage)
                if self._budget.spent:
                    return
        except Exception as error:  # noqa: BLE001 - see `_as_problem`
            problem = _as_problem(error)
        if problem is None and n_entries == 0 and depth > 1:
            problem = ExtractionProblem("skipped", "empty", f"the {detected.kind} holds no members")
        if problem is None:
            return
        if depth == 1 and n_entries == 0:
            raise problem
        # the locator of the problem: the container's, or the number after its last sound entry
        locator = prefix.removesuffix("/") if n_entries == 0 else numbered(prefix, n_entries + 1)
        yield Entry(locator, problem=problem, detected=detected)

    def _of_entry(self, entry: Entry, depth: int) -> Iterator[Entry]:
        """Yield the entry, or the members of a nested container."""
        if entry.problem is not None or entry.text is not None:
            yield entry
            return
        detected = identify(entry.data, entry.suffix, self._options)
        if detected.kind not in CONTAINERS:
            yield replace(entry, detected=detected)
        elif detected.kind == "archive" and depth >= self._options.archive_depth:
            reason = f"an archive inside {depth} others; the limit is {self._options.archive_depth} (archive_depth)"
            yield replace(entry, problem=ExtractionProblem("rejected", "too_deep", reason), detected=detected)
        else:
            yield from self._leaves(entry.data, detected, entry.locator + "/", depth + 1)

    def _entries(self, data: bytes, detected: Detected) -> Iterator[Entry]:
        if detected.media_type in (EML, MBOX):
            yield from read_mail(data, detected.media_type, self._budget)
            return
        if detected.media_type == WARC:
            yield from read_warc(data, self._budget)
            return
        if detected.kind == "archive":
            yield from read_archive(data, detected.media_type, self._options, self._budget, self._passwords)
            return
        form = _FORMS.get(detected.media_type, "")
        # no limit per row but that of the budget
        longest = self._options.archive_max_bytes
        table = Table(data, form, query=self._options.sqlite_query, errors="replace", max_row_bytes=longest)
        column = ""
        spoken: list[str] = []

        def choose(columns: Columns) -> list[str]:
            nonlocal column, spoken
            found = document_column(columns, self._options.table_columns)
            spoken = conversation_columns(columns) if found is None else []
            if spoken:
                return [name for name in (*spoken, SYNTHETIC_COLUMN) if name in columns]
            if found is None and form == SQLITE:  # its query selects the columns: the first one of text
                found = next((name for name, kind in columns.items() if kind == TEXT), None)
            if found is None:
                wanted = " or ".join(name.strip() for name in self._options.table_columns.split(",") if name.strip())
                reason = f"no column of text is called {wanted} (table_columns); there are: {list_columns(columns)}"
                raise ExtractionProblem("skipped", "no_column", reason)
            column = found
            return [column]

        for row in read_rows(table, choose) if form else self._divided(decode(data).text):
            try:
                text = spoken_text(row, spoken) if spoken else row.text(column)
                raw = text.encode()
                self._budget.take(len(raw))
                entry = Entry(str(row.number), raw, text=text, detected=Detected("text", "text/plain"))
            except ExtractionProblem as problem:
                entry = Entry(str(row.number), problem=problem)
            yield entry

    def _divided(self, text: str) -> Iterator[Row]:
        return _lines(text) if self._options.lines else _sections(text, self._options.section_length)


def _sections(text: str, length: int) -> Iterator[Row]:
    """Yield parts of half to one and a half times a length, which end at a blank line, else at a line's end."""
    start = number = 0
    while start < len(text):
        stop = start + length
        if len(text) < stop + length // 2:
            stop = len(text)
        else:
            ends = (text.rfind(mark, start + length // 2, stop) + len(mark) for mark in ("\n\n", "\n"))
            stop = next((end for end in ends if end > start + length // 2), stop)
        if (part := text[start:stop].strip("\n")).strip():
            number += 1
            yield Row(f"section {number}", number, {"": part})
        start = stop


def _lines(text: str) -> Iterator[Row]:
    for number, line in enumerate(_LINE.finditer(text), 1):
        if line[0] and not line[0].isspace():
            yield Row(f"line {number}", number, {"": line[0]})


def _as_problem(error: Exception) -> ExtractionProblem:
    """Convert an exception of a parser to the reason of the file or member that it was reading.

    Parsers of hostile bytes raise any type: LookupError, TypeError, ArithmeticError, AttributeError, AssertionError,
    RecursionError, struct.error and the classes of each library. One missing from a list would lose all later members.
    """
    if isinstance(error, ExtractionProblem):
        return error
    if isinstance(error, MemoryError):
        return ExtractionProblem("failed", "memory", "the member needs more memory than is left")
    return ExtractionProblem("failed", "crashed", f"the extractor failed: {type(error).__name__}: {error}")
