"""Wide tables out of many, one join at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import duckdb


class Join(NamedTuple):
    """One table that is joined by `doc_id`.

    Attributes:
        table: SQL of the table, with its alias.
        columns: SQL of what is taken of it; `d` is the table so far.
        instead: SQL of columns so far that change, as `replace` takes them.
    """

    table: str
    columns: str
    instead: str = ""


def join_in_steps(connection: duckdb.DuckDBPyConnection, name: str, first: str, joins: Sequence[Join]) -> None:
    """Make a temporary table of rows and what other tables say of their documents.

    DuckDB joins many tables in one query as well, but holds all of them in memory for it.

    Args:
        name: of the table.
        first: the query that gives the rows.
    """
    connection.execute(f"create or replace temp table {name} as {first}")
    for join in joins:
        instead = f" replace ({join.instead})" if join.instead else ""
        connection.execute(
            f"create or replace temp table {name}_next as select d.*{instead}, {join.columns} from {name} d "
            f"left join {join.table} using (doc_id)"
        )
        connection.execute(f"drop table {name}")
        connection.execute(f"alter table {name}_next rename to {name}")
