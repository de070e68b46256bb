"""Read the rows of Parquet, JSON Lines, CSV and SQLite files.

In all formats, a row that cannot be used is a refused row with a reason, and later rows are read; only a file that
cannot be read at all is an error. Rows are read in small batches, which bounds the memory for any file. pyarrow, DuckDB
and SQLite are imported on first use, as most extraction processes do not need them.
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
TEXT = "text"  # type of a text column
MAX_ROW_BYTES = 256 * 2**20
REASONS_SHOWN = 3

_BATCH_ROWS = 16  # a Parquet file of kilobytes may repeat a value of megabytes in a million rows
_COPY_ROWS = 10_000  # copied from SQLite to DuckDB at a time
_LINES_LOOKED_AT = 20  # the columns of JSON Lines are those of the first lines
_NAMES_SHOWN = 20
_BUFFER = 2**20
_CHARACTERS_AT_ONCE = 2**20
_SQLITE_LOCK_BYTES = 18  # offset of the two header bytes with the journal mode
_ARROW_TYPES = {"integer": "int64", "real": "float64", "text": "string", "blob": "binary"}

Columns = Mapping[str, str]  # names and types; of JSON Lines, those in the first lines
Choose = Callable[[Columns], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A file of rows, or a part of one.

    Attributes:
        source: Path or bytes of the file.
        form: `PARQUET`, `LINES` (JSON Lines), `GZIP` or `ZSTD` (compressed JSON Lines), `CSV`, `TSV` or `SQLITE`.
        start, stop: Range of the part: bytes of JSON Lines, row groups of Parquet; a `stop` of 0 is the end.
        first: Number of the part's first row.
        query: SQL query whose rows are read from a SQLite file.
        errors: Error handler for bytes that are not UTF-8: `replace` keeps the row, `surrogateescape` refuses its
            text.
        objects: Refuse a line whose JSON value is not an object; otherwise the value is in the column "".
        max_row_bytes, max_unpacked_bytes: Limits beyond which a row, or the rest of a compressed file, is refused.
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
    """A row of a file.

    Attributes:
        place: Its place in the file, such as "line 7".
        number: The number in `place`, from 1.
        values: Values by column; {} if the row is refused.
        problem: Reason of the refusal, which begins with the place, or None.
    """

    place: str
    number: int
    values: Mapping[str, Any]
    problem: ExtractionProblem | None = None

    def text(self, column: str, empty: bool = False) -> str:
        """Return the text in a column.

        Args:
            empty: Allow the empty string.

        Raises:
            ExtractionProblem: The row is refused, or has no text in the column, or text that UTF-8 cannot encode.
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
    """Count of refused rows, with the first reasons, for messages."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, path: Path, problem: ExtractionProblem) -> None:
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
    """Read the rows of a file lazily.

    Args:
        choose: Function from the existing columns to those to read, which raises if one is missing. A line without the
            first of them keeps all its values, for the error message. None reads all columns.

    Yields:
        Every row, including refused ones; blank lines are skipped, but numbered.

    Raises:
        ExtractionProblem: The file cannot be read; only raised before the first row.
    """
    readers = {PARQUET: _read_parquet, CSV: _read_csv, TSV: _read_csv, SQLITE: _read_sqlite}
    try:
        yield from readers.get(table.form, _read_lines)(table, choose)
    except OSError as error:
        raise ExtractionProblem("failed", "unreadable", f"the file cannot be opened: {error.strerror}") from error


def encoding_fault(text: str) -> str:
    """Return the reason why UTF-8 cannot encode a text; "" if it can."""
    if text.isascii():
        return ""
    for start in range(0, len(text), _CHARACTERS_AT_ONCE):  # bounds the memory for texts of hundreds of MB
        try:
            text[start : start + _CHARACTERS_AT_ONCE].encode()
        except UnicodeEncodeError as error:
            place = start + error.start
            if not "\udc80" <= text[place] <= "\udcff":  # surrogateescape of bytes that are not UTF-8
                return "holds a lone surrogate (\\ud800 to \\udfff), which is no character"
            byte = ord(text[place]) - 0xDC00
            return f"is not UTF-8: byte 0x{byte:02x} behind {place} characters (a lone surrogate when read)"
    return ""


def document_column(columns: Columns, preferred: str) -> str | None:
    """Return the first of the preferred columns (comma-separated) that is a text column, or None."""
    return next((name for name in map(str.strip, preferred.split(",")) if columns.get(name) == TEXT), None)


def list_columns(columns: Columns) -> str:
    """Return the names of columns for a message, with the types of those that are not text."""
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
    """Return the first line of a message, without the advice that some libraries add."""
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
    """Yield the rows of a row group, and one refused row for the rest if it is damaged."""
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
        except UnicodeDecodeError as error:  # Parquet does not enforce UTF-8
            value = bytes(error.object).decode("utf-8", table.errors)
        except (ValueError, OverflowError) as error:  # such as a date beyond Python's
            return _refused("row", number, _corrupt(f"row {number}: {name!r} cannot be read: {_first_line(error)}"))
        # a character has at most 4 bytes, so most texts need not be encoded for this check
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
    """Use malloc for Arrow, whose allocators reserve a gigabyte of the address space that a worker is allowed."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


# JSON Lines


def line_columns(table: Table) -> dict[str, str]:
    """Return the columns in the first lines of a JSON Lines file.

    Raises:
        ExtractionProblem: None of these lines is a JSON object, or the file is empty.
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
                    yield found.pop()  # keeps no reference while the caller uses the row
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

    # unlike Python's modules, Arrow reports a truncated file in every format
    raw = pa.input_stream(str(table.source), compression=table.form, buffer_size=0)
    return io.BufferedReader(raw, _BUFFER)


def _lines(stream: BinaryIO, first: int, table: Table, chosen: Sequence[str]) -> Iterator[tuple[list[Row], int]]:
    """Yield for each line a list with its row, empty for a blank line, and its length in bytes.

    A line may be a document of hundreds of MB, so references to it are dropped early.
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
        # the data is untrusted: no other files, no network, no installation of extensions
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
    """Copy the tables and views that the query mentions from SQLite to DuckDB; return the names of all."""
    import sqlite3

    copied = data
    if data[_SQLITE_LOCK_BYTES : _SQLITE_LOCK_BYTES + 2] == b"\x02\x02":
        # a file in write-ahead mode cannot be opened in memory; its log is another file, so nothing is lost
        copied = data[:_SQLITE_LOCK_BYTES] + b"\x01\x01" + data[_SQLITE_LOCK_BYTES + 2 :]
    try:
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(copied)
            # the schema is untrusted: it must neither write nor call functions with side effects
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
                # matches whole words, so that of hundreds of tables only those in the query are copied
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
        # each cell of a SQLite column may have another type, which Arrow and DuckDB do not allow
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
