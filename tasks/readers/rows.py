"""Reading the rows of a corpus: Parquet, and JSON Lines as they are or compressed.

Every row gives a record, also one that cannot be used: it says why. A file none of whose rows can be used, because it
is no table or lacks a column, is told as a whole, once. Memory holds a few rows at a time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.import_settings import KINDS, DocumentsSettings
from tasks.readers.records import ReasonCode, Status
from tasks.readers.row_parts import LINES, PARQUET, Part
from tasks.sources.opening import open_regular

BATCH_ROWS = 64  # a file of some kilobytes may repeat a value of megabytes in a million rows
LINES_LOOKED_AT = 20  # within these a file must show that it holds what the settings say
NAMES_SHOWN = 20
_BUFFER = 2**20


class Refusal(NamedTuple):
    """Why a row, or a file, is no document."""

    status: Status
    code: ReasonCode
    reason: str


class Row(NamedTuple):
    """A row.

    Attributes:
        number: Of the row in its file, from 1.
        text: As it stands there; "" where it was refused.
        kind: Of document.
        refusal: Why it is none; None where it is one.
    """

    number: int
    text: str
    name: str | None = None
    title: str | None = None
    kind: str = ""
    language: str | None = None
    refusal: Refusal | None = None


class Unusable(Exception):
    """No row of a file can be used."""

    def __init__(self, status: Status, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(status, code, reason)


def read_part(location: str, part: Part, settings: DocumentsSettings) -> Iterator[Row]:
    """The rows of a part.

    Raises:
        Unusable: None of the file's rows is of use; raised at the first row, if at all.
    """
    if part.format == PARQUET:
        yield from _read_parquet(location, part, settings)
    else:
        yield from _read_lines(location, part, settings)


def _row(number: int, values: Sequence[Any], settings: DocumentsSettings) -> Row:
    """The row with these values of text, id, title, kind and language."""
    text, name, title, kind, language = values
    if type(text) is not str or not text:
        if text is None or text == "":
            return _refused(number, "skipped", "empty", "the row holds no text")
        found = f"the row holds no text in {settings.text_column!r} but {type(text).__name__}"
        return _refused(number, "rejected", "no_column", found)
    # no text has more characters than bytes, so most are never encoded for this
    if len(text) * 4 > settings.max_row_bytes and _n_bytes(text) > settings.max_row_bytes:
        return _refused(number, "rejected", "too_large", _too_large(_n_bytes(text), settings))
    if kind is None:
        kind = settings.kind
    elif kind not in KINDS:
        found = f"the row's {settings.kind_column!r} is {str(kind)[:80]!r}, expected {', '.join(KINDS)}"
        return _refused(number, "rejected", "unsupported", found)
    return Row(number, text, _string(name), _string(title), kind, _string(language))


def _string(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _too_large(size: int, settings: DocumentsSettings) -> str:
    return f"the row has {size} bytes; the limit is {settings.max_row_bytes} (documents.max_row_bytes)"


def _refused(number: int, status: Status, code: ReasonCode, reason: str) -> Row:
    return Row(number, "", refusal=Refusal(status, code, reason))


def _missing(wanted: str, setting: str, names: Sequence[str], where: str) -> Unusable:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    listed = ", ".join(name[:80] for name in names[:NAMES_SHOWN]) or "none"
    return Unusable("rejected", "no_column", f"no {wanted!r} ({setting}) {where}; there are: {listed}{more}")


def _named(settings: DocumentsSettings) -> Iterator[tuple[str, str]]:
    """The columns that the settings name, each with its setting."""
    for name in ("text_column", "id_column", "title_column", "kind_column", "language_column"):
        if getattr(settings, name):
            yield getattr(settings, name), f"documents.{name}"


# Parquet


def _read_parquet(location: str, part: Part, settings: DocumentsSettings) -> Iterator[Row]:
    columns = list(dict.fromkeys(name for name, _ in _named(settings)))
    try:
        file = pq.ParquetFile(location, pre_buffer=False, buffer_size=_BUFFER)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unusable("failed", "corrupt", _damage(error)) from error
    with file:
        _check_columns(file.schema_arrow, settings)
        first = part.first_row
        for group in range(part.start, part.stop or file.num_row_groups):
            yield from _read_group(file, group, first, columns, settings)
            first += file.metadata.row_group(group).num_rows


def _read_group(
    file: pq.ParquetFile, group: int, first: int, columns: list[str], settings: DocumentsSettings
) -> Iterator[Row]:
    """The rows of a row group, up to where it is damaged."""
    number = first
    try:
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            values = [_values(batch, name) for name in settings.columns]
            for row in zip(*values, strict=True):
                yield _row(number, row, settings)
                number += 1
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # a date may be beyond Python's
        left = first + file.metadata.row_group(group).num_rows - number
        yield _refused(number, "failed", "corrupt", f"{_damage(error)}; {left} rows from this one on were not read")


def _damage(error: Exception) -> str:
    return f"the Parquet file is damaged: {_first_line(error)}"


def _check_columns(schema: pa.Schema, settings: DocumentsSettings) -> None:
    """Refuses a table that lacks what the settings name.

    Raises:
        Unusable: It does.
    """
    for name, setting in _named(settings):
        if name not in schema.names:
            raise _missing(name, setting, schema.names, "among the columns")
        if schema.names.count(name) > 1:
            raise Unusable("rejected", "no_column", f"several columns are called {name!r} ({setting})")
    kind = schema.field(settings.text_column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        reason = f"the column {settings.text_column!r} (documents.text_column) is of {kind}, expected text"
        raise Unusable("rejected", "no_column", reason)


def _values(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    if not name:
        return [None] * batch.num_rows
    column = batch.column(name)
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_repaired(value) for value in column]
    return values


def _repaired(value: Any) -> Any:
    """A cell's value; Parquet allows text to be written that is not UTF-8."""
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return bytes(error.object).decode("utf-8", "replace")


# JSON Lines


def _read_lines(location: str, part: Part, settings: DocumentsSettings) -> Iterator[Row]:
    number = part.first_row
    size = 0
    try:
        _check_head(location, part, settings)
        with _open_lines(location, part) as stream:
            if part.start:
                stream.seek(part.start)
            while part.whole or part.start + size < part.stop:
                found, more = _next_row(stream, number, settings)
                if not more:
                    break
                size += more
                if found:
                    yield found.pop()  # not held here while it is worked on
                number += 1
                if part.format != LINES and size > settings.max_unpacked_bytes:
                    limits = f"{settings.max_unpacked_bytes} bytes (documents.max_unpacked_bytes)"
                    yield _refused(number, "rejected", "too_large", f"the file unpacks to more than {limits}")
                    return
    except (pa.ArrowException, OSError) as error:
        damage = f"the file is damaged: {_first_line(error)}"
        if number == 1:
            raise Unusable("failed", "corrupt", damage) from error
        yield _refused(number, "failed", "corrupt", f"{damage}; the lines from line {number} on were not read")


def _next_row(stream: BinaryIO, number: int, settings: DocumentsSettings) -> tuple[list[Row], int]:
    """The row in the next line, if it holds anything, and the bytes of the line; 0 at the end.

    A line may be a document of hundreds of MB, so nothing of it is held longer than it is needed.
    """
    limit = settings.max_row_bytes
    line = stream.readline(limit + 1)
    n_bytes = len(line)
    if n_bytes > limit and not line.endswith(b"\n"):
        n_bytes += _skip_line(stream)
        return [_refused(number, "rejected", "too_large", _too_large(n_bytes, settings))], n_bytes
    if not line or line.isspace():
        return [], n_bytes
    text = _decoded(line)
    del line
    return [_line_row(number, text, settings)], n_bytes


@contextmanager
def _open_lines(location: str, part: Part) -> Iterator[BinaryIO]:
    """The bytes of the lines, unpacked."""
    if part.format == LINES:
        with io.BufferedReader(open_regular(Path(location)), _BUFFER) as file:
            yield file
    else:
        # unlike the readers of Python's modules, these tell a file that ends too early in every format
        raw = pa.input_stream(location, compression=part.format, buffer_size=0)
        with io.BufferedReader(raw, _BUFFER) as file:
            yield file


def _skip_line(stream: BinaryIO) -> int:
    """Passes over the rest of a line; returns its bytes."""
    skipped = 0
    while piece := stream.readline(_BUFFER):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _check_head(location: str, part: Part, settings: DocumentsSettings) -> None:
    """Refuses a file whose first lines hold no objects, or not what the settings name.

    Raises:
        Unusable: It is such a file.
    """
    names: dict[str, None] = {}
    seen = n_objects = 0
    problem = ""
    with _open_lines(location, part) as stream:
        while seen < LINES_LOOKED_AT:
            line = stream.readline(settings.max_row_bytes + 1)
            if not line:
                break
            if line.isspace():
                continue
            seen += 1
            if len(line) > settings.max_row_bytes and not line.endswith(b"\n"):
                return  # who can say what is in it; each of its rows is told
            text = _decoded(line)
            del line
            found = _parse(text)
            if isinstance(found, dict):
                n_objects += 1
                names.update(dict.fromkeys(found))
            problem = problem or (found if isinstance(found, str) else "")
            del text, found
    if not seen:
        raise Unusable("skipped", "empty", "the file is empty")
    if not n_objects:
        reason = f"neither Parquet nor JSON Lines: the first of its lines is {problem}"
        raise Unusable("skipped", "unsupported", reason)
    for name, setting in _named(settings):
        if name not in names:
            raise _missing(name, setting, list(names), f"in the first {seen} lines")


def _line_row(number: int, line: str, settings: DocumentsSettings) -> Row:
    record = _parse(line)
    if isinstance(record, str):
        return _refused(number, "failed", "corrupt", f"the line is {record}")
    text = settings.text_column
    if text not in record:
        listed = ", ".join(key[:80] for key in list(record)[:NAMES_SHOWN]) or "nothing"
        reason = f"the line has no {text!r} (documents.text_column); it has: {listed}"
        return _refused(number, "rejected", "no_column", reason)
    return _row(number, [record.get(name) if name else None for name in settings.columns], settings)


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace").removeprefix("\ufeff")


def _parse(line: str) -> dict[str, Any] | str:
    """The object in a line, or what the line is instead."""
    try:
        record = json.loads(line)
    except RecursionError:
        return "not JSON: its values are nested too deep"
    except ValueError as error:
        return f"not JSON: {error}"
    return record if isinstance(record, dict) else f"no object but {type(record).__name__}"


def _first_line(error: Exception) -> str:
    """The first line of a message; some libraries add advice that means nothing here."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
