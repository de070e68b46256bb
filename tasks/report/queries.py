"""Queries of all report pages: rows, the tables of live documents, joins one at a time, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.catalog import Catalog

Row = SimpleNamespace  # of a query's result, with its columns as attributes
BINS = 20  # of a histogram that ends at a given value
PER_DECADE = 4  # bins of one that has no end, from a power of ten to the next


def rows(catalog: Catalog, sql: str) -> list[Row]:
    """Return the rows of a query."""
    return [Row(**row) for row in catalog.query(sql)]


def live_table(catalog: Catalog, stage: str) -> str:
    """Return the name of a stage's table, to be joined with live documents.

    To find in which of several segments a document is live is most of the work of its view; mostly none lies in two.
    """
    (found,) = rows(catalog, f"select count(*) = count(distinct doc_id) as once from all_{stage}")
    return f"all_{stage}" if found.once else f"live_{stage}"


def join_in_steps(catalog: Catalog, name: str, first: str, joins: Sequence[tuple[str, str]]) -> None:
    """Make a temporary table of rows and what other tables have of their documents.

    DuckDB joins many tables in one query as well, but holds all of them in memory for it.

    Args:
        name: of the table.
        first: query that gives the rows.
        joins: table with its alias, and the columns selected after it; `d` is the table so far.
    """
    execute = catalog.connection.execute
    execute(f"create or replace temp table {name} as {first}")
    for table, columns in joins:
        execute(f"create temp table next as select {columns} from {name} d left join {table} using (doc_id)")
        execute(f"drop table {name}")
        execute(f"alter table next rename to {name}")


def histogram(
    catalog: Catalog, table: str, value: str, upper: str, *, top: float = 0, bins: int = BINS, where: str = "true"
) -> Row:
    """Count values in bins, in two layers.

    Args:
        value: SQL of the value; rows where it is null are left out.
        upper: SQL condition on the rows of the upper layer.
        top: end of the last bin, which takes all above; 0 for bins that grow by a factor.
        where: SQL condition on all rows.

    Returns:
        `lower` and `upper`, counts of each bin; `edges`, one more than there are bins; `median`, None without values;
        `log`.
    """
    place = f"floor(log10(greatest(v, 1)) * {PER_DECADE})"
    if top:
        place = f"greatest(0, least(floor(v * {bins / top!r}), {bins - 1}))"
    first, last = ("min(0)", f"max({bins - 1})") if top else ("min(bin)", "max(bin)")
    found = rows(
        catalog,
        f"with found as (select {value} as v, {upper} as upper from {table} where {where} and {value} is not null), "
        f"placed as (select upper, {place}::int as bin from found), "
        f"ends as (select {first} as first, {last} as last from placed) "
        "select bin, count(*) filter (not upper) as lower, count(*) filter (upper) as upper, "
        "(select median(v)::double from found) as median "
        "from (select unnest(generate_series(first, last)) as bin from ends) left join placed using (bin) "
        "group by 1 order by 1",
    )
    places = [row.bin for row in found]
    return Row(
        lower=[row.lower for row in found],
        upper=[row.upper for row in found],
        edges=[
            place * top / bins if top else 10 ** (place / PER_DECADE)
            for place in [*places, *(last + 1 for last in places[-1:])]
        ],
        median=found[0].median if found else None,
        log=not top,
    )


def folded(items: Sequence[Row], shown: int) -> list[Row]:
    """Return at most so many rows and one named "N others" that sums up the numbers of all others."""
    if len(items) <= shown + 1:
        return list(items)
    rest = [vars(row) for row in items[shown:]]
    sums = {name: sum(row[name] for row in rest) for name, value in rest[0].items() if isinstance(value, (int, float))}
    return [*items[:shown], Row(**rest[0] | sums | {"name": f"{len(rest)} others"})]
