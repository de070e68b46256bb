"""The view `documents` of one segment after another, for what has to look at every document of a corpus.

The catalogue has the same view over a whole corpus. Read as one it would join the texts of all documents in memory;
here memory holds those of one segment, and rows come in the same order each time: by segment, then by document. A
connection opens the files that it is given, and nothing else: what people write in SQL runs on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage import schemas
from storage.catalog import literal_path, quoted
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, FILES_FILE, MEASURES_FILE, SCORES_FILE
from storage.store import Store
from tasks.curate.corpus import Corpus, tables_of

if TYPE_CHECKING:
    import duckdb

_TABLES = {
    "normalised": schemas.NORMALISED,
    "measured": schemas.MEASURES,
    "refined": schemas.REFINED,
    "scored": schemas.SCORES,
}
_KEPT = pa.schema([schemas.SELECTION.field(name) for name in ("doc_id", "cluster", "split", "licence")])
_PLACES = pa.schema([schemas.FILES.field(name) for name in ("doc_id", "source", "path")])
# which table each column is of: those of the catalogue's view, and where a document lies
_COLUMNS = {
    **dict.fromkeys(("kind", "title", "programming_language"), "normalised"),
    **{name: "measured" for name in schemas.MEASURES.names if name not in ("doc_id", "kind", "licence", "digest")},
    **dict.fromkeys(("ocr_share", "ocr_confidence", "n_pages"), "normalised"),
    "classifier_score": "scored",
    **dict.fromkeys(("licence", "cluster", "split"), "kept"),
    **dict.fromkeys(("text", "n_bytes", "redactions", "cut_chars"), "refined"),
    **dict.fromkeys(("source", "path"), "files"),
}


@dataclass(frozen=True)
class SegmentTables:
    """The tables of one segment.

    Attributes:
        scored: None where no classifier looked at it.
    """

    normalised: Path
    measured: Path
    refined: Path
    scored: Path | None = None


def segment_tables(store: Store, measures: RefSet, texts: RefSet, scores: RefSet) -> list[SegmentTables]:
    """The tables behind sets of artefacts that stand for the same segments in the same order.

    Args:
        scores: Empty where there is no classifier.
    """
    if len(measures.refs) != len(texts.refs) or len(scores.refs) not in (0, len(texts.refs)):
        raise ValueError(
            f"{len(measures.refs)} tables of measures, {len(scores.refs)} of scores, {len(texts.refs)} of texts"
        )
    scored = scores.refs or [None] * len(texts.refs)
    return [
        SegmentTables(
            store.folder(manifest_of(store, measured).input_refs("documents")[0]) / DOCUMENTS_FILE,
            store.folder(measured) / MEASURES_FILE,
            store.folder(text) / DOCUMENTS_FILE,
            store.folder(score) / SCORES_FILE if score is not None else None,
        )
        for measured, text, score in zip(measures.refs, texts.refs, scored, strict=True)
    ]


def kept_by_segment(store: Store, curated: ArtifactRef, tables: RefSet, name: str, split: str = "") -> list[pa.Table]:
    """For each artefact of a set, the rows of the selection that are kept and read there, by document.

    Args:
        tables: Artefacts of segments; the same document may lie in several.
        name: File name of the table in each of them.
        split: Only one side of the split.

    Raises:
        StoreError: A document lies in none of them.
    """
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated), split)
        corpus.locate(tables_of(store, tables), name, live=tables.live)
        listed = ", ".join(_KEPT.names)
        rows = corpus.arrow(f"select part, {listed} from located join wanted using (doc_id) order by part, doc_id")
    bounds = np.searchsorted(rows["part"].to_numpy(), np.arange(len(tables.refs) + 1))
    rows = rows.select(_KEPT.names).cast(_KEPT)
    return [rows.slice(start, stop - start) for start, stop in pairwise(bounds.tolist())]


def paths_of(snapshot: Path) -> pa.Table:
    """Source and path of each live document.

    Args:
        snapshot: Its folder.
    """
    files = pq.read_table(snapshot / FILES_FILE, columns=["doc_id", "status", "source", "path"])
    live = pc.and_(pc.equal(files.column("status"), "ok"), pc.is_valid(files.column("doc_id")))
    return files.filter(live).select(_PLACES.names).cast(_PLACES)


class DocumentView:
    """The view `documents` of one segment at a time.

    Args:
        segments: Tables of each segment.
        kept: The kept documents of each.
        paths: Source and path of every document; None leaves both null.
        columns: Those that will be looked at, `doc_id` always; tables without any of them are not opened.
        memory_bytes: What queries may hold; 0 leaves it to DuckDB.
        spill: Folder for what they hold beyond that.
    """

    def __init__(
        self,
        segments: Sequence[SegmentTables],
        kept: Sequence[pa.Table],
        paths: pa.Table | None = None,
        columns: Collection[str] = tuple(_COLUMNS),
        memory_bytes: int = 0,
        spill: Path | None = None,
    ) -> None:
        self._query, self._tables = _view(columns)
        self._segments = list(zip(segments, kept, strict=True))
        opened = [path for item in segments for path in vars(item).values() if isinstance(path, Path)]
        self.connection = _connect(opened, memory_bytes, spill)
        # also when the work fails: an open connection with a table of ours makes DuckDB complain of leaks at the end
        weakref.finalize(self, self.connection.close)
        self.connection.register("files", _PLACES.empty_table() if paths is None else paths)

    @staticmethod
    def empty() -> pa.Table:
        """The view without a row."""
        with closing(empty_view()) as connection:
            return connection.table("documents").to_arrow_table()

    def __iter__(self) -> Iterator[int]:
        """Points the view to each segment that has kept documents; yields how many."""
        for tables, kept in self._segments:
            if not kept.num_rows:
                continue
            self.connection.register("kept", kept)
            for name in self._tables:
                _define(self.connection, name, getattr(tables, name))
            self.connection.execute(self._query)
            yield kept.num_rows


def empty_view(memory_bytes: int = 0) -> duckdb.DuckDBPyConnection:
    """A connection whose view `documents` has its columns and no rows; who asks for it closes it.

    Args:
        memory_bytes: What queries may hold; 0 leaves it to DuckDB.
    """
    connection = _connect([], memory_bytes)
    connection.register("files", _PLACES.empty_table())
    connection.register("kept", _KEPT.empty_table())
    for name in _TABLES:
        _define(connection, name, None)
    connection.execute(_view(_COLUMNS)[0])
    return connection


def _view(columns: Collection[str]) -> tuple[str, list[str]]:
    """The view with these columns, and the tables of a segment that it reads."""
    wanted = {name: table for name, table in _COLUMNS.items() if name in columns}
    listed = ["kept.doc_id"]
    for name, table in wanted.items():
        listed.append(f"scored.score as {name}" if table == "scored" else f"{table}.{name}")
    used = set(wanted.values())
    joins = [
        f"{'left ' if name in ('scored', 'files') else ''}join {name} on {name}.doc_id = kept.doc_id"
        for name in (*_TABLES, "files")
        if name in used
    ]
    query = f"create or replace view documents as select {', '.join(listed)} from kept {' '.join(joins)}"
    return query, [name for name in _TABLES if name in used]


def _connect(paths: Sequence[Path], memory_bytes: int = 0, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A connection that opens these files alone."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, "threads": 1})
    if memory_bytes:
        connection.execute(f"set memory_limit = '{memory_bytes}B'")
        connection.execute(f"set temp_directory = {quoted(str(spill) if spill else '')}")
    connection.execute(f"set allowed_paths = [{', '.join(quoted(str(path)) for path in paths)}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set TimeZone = 'UTC'")  # else a time as text is that of the machine's place
    connection.execute("set lock_configuration = true")
    return connection


def _define(connection: duckdb.DuckDBPyConnection, name: str, path: Path | None) -> None:
    """A view over one file, or over nothing."""
    if path is None:
        connection.register(f"no_{name}", _TABLES[name].empty_table())
        connection.execute(f"create or replace view {name} as select * from no_{name}")
    else:
        connection.execute(f"create or replace view {name} as select * from read_parquet({quoted(literal_path(path))})")
