"""Rows of tables as documents: Parquet, JSON Lines, and a query over a SQLite file through DuckDB.

One column holds the documents: the first of the names in the options that the table has as text. Rows are read in
small batches, so that memory stays bounded whatever a file claims to hold. pyarrow, DuckDB and SQLite are imported
only when such a file turns up; most extraction processes never see one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tasks.readers.entries import Budget, Entry
from tasks.readers.records import ExtractionProblem, ExtractOptions

if TYPE_CHECKING:
    import sqlite3

    import pyarrow as pa

PARQUET = "application/vnd.apache.parquet"
SQLITE = "application/vnd.sqlite3"
JSON_LINES = "application/jsonl"

# A file of some kilobytes may repeat a value of megabytes in a million rows, so few are unpacked at a time; larger
# batches are no faster.
BATCH_ROWS = 16
COPY_ROWS = 10_000  # Rows that go from SQLite to DuckDB at a time.
LINES_LOOKED_AT = 20  # Within these a JSON Lines file must show a column that holds documents.
NAMES_SHOWN = 20

_SQLITE_LOCK_BYTES = 18  # Place of the two header bytes that say how the file is journalled.
_ARROW_TYPES = {"integer": "int64", "real": "float64", "text": "string", "blob": "binary"}


def read_table(data: bytes, media_type: str, options: ExtractOptions, budget: Budget) -> Iterator[Entry]:
    """Read the documents of a table.

    Args:
        data: The file.
        media_type: What `tasks.readers.detect` took it for.
        options: Which column holds the documents, and the query for SQLite.
        budget: What may still be unpacked; the row that spends it is the last one.

    Yields:
        One entry for each row, with the row's number from 1 (for JSON Lines, the number of the line) as its
        locator.

    Raises:
        ExtractionProblem: The file is damaged ("corrupt"), or has no column for documents ("no_column").
    """
    readers = {PARQUET: _read_parquet, SQLITE: _read_sqlite, JSON_LINES: _read_json_lines}
    yield from readers[media_type](data, options, budget)


def _entry(number: int, value: object, budget: Budget, what: str = "row") -> Entry:
    locator = str(number)
    if value is None or value == "":
        return Entry(locator, problem=ExtractionProblem("skipped", "empty", f"the {what} holds no text"))
    if not isinstance(value, str):
        kind = type(value).__name__
        return Entry(
            locator, problem=ExtractionProblem("rejected", "no_column", f"the {what} holds no text but {kind}")
        )
    # Lone surrogates stand in JSON as escapes; they count as what they will be replaced by.
    raw = value.encode("utf-8", "replace")
    try:
        budget.take(len(raw))
    except ExtractionProblem as problem:
        return Entry(locator, problem=problem)
    return Entry(locator, raw, text=value)


def _choose_column(names: Sequence[str], options: ExtractOptions, found: Sequence[str]) -> str:
    """The column that holds the documents.

    Args:
        names: Columns of text.
        options: The names that are looked for.
        found: All columns, for the message.

    Raises:
        ExtractionProblem: There is none.
    """
    for name in _wanted(options):
        if name in names:
            return name
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    listed = ", ".join(name[:80] for name in found[:NAMES_SHOWN]) or "none"
    reason = f"no column of text is called {' or '.join(_wanted(options))} (table_columns); there are: {listed}{more}"
    raise ExtractionProblem("skipped", "no_column", reason)


def _wanted(options: ExtractOptions) -> list[str]:
    """The names of columns to look for, by preference."""
    return [name.strip() for name in options.table_columns.split(",") if name.strip()]


# Parquet


def _read_parquet(data: bytes, options: ExtractOptions, budget: Budget) -> Iterator[Entry]:
    import pyarrow as pa
    from pyarrow import parquet

    # Arrow's own allocators set a gigabyte of addresses aside, most of what a worker is allowed.
    pa.set_memory_pool(pa.system_memory_pool())
    number = 0
    try:
        with parquet.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
            schema = file.schema_arrow
            texts = [field.name for field in schema if _is_text(field.type)]
            types = [name if name in texts else f"{name} ({schema.field(name).type})" for name in schema.names]
            column = _choose_column(texts, options, types)
            for batch in file.iter_batches(BATCH_ROWS, columns=[column], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    yield _entry(number, _as_text(value), budget)
                    if budget.spent:
                        return
    except MemoryError:
        reason = f"the rows after row {number} need more memory than is allowed"
        raise ExtractionProblem("failed", "memory", reason) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"the Parquet file is damaged after {number} rows: {_first_line(error)}"
        raise ExtractionProblem("failed", "corrupt", reason) from None


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _as_text(value: Any) -> str | None:
    """The value of one cell; text that is not UTF-8, which Parquet allows to be written, is repaired."""
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return bytes(error.object).decode("utf-8", "replace")


# JSON Lines


def json_lines_column(data: bytes, options: ExtractOptions) -> str | None:
    """Find the column that holds the documents of a JSON Lines file.

    Args:
        data: The file.
        options: The names that are looked for.

    Returns:
        The first of these names that one of the first lines has with a text; None if there is none.
    """
    start = 0
    names: set[str] = set()
    for _ in range(LINES_LOOKED_AT):
        end = data.find(b"\n", start)
        line = data[start : end if end >= 0 else len(data)]
        try:
            record = json.loads(line.decode("utf-8-sig")) if line.strip() else {}
        except (ValueError, RecursionError):
            record = {}
        if isinstance(record, dict):
            names.update(name for name, value in record.items() if isinstance(value, str))
        if end < 0:
            break
        start = end + 1
    return next((name for name in _wanted(options) if name in names), None)


def _read_json_lines(data: bytes, options: ExtractOptions, budget: Budget) -> Iterator[Entry]:
    """The lines of a JSON Lines file; blank ones are passed over."""
    column = json_lines_column(data, options)
    start = number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = end if end >= 0 else len(data)
        line, start = data[start:end], end + 1
        number += 1
        if line.strip():
            yield _line_entry(number, line, column, budget)
            if budget.spent:
                return


def _line_entry(number: int, line: bytes, column: str | None, budget: Budget) -> Entry:
    try:
        record = json.loads(line.decode("utf-8-sig", "replace"))
    except RecursionError:
        return _bad_line(number, "its values are nested too deep")
    except ValueError as error:
        return _bad_line(number, f"not JSON: {error}")
    if not isinstance(record, dict):
        return _bad_line(number, f"expected an object, found {type(record).__name__}")
    if column not in record:
        reason = f"line {number} has no {column!r}; it has: {', '.join(list(record)[:NAMES_SHOWN]) or 'nothing'}"
        return Entry(str(number), problem=ExtractionProblem("skipped", "no_column", reason))
    return _entry(number, record[column], budget, f"value of {column!r} in line {number}")


def _bad_line(number: int, reason: str) -> Entry:
    return Entry(str(number), problem=ExtractionProblem("failed", "corrupt", f"line {number}: {reason}"))


# SQLite


def _read_sqlite(data: bytes, options: ExtractOptions, budget: Budget) -> Iterator[Entry]:
    import duckdb

    settings = {
        # The query is the user's, but what it reads is not: no other file, no network, nothing to install.
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": 1,
        "memory_limit": "1GB",
    }
    with closing(duckdb.connect(":memory:", config=settings)) as database:
        tables = _copy_tables(data, options.sqlite_query, database)
        try:
            result = database.execute(options.sqlite_query)
            columns = [(str(column[0]), str(column[1])) for column in result.description or ()]
            texts = [name for name, kind in columns if kind in ("VARCHAR", "STRING")]
            column = next((name for name in (*_wanted(options), *texts) if name in texts), None)
            if column is None:
                column = _choose_column(texts, options, [name for name, _ in columns])
            place = [name for name, _ in columns].index(column)
            number = 0
            while rows := result.fetchmany(BATCH_ROWS):
                for row in rows:
                    number += 1
                    yield _entry(number, row[place], budget)
                    if budget.spent:
                        return
        except duckdb.OutOfMemoryException as error:
            raise ExtractionProblem("failed", "memory", f"the query (sqlite_query): {_first_line(error)}") from None
        except duckdb.Error as error:
            listed = ", ".join(tables[:NAMES_SHOWN]) or "none"
            reason = f"the query (sqlite_query) failed: {_first_line(error)}; tables of the file: {listed}"
            raise ExtractionProblem("rejected", "no_column", reason) from None


def _copy_tables(data: bytes, query: str, database: Any) -> list[str]:
    """Copy the tables and views that the query speaks of from SQLite; return the names of all."""
    import sqlite3

    copied = data
    if data[_SQLITE_LOCK_BYTES : _SQLITE_LOCK_BYTES + 2] == b"\x02\x02":
        # A file in write-ahead mode cannot be opened in memory. Its log lies elsewhere, so nothing is lost by this.
        copied = data[:_SQLITE_LOCK_BYTES] + b"\x01\x01" + data[_SQLITE_LOCK_BYTES + 2 :]
    try:
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(copied)
            # What a file defines may be hostile: it must neither write nor call functions with side effects.
            source.execute("PRAGMA trusted_schema = OFF")
            source.execute("PRAGMA cell_size_check = ON")
            source.execute("PRAGMA query_only = ON")
            source.text_factory = lambda raw: raw.decode("utf-8", "replace")
            names = source.execute(
                "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
            )
            tables = [str(name) for (name,) in names]
            for table in tables:
                # Whole words, so that a file with hundreds of tables costs only those that are asked for.
                name = re.escape(table.replace('"', '""'))
                if re.search(rf"(?<!\w){name}(?!\w)", query, re.IGNORECASE):
                    _copy_table(source, table, database)
    except sqlite3.Error as error:
        raise ExtractionProblem("failed", "corrupt", f"the SQLite file is damaged: {error}") from None
    return tables


def _copy_table(source: sqlite3.Connection, table: str, database: Any) -> None:
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    quoted = _quote(table)
    names = [str(row[1]) for row in source.execute(f"PRAGMA table_info({quoted})")]
    if not names:
        return
    fields, parts = [], []
    for name in names:
        kinds = {str(kind) for (kind,) in source.execute(f"SELECT DISTINCT typeof({_quote(name)}) FROM {quoted}")}
        kinds.discard("null")
        kind = _one_type(kinds)
        fields.append(pa.field(name, _ARROW_TYPES[kind]))
        # Any cell of a SQLite column may have a type of its own, which Arrow and DuckDB do not know.
        parts.append(_quote(name) if len(kinds) <= 1 else f"CAST({_quote(name)} AS {kind})")
    rows = source.execute(f"SELECT {', '.join(parts)} FROM {quoted}")
    batches = []
    while chunk := rows.fetchmany(COPY_ROWS):
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*chunk, strict=True), fields, strict=True)]
        batches.append(pa.record_batch(arrays, schema=pa.schema(fields)))
    database.register(table, pa.Table.from_batches(batches, pa.schema(fields)))


def _one_type(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "real" if kinds == {"integer", "real"} else "text"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    """The first line of a message; some libraries add advice that means nothing here."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
