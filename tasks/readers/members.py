"""Extract the members of archives, of archives inside them, and of tables.

Damage costs only the members that it hits: an exception in one of them is caught here, becomes that member's row, and
the next member follows. Members left out by a limit or by damage have a row that says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tasks.readers.archives import read_archive
from tasks.readers.decode import clean
from tasks.readers.detect import CONTAINERS, JSON_LINES, PARQUET_MEDIA, SQLITE_MEDIA, Detected, identify
from tasks.readers.entries import Budget, Entry, Locators, numbered
from tasks.readers.records import Extraction, ExtractionProblem, ExtractOptions, MemberStarted, PageText
from tasks.readers.rows import LINES, PARQUET, SQLITE, TEXT, Columns, Table, document_column, list_columns, read_rows

# How a document that is no container is extracted: pages as they come, then the outcome without them.
ExtractLeaf = Callable[[bytes, Detected], Generator[PageText, None, Extraction]]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_UNKNOWN = Detected("", "application/octet-stream")
_FORMS = {PARQUET_MEDIA: PARQUET, SQLITE_MEDIA: SQLITE, JSON_LINES: LINES}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A member that is no container: a document, a row, or something that could not be read."""

    locator: str
    entry: Entry
    detected: Detected


class Members:
    """The members of one file.

    Args:
        data: The file.
        detected: What it is; a container.
        options: Limits, and the columns of tables that hold documents.
        passwords: Tried on encrypted members.
        extract: Extracts a member that is a document.
    """

    def __init__(
        self,
        data: bytes,
        detected: Detected,
        options: ExtractOptions,
        passwords: Sequence[str],
        extract: ExtractLeaf,
    ) -> None:
        self._data = data
        self._detected = detected
        self._options = options
        self._passwords = passwords
        self._extract = extract
        self._budget = Budget(options)
        # Over all containers: what lies in `a.zip` and an entry called "a.zip/..." beside it may spell the same.
        self._locators = Locators()

    def run(self, skip: int) -> Generator[MemberStarted | Extraction | None, None, str]:
        """Extract all members in order.

        Args:
            skip: Number of members that were done before and are passed over.

        Yields:
            For each member `MemberStarted`, None after each of its pages, and its outcome.

        Returns:
            A sentence on members that were left out; empty if none were.

        Raises:
            ExtractionProblem: The container cannot be opened, or holds nothing.
        """
        number, left_out = 0, ""
        for leaf in self._leaves(self._data, self._detected, "", 1):
            number += 1
            leaf = replace(leaf, locator=self._locators.unique(leaf.locator))
            over = number > self._options.archive_max_members
            if over:
                left_out = (
                    f"members from {leaf.locator} on were not read: more than {self._options.archive_max_members} in "
                    "one file (archive_max_members)"
                )
            elif self._budget.spent:
                left_out = (
                    f"members after {leaf.locator} were not read: all together they unpack to more than "
                    f"{self._options.archive_max_bytes} bytes (archive_max_bytes)"
                )
            if number > skip:
                yield MemberStarted(leaf.locator)
                if over:
                    yield _outcome(leaf, ExtractionProblem("rejected", "too_many", left_out))
                else:
                    yield from self._finish(leaf)
            if left_out:
                break
        if number == 0:
            raise ExtractionProblem("skipped", "empty", f"the {self._detected.kind} holds no members")
        return left_out

    def _finish(self, leaf: _Leaf) -> Iterator[Extraction | None]:
        """Yield None after each page, so that the pool sees progress, then the member's outcome."""
        entry, outcome = leaf.entry, _outcome(leaf)
        if entry.problem is None and entry.text is not None:
            text = clean(entry.text)
            outcome.encoding, outcome.encoding_confidence = "utf-8", 1.0
            outcome.pages = [PageText(1, text, "text", "decoder", 1.0)]
            if not text.strip():
                outcome.status, outcome.reason_code, outcome.reason = "rejected", "no_text", "no text"
        elif entry.problem is None:
            pages: list[PageText] = []
            outcome = yield from self._pages(leaf, pages)
            outcome.pages = pages
        if entry.problem is None:
            outcome.size, outcome.sha256 = len(entry.data), hashlib.sha256(entry.data).hexdigest()
        outcome.locator = leaf.locator
        yield outcome

    def _pages(self, leaf: _Leaf, pages: list[PageText]) -> Generator[None, None, Extraction]:
        """Extract a member's pages into the list; return its outcome."""
        extraction = _guarded(self._extract(leaf.entry.data, leaf.detected))
        while True:
            try:
                pages.append(next(extraction))
            except StopIteration as end:
                found: Extraction | ExtractionProblem = end.value
                return found if isinstance(found, Extraction) else _outcome(leaf, found)
            yield None

    def _leaves(self, data: bytes, detected: Detected, prefix: str, depth: int) -> Generator[_Leaf, None, None]:
        """The members of a container, and those of the containers in it, at their place."""
        n_entries = 0
        entries = _guarded(self._entries(data, detected))
        while True:
            try:
                entry = next(entries)
            except StopIteration as end:
                problem: ExtractionProblem | None = end.value
                break
            n_entries += 1
            damage = yield from _guarded(self._of_entry(entry, prefix, depth))
            if damage is not None:
                yield _Leaf(prefix + entry.locator, replace(entry, problem=damage), _UNKNOWN)
            if self._budget.spent:
                return
        if problem is None and n_entries == 0 and depth > 1:
            problem = ExtractionProblem("skipped", "empty", f"the {detected.kind} holds no members")
        if problem is None:
            return
        if depth == 1 and n_entries == 0:
            raise problem
        # The whole file has no locator; what comes after its last sound entry does.
        locator = prefix.removesuffix("/") if n_entries == 0 else numbered(prefix, n_entries + 1)
        yield _Leaf(locator, Entry(locator, problem=problem), detected)

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
                entry = Entry(str(row.number), raw, text=text)
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

    def _of_entry(self, entry: Entry, prefix: str, depth: int) -> Generator[_Leaf, None, None]:
        """The entry itself, or what is in it."""
        locator = prefix + entry.locator
        if entry.problem is not None:
            yield _Leaf(locator, entry, _UNKNOWN)
            return
        if entry.text is not None:
            yield _Leaf(locator, entry, Detected("text", "text/plain"))
            return
        detected = identify(entry.data, entry.suffix, self._options)
        if detected.kind not in CONTAINERS:
            yield _Leaf(locator, entry, detected)
        elif detected.kind == "archive" and depth >= self._options.archive_depth:
            reason = f"an archive inside {depth} others; the limit is {self._options.archive_depth} (archive_depth)"
            problem = ExtractionProblem("rejected", "too_deep", reason)
            yield _Leaf(locator, Entry(locator, problem=problem), detected)
        else:
            yield from self._leaves(entry.data, detected, locator + "/", depth + 1)


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


def _outcome(leaf: _Leaf, problem: ExtractionProblem | None = None) -> Extraction:
    """The outcome of a member before it is read, or of one that cannot be."""
    outcome = Extraction(
        "ok",
        kind=leaf.detected.kind,
        media_type=leaf.detected.media_type,
        programming_language=leaf.detected.programming_language,
        locator=leaf.locator,
    )
    problem = problem or leaf.entry.problem
    if problem is not None:
        outcome.status, outcome.reason_code, outcome.reason = problem.status, problem.code, problem.reason
    return outcome
