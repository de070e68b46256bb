"""Reading and writing Parquet: explicit schemas, zstd, row groups small enough for two cores to share a file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest

ROW_GROUP_ROWS = 1_000
ZSTD_LEVEL = 3


def write_table(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows under a schema of `storage.schemas`; returns their number.

    Raises:
        pyarrow.ArrowInvalid: if a row does not fit the schema.
        ValueError: if a row lacks a column or brings one that the schema does not have.
    """
    count = 0
    batch: list[Mapping[str, Any]] = []
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=ZSTD_LEVEL) as writer:
        for row in rows:
            if row.keys() != set(schema.names):
                raise ValueError(f"{path.name}: row has {sorted(row)}, the schema {sorted(schema.names)}")
            batch.append(row)
            if len(batch) == ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                count += len(batch)
                batch = []
        if batch:  # a row group of no rows is noise in every reader's metadata
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return count + len(batch)


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """All rows of a table as dictionaries, or of some of its columns."""
    rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return rows


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns of a table, each as a list."""
    table = pq.read_table(path, columns=columns)
    return {name: table.column(name).to_pylist() for name in columns}


def union_digest(paths: Sequence[Path], live: Sequence[Collection[str]] | None = None) -> str:
    """Logical digest of tables with `doc_id` and `digest` columns, read as one table.

    Args:
        paths: the tables; how rows are spread over them does not matter.
        live: for each table, the documents in it that count; all of them when None.
    """

    def pairs() -> Iterator[tuple[str, str]]:
        for place, path in enumerate(paths):
            columns = read_columns(path, ["doc_id", "digest"])
            for doc_id, digest in zip(columns["doc_id"], columns["digest"], strict=True):
                if live is None or doc_id in live[place]:
                    yield doc_id, digest

    return rows_digest(pairs())
