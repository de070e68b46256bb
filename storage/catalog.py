"""The catalogue: DuckDB views over the Parquet tables of a corpus's last completed run; no data is copied."""

from __future__ import annotations

import decimal
import math
import re
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import schemas
from storage.errors import UserError
from storage.home import check_corpus_name
from storage.lineage import segment_of
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError

if TYPE_CHECKING:
    import duckdb

CORPUS_REF = "corpus"
LISTED = "listed"  # in a corpus's state after `forget`: the list of files without the forgotten, until the next run


# tables of the whole corpus: name, stage, file and schema; the view `all_NAME` has their rows and files
_TABLES = (
    ("files", "snapshot", schemas.FILES_FILE, schemas.FILES),
    ("selection", "curate", schemas.SELECTION_FILE, schemas.SELECTION),
    ("dropped", "curate", schemas.DROPPED_FILE, schemas.DROPPED),
    ("cuts", "curate", schemas.CUTS_FILE, schemas.CUTS),
    ("near_pairs", "dedup", schemas.PAIRS_FILE, schemas.NEAR_PAIRS),
    ("clusters", "dedup", schemas.CLUSTERS_FILE, schemas.CLUSTERS),
    ("dataset", "dataset", schemas.SEQUENCES_FILE, schemas.SEQUENCES),
    ("completions", "generate", schemas.COMPLETIONS_FILE, schemas.COMPLETIONS),
    ("metrics", "evaluate", "metrics.parquet", schemas.METRICS),
    ("evaluated", "evaluate", schemas.DOCUMENTS_FILE, schemas.EVALUATED),
    ("slices", "evaluate", "slices.parquet", schemas.SLICES),
)
# views with all columns of the table
_PLAIN = ("cuts", "near_pairs", "clusters", "dataset", "completions", "metrics", "evaluated", "slices")
# tables per segment: stage, file and schema
_SEGMENT_TABLES = (
    ("extract", schemas.PAGES_FILE, schemas.PAGES),
    ("normalise", schemas.DOCUMENTS_FILE, schemas.NORMALISED),
    ("measure", schemas.MEASURES_FILE, schemas.MEASURES),
    ("score", schemas.SCORES_FILE, schemas.SCORES),
    ("legibility", schemas.LEGIBILITY_FILE, schemas.LEGIBILITY),
    ("refine", schemas.DOCUMENTS_FILE, schemas.REFINED),
    ("pairs", schemas.PAIRS_FILE, schemas.CHAT_PAIRS),
    ("tokenise", schemas.TOKENS_FILE, schemas.TOKENS),
)
_FILE_VIEWS = """
create view files as select * exclude (filename, segment) from all_files;
create view live as select distinct doc_id, segment from all_files where status = 'ok' and doc_id is not null;
"""
# a document may be in several segments: rows are read from the live one if it is among them
_SEGMENT_VIEWS = """
create view holders_{stage} as
    select a.doc_id, arg_max(a.filename, coalesce((s.segment = l.segment)::int, 0)) as filename
    from (select distinct doc_id, filename from all_{stage}) a
    join segments_{stage} s using (filename) join live l on l.doc_id = a.doc_id
    group by a.doc_id;
create view live_{stage} as
    select t.* exclude (filename) from all_{stage} t
    join holders_{stage} h on h.doc_id = t.doc_id and h.filename = t.filename;
"""
# token ids are read from the shards only if a query selects them
_VIEWS = """
create view pages as select * from live_extract;
create view blocks as
    select b.doc_id, page, number, coalesce(r.kind, b.kind) as kind, coalesce(level, 0) as level,
        b.* exclude (doc_id, page, number, kind)
    from (
        select doc_id, page, unnest(range(1, len(blocks) + 1)) as number, unnest(blocks, recursive := true) from pages
    ) b
    left join (select doc_id, unnest(roles, recursive := true) from live_normalise) r using (doc_id, page, number);
create view measures as
    select m.* exclude (digest), d.ocr_share, d.ocr_confidence, d.n_pages, s.score as classifier_score, l.error_rate
    from live_measure m join live_normalise d using (doc_id) left join live_score s using (doc_id)
    left join live_legibility l using (doc_id);
create view misread as select doc_id, unnest(passages, recursive := true) from live_legibility;
create view mends as select doc_id, unnest(mends, recursive := true) from live_legibility;
create view documents as
    select d.doc_id, d.kind, d.title, d.programming_language, m.* exclude (doc_id, kind, licence), s.licence, s.cluster,
        s.split, r.text, r.n_bytes, r.redactions, r.cut_chars, r.mends
    from live_normalise d join live_refine r using (doc_id) join measures m using (doc_id)
    join all_selection s using (doc_id)
    where s.kept;
create view pairs as
    select p.* exclude (digest), s.split from live_pairs p join all_selection s using (doc_id) where s.kept;
create view token_spans as
    select t.* exclude (digest), s.split
    from all_tokenise t join holders_tokenise h on h.doc_id = t.doc_id and h.filename = t.filename
    join all_selection s on s.doc_id = t.doc_id
    where s.kept;
create view tokens as
    select * exclude (filename), token_ids(filename, "offset", length) as ids from token_spans;
create view quarantine as
    select doc_id, path, 'ingest' as stage, reason_code, reason from all_files where status not in ('ok', 'duplicate')
    union all
    select d.doc_id, f.path, 'curate', d.reason_code, d.reason
    from all_dropped d join all_files f on f.doc_id = d.doc_id and f.status = 'ok';
"""


class QueryError(UserError):
    """DuckDB refused a query."""


def corpus_ref(corpus: str) -> str:
    """Return the name of the ref that holds a corpus's last completed run.

    Raises:
        UserError: if the name of the corpus is not allowed.
    """
    check_corpus_name(corpus)
    return f"{CORPUS_REF}/{corpus}"


def read_state(store: Store, corpus: str) -> dict[str, list[ArtifactRef]]:
    """Return the artefacts of the last completed run, by stage; empty if there was none."""
    value = store.read_ref(corpus_ref(corpus)) or {}
    return {name: [ArtifactRef(**ref) for ref in refs] for name, refs in value.items()}


def waits_for_run(store: Store, corpus: str) -> str:
    """Return a message if documents of a corpus were forgotten since its last run; else an empty string."""
    state = read_state(store, corpus)
    if not state or state.get("snapshot"):
        return ""
    return (
        f"documents of corpus {corpus!r} were forgotten since its last run, so its tables are empty until the next: "
        "`sheepfold ingest SOURCE` makes them again without these documents"
    )


def corpora(store: Store) -> list[str]:
    """Return the names of the corpora that have a completed run."""
    return [name.partition("/")[2] for name in store.refs(f"{CORPUS_REF}/")]


def unknown_corpus(store: Store, corpus: str) -> StoreError:
    """Return the error for a corpus without a completed run."""
    known = ", ".join(corpora(store)) or "none"
    return StoreError(
        f"corpus {corpus!r} has no completed run in this store (corpora with one: {known}): "
        "run `sheepfold run SOURCE` or `sheepfold ingest SOURCE` first"
    )


class Catalog:
    """Views of one corpus.

    Args:
        store: holds the tables.
        corpus: name of the corpus.
    """

    def __init__(self, store: Store, corpus: str) -> None:
        import duckdb

        self.store = store
        self.state = read_state(store, corpus)
        if not self.state:
            raise unknown_corpus(store, corpus)
        self.connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")
        # also at exit: DuckDB reports a leak for an open connection with a Python function
        weakref.finalize(self, self.connection.close)
        self._views()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query, with values that JSON can hold.

        Raises:
            QueryError: if DuckDB refuses the query.
        """
        import duckdb

        try:
            cursor = self.connection.execute(sql)
            if cursor.description is None:
                return []
            names = _distinct([column[0] for column in cursor.description])
            return [dict(zip(names, map(json_value, row), strict=True)) for row in cursor.fetchall()]
        except duckdb.Error as error:
            raise QueryError(str(error)) from error

    def _path(self, ref: ArtifactRef, table: str) -> Path:
        wanted = [table] if table != schemas.TOKENS_FILE else []  # `read_ids` also needs the shard next to the table
        return self.store.folder(ref, *wanted) / table

    def _base(self, name: str, stage: str, table: str, schema: pa.Schema) -> None:
        """Create a view over the files of a stage, or an empty table with the columns of the schema."""
        paths = [self._path(ref, table) for ref in self.state.get(stage, [])]
        if paths:
            listed = ", ".join(quoted(literal_path(path)) for path in paths)
            self.connection.execute(f"create view {name} as select * from read_parquet([{listed}], filename = true)")
            return
        # through a file: DuckDB imports pandas to read an Arrow table
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.parquet")
            pq.write_table(schema.empty_table(), empty)
            self.connection.execute(f"create table {name} as from read_parquet({quoted(str(empty))}, filename = true)")

    def _segments(self, name: str, stage: str, table: str) -> None:
        """Create a table with the segment of each file of a per-segment stage."""
        refs, segments = self.state.get(stage, []), self.state.get("extract", [])
        # a run records both in the same order; the lineage may name another segment with the same documents
        keys = (
            [ref.key for ref in segments] if len(refs) == len(segments) else [segment_of(self.store, r) for r in refs]
        )
        paths = [str(self._path(ref, table)) for ref in refs]
        self.connection.execute(
            f"create table {name} as select unnest($1::varchar[]) as filename, unnest($2::varchar[]) as segment",
            [paths, keys],
        )

    def _views(self) -> None:
        execute = self.connection.execute
        for name, stage, table, schema in _TABLES:
            self._base(f"all_{name}", stage, table, schema)
        for name in _PLAIN:
            execute(f"create view {name} as select * exclude (filename) from all_{name}")
        execute(_FILE_VIEWS)
        for stage, table, schema in _SEGMENT_TABLES:
            self._base(f"all_{stage}", stage, table, schema)
            self._segments(f"segments_{stage}", stage, table)
            execute(_SEGMENT_VIEWS.format(stage=stage))
        self.connection.create_function(
            "token_ids", read_ids, ["varchar", "bigint", "bigint"], "uinteger[]", type="arrow"
        )
        execute(_VIEWS)


def read_ids(tables: pa.Array, offsets: pa.Array, lengths: pa.Array) -> pa.ListArray:
    """Return the token ids of documents, from the flat shards next to the tables.

    Args:
        tables: path of the table `tokens` of each document.
        offsets, lengths: position and number of its ids in the shard.

    Raises:
        UserError: if there are more ids than an Arrow list column can hold.
    """
    ends = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise UserError(
            f"{len(tables):,} documents have {ends[-1]:,} token ids, and a column holds at most "
            f"{np.iinfo(np.int32).max:,}: select fewer or shorter documents"
        )
    shards: dict[str, np.ndarray] = {}
    parts = [np.zeros(0, np.uint32)]
    for table, offset, length in zip(tables.to_pylist(), offsets.to_pylist(), lengths.to_pylist(), strict=True):
        if table not in shards:
            shards[table] = np.load(Path(table).with_name(schemas.SHARD_FILE), mmap_mode="r", allow_pickle=False)
        parts.append(shards[table][offset : offset + length])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.concatenate(parts).astype(np.uint32)))


def quoted(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def literal_path(path: Path) -> str:
    """Return a path with DuckDB's glob characters escaped."""
    return re.sub(r"([*?[])", r"[\1]", str(path))


def _distinct(names: list[str]) -> list[str]:
    """Return unique column names: the second `doc_id` of a join becomes `doc_id_1`."""
    distinct: list[str] = []
    for name in names:
        free, number = name, 0
        while free in distinct or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        distinct.append(free)
    return distinct


def json_value(value: Any) -> Any:
    """Return a value that JSON can hold: null for infinite numbers and NaN, hexadecimal digits for bytes."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [json_value(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
