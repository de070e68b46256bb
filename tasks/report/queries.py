"""Queries shared by report pages: rows, the table of live documents, histograms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tasks.report.charts import Layer

if TYPE_CHECKING:
    from storage.catalog import Catalog

Row = SimpleNamespace  # row of a query's result, with its columns as attributes
BINS = 20  # bins of a histogram with a given upper end
PER_DECADE = 4  # bins per power of ten of a histogram without one


def rows(catalog: Catalog, sql: str) -> list[Row]:
    """Return the rows of a query."""
    return [Row(**row) for row in catalog.query(sql)]


def live_table(catalog: Catalog, stage: str) -> str:
    """Return the name of a stage's table or view of live documents.

    The view finds the live segment of each document, which is most of its cost; the plain table is enough while no
    document lies in two segments.
    """
    (found,) = rows(catalog, f"select count(*) = count(distinct doc_id) as once from all_{stage}")
    return f"all_{stage}" if found.once else f"live_{stage}"


def join_documents(catalog: Catalog, measures: Collection[str]) -> None:
    """Create the temporary table `report_documents` unless it exists: one row per live document.

    It has no texts and no token ids: a few hundred bytes per document. A document with several paths counts under the
    first. Tables are joined one at a time, because one query would hold all of them in memory.
    """
    if catalog.query("from duckdb_tables() where table_name = 'report_documents'"):
        return
    live = {stage: live_table(catalog, stage) for stage in ("normalise", "measure", "refine", "tokenise")}
    execute = catalog.connection.execute
    execute(
        f"create temp table report_documents as select m.doc_id, f.path, f.source, m.kind, m.language, m.licence, "
        f"{', '.join(f'm.{measure}' for measure in measures)}, list_sort([p.kind for p in m.pii]) as private "
        f"from {live['measure']} m join (select doc_id, path, source from files where status = 'ok') f using (doc_id)"
    )
    # the licence of a folder overrides the one that the text declares
    selected = "d.* replace (coalesce(s.licence, d.licence) as licence, coalesce(d.n_bytes, s.n_bytes) as n_bytes)"
    for table, columns in (
        (f"{live['normalise']} n", "d.*, n.programming_language"),
        (f"{live['refine']} r", "d.*, r.n_bytes, r.redactions"),
        ("all_selection s", f"{selected}, s.kept, s.split, s.cluster"),
        (f"{live['tokenise']} t", "d.*, t.length as n_tokens, t.n_bytes as encoded_bytes, t.lost_bytes"),
    ):
        execute(f"create temp table next as select {columns} from report_documents d left join {table} using (doc_id)")
        execute("drop table report_documents")
        execute("alter table next rename to report_documents")


def histogram(
    catalog: Catalog,
    table: str,
    value: str,
    upper: str,
    tones: Mapping[str, str],
    shown: Mapping[str, str],
    *,
    top: float = 0,
    bins: int = BINS,
    where: str = "true",
) -> list[Row]:
    """Count values in bins, in two layers.

    Args:
        value: SQL expression; rows where it is null are left out.
        upper: SQL condition of the upper layer.
        tones: tone of each layer by its name; a single one is the lower layer alone.
        shown: `name`, `title` and `note` of the chart.
        top: upper end of the last bin, which includes all larger values; 0 for bins that grow by a factor.
        where: SQL condition on all rows.

    Returns:
        A row with the arguments of `charts.bar_figure`; an empty list without values.
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
    if not found:
        return []
    counts = ([row.lower for row in found], [row.upper for row in found])
    places = range(found[0].bin, found[-1].bin + 2)
    return [
        Row(
            **shown,
            edges=[place * top / bins if top else 10 ** (place / PER_DECADE) for place in places],
            layers=[Layer(name, tone, of_layer) for (name, tone), of_layer in zip(tones.items(), counts, strict=False)],
            median=found[0].median,
            log=not top,
        )
    ]


def folded(items: Sequence[Row], shown: int) -> list[Row]:
    """Return the first `shown` rows, and a row named "N others" with the sums of the rest."""
    if len(items) <= shown + 1:
        return list(items)
    rest = [vars(row) for row in items[shown:]]
    sums = {name: sum(row[name] for row in rest) for name, value in rest[0].items() if isinstance(value, (int, float))}
    return [*items[:shown], Row(**rest[0] | sums | {"name": f"{len(rest)} others"})]
