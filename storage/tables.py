"""Reading and writing Parquet: explicit schemas, zstd, row groups of limited size to read in bounded memory."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.without_pandas import WithoutPandas

sys.meta_path.insert(0, WithoutPandas())
pa.array([""])  # Arrow imports pandas at its first array; later only to convert a table to pandas
del sys.meta_path[0]

ROW_GROUP_ROWS = 1_000
ROW_GROUP_BYTES = 32 * 2**20
STRUCT_BYTES = 500  # that an entry of a list, such as a block of a page, takes about
ZSTD_LEVEL = 3


class TableWriter:
    """Writes rows under a schema of `storage.schemas`, one row group at a time.

    Attributes:
        count: rows written so far.

    Raises:
        pyarrow.ArrowInvalid: if a row does not fit the schema.
        ValueError: if a row lacks a column or has one that the schema lacks.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.count = 0
        self._path = path
        self._names = set(schema.names)
        self._schema = schema
        self._texts = [field.name for field in schema if field.type in (pa.string(), pa.large_string())]
        lists = [field for field in schema if pa.types.is_list(field.type)]
        self._structs = [field.name for field in lists if pa.types.is_struct(field.type.value_type)]
        self._batch: list[Mapping[str, Any]] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(path, schema, **_options(schema))

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows."""
        for row in rows:
            if row.keys() != self._names:
                raise ValueError(f"{self._path.name}: row has {sorted(row)}, the schema {sorted(self._names)}")
            self._batch.append(row)
            # a row group is also limited in bytes, because documents may be long
            self._bytes += sum([len(row[name] or "") for name in self._texts])
            self._bytes += STRUCT_BYTES * sum([len(row[name] or ()) for name in self._structs])
            self.count += 1
            if len(self._batch) == ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._batch:  # without rows Parquet would get an empty row group
            self._writer.write_table(pa.Table.from_pylist(self._batch, schema=self._schema))
        self._batch, self._bytes = [], 0

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of Parquet's writer.

    Long texts get no dictionary and no statistics, which would hold several copies of each in memory without benefit.
    """
    short = [field.name for field in schema if field.type != pa.large_string()]
    return {
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": short,
        "write_statistics": short,
    }


def unpacked_size(path: Path) -> int:
    """Return the bytes of a table's columns before compression: about the memory to read it."""
    metadata = pq.read_metadata(path)
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def count_rows(path: Path) -> int:
    """Return the number of rows of a table."""
    return int(pq.read_metadata(path).num_rows)


def write_table(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows under a schema of `storage.schemas`; returns their number.

    Raises:
        pyarrow.ArrowInvalid: if a row does not fit the schema.
        ValueError: if a row lacks a column or has one that the schema lacks.
    """
    with TableWriter(path, schema) as writer:
        writer.write(rows)
    return writer.count


def write_columns(path: Path, schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table of short values from whole columns, which is several times faster than from rows.

    Raises:
        pyarrow.ArrowInvalid: if a column does not fit the schema.
        ValueError: if columns are missing, too many or of different lengths.
    """
    if columns.keys() != set(schema.names):
        raise ValueError(f"{path.name}: columns are {sorted(columns)}, the schema has {sorted(schema.names)}")
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    pq.write_table(table, path, ROW_GROUP_ROWS, **_options(schema))


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write a table of short values from record batches with the columns of the schema; returns the number of rows."""
    count = 0
    with pq.ParquetWriter(path, schema, **_options(schema)) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(schema), ROW_GROUP_ROWS)
            count += batch.num_rows
    return count


def stream_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dictionaries, with one row group in memory."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=columns).to_pylist()


def stream_columns(path: Path, columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of each row group of a table, as lists by name."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns).select(columns).to_pydict()


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries, with all or some of its columns."""
    rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return rows


def read_places(path: Path, column: str, places: Sequence[int]) -> dict[int, Any]:
    """Return the values of a column in some rows, by row number; only row groups with such rows are read.

    Args:
        places: row numbers from 0, sorted.
    """
    found: dict[int, Any] = {}
    begin = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            wanted = places[bisect_left(places, begin) : bisect_left(places, end)]
            if wanted:
                values = file.read_row_group(group, columns=[column]).column(column)
                found |= {place: values[place - begin].as_py() for place in wanted}
            begin = end
    return found


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:  # `read_table` takes milliseconds to look for further files
        return file.read(columns, use_threads=False)


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return columns of a table, as lists by name."""
    return _read(path, columns).select(columns).to_pydict()


def members(names: pa.ChunkedArray, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Return (n,) True for names in `wanted`; a look-up in the set is faster than converting it to an Arrow array."""
    return np.fromiter(map(wanted.__contains__, names.to_pylist()), bool, len(names))


def union_digest(paths: Sequence[Path], live: Sequence[Collection[str]] | None = None, identity: str = "doc_id") -> str:
    """Return the logical digest of tables with `doc_id` and `digest` columns, read as one table.

    Args:
        paths: the tables; the digest does not depend on the distribution of rows over them.
        live: for each table, the values of `identity` of the rows to include; None for all rows.
        identity: a column of the tables.
    """
    parts = []
    for place, path in enumerate(paths):
        table = _read(path, sorted({"doc_id", "digest", identity}))
        if live is not None and not (counts := members(table[identity], live[place])).all():
            table = table.filter(pa.array(counts))
        parts.append(table.select(["doc_id", "digest"]))
    return rows_digest(row for part in parts for row in zip(*part.to_pydict().values(), strict=True))
