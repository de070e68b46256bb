"""The child process of `tasks.tokens.groups`: runs people's SQL, which may want more memory or time than there is.

    python -P -m tasks.tokens.grouping      requests on standard input, answers on standard output

What one expression makes of one value cannot be foreseen, and DuckDB neither counts that memory nor stops before the
value is made. So the process has a limit of memory, may be killed at any moment, and goes by itself when its parent is
gone. It says of an expression what it reads, and of the documents of segments in which group they are.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import UserError
from storage.schemas import GROUPS
from tasks.core import child
from tasks.core.child import limit_added_memory
from tasks.curate.view import DocumentView, SegmentTables, empty_view
from tasks.tokens.mix import ADVICE, SHOWN_CHARS, shown

MEMORY_BYTES = 2**31  # that an expression may add to what the process has
TOO_MUCH = f"it needs more than {MEMORY_BYTES // 2**20:,} MiB of memory"
QUERY_BYTES = 2**30  # of it for what DuckDB counts; a join that needs more uses the disk
NO_GROUP = "none"  # of documents for which the expression is null or empty
MOST_NAME_CHARS = 4_096  # of a group: as long as a path may be
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

Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serves requests until standard input ends."""
    requests, send = child.serve()
    send({"ready": True})
    for request in requests:
        serve(request, send)


def serve(request: Mapping[str, Any], send: Send) -> None:
    """Answer one request; a refusal says what the person can do."""
    limit_added_memory(MEMORY_BYTES)
    by = request["by"]
    try:
        if "segments" in request:
            group_segments(by, request, send)
        else:
            send({"columns": sorted(check(by))})
    except UserError as error:
        send({"refused": str(error)})
    except MemoryError:
        send({"refused": str(refusal(by, TOO_MUCH))})
    except RecursionError:
        send({"refused": str(refusal(by, "it is nested too deep"))})
    except Exception:  # noqa: BLE001 - the parent raises it
        send({"failed": traceback.format_exc()})


def refusal(by: str, why: str) -> UserError:
    """What to say of an expression that cannot be run."""
    return UserError(f"mix.by is {shown(by)}: {why}; expected {ADVICE}")


def check(by: str) -> set[str]:
    """The columns of the view `documents` that an expression reads.

    Raises:
        UserError: DuckDB cannot read it, or it is not of one document alone and the same each time.
    """
    with closing(empty_view(QUERY_BYTES)) as connection:
        columns = [str(name) for name, *_ in connection.execute("select * from documents").description or ()]
        try:
            duckdb.SQLExpression(by)  # refuses what is more than one expression
            nodes = _parsed(connection, by)
            wrong = _refused(nodes, _unsteady(connection) - set(columns))
            if not wrong:
                _group(connection.table(VIEW), by)
                _try_constants(connection, by)
        except duckdb.OutOfMemoryException as error:
            raise refusal(by, TOO_MUCH) from error
        except duckdb.Error as error:
            raise UserError(
                f"mix.by is {shown(by)}: {_first_line(error)}; expected an SQL expression over these columns: "
                f"{', '.join(columns)}"
            ) from error
    if wrong:
        raise UserError(
            f"mix.by is {shown(by)}: {', '.join(wrong)} cannot be used; the group of a document follows from that "
            "document alone, from columns that are named, and is the same each time"
        )
    return {name for node in nodes for name in _names(node)} & set(columns)


def _try_constants(connection: duckdb.DuckDBPyConnection, by: str) -> None:
    """Run an expression on a document of nulls, which makes whatever no document has a part in.

    Raises:
        duckdb.OutOfMemoryException: That needs too much memory.
    """
    nulls = connection.sql(f"select {VIEW}.* from (select 1) left join {VIEW} on true").set_alias(VIEW)
    try:
        _group(nulls, by)
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error:
        pass  # it may be right for every document that there is


def group_segments(by: str, request: Mapping[str, Any], send: Send) -> None:
    """Write the group of every kept document of some segments; tells of each table that is written.

    Args:
        request: `segments`, the tables of each; `kept`, a file with the kept documents of each; `paths`, a file with
            the places of all documents, or None; `columns`, those that the expression reads; `folder`, where to write.
    """
    tables = [
        SegmentTables(Path(normalised), Path(measured), Path(refined), None if scored is None else Path(scored))
        for normalised, measured, refined, scored in request["segments"]
    ]
    kept = [pq.read_table(path) for path in request["kept"]]
    paths = None if request["paths"] is None else pq.read_table(request["paths"])
    folder = Path(request["folder"])
    view = DocumentView(tables, kept, paths, request["columns"], QUERY_BYTES, folder / "spilled")
    limit_added_memory(MEMORY_BYTES)  # what was read by now is not the expression's
    for number, expected in enumerate(view):
        part = _group_segment(view.connection, by)
        if part.num_rows != expected:
            raise ValueError(f"{part.num_rows} documents have a group, expected {expected}: --refresh curate")
        path = folder / f"group-{number}.parquet"
        pq.write_table(part, path)
        send({"table": str(path)})
    send({"done": True})


def _refused(nodes: Sequence[Mapping[str, Any]], unsteady: set[str]) -> list[str]:
    """What in an expression cannot be used."""
    wrong = sorted({str(node["class"]).lower() for node in nodes} & _REFUSED)
    # the name of the view is a row of it, of which any column can be taken
    if any(_names(node)[-1:] == [VIEW] for node in nodes):
        wrong.append(f"{VIEW} as a whole")
    return wrong + sorted(_called(nodes) & unsteady)


def _group_segment(connection: duckdb.DuckDBPyConnection, by: str) -> pa.Table:
    """The group of every document in the view, where a value may be what the expression cannot take."""
    try:
        found = _group(connection.table(VIEW), by)
    except duckdb.OutOfMemoryException as error:
        raise refusal(by, TOO_MUCH) from error
    except duckdb.Error as error:
        raise UserError(f"mix.by is {shown(by)}: {_first_line(error)} (try_cast gives null instead)") from error
    longest = pc.max(pc.utf8_length(found.column("group"))).as_py() or 0
    if longest > MOST_NAME_CHARS:
        raise refusal(by, f"that makes a name of {longest:,} characters, and {MOST_NAME_CHARS:,} are the most")
    return found


def _group(documents: duckdb.DuckDBPyRelation, by: str) -> pa.Table:
    """The group of every document."""
    # parsed as one expression: nothing in it can end the query and begin another
    name = duckdb.SQLExpression(by).cast("varchar")
    found = documents.select(duckdb.ColumnExpression("doc_id"), name.alias("group")).to_arrow_table()
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
    """The first line of a message, as far as a person reads it: it may repeat a long name."""
    line = str(error).strip().splitlines()[0]
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."


if __name__ == "__main__":
    main()
