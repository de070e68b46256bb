"""The view `documents` of one segment after another, for what has to look at every document of a corpus.

The catalogue has the same view over a whole corpus. Read as one it would join the texts of all documents in memory;
here memory holds those of one segment, and rows come in the same order each time: by segment, then by document.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage import schemas
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, FILES_FILE, MEASURES_FILE, SCORES_FILE
from storage.store import Store
from tasks.curate.corpus import Corpus, parquet, tables_of

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
_NAMES = {"classifier_score": "score"}  # in its table


@dataclass(frozen=True)
class SegmentTables:
    """The tables of one segment.

    Attributes:
        scored: None where no classifier looked at it, as are all of no segment.
    """

    normalised: Path | None = None
    measured: Path | None = None
    refined: Path | None = None
    scored: Path | None = None


def segment_tables(store: Store, measures: RefSet, texts: RefSet, scores: RefSet) -> list[SegmentTables]:
    """The tables behind sets of artefacts that stand for the same segments in the same order.

    Args:
        scores: Empty where there is no classifier.
    """
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
    """The view `documents` of one segment at a time, with all its columns.

    Args:
        segments: Tables of each segment.
        kept: The kept documents of each.
        paths: Source and path of every document.
    """

    def __init__(self, segments: Sequence[SegmentTables], kept: Sequence[pa.Table], paths: pa.Table) -> None:
        import duckdb

        self._segments = list(zip(segments, kept, strict=True))
        self.connection = duckdb.connect(config={"threads": 1})
        # also when the work fails: an open connection with a table of ours makes DuckDB complain of leaks at the end
        weakref.finalize(self, self.connection.close)
        self.connection.register("files", paths)

    def empty(self) -> pa.Table:
        """Return the view without a row."""
        self._point_to(SegmentTables(), _KEPT.empty_table())
        return self.connection.table("documents").to_arrow_table()

    def __iter__(self) -> Iterator[int]:
        """Point the view to each segment that has kept documents; yields how many."""
        for tables, kept in self._segments:
            if kept.num_rows:
                self._point_to(tables, kept)
                yield kept.num_rows

    def _point_to(self, tables: SegmentTables, kept: pa.Table) -> None:
        self.connection.register("kept", kept)
        for name, schema in _TABLES.items():
            path = getattr(tables, name)
            if path is None:
                self.connection.register(f"no_{name}", schema.empty_table())
            rows = f"no_{name}" if path is None else parquet(path)
            self.connection.execute(f"create or replace view {name} as from {rows}")
        self.connection.execute(_VIEW)


_VIEW = f"""
create or replace view documents as
select kept.doc_id, {", ".join(f"{table}.{_NAMES.get(name, name)} as {name}" for name, table in _COLUMNS.items())}
from kept
join normalised on normalised.doc_id = kept.doc_id
join measured on measured.doc_id = kept.doc_id
join refined on refined.doc_id = kept.doc_id
left join scored on scored.doc_id = kept.doc_id
left join files on files.doc_id = kept.doc_id
"""
