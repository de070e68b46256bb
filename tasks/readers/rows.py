"""The rows of Parquet, JSON Lines, CSV and SQLite files, whoever needs them.

One rule for all: a row that cannot be used is one refused row that says why, and the rows behind it are read; only a
file that cannot be read at all is an error. Rows are read a few at a time, so that memory stays bounded whatever a file
claims to hold. pyarrow, DuckDB and SQLite are imported only when such a file turns up: most extraction processes never
see one.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tasks.readers.records import ExtractionProblem
from tasks.sources.folder import open_regular

if TYPE_CHECKING:
    import sqlite3

    import pyarrow as pa

PARQUET, LINES, GZIP, ZSTD, CSV, TSV, SQLITE = "parquet", "jsonl", "gzip", "zstd", "csv", "tsv", "sqlite"
SUFFIXES = {".parquet": PARQUET, ".jsonl": LINES, ".ndjson": LINES, ".csv": CSV, ".tsv": TSV}
TEXT = "text"  # the type of a column of text
MAX_ROW_BYTES = 256 * 2**20
REASONS_SHOWN = 3

_BATCH_ROWS = 16  # a file of some kilobytes may repeat a value of megabytes in a million rows
_COPY_ROWS = 10_000  # that go from SQLite to DuckDB at a time
_LINES_LOOKED_AT = 20  # within these a file of lines must show that it is one, and its columns
_NAMES_SHOWN = 20
_BUFFER = 2**20
_CHARACTERS_AT_ONCE = 2**20
_SQLITE_LOCK_BYTES = 18  # place of the two header bytes that say how the file is journalled
_ARROW_TYPES = {"integer": "int64", "real": "float64", "text": "string", "blob": "binary"}

Columns = Mapping[str, str]  # names and types; of a file of lines, those that its first lines have
Choose = Callable[[Columns], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A file of rows, or a part of one.

    Attributes:
        source: The file's path, or its bytes.
        form: `PARQUET`, `LINES` (of JSON), `GZIP` or `ZSTD` (compressed lines of JSON), `CSV`, `TSV` or `SQLITE`.
        start, stop: The part: bytes of a file of lines, row groups of a Parquet file; a `stop` of 0 is its end.
        first: Number of the part's first row.
        query: Query whose rows are read of a SQLite file.
        errors: Treatment of bytes that are not UTF-8: with `replace` the row is kept, with `surrogateescape` its text
            is refused.
        objects: Whether a line of JSON that holds no object is refused; else its value is under the name "".
        max_row_bytes, max_unpacked_bytes: Larger rows are refused, and the rest of compressed files.
    """

    source: Path | bytes
    form: str
    start: int = 0
    stop: int = 0
    first: int = 1
    query: str = ""
    errors: str = "surrogateescape"
    objects: bool = True
    max_row_bytes: int = MAX_ROW_BYTES
    max_unpacked_bytes: int = 2**62


class Row(NamedTuple):
    """A row.

    Attributes:
        place: Its place in the file, such as "line 7".
        number: The number in it, from 1.
        values: By column; none where the row is refused.
        problem: Reason of the refusal, which begins with the place.
    """

    place: str
    number: int
    values: Mapping[str, Any]
    problem: ExtractionProblem | None = None

    def text(self, column: str, empty: bool = False) -> str:
        """Return the text in a column.

        Args:
            empty: Whether a text without characters is one.

        Raises:
            ExtractionProblem: The row is refused, or has no text there that UTF-8 can hold.
        """
        if self.problem is not None:
            raise self.problem
        value = self.values.get(column)
        if column not in self.values:
            listed = ", ".join(name[:80] for name in list(self.values)[:_NAMES_SHOWN]) or "nothing"
            raise ExtractionProblem("rejected", "no_column", f"{self.place} has no {column!r}; it has: {listed}")
        if value is None or (value == "" and not empty):
            raise ExtractionProblem("skipped", "empty", f"{self.place} holds no text in {column!r}")
        if not isinstance(value, str):
            reason = f"{self.place} holds no text in {column!r} but {type(value).__name__}"
            raise ExtractionProblem("rejected", "no_column", reason)
        if fault := encoding_fault(value):
            raise ExtractionProblem("failed", "corrupt", f"{self.place}: the text in {column!r} {fault}")
        return value


class Refused:
    """Counter of the refused rows of files, with the first reasons, for the user."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, path: Path, problem: ExtractionProblem) -> None:
        """Count a row of a file."""
        self.count += 1
        if len(self._first) < REASONS_SHOWN:
            self._first.append(f"{path}, {problem.reason}")

    def sentence(self) -> str:
        """Return the number of refused rows and the first reasons; "" if there are none."""
        if not self.count:
            return ""
        rows = "1 row was" if self.count == 1 else f"{self.count:,} rows were"
        return f"{rows} refused: {'; '.join(self._first)}{'; and others' * (self.count > len(self._first))}"


def read_rows(table: Table, choose: Choose | None = None) -> Iterator[Row]:
    """Read the rows of a file, each as soon as it is asked for.

    Args:
        choose: Returns the columns to read, of those that there are, or raises where one is missing. A line without the
            first of them keeps all its values, for the message. None reads all columns.

    Yields:
        Every row, refused ones too; blank lines count, but are no rows.

    Raises:
        ExtractionProblem: The file cannot be read; raised before the first row, if at all.
    """
    readers = {PARQUET: _read_parquet, CSV: _read_csv, TSV: _read_csv, SQLITE: _read_sqlite}
    try:
        yield from readers.get(table.form, _read_lines)(table, choose)
    except OSError as error:
        raise ExtractionProblem("failed", "unreadable", f"the file cannot be opened: {error.strerror}") from error


def encoding_fault(text: str) -> str:
    """Return the reason why UTF-8 cannot hold a text; "" if it can."""
    if text.isascii():
        return ""
    for start in range(0, len(text), _CHARACTERS_AT_ONCE):  # a text may have hundreds of MB
        try:
            text[start : start + _CHARACTERS_AT_ONCE].encode()
        except UnicodeEncodeError as error:
            place = start + error.start
            if not "\udc80" <= text[place] <= "\udcff":  # these are the bytes that are not UTF-8
                return "holds a lone surrogate (\\ud800 to \\udfff), which is no character"
            byte = ord(text[place]) - 0xDC00
            return f"is not UTF-8: byte 0x{byte:02x} behind {place} characters (a lone surrogate when read)"
    return ""


def document_column(columns: Columns, preferred: str) -> str | None:
    """Return the first of the preferred columns, whose names stand between commas, that holds text; None without."""
    return next((name for name in map(str.strip, preferred.split(",")) if columns.get(name) == TEXT), None)


def list_columns(columns: Columns) -> str:
    """Return the names of columns for a message, with the types of those that hold no text."""
    shown = [name[:80] + ("" if kind == TEXT else f" ({kind})") for name, kind in columns.items()]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return f"{', '.join(shown[:_NAMES_SHOWN]) or 'none'}{more}"


def _refused(unit: str, number: int, problem: ExtractionProblem) -> Row:
    return Row(f"{unit} {number}", number, {}, problem)


def _bad_line(number: int, what: str) -> Row:
    return _refused("line", number, _corrupt(f"line {number} {what}"))


def _too_large(unit: str, number: int, n_bytes: int, table: Table) -> Row:
    reason = f"{unit} {number} has {n_bytes} bytes; the limit is {table.max_row_bytes} (max_row_bytes)"
    return _refused(unit, number, ExtractionProblem("rejected", "too_large", reason))


def _corrupt(reason: str) -> ExtractionProblem:
    return ExtractionProblem("failed", "corrupt", reason)


def _first_line(error: Exception) -> str:
    """The first line of a message; some libraries add advice that means nothing here."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


# Parquet


def _read_parquet(table: Table, choose: Choose | None) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    source: Any = str(table.source)
    if isinstance(table.source, bytes):
        _use_system_memory()
        source = pa.BufferReader(table.source)
    try:
        file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)
        columns = {field.name: _column_type(field.type) for field in file.schema_arrow}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(f"the Parquet file is damaged: {_first_line(error)}") from error
    with file:
        chosen = list(columns) if choose is None else list(dict.fromkeys(choose(columns)))
        names = file.schema_arrow.names
        twice = [name for name in chosen if names.count(name) > 1]
        if twice:
            raise ExtractionProblem("rejected", "no_column", f"several columns are called {twice[0]!r}: rename them")
        first = table.first
        for group in range(table.start, table.stop or file.num_row_groups):
            yield from _read_group(file, group, first, chosen, table)
            first += file.metadata.row_group(group).num_rows


def _read_group(file: Any, group: int, first: int, columns: list[str], table: Table) -> Iterator[Row]:
    """The rows of a row group, up to where it is damaged."""
    import pyarrow as pa

    number = first
    try:
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            arrays = [batch.column(name) for name in columns]
            for place in range(batch.num_rows):
                yield _table_row(number, columns, [array[place] for array in arrays], table)
                number += 1
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        behind = max(0, first + file.metadata.row_group(group).num_rows - number - 1)
        lost = f"row {number} and the {behind} behind it in its row group"
        problem = _corrupt(f"{lost} are damaged: {_first_line(error)}")
        if isinstance(error, MemoryError):
            problem = ExtractionProblem("failed", "memory", f"{lost} need more memory than is allowed")
        yield _refused("row", number, problem)


def _table_row(number: int, columns: list[str], cells: list[Any], table: Table) -> Row:
    values = {}
    for name, cell in zip(columns, cells, strict=True):
        try:
            value = cell.as_py()
        except UnicodeDecodeError as error:  # Parquet allows it to be written
            value = bytes(error.object).decode("utf-8", table.errors)
        except (ValueError, OverflowError) as error:  # such as a date beyond Python's
            return _refused("row", number, _corrupt(f"row {number}: {name!r} cannot be read: {_first_line(error)}"))
        # no text has more characters than bytes, so most are never encoded for this
        if isinstance(value, str) and len(value) * 4 > table.max_row_bytes:
            n_bytes = len(value.encode("utf-8", "surrogatepass"))
            if n_bytes > table.max_row_bytes:
                return _too_large("row", number, n_bytes, table)
        values[name] = value
    return Row(f"row {number}", number, values)


def _column_type(kind: pa.DataType) -> str:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
    return TEXT if is_text else str(kind)


def _use_system_memory() -> None:
    """Arrow's own allocators set a gigabyte of addresses aside, most of what an extraction process is allowed."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


# JSON Lines


def line_columns(table: Table) -> dict[str, str]:
    """Return the columns in the first lines of a file of JSON Lines.

    Raises:
        ExtractionProblem: None of these lines holds an object.
    """
    columns: dict[str, str] = {}
    first: ExtractionProblem | None = None
    seen = n_objects = 0
    with _open_lines(table) as stream:
        for found, _ in _lines(stream, 1, table, ()):
            for row in found:
                seen += 1
                first = first or row.problem
                n_objects += row.problem is None
                for name, value in row.values.items():
                    columns[name] = TEXT if isinstance(value, str) else columns.get(name, type(value).__name__)
            if seen == _LINES_LOOKED_AT:
                break
    if not seen:
        raise ExtractionProblem("skipped", "empty", "the file is empty")
    if first is not None and not n_objects:
        raise ExtractionProblem("skipped", "unsupported", f"not JSON Lines: {first.reason}")
    return columns


def _read_lines(table: Table, choose: Choose | None) -> Iterator[Row]:
    number = table.first
    place = table.start
    try:
        chosen = () if choose is None else choose(line_columns(table))
        with _open_lines(table) as stream:
            stream.seek(place) if place else None
            for found, n_bytes in _lines(stream, number, table, chosen):
                place += n_bytes
                if found:
                    yield found.pop()  # not held here while it is worked on
                number += 1
                if table.form != LINES and place > table.max_unpacked_bytes:
                    reason = f"the file unpacks to more than {table.max_unpacked_bytes} bytes (max_unpacked_bytes)"
                    problem = ExtractionProblem("rejected", "too_large", f"lines from {number} on: {reason}")
                    yield _refused("line", number, problem)
                    return
                if table.stop and place >= table.stop:
                    return
    except (OSError, ValueError) as error:
        damage = f"the file is damaged: {_first_line(error)}"
        if number == 1:
            raise _corrupt(damage) from error
        yield _refused("line", number, _corrupt(f"{damage}; the lines from line {number} on were not read"))


def _open_lines(table: Table) -> BinaryIO:
    if isinstance(table.source, bytes):
        return io.BytesIO(table.source)
    if table.form == LINES:
        return io.BufferedReader(open_regular(table.source), _BUFFER)
    import pyarrow as pa

    # unlike the readers of Python's modules, these notice a file that ends too early in every format
    raw = pa.input_stream(str(table.source), compression=table.form, buffer_size=0)
    return io.BufferedReader(raw, _BUFFER)


def _lines(stream: BinaryIO, first: int, table: Table, chosen: Sequence[str]) -> Iterator[tuple[list[Row], int]]:
    """Of each line the row in it, if it holds anything, and its bytes.

    A line may be a document of hundreds of MB, so nothing of it is held longer than it is needed.
    """
    for number in itertools.count(first):
        line = stream.readline(table.max_row_bytes + 1)
        n_bytes = len(line)
        if not n_bytes:
            return
        if n_bytes > table.max_row_bytes and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(_BUFFER)
                n_bytes += len(line)
            yield [_too_large("line", number, n_bytes, table)], n_bytes
        elif line.isspace():
            yield [], n_bytes
        else:
            text = line.decode("utf-8", table.errors).removeprefix("\ufeff")
            del line
            found = [_line_row(number, text, table, chosen)]
            del text
            yield found, n_bytes


def _line_row(number: int, line: str, table: Table, chosen: Sequence[str]) -> Row:
    try:
        value = json.loads(line)
    except RecursionError:
        return _bad_line(number, "is not JSON: its values are nested too deep")
    except ValueError as error:
        return _bad_line(number, f"is not JSON: {error}")
    if not isinstance(value, dict):
        if table.objects:
            return _bad_line(number, f"holds no object but {type(value).__name__}")
        value = {"": value}
    if chosen and chosen[0] in value:
        value = {name: value[name] for name in chosen if name in value}
    return Row(f"line {number}", number, value)


# CSV


def _read_csv(table: Table, choose: Choose | None) -> Iterator[Row]:
    assert isinstance(table.source, Path)
    csv.field_size_limit(table.max_row_bytes)
    raw = open_regular(table.source)
    with io.TextIOWrapper(io.BufferedReader(raw), "utf-8-sig", table.errors, newline="") as stream:
        lines = _csv_lines(stream, table.max_row_bytes)
        reader = csv.reader(lines, delimiter="\t" if table.form == TSV else ",", strict=True)
        try:
            header = next(reader, [])
        except csv.Error as error:
            raise _corrupt(f"the header is not CSV: {error}") from error
        if len(set(header)) < len(header):
            reason = f"two columns have one name: rename one; the header is {header[:_NAMES_SHOWN]}"
            raise ExtractionProblem("rejected", "no_column", reason)
        if choose is not None:
            choose(dict.fromkeys(header, TEXT))
        while True:
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield _bad_line(reader.line_num, f"is not CSV: {error}")
                continue
            if not values:
                continue
            number = reader.line_num
            if len(values) != len(header):
                found = f"has {len(values)} values under a header of {len(header)} columns"
                yield _bad_line(number, f"{found}; quote values that hold the separator")
            else:
                yield Row(f"line {number}", number, dict(zip(header, values, strict=True)))


def _csv_lines(stream: io.TextIOWrapper, limit: int) -> Iterator[str]:
    while line := stream.readline(limit + 1):
        if len(line) > limit:
            raise csv.Error(f"it is longer than {limit} characters; the lines behind it were not read")
        yield line


# SQLite


def _read_sqlite(table: Table, choose: Choose | None) -> Iterator[Row]:
    import duckdb

    assert isinstance(table.source, bytes)
    settings = {
        # The query is the user's, but what it reads is not: no other file, no network, nothing to install.
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": 1,
        "memory_limit": "1GB",
    }
    _use_system_memory()
    number = 0
    with closing(duckdb.connect(":memory:", config=settings)) as database:
        tables = _copy_tables(table.source, table.query, database)
        try:
            result = database.execute(table.query)
            described = [(str(name), str(kind)) for name, kind, *_ in result.description or ()]
            columns = {name: TEXT if kind in ("VARCHAR", "STRING") else kind for name, kind in described}
            names = [name for name, _ in described]
            places = {name: names.index(name) for name in (columns if choose is None else choose(columns))}
            while rows := result.fetchmany(_BATCH_ROWS):
                for row in rows:
                    number += 1
                    yield Row(f"row {number}", number, {name: row[place] for name, place in places.items()})
        except duckdb.Error as error:
            problem = ExtractionProblem("failed", "memory", f"the query: {_first_line(error)}")
            if not isinstance(error, duckdb.OutOfMemoryException):
                listed = ", ".join(tables[:_NAMES_SHOWN]) or "none"
                reason = f"the query failed: {_first_line(error)}; tables of the file: {listed}"
                problem = ExtractionProblem("rejected", "no_column", reason)
            if not number:
                raise problem from None
            yield _refused("row", number + 1, problem)


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
        raise _corrupt(f"the SQLite file is damaged: {error}") from None
    return tables


def _copy_table(source: sqlite3.Connection, table: str, database: Any) -> None:
    import pyarrow as pa

    quoted = _quote(table)
    fields, parts = [], []
    for name in [str(row[1]) for row in source.execute(f"PRAGMA table_info({quoted})")]:
        column = _quote(name)
        # Any cell of a SQLite column may have a type of its own, which Arrow and DuckDB do not know.
        kinds = {str(kind) for (kind,) in source.execute(f"SELECT DISTINCT typeof({column}) FROM {quoted}")} - {"null"}
        kind = "real" if kinds == {"integer", "real"} else "text"
        if len(kinds) == 1:
            kind = kinds.pop()
        fields.append(pa.field(name, _ARROW_TYPES[kind]))
        parts.append(f"CAST({column} AS {kind})")
    if not fields:
        return
    schema = pa.schema(fields)
    rows = source.execute(f"SELECT {', '.join(parts)} FROM {quoted}")
    batches = []
    while chunk := rows.fetchmany(_COPY_ROWS):
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*chunk, strict=True), schema.types, strict=True)]
        batches.append(pa.record_batch(arrays, schema=schema))
    database.register(table, pa.Table.from_batches(batches, schema))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
