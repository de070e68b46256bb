"""Groups of training documents, by what a mix is made of: a column of the view `documents`, or an expression over it.

The expression is people's SQL. It says of each document, by what is known of that document alone, which group it is in,
so it may hold no subquery and nothing that differs from one time to the next, and it reads no files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import GROUPS
from tasks.corpora.view import DocumentView, empty_view, kept_by_segment, paths_of, segment_tables
from tasks.curate.normalise import DOCUMENTS_FILE
from tasks.stage import Work, stage
from tasks.tokens.mix import MixError, MixSettings

if TYPE_CHECKING:
    import duckdb

    from tasks.session import Pending, Session

GROUPS_FILE = "groups.parquet"
NO_GROUP = "none"  # of documents for which the expression is null or empty
MOST_GROUPS = 10_000
_PATHS = {"path", "source"}
VIEW = "documents"
# a position is a column without a name
_REFUSED = {"subquery", "window", "star", "positional_reference"}
# clocks that DuckDB takes for columns, or does not know as such
_CLOCKS = {"current_time", "current_timestamp", "localtime", "localtimestamp"} | {
    "current_localtime",
    "current_localtimestamp",
}
# steady as DuckDB tells it, but one counts up to today and one changes with DuckDB; the others, which it does not list
# as functions of a value, make several rows of one
_NOT_AS_TOLD = {"age", "version", "unnest", "unlist"}


@dataclass(frozen=True)
class GroupsSettings:
    """What makes a group.

    Attributes:
        by: An SQL expression over the columns of the view `documents`.
        listing: Digest of all paths with their contents where the expression reads them: paths are no content, so they
            are in no digest of a snapshot.
    """

    by: str
    listing: str = ""


@stage("groups", version=1)
def groups(
    work: Work,
    settings: GroupsSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    measures: RefSet,
    scores: RefSet,
    texts: RefSet,
) -> str:
    """Say of every training document in which group it is."""
    kept = kept_by_segment(work.store, curated, texts, DOCUMENTS_FILE, split="train")
    paths = paths_of(work.folder(snapshot)) if settings.listing else None
    tables = segment_tables(work.store, measures, texts, scores)
    view = DocumentView(tables, kept, paths, check_expression(settings.by))
    found = [GROUPS.empty_table()]
    for number in view:
        part = _group_segment(view.connection, settings.by)
        if part.num_rows != number:
            raise ValueError(f"{part.num_rows} documents have a group, expected {number}: --refresh curate")
        found.append(part)
        work.progress.update(len(found) - 1, len(kept), "segments")
    table = pa.concat_tables(found).sort_by("doc_id").combine_chunks()
    names = pc.unique(table.column("group"))
    if len(names) > MOST_GROUPS:
        raise MixError(
            f"mix.by is {settings.by!r}: that makes {len(names)} groups, such as {names[0]} and {names[1]}; "
            f"expected at most {MOST_GROUPS}"
        )
    pq.write_table(table, work.out / GROUPS_FILE, compression="zstd")
    work.counts.update(rows=table.num_rows, groups=len(names))
    return _digest(table)


def _digest(table: pa.Table) -> str:
    """Digest of the rows, which are sorted by document."""
    digest = hashlib.sha256()
    for name in ("doc_id", "group"):
        values = table.column(name).to_pylist()
        # lengths, so that no two columns join to the same text
        digest.update(",".join(str(len(value)) for value in values).encode() + b";")
        digest.update("".join(values).encode())
    return digest.hexdigest()


def groups_call(
    session: Session,
    mix: MixSettings,
    *,
    snapshot: ArtifactRef | Pending,
    curated: ArtifactRef | Pending,
    measures: RefSet | Pending,
    texts: RefSet | Pending,
    scored: Sequence[ArtifactRef | Pending],
) -> RefSet | Pending:
    """The groups that a mix asks for, as what the dataset takes: empty without a mix, else one artefact.

    Args:
        measures, texts: Of each segment.
        scored: Of each segment; empty where there is no classifier.

    Raises:
        UserError: The expression cannot be used.
    """
    if not mix.by.strip():
        return RefSet((), rows_digest(()))
    needed = check_expression(mix.by)
    known = [ref for ref in scored if isinstance(ref, ArtifactRef)] if "classifier_score" in needed else []
    # what is pending among them is pending in the selection too
    scores = RefSet(tuple(known), rows_digest((ref.key, ref.digest) for ref in known))
    listing = ""
    if needed & _PATHS and isinstance(snapshot, ArtifactRef):
        listing = str(manifest_of(session.store, snapshot).settings["listing"])
    made = session.run(
        groups,
        GroupsSettings(mix.by.strip(), listing),
        snapshot=snapshot,
        curated=curated,
        measures=measures,
        scores=scores,
        texts=texts,
    )
    return RefSet((made,), made.digest) if isinstance(made, ArtifactRef) else made


def check_expression(by: str) -> set[str]:
    """The columns of the view `documents` that an expression reads.

    Raises:
        UserError: DuckDB cannot read it, or it is not of one document alone and the same each time.
    """
    import duckdb

    with closing(empty_view()) as connection:
        columns = [str(name) for name, *_ in connection.execute("select * from documents").description or ()]
        try:
            duckdb.SQLExpression(by)  # refuses what is more than one expression
            nodes = _parsed(connection, by)
            wrong = _refused(nodes, _unsteady(connection) - set(columns))
            if not wrong:
                _group(connection, by)
        except duckdb.Error as error:
            raise UserError(
                f"mix.by is {by!r}: {_first_line(error)}; expected an SQL expression over these columns: "
                f"{', '.join(columns)}"
            ) from error
    if wrong:
        raise UserError(
            f"mix.by is {by!r}: {', '.join(wrong)} cannot be used; the group of a document follows from that document "
            "alone, from columns that are named, and is the same each time"
        )
    return {name for node in nodes for name in _names(node)} & set(columns)


def _refused(nodes: Sequence[Mapping[str, Any]], unsteady: set[str]) -> list[str]:
    """What in an expression cannot be used."""
    wrong = sorted({str(node["class"]).lower() for node in nodes} & _REFUSED)
    # the name of the view is a row of it, of which any column can be taken
    if any(_names(node)[-1:] == [VIEW] for node in nodes):
        wrong.append(f"{VIEW} as a whole")
    return wrong + sorted(_called(nodes) & unsteady)


def _group_segment(connection: duckdb.DuckDBPyConnection, by: str) -> pa.Table:
    """The group of every document in the view, where a value may be what the expression cannot take."""
    import duckdb

    try:
        return _group(connection, by)
    except duckdb.Error as error:
        raise UserError(f"mix.by is {by!r}: {_first_line(error)} (try_cast gives null instead)") from error


def _group(connection: duckdb.DuckDBPyConnection, by: str) -> pa.Table:
    """The group of every document in the view."""
    import duckdb

    # parsed as one expression: nothing in it can end the query and begin another
    name = duckdb.SQLExpression(by).cast("varchar")
    found = (
        connection.table("documents").select(duckdb.ColumnExpression("doc_id"), name.alias("group")).to_arrow_table()
    )
    group = pc.if_else(pc.equal(found.column("group"), ""), None, found.column("group")).fill_null(NO_GROUP)
    return pa.table([found.column("doc_id"), group], schema=GROUPS)


def _unsteady(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Functions whose result is not one value that follows from their arguments alone."""
    rows = connection.execute(
        "select distinct function_name from duckdb_functions() "
        "where stability in ('VOLATILE', 'CONSISTENT_WITHIN_QUERY') or function_type = 'aggregate'"
    ).fetchall()
    steady = connection.execute(
        "select distinct function_name from duckdb_functions() where stability = 'CONSISTENT' "
        "and function_type <> 'aggregate'"
    ).fetchall()
    found = ({str(name) for (name,) in rows} - {str(name) for (name,) in steady}) | _CLOCKS | _NOT_AS_TOLD
    # of macros nothing is told: they are what their definitions are, which call one another
    macros = connection.execute(
        "select function_name, macro_definition from duckdb_functions() where function_type = 'macro'"
    ).fetchall()
    parsed = [(str(name), _parsed(connection, str(definition))) for name, definition in macros]
    while more := {name for name, nodes in parsed if _refused(nodes, found)} - found:
        found |= more
    return found


def _parsed(connection: duckdb.DuckDBPyConnection, by: str) -> list[Mapping[str, Any]]:
    """All that an expression consists of.

    Raises:
        duckdb.ParserException: DuckDB cannot read it.
    """
    import duckdb

    tree = json.loads(connection.execute("select json_serialize_sql($1)", [f"select (\n{by}\n)"]).fetchall()[0][0])
    if tree["error"]:
        raise duckdb.ParserException(tree["error_message"])
    return list(_nodes(tree["statements"][0]["node"]["select_list"]))


def _names(node: Mapping[str, Any]) -> list[str]:
    """The parts of a column's name, such as documents and kind; none where there is no column."""
    return [str(name).lower() for name in node.get("column_names", ())]


def _called(nodes: Sequence[Mapping[str, Any]]) -> set[str]:
    """The functions in an expression, and what is written like a column: current_date is."""
    functions = {str(node["function_name"]).lower() for node in nodes if "function_name" in node}
    return functions.union(*map(_names, nodes))


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every expression in a parsed query."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "class" in item:
                yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
