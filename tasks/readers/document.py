"""One document from bytes to pages: finds out what it is and hands it to the reader for that.

Runs inside a worker process (see `tasks.ingest.worker`), where a document that hangs or crashes can be killed. A
container (an archive, a table) has no pages; its members are documents of their own, and come one after the other,
those of archives inside it too. Damage costs only the members that it hits: an exception in one of them is caught
here, becomes that member's row, and the next member follows. Members left out by a limit or by damage have a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

from tasks.readers.archives import Budget, Entry, Locators, numbered, read_archive
from tasks.readers.decode import Decoded, clean, decode
from tasks.readers.detect import (
    DOCX,
    ENCRYPTED_OFFICE,
    JSON_LINES,
    PARQUET_MEDIA,
    SQLITE_MEDIA,
    identify,
)
from tasks.readers.markup import read_html, read_xml
from tasks.readers.office import read_docx, read_notebook
from tasks.readers.pdf import extract_pdf
from tasks.readers.records import (
    CONTAINERS,
    Detected,
    Extraction,
    ExtractionProblem,
    ExtractOptions,
    PageText,
    Returning,
    judge_pages,
)
from tasks.readers.rows import LINES, PARQUET, SQLITE, TEXT, Columns, Table, document_column, list_columns, read_rows

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FORMS = {PARQUET_MEDIA: PARQUET, SQLITE_MEDIA: SQLITE, JSON_LINES: LINES}
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
) -> Generator[PageText | str | Extraction | None, None, Extraction]:
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
        Each page as soon as it is read. For each member of a container its locator, so that a member that kills the
        process can be named, None after each of its pages, as a sign of life, and its outcome with its pages.

    Returns:
        The outcome, without pages and members. A container's is ok if it could be opened, whatever became of its
        members; its reason says what was left out.
    """
    if not data:
        return Extraction("skipped", "the file is empty", "empty")
    detected = identify(data, suffix, options)
    if detected.kind not in CONTAINERS:
        return (yield from _yield_pages(data, detected, options, passwords, pages, ocr_pages))
    outcome = Extraction("ok", **asdict(detected))
    try:
        outcome.reason = yield from _Members(data, detected, options, passwords).run(skip)
    except ExtractionProblem as problem:
        outcome.refuse(problem)
    return outcome


def _yield_pages(
    data: bytes,
    detected: Detected,
    options: ExtractOptions,
    passwords: Sequence[str],
    pages: Sequence[int] | None = None,
    ocr_pages: int | None = None,
) -> Generator[PageText, None, Extraction]:
    """The pages of a document that is no container; return its outcome without them."""
    outcome = Extraction("ok", **asdict(detected))
    seen: list[PageText] = []
    reading: Generator[PageText, None, str | None]
    try:
        if detected.kind == "pdf":
            reading = extract_pdf(data, options, passwords, pages, ocr_pages)
        elif detected.kind == "image":
            from tasks.readers.image import extract_image  # only here: Pillow is long to load

            reading = extract_image(data, options, pages, ocr_pages)
        elif detected.kind in ("text", "code"):
            reading = _read_text(data, detected, options, outcome)
        else:
            raise _unsupported(detected)
        extraction = Returning(reading)
        for page in extraction:
            seen.append(page)
            yield page
    except ExtractionProblem as problem:
        return outcome.refuse(problem)
    outcome.title, note = extraction.result, outcome.reason
    judge_pages(outcome, seen, options.ocr)
    outcome.reason = "; ".join(filter(None, (outcome.reason, note)))
    return outcome


def _read_text(
    data: bytes, detected: Detected, options: ExtractOptions, outcome: Extraction
) -> Generator[PageText, None, str | None]:
    """Yield the one page of text or code; what is learnt of the whole document goes into the outcome."""
    reader = _READERS.get(detected.media_type)
    found = decode(data) if reader is None else reader(data, options)
    outcome.encoding, outcome.reason = found.encoding, found.note
    outcome.encoding_confidence = found.confidence if found.encoding else None
    outcome.programming_language = found.programming_language or outcome.programming_language
    if found.media_type:
        outcome.kind, outcome.media_type = "text", found.media_type
    yield PageText(1, found.text, "text", "decoder", found.confidence)
    return found.title


def _unsupported(detected: Detected) -> ExtractionProblem:
    """Return the problem of a file that is neither a document nor a container of such."""
    if detected.media_type == ENCRYPTED_OFFICE:
        return ExtractionProblem("rejected", "encrypted", "an Office document that needs a password; save it without")
    if detected.media_type == SQLITE_MEDIA:
        reason = "a SQLite file is read by the query in sqlite_query, which is not set"
        return ExtractionProblem("skipped", "unsupported", reason)
    reason = f"not a PDF, an image, code, text or a container of such, but {detected.media_type}"
    return ExtractionProblem("skipped", "unsupported", reason)


class _Members:
    """The members of one file.

    Args:
        data: The file.
        detected: What it is; a container.
        options: Limits, and the columns of tables that hold documents.
        passwords: Tried on encrypted members.
    """

    def __init__(self, data: bytes, detected: Detected, options: ExtractOptions, passwords: Sequence[str]) -> None:
        self._data = data
        self._detected = detected
        self._options = options
        self._passwords = passwords
        self._budget = Budget(options)
        # Over all containers: what lies in `a.zip` and an entry called "a.zip/..." beside it may spell the same.
        self._locators = Locators()

    def run(self, skip: int) -> Generator[str | Extraction | None, None, str]:
        """Extract all members in order.

        Args:
            skip: Number of members that were done before and are passed over.

        Yields:
            For each member its locator, None after each of its pages, and its outcome.

        Returns:
            A sentence on members that were left out; empty if none were.

        Raises:
            ExtractionProblem: The container cannot be opened, or holds nothing.
        """
        number, left_out = 0, ""
        for entry in self._leaves(self._data, self._detected, "", 1):
            number += 1
            entry = replace(entry, locator=self._locators.unique(entry.locator))
            over = number > self._options.archive_max_members
            if over:
                left_out = (
                    f"members from {entry.locator} on were not read: more than {self._options.archive_max_members} in "
                    "one file (archive_max_members)"
                )
            elif self._budget.spent:
                left_out = (
                    f"members after {entry.locator} were not read: all together they unpack to more than "
                    f"{self._options.archive_max_bytes} bytes (archive_max_bytes)"
                )
            if number > skip:
                yield entry.locator
                if over:
                    yield _outcome(entry, ExtractionProblem("rejected", "too_many", left_out))
                else:
                    yield from self._finish(entry)
            if left_out:
                break
        if number == 0:
            raise ExtractionProblem("skipped", "empty", f"the {self._detected.kind} holds no members")
        return left_out

    def _finish(self, entry: Entry) -> Iterator[Extraction | None]:
        """Yield None after each page, so that the pool sees progress, then the member's outcome."""
        outcome = _outcome(entry)
        if entry.problem is None:
            if entry.text is not None:
                outcome.encoding, outcome.encoding_confidence = "utf-8", 1.0
                outcome.pages = [PageText(1, clean(entry.text), "text", "decoder", 1.0)]
                judge_pages(outcome, outcome.pages, self._options.ocr)
            else:
                outcome = yield from self._pages(entry)
            outcome.size, outcome.sha256 = len(entry.data), hashlib.sha256(entry.data).hexdigest()
        outcome.locator = entry.locator
        yield outcome

    def _pages(self, entry: Entry) -> Generator[None, None, Extraction]:
        """Extract a member; return its outcome with its pages."""
        if not entry.data:
            return Extraction("skipped", "the member is empty", "empty")
        pages: list[PageText] = []
        # Nothing is put off inside a container: another process would have to unpack it all again.
        extraction = Returning(_guarded(_yield_pages(entry.data, entry.detected, self._options, self._passwords)))
        for page in extraction:
            pages.append(page)
            yield None
        found = extraction.result
        outcome = found if isinstance(found, Extraction) else _outcome(entry, found)
        outcome.pages = pages
        return outcome

    def _leaves(self, data: bytes, detected: Detected, prefix: str, depth: int) -> Generator[Entry, None, None]:
        """The members of a container that are none themselves; those of the containers in it at their place."""
        n_entries = 0
        entries = Returning(_guarded(self._entries(data, detected)))
        for entry in entries:
            n_entries += 1
            damage = yield from _guarded(self._of_entry(entry, prefix, depth))
            if damage is not None:
                yield replace(entry, locator=prefix + entry.locator, problem=damage)
            if self._budget.spent:
                return
        problem = entries.result
        if problem is None and n_entries == 0 and depth > 1:
            problem = ExtractionProblem("skipped", "empty", f"the {detected.kind} holds no members")
        if problem is None:
            return
        if depth == 1 and n_entries == 0:
            raise problem
        # The whole file has no locator; what comes after its last sound entry does.
        locator = prefix.removesuffix("/") if n_entries == 0 else numbered(prefix, n_entries + 1)
        yield Entry(locator, problem=problem, detected=detected)

    def _entries(self, data: bytes, detected: Detected) -> Generator[Entry, None, None]:
        if detected.kind == "table":
            yield from self._table_rows(data, _FORMS[detected.media_type])
        else:
            yield from read_archive(data, detected.media_type, self._options, self._budget, self._passwords)

    def _table_rows(self, data: bytes, form: str) -> Generator[Entry, None, None]:
        """The rows of a table as entries, up to the one that spends the budget."""
        chosen: list[str] = []

        def choose(columns: Columns) -> list[str]:
            chosen.append(self._document_column(columns, form))
            return chosen

        # the budget ends what is larger, whatever a row may hold
        table = Table(
            data,
            form,
            query=self._options.sqlite_query,
            errors="replace",
            max_row_bytes=self._options.archive_max_bytes,
        )
        for row in read_rows(table, choose):
            try:
                text = row.text(chosen[0])
                raw = text.encode()
                self._budget.take(len(raw))
                entry = Entry(str(row.number), raw, text=text, detected=Detected("text", "text/plain"))
            except ExtractionProblem as problem:
                entry = Entry(str(row.number), problem=problem)
            yield entry
            if self._budget.spent:
                return

    def _document_column(self, columns: Columns, form: str) -> str:
        found = document_column(columns, self._options.table_columns)
        if found is None and form == SQLITE:  # whose query says what is wanted
            found = next((name for name, kind in columns.items() if kind == TEXT), None)
        if found is None:
            wanted = " or ".join(name.strip() for name in self._options.table_columns.split(",") if name.strip())
            reason = f"no column of text is called {wanted} (table_columns); there are: {list_columns(columns)}"
            raise ExtractionProblem("skipped", "no_column", reason)
        return found

    def _of_entry(self, entry: Entry, prefix: str, depth: int) -> Generator[Entry, None, None]:
        """The entry itself, or what is in it."""
        entry = replace(entry, locator=prefix + entry.locator)
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


def _guarded(items: Generator[_Item, None, _Result]) -> Generator[_Item, None, _Result | ExtractionProblem]:
    """Pass on what a parser yields; an exception ends it and is returned as the problem of what was being read.

    Parsers of hostile bytes raise whatever the bytes provoke: LookupError, TypeError, ArithmeticError,
    AttributeError, AssertionError, RecursionError, struct.error and the classes of each library. No list of them is
    complete, and one that is missing would cost all members behind.
    """
    try:
        return (yield from items)
    except ExtractionProblem as problem:
        return problem
    except MemoryError:
        return ExtractionProblem("failed", "memory", "the member needs more memory than is left")
    except Exception as error:  # noqa: BLE001 - see above
        return ExtractionProblem("failed", "crashed", f"the extractor failed: {type(error).__name__}: {error}")


def _outcome(entry: Entry, problem: ExtractionProblem | None = None) -> Extraction:
    """The outcome of a member before it is read, or of one that cannot be."""
    outcome = Extraction("ok", **asdict(entry.detected), locator=entry.locator)
    problem = problem or entry.problem
    return outcome if problem is None else outcome.refuse(problem)
