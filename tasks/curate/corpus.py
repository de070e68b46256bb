"""The documents of a corpus and the rows that per-segment tables hold of them, as DuckDB tables.

Results are addressed by content, so an artefact found in the store may name a segment that is no longer in use: the
same documents lie in others now. A document that lies in one table is read there; of several, in that of the segment
noted for it. Memory is bounded by a setting, not by the number of documents.
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
    """Folder of a per-segment artefact, and the key of the extraction segment behind it."""

    segment: str
    folder: str


def tables_of(store: Store, tables: RefSet) -> list[SegmentTable]:
    """Return the artefacts of a set, in its order."""
    segments = tables.segments or [segment_of(store, ref) for ref in tables.refs]
    return [SegmentTable(key, str(store.folder(ref))) for key, ref in zip(segments, tables.refs, strict=True)]


def matching_folders(store: Store, documents: RefSet, made: RefSet) -> list[str]:
    """Return, for each artefact of documents, the folder of what was made of it.

    Args:
        made: Artefacts with the input `documents`. They are matched by its content: of two segments with the same
            documents, one artefact may have been made.
    """
    folders = {manifest_of(store, ref).inputs["documents"]["digest"]: str(store.folder(ref)) for ref in set(made.refs)}
    return [folders[ref.digest] for ref in documents.refs]


class Corpus:
    """A DuckDB session with a table `wanted` of documents, and a table `located` of where each is read.

    Args:
        memory_bytes: Memory of all queries; 0 leaves it to DuckDB. What is larger goes to `spill`.
        spill: Folder for temporary files; without it nothing is written.
    """

    def __init__(self, memory_bytes: int = 0, spill: Path | None = None) -> None:
        import duckdb

        self._file = spill / "corpus.duckdb" if spill else None
        if self._file is not None:
            self._file.unlink(missing_ok=True)  # of an attempt that was killed
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
        """Yield the result of a query piece by piece; other queries may run between."""
        with self.connection.cursor() as cursor:
            yield from cursor.sql(query).to_arrow_reader(ROWS_AT_ONCE)

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a result."""
        for batch in self.batches(query):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def columns(self, query: str) -> list[npt.NDArray[Any]]:
        """Return the columns of a result as NumPy arrays."""
        return [column.to_numpy() for column in self.arrow(query).columns]

    def write(self, path: Path, schema: pa.Schema, query: str) -> int:
        """Write the result of a query under a schema of `storage.schemas`; returns its rows."""
        return write_batches(path, schema, self.batches(query))

    def arrow(self, query: str) -> pa.Table:
        """Return the result of a query as one table."""
        return self.connection.sql(query).to_arrow_table()

    def insert(self, name: str, rows: pa.Table) -> None:
        """Append rows to a table, which is made if it is not there."""
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
        """Return SQL for all rows of a per-segment table, with `part` (number of its folder) and `place` (row in it).

        It is to be run before rows of other live documents are asked for.

        Args:
            folders: One may stand for several segments with the same documents.
            name: File name of the table in each of them.
            schema: What it is if there are no folders.
            live: For each folder, the documents that are read in it; None for all.
        """
        if not folders:
            self.sql(f'drop table if exists "no {name}"')
            self.insert(f'"no {name}"', schema.empty_table())
            return f'(select 0 as part, 0 as place, * from "no {name}")'
        paths = [Path(folder) / name for folder in folders]
        source = ", ".join(quoted(literal_path(path)) for path in dict.fromkeys(paths))
        # a table, of which the optimiser knows more than of a list of values: that ran out of memory
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
        """Want the live documents of a snapshot, with the segments and the licences noted there."""
        self.sql(
            f"create table wanted as select doc_id, min(segment) as segment, max(nullif(licence, '')) as licence "
            f"from {parquet(snapshot / FILES_FILE)} where status = 'ok' and doc_id is not null group by doc_id"
        )

    def want_kept(self, curated: Path, split: str = "") -> None:
        """Want the kept documents of a selection; of one side of the split when given."""
        side = f" and split = {quoted(split)}" if split else ""
        self.sql(f"create table wanted as from {parquet(curated / SELECTION_FILE)} where kept{side}")

    def locate(
        self,
        tables: Sequence[SegmentTable],
        name: str,
        columns: Sequence[str] = (),
        live: Sequence[Collection[str]] | None = None,
    ) -> None:
        """Make the table `located`: for each wanted document `part` (number of its table) and `place` (row in it).

        Args:
            tables: The same document may lie in several.
            name: File name of the table in each of them.
            columns: Further columns to take from there.
            live: For each table, the documents that are read in it, where that is known; the first counts.

        Raises:
            StoreError: If a document lies in none of them, or in several none of which is the noted one.
        """
        schema = pa.schema([(column, pa.null()) for column in ("doc_id", *columns)])
        rows = self.rows_of([table.folder for table in tables], name, schema, live)
        more = "".join(f', found."{column}"' for column in columns)
        self.sql(
            f"create or replace table located as select found.doc_id, part, place{more} from {rows} as found "
            "join wanted on wanted.doc_id = found.doc_id"
        )
        # no window, which would need more memory than it is given
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
                f"document {doc_id} lies in {n_found} of the {len(tables)} segments in use, expected one: "
                "compute the listing again with `--refresh snapshot,curate`"
            )


def parquet(path: Path) -> str:
    """Return a Parquet file as a table in SQL."""
    return f"read_parquet({quoted(literal_path(path))})"


def kept_documents(store: Store, curated: ArtifactRef, split: str = "") -> set[str]:
    """Return the ids of the kept documents; only of one side of the split when given."""
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated), split)
        (doc_ids,) = corpus.columns("select doc_id from wanted")
    return set(doc_ids.tolist())
