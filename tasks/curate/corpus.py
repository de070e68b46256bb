"""DuckDB session over the documents of a corpus and their rows in per-segment tables.

Results are addressed by content, so a cached artefact may name a segment that is no longer in use because its documents
are in others now. A document in several tables is read from that of the segment noted for it. Memory is bounded by a
setting, not by the number of documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa

from storage.catalog import literal_path, quoted
from storage.lineage import manifest_of, segment_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import FILES_FILE, SELECTION_FILE
from storage.store import Store, StoreError
from storage.tables import write_batches

if TYPE_CHECKING:
    import duckdb

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SegmentTable:
    """Folder of a per-segment artefact, and the key of its extraction segment."""

    segment: str
    folder: str


def tables_of(store: Store, tables: RefSet) -> list[SegmentTable]:
    """Return the artefacts of a set, in its order."""
    segments = tables.segments or [segment_of(store, ref) for ref in tables.refs]
    return [SegmentTable(key, str(store.folder(ref))) for key, ref in zip(segments, tables.refs, strict=True)]


def matching_folders(store: Store, documents: RefSet, made: RefSet) -> list[str]:
    """Return for each artefact of documents the folder of the artefact derived from it.

    Args:
        made: Artefacts with the input `documents`. They are matched by its digest, as two segments with the same
            documents share one artefact.
    """
    folders = {manifest_of(store, ref).inputs["documents"]["digest"]: str(store.folder(ref)) for ref in set(made.refs)}
    return [folders[ref.digest] for ref in documents.refs]


class Corpus:
    """A DuckDB session with a table `wanted` of documents, and a table `located` of the rows to read them from.

    Args:
        memory_bytes: Memory limit of queries, beyond which they use `spill`; 0 for DuckDB's default.
        spill: Folder for temporary files; without it the session is in memory.
    """

    def __init__(self, memory_bytes: int = 0, spill: Path | None = None) -> None:
        import duckdb

        self._file = spill / "corpus.duckdb" if spill else None
        if self._file is not None:
            self._file.unlink(missing_ok=True)  # left by a killed attempt
        self.connection = duckdb.connect(self._file or ":memory:")
        self.connection.execute("set preserve_insertion_order = false")
        if memory_bytes:
            self.connection.execute(f"set memory_limit = '{memory_bytes}B'")
        if spill:
            self.connection.execute(f"set temp_directory = {quoted(str(spill))}")

    def __enter__(self) -> Corpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        if self._file is not None:
            self._file.unlink()

    def sql(self, query: str, parameters: Mapping[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
        """Run a query and return its result."""
        return self.connection.execute(query, dict(parameters) if parameters else None)

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the result of a query in batches; other queries may run in between."""
        with self.connection.cursor() as cursor:
            yield from cursor.sql(query).to_arrow_reader(ROWS_AT_ONCE)

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query's result."""
        for batch in self.batches(query):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def columns(self, query: str) -> list[npt.NDArray[Any]]:
        """Return the columns of a query's result as NumPy arrays."""
        return [column.to_numpy() for column in self.arrow(query).columns]

    def write(self, path: Path, schema: pa.Schema, query: str) -> int:
        """Write the result of a query with a schema of `storage.schemas`; return the number of rows."""
        return write_batches(path, schema, self.batches(query))

    def arrow(self, query: str) -> pa.Table:
        """Return the result of a query as one table."""
        return self.connection.sql(query).to_arrow_table()

    def insert(self, name: str, rows: pa.Table) -> None:
        """Append rows to a table, which is created if needed."""
        self.connection.register("fresh_rows", rows)
        self.sql(f"create table if not exists {name} as select * from fresh_rows limit 0")
        self.sql(f"insert into {name} select * from fresh_rows")
        self.connection.unregister("fresh_rows")

    def rows_of(
        self,
        folders: Sequence[str],
        name: str,
        schema: pa.Schema,
        live: Sequence[Collection[str]] | None = None,
    ) -> str:
        """Return SQL for all rows of a per-segment table, with `part` (index of its folder) and `place` (row in it).

        With `live`, the SQL has to run before the next call with `live`, which replaces its table.

        Args:
            folders: Folders of the segments; segments with the same documents may share one.
            name: File name of the table in each of them.
            schema: Schema of the result if there are no folders.
            live: For each folder, the documents to read from it; None for all.
        """
        if not folders:
            self.sql(f'drop table if exists "no {name}"')
            self.insert(f'"no {name}"', schema.empty_table())
            return f'(select 0 as part, 0 as place, * from "no {name}")'
        paths = [Path(folder) / name for folder in folders]
        source = ", ".join(quoted(literal_path(path)) for path in dict.fromkeys(paths))
        # a table, because the optimiser knows its size: with a list of values queries ran out of memory
        numbered = pa.table([range(len(paths)), list(map(str, paths))], ["part", "path"])
        self.sql(f'drop table if exists "parts of {name}"')
        self.insert(f'"parts of {name}"', numbered)
        rows = (
            "(select part, file_row_number as place, found.* exclude (filename, file_row_number) "
            f"from read_parquet([{source}], filename = true, file_row_number = true) as found "
            f'join "parts of {name}" as parts on parts.path = found.filename)'
        )
        if live is None:
            return rows
        self.sql("create or replace table live (doc_id varchar, part int)")
        for part, doc_ids in enumerate(live):
            self.insert(
                "live", pa.table([pa.array(doc_ids, pa.string()), pa.repeat(part, len(doc_ids))], ["doc_id", "part"])
            )
        return f"(from {rows} semi join live using (doc_id, part))"

    def want_live(self, snapshot: Path) -> None:
        """Create `wanted` from the live documents of a snapshot, with their segments, licences and latest dates."""
        self.sql(
            "create table wanted as select doc_id, min(segment) filter (status = 'ok') as segment, "
            "max(nullif(licence, '')) filter (status = 'ok') as licence, max(date) as date "
            f"from {parquet(snapshot / FILES_FILE)} where status in ('ok', 'duplicate') and doc_id is not null "
            "group by doc_id having bool_or(status = 'ok')"
        )

    def want_kept(self, curated: Path, split: str = "") -> None:
        """Create `wanted` from the kept documents of a selection, or of one side of its split."""
        side = f" and split = {quoted(split)}" if split else ""
        self.sql(f"create table wanted as from {parquet(curated / SELECTION_FILE)} where kept{side}")

    def locate(
        self,
        tables: Sequence[SegmentTable],
        name: str,
        columns: Sequence[str] = (),
        live: Sequence[Collection[str]] | None = None,
    ) -> None:
        """Create the table `located`: for each wanted document `part` (index of its table) and `place` (row in it).

        Args:
            tables: Tables, of which several may have the same document.
            name: File name of the table in each of them.
            columns: Further columns of the table to include.
            live: For each table, the documents to read from it, if known; the first table with a document is used.

        Raises:
            StoreError: A document is in none of them, or in several, none of which is that of its segment.
        """
        schema = pa.schema([(column, pa.null()) for column in ("doc_id", *columns)])
        rows = self.rows_of([table.folder for table in tables], name, schema, live)
        more = "".join(f', found."{column}"' for column in columns)
        self.sql(
            f"create or replace table located as select found.doc_id, part, place{more} from {rows} as found "
            "join wanted on wanted.doc_id = found.doc_id"
        )
        # without a window function, which would exceed the memory limit
        if live is None:
            segments = ", ".join(quoted(table.segment) for table in tables)
            self.sql(
                "delete from located using wanted where wanted.doc_id = located.doc_id "
                f"and ([{segments}]::varchar[])[part + 1] <> wanted.segment "
                "and located.doc_id in (select doc_id from located group by all having count(*) > 1)"
            )
        else:
            first = "select doc_id, min(part) from located group by all"
            self.sql(f"delete from located where (doc_id, part) not in ({first})")
        misplaced = self.sql(
            "select doc_id from wanted anti join located using (doc_id) union all "
            "select doc_id from located group by all having count(*) > 1 order by all limit 1"
        )
        for (doc_id,) in misplaced.fetchall():
            ((n_found,),) = self.sql(
                f"select count(*) from {rows} where doc_id = $doc_id", {"doc_id": doc_id}
            ).fetchall()
            raise StoreError(
                f"document {doc_id} is in {n_found} of the {len(tables)} segments in use, expected one: "
                "compute the snapshot again with `--refresh snapshot,curate`"
            )


def parquet(path: Path) -> str:
    """Return SQL for the rows of a Parquet file."""
    return f"read_parquet({quoted(literal_path(path))})"


def kept_documents(store: Store, curated: ArtifactRef, split: str = "") -> set[str]:
    """Return the ids of the kept documents, or of one side of the split."""
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated), split)
        (doc_ids,) = corpus.columns("select doc_id from wanted")
    return set(doc_ids.tolist())
