"""Counts what a corpus report shows, in SQL over the catalogue's views.

What is needed of each document (no text, a few hundred bytes) is joined once into a temporary table; everything else is
an aggregate or the first few rows of an order. The memory it takes follows the number of documents, not their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storage.catalog import quoted
from tasks.report.corpus.figures import (
    FATES,
    RULE_OF_THUMB,
    Archive,
    Cluster,
    Cut,
    Fate,
    Figures,
    Outcome,
    PageError,
    PageKind,
    Pair,
    Private,
    Side,
    Tally,
    TokenEstimate,
    WorstPage,
)
from tasks.report.corpus.histograms import MEASURES, confidence_histogram, count_histograms
from tasks.report.joins import Join, join_in_steps

if TYPE_CHECKING:
    from storage.catalog import Catalog

DOUBTFUL = 0.6  # mean confidence of its words below which a page read by OCR is likely to be partly wrong
WORST_PAGES = 12
LONGEST_LIST = 15
SHOWN_TEXT = 240  # characters of a doubtful page
SHOWN_PATHS = 4  # of a cluster
_DOCUMENTS = "report_documents"
_OUTCOMES = "report_outcomes"
_PAGES = "report_pages"


def collect(catalog: Catalog) -> Figures:
    """All figures of a corpus."""
    with _temporary(catalog):
        _join(catalog)
        return _collect(catalog)


@contextmanager
def _temporary(catalog: Catalog) -> Iterator[None]:
    """Sees that the temporary tables go."""
    try:
        yield
    finally:
        for table in (_DOCUMENTS, _OUTCOMES):
            catalog.connection.execute(f"drop table if exists {table}")
        catalog.connection.execute(f"drop view if exists {_PAGES}")


def _join(catalog: Catalog) -> None:
    """What is asked for again and again, as temporary tables."""
    execute = catalog.connection.execute
    measures = ", ".join(f"m.{spec.measure}" for spec in MEASURES)
    first = (
        f"select m.doc_id, m.kind, m.language, {measures}, list_sort([p.kind for p in m.pii]) as private, m.licence "
        f"from {live_table(catalog, 'measure')} m "
        "semi join (select doc_id from files where status = 'ok') f using (doc_id)"
    )
    joins = (
        Join(f"{live_table(catalog, 'normalise')} n", "n.programming_language"),
        Join(f"{live_table(catalog, 'refine')} r", "r.redactions, r.n_bytes"),
        Join(
            "all_selection s",
            "s.kept, s.split, s.cluster",
            "coalesce(s.licence, d.licence) as licence, coalesce(d.n_bytes, s.n_bytes) as n_bytes",
        ),
        Join(f"{live_table(catalog, 'tokenise')} t", "t.length as n_tokens"),
    )
    join_in_steps(catalog.connection, _DOCUMENTS, first, joins)
    execute(f"create or replace temp view {_PAGES} as {_live_pages(catalog)}")
    execute(
        f"create or replace temp table {_OUTCOMES} as select f.path, f.container, f.status, f.reason_code, f.reason, "
        "f.size, f.media_type, f.doc_id, d.kept, "
        "case when f.status <> 'ok' then f.status when f.doc_id is null then 'container' "
        "when d.kept is null then 'document' when not d.kept then 'dropped' else d.split end as fate "
        f"from files f left join {_DOCUMENTS} d on f.doc_id = d.doc_id and f.status = 'ok'"
    )


def _live_pages(catalog: Catalog) -> str:
    """The pages of live documents: where no document lies in two segments, all that a live document has."""
    if live_table(catalog, "normalise") == "live_normalise":
        return "select * from pages"
    return "select p.* from all_extract p semi join (select doc_id from files where status = 'ok') f using (doc_id)"


def live_table(catalog: Catalog, stage: str) -> str:
    """The table of a stage, to be joined with the live documents.

    To find in which of several segments a document is live is most of the work of its view; mostly none lies in two.
    """
    (found,) = catalog.query(f"select count(*) = count(distinct doc_id) as once from all_{stage}")
    return f"all_{stage}" if found["once"] else f"live_{stage}"


def _collect(catalog: Catalog) -> Figures:
    query = catalog.query
    (total,) = query(
        "select count(*) as n, count(container) as members, coalesce(sum(size) filter (container is null), 0) as size, "
        f"count(*) filter (status = 'ok' and doc_id is not null) as documents from {_OUTCOMES}"
    )
    pages, confidence = _pages(catalog)
    cluster_sizes, clusters = _clusters(catalog)
    n_pairs, pairs = _pairs(catalog)
    archives = _archives(catalog)
    sides = _sides(catalog)
    return Figures(
        n_rows=total["n"],
        n_members=total["members"],
        n_documents=total["documents"],
        size=int(total["size"]),
        fates=_fates(catalog),
        outcomes=_outcomes(catalog),
        dropped=_dropped(catalog),
        media_types=_media_types(catalog),
        kinds=_tallies(catalog, "kind"),
        languages=_tallies(catalog, "language", "kind <> 'code'"),
        programming_languages=_tallies(catalog, "coalesce(programming_language, 'unknown')", "kind = 'code'"),
        licences=_tallies(catalog, "coalesce(licence, 'unknown')"),
        pages=pages,
        page_errors=_page_errors(catalog),
        worst_pages=_worst_pages(catalog),
        doubtful_pages=sum(confidence.kept[: round(DOUBTFUL * len(confidence.kept))]),
        histograms=[*count_histograms(catalog, _DOCUMENTS), confidence],
        clusters=clusters,
        cluster_sizes=cluster_sizes,
        pairs=pairs,
        n_pairs=n_pairs,
        capped=_recorded(catalog, "dedup", "giant_buckets"),
        cuts=_cuts(catalog),
        private=_private(catalog),
        archives=archives,
        n_archives=query(f"select count(distinct container) as n from {_OUTCOMES}")[0]["n"],
        sides=sides,
        estimate=_estimate(sides),
        preset=_preset(catalog),
        sources=[Tally(row["source"], row["n"], 0) for row in _sources(catalog)],
    )


def _fates(catalog: Catalog) -> list[Fate]:
    rows = catalog.query(f"select fate, count(*) as n, sum(size)::bigint as size from {_OUTCOMES} group by 1")
    found = {row["fate"]: Fate(row["fate"], row["n"], row["size"]) for row in rows}
    order = [*FATES, *sorted(found.keys() - FATES.keys())]
    return [found[name] for name in order if name in found]


def _outcomes(catalog: Catalog) -> list[Outcome]:
    """Statuses with their reasons; `ok` with a reason is a file that was read in part."""
    rows = catalog.query(
        f"select status, reason_code, count(*) as n, sum(size)::bigint as size, min(path) as path, "
        f"arg_min(reason, path) as reason from {_OUTCOMES} group by 1, 2 order by n desc, status, reason_code"
    )
    return [Outcome(*row.values()) for row in rows]


def _dropped(catalog: Catalog) -> list[Outcome]:
    rows = catalog.query(
        "select 'dropped' as status, q.reason_code, count(*) as n, sum(f.size)::bigint as size, min(q.path) as path, "
        f"arg_min(q.reason, q.path) as reason from quarantine q join {_OUTCOMES} f on f.path = q.path "
        "where q.stage = 'curate' group by 2 order by n desc, 2"
    )
    return [Outcome(*row.values()) for row in rows]


def _media_types(catalog: Catalog) -> list[Tally]:
    rows = catalog.query(
        "select coalesce(media_type, 'unknown') as name, count(*) as n, count(*) filter (status = 'ok') as ok "
        f"from {_OUTCOMES} group by 1 order by n desc, name"
    )
    return [Tally(*row.values()) for row in rows]


def _sources(catalog: Catalog) -> list[dict[str, Any]]:
    return catalog.query("select source, count(*) as n from files group by 1 order by n desc, source")


def _tallies(catalog: Catalog, column: str, where: str = "true") -> list[Tally]:
    rows = catalog.query(
        f"select {column} as name, count(*) as n, count(*) filter (coalesce(kept, true)) as kept "
        f"from {_DOCUMENTS} where {where} group by 1 order by n desc, name"
    )
    return [Tally(*row.values()) for row in rows]


def _pages(catalog: Catalog) -> tuple[list[PageKind], Any]:
    """Pages by how they were read, and the histogram of OCR's confidence, from one reading of the table."""
    rows = catalog.query(
        "select method, engine, case when method in ('ocr', 'both') then least(floor(confidence * 20), 19)::int end "
        "as bin, count(*) as n, count(error) as errors, sum(confidence) as total, count(confidence) as judged "
        f"from {_PAGES} group by 1, 2, 3"
    )
    kinds: dict[tuple[str, str], list[float]] = {}
    bins = [0] * 20
    for row in rows:
        sums = kinds.setdefault((row["method"], row["engine"]), [0, 0, 0, 0])
        for place, name in enumerate(("n", "errors", "total", "judged")):
            sums[place] += row[name] or 0
        if row["bin"] is not None:
            bins[max(0, row["bin"])] += row["n"]
    found = [
        PageKind(method, engine, int(n), int(errors), total / judged if judged else None)
        for (method, engine), (n, errors, total, judged) in kinds.items()
    ]
    found.sort(key=lambda kind: (-kind.n, kind.method, kind.engine))
    return found, confidence_histogram(bins)


def _page_errors(catalog: Catalog) -> list[PageError]:
    rows = catalog.query(
        f"select o.path, p.page, p.error from (select doc_id, page, error from {_PAGES} where error is not null "
        f"order by doc_id, page limit {LONGEST_LIST}) p join {_OUTCOMES} o on o.doc_id = p.doc_id "
        "and o.status <> 'duplicate' order by o.path, p.page"
    )
    return [PageError(*row.values()) for row in rows]


def _worst_pages(catalog: Catalog) -> list[WorstPage]:
    worst = catalog.query(
        "select p.doc_id, o.path, o.container, f.sha256, o.media_type, p.page, p.confidence, o.kept from "
        f"(select doc_id, page, confidence from {_PAGES} where method in ('ocr', 'both') and confidence is not null "
        f"order by confidence, doc_id, page limit {WORST_PAGES}) p "
        f"join {_OUTCOMES} o on o.doc_id = p.doc_id and o.status = 'ok' "
        "join files f on f.doc_id = p.doc_id and f.status = 'ok' order by p.confidence, o.path, p.page"
    )
    if not worst:
        return []
    listed = ", ".join(sorted({quoted(row["doc_id"]) for row in worst}))
    texts = {
        (row["doc_id"], row["page"]): row["text"]
        for row in catalog.query(
            f"select doc_id, page, left(text, {SHOWN_TEXT}) as text from {_PAGES} where doc_id in ({listed}) "
            f"and method in ('ocr', 'both') and confidence <= {max(row['confidence'] for row in worst)!r}"
        )
    }
    return [WorstPage(**row, text=texts.get((row["doc_id"], row["page"]), "")) for row in worst]


def _clusters(catalog: Catalog) -> tuple[tuple[int, int], list[Cluster]]:
    """How many documents lie in clusters of several, how many such clusters there are, and the largest."""
    grouped = "select cluster, count(*) as n from clusters group by 1 having n > 1"
    (sizes,) = catalog.query(f"select coalesce(sum(n), 0)::bigint as documents, count(*) as n from ({grouped})")
    rows = catalog.query(
        f"with largest as ({grouped} order by n desc, cluster limit {LONGEST_LIST}) "
        "select l.n, count(*) filter (o.kept), count(distinct c.text_sha256) as texts, "
        f"min(o.path, {SHOWN_PATHS}) as paths from largest l join clusters c using (cluster) "
        f"join {_OUTCOMES} o on o.doc_id = c.doc_id and o.status = 'ok' "
        "group by l.cluster, l.n order by l.n desc, paths"
    )
    return (sizes["documents"], sizes["n"]), [Cluster(*row.values()) for row in rows]


def _pairs(catalog: Catalog) -> tuple[int, list[Pair]]:
    (total,) = catalog.query("select count(*) as n from near_pairs")
    rows = catalog.query(
        "select p.similarity, least(a.path, b.path) as path, greatest(a.path, b.path) as other from "
        f"(select * from near_pairs order by similarity desc, doc_id, other_id limit {LONGEST_LIST}) p "
        f"join {_OUTCOMES} a on a.doc_id = p.doc_id and a.status = 'ok' "
        f"join {_OUTCOMES} b on b.doc_id = p.other_id and b.status = 'ok' order by 1 desc, 2, 3"
    )
    return total["n"], [Pair(*row.values()) for row in rows]


def _archives(catalog: Catalog) -> list[Archive]:
    rows = catalog.query(
        "with largest as (select container, count(*) as members, "
        "count(*) filter (status = 'ok' and doc_id is not null) as documents, "
        f"sum(size)::bigint as size from {_OUTCOMES} where container is not null group by 1 "
        f"order by members desc, container limit {LONGEST_LIST}) select l.container, "
        "coalesce(o.media_type, 'unknown') as media_type, l.members, l.documents, l.size from largest l "
        f"left join {_OUTCOMES} o on o.path = l.container order by l.members desc, l.container"
    )
    return [Archive(*row.values()) for row in rows]


def _cuts(catalog: Catalog) -> list[Cut]:
    rows = catalog.query(
        "select reason_code, count(*) as spans, count(distinct doc_id) as documents, sum(length)::bigint as chars "
        "from cuts group by 1 order by chars desc, reason_code"
    )
    return [Cut(*row.values()) for row in rows]


def _private(catalog: Catalog) -> list[Private]:
    rows = catalog.query(
        "select kind, count(*) as spans, count(distinct doc_id) as documents from "
        f"(select doc_id, unnest(private) as kind from {_DOCUMENTS} where coalesce(kept, true)) "
        "group by 1 order by spans desc, kind"
    )
    redacted = _redacted(catalog)
    return [Private(row["kind"], row["spans"], row["documents"], row["kind"] in redacted) for row in rows]


def _sides(catalog: Catalog) -> list[Side]:
    rows = catalog.query(
        "select d.split, count(*) as documents, count(distinct d.cluster) as clusters, "
        "coalesce(sum(d.n_bytes), 0)::bigint as size, "
        "coalesce(sum(d.n_bytes) filter (d.n_tokens is not null), 0)::bigint as encoded, "
        f"coalesce(sum(d.n_tokens), 0)::bigint as tokens from {_DOCUMENTS} d "
        "where d.kept group by 1 order by d.split = 'validation', d.split"
    )
    return [Side(*row.values()) for row in rows]


def _estimate(sides: list[Side]) -> TokenEstimate:
    """By the tokens there are; by a rule of thumb where there are none."""
    encoded, tokens = sum(side.encoded for side in sides), sum(side.tokens for side in sides)
    if not encoded or not tokens:
        return TokenEstimate(RULE_OF_THUMB, "rule")
    return TokenEstimate(encoded / tokens, "counted" if encoded == sum(side.size for side in sides) else "measured")


def _settings(catalog: Catalog, stage: str) -> dict[str, Any]:
    """The settings that a stage of the last run was called with."""
    for ref in catalog.state.get(stage, []):
        manifest = catalog.store.find(ref.stage, ref.key)
        if manifest is not None:
            return manifest.settings
    return {}


def _redacted(catalog: Catalog) -> set[str]:
    """Kinds of personal data that were replaced."""
    return set(_settings(catalog, "refine").get("redact", ()))


def _preset(catalog: Catalog) -> str:
    return str(_settings(catalog, "curate").get("policy", {}).get("preset", ""))


def _recorded(catalog: Catalog, stage: str, count: str) -> int:
    """What a stage of the last run counted on its way."""
    manifests = (catalog.store.find(ref.stage, ref.key) for ref in catalog.state.get(stage, []))
    return sum(manifest.counts.get(count, 0) for manifest in manifests if manifest is not None)
