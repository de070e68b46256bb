"""The page of a corpus: status of every file, kinds, split, duplicates, pages and measures.

A temporary table holds a few hundred bytes per document and no text; everything else is an aggregate or the first rows
of an order. So memory grows with the number of documents, not with their length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from storage.catalog import Catalog, quoted, read_state
from storage.store import open_store
from tasks.report.charts import bar_figure
from tasks.report.page import Notice, Outcome, Page, draw_page, notices_of
from tasks.report.queries import Row, folded, histogram, join_documents, live_table, rows

# title and colour of each status, from used to lost
STATUSES = {
    "train": ("used for training", "tone-ink"),
    "validation": ("held out for validation", "tone-mix"),
    "document": ("extracted, not curated yet", "tone-norm"),
    "container": ("archives and tables", "tone-norm"),
    "duplicate": ("duplicate of another file", "tone-pale"),
    "dropped": ("dropped by curation", "tone-feed"),
    "skipped": ("skipped", "tone-hatched"),
    "rejected": ("rejected", "tone-pale-contrary"),
    "failed": ("failed", "tone-contrary"),
}
DOUBTFUL = 0.6  # mean word confidence below which an OCR page is probably partly wrong
LISTED = 15  # most rows of a list of examples
WORST_PAGES = 12


class Reason(NamedTuple):
    """The meaning of a reason code.

    Attributes:
        weight: `lost`: text is missing that could be recovered; `check`: probably wrong; `by design`: intended.
        meaning: description for people, after "n files: ".
        advice: what to do; may be empty.
        group: rule that dropped a document.
    """

    weight: str
    meaning: str
    advice: str = ""
    group: str = "policy"


_AGAIN = "Run the same command with --retry-failed on a less busy machine; if it fails again, check the file."
_PASSWORDS = "Write their passwords into a file, set passwords.file to it and run again."
_LARGER = "Raise extract.max_file_bytes or extract.archive_max_bytes to include them."
REASONS = {
    "empty": Reason("by design", "empty files"),
    "unsupported": Reason("by design", "files of an unsupported type"),
    "not_walked": Reason("by design", "not regular files, excluded or unreachable"),
    "forgotten": Reason("by design", "forgotten on request"),
    "duplicate_bytes": Reason("by design", "the same bytes as another file"),
    "encrypted": Reason("lost", "encrypted", _PASSWORDS),
    "no_ocr_engine": Reason(
        "lost",
        "scans without an OCR engine",
        "Install Tesseract and its data for extract.ocr_languages (deu is tesseract-ocr-deu on Debian and Ubuntu, "
        "tesseract-langpack-deu on Fedora, part of tesseract-lang in Homebrew), and run again.",
    ),
    "timeout": Reason("lost", "stopped by the deadline", _AGAIN),
    "memory": Reason("lost", "stopped by the memory limit", _AGAIN),
    "crashed": Reason("lost", "crashed the extractor", _AGAIN),
    "changed": Reason("lost", "changed or deleted while being read", "Run the same command again."),
    "unreadable": Reason("lost", "could not be read from disk", "Repair the permissions or the disk and run again."),
    "too_large": Reason("lost", "larger than the limit", _LARGER),
    "too_many": Reason("lost", "with too many members", "Raise extract.archive_max_members to include them."),
    "too_deep": Reason("lost", "archives nested too deep", "Raise extract.archive_depth to include them."),
    "corrupt": Reason("check", "damaged", "Open them in their own program; if that fails too, get another copy."),
    "no_text": Reason("check", "no text on any page", "Check if they show text that OCR should have read."),
    "unsafe_path": Reason("check", "a path that leads out of its archive", "Check the origin of the archive."),
    "no_column": Reason(
        "lost", "tables without a text column", "Name the column in extract.table_columns and run again."
    ),
    "duplicate_text": Reason("by design", "the same text as another document", group="duplicates"),
    "near_duplicate": Reason("by design", "nearly the same text as another document", group="duplicates"),
    "evaluation_set": Reason("by design", "mostly text of an external evaluation set", group="evaluation set"),
    "contained_in_training": Reason(
        "by design", "held-out text that is contained in training text", group="containment"
    ),
    "contained_in_validation": Reason(
        "by design", "training text that is contained in held-out text", group="containment"
    ),
    "language": Reason("by design", "in a language that policy.languages excludes"),
    "licence": Reason("by design", "under a licence that the policy excludes"),
    "low_score": Reason("by design", "low score of the classifier"),
    "date": Reason("by design", "of a date that the policy excludes"),
    "undated": Reason("check", "without a date", "State it in the table sources.metadata, or name it in the path."),
    "illegible": Reason(
        "lost", "scans that OCR misread", "Scan again or set another OCR language; policy.max_error_rate is the limit."
    ),
}


def reason_of(code: str) -> Reason:
    """Return the meaning of a code; an unknown code is its own description."""
    return REASONS.get(code) or Reason("check", code.replace("_", " "))


_PROSE = "kind <> 'code'"
# histograms of documents: title, note, end of the last bin (0: logarithmic bins), SQL condition
MEASURES = {
    "n_chars": ("Length", "characters, logarithmic", 0, "true"),
    "language_confidence": ("Language confidence", "of the detected language, 0 to 1; prose", 1, _PROSE),
    "alpha_word_share": ("Words with a letter", "share of words; low in tables and bad OCR", 1, _PROSE),
    "mean_word_length": ("Mean word length", "characters; the last bar includes 20 and more", 20, _PROSE),
    "symbol_share": ("Symbols", "share of characters; high in garbled text", 1, _PROSE),
    "terminal_line_share": ("Lines that end a sentence", "share of lines; low in lists and tables", 1, _PROSE),
    "distinct_share": ("Distinct 5-grams", "share of 5-grams; low in repetitive text", 1, "true"),
    "compression_ratio": (
        "Compression ratio",
        "compressed by uncompressed size; low in repetitive text",
        1,
        "true",
    ),
    "duplicate_line_char_share": ("Repeated lines", "share of characters in lines that occur before", 1, "true"),
    "blob_share": ("Encoded data", "share of characters in base64 or hexadecimal data", 1, "true"),
    "comment_share": ("Comments", "share of lines; code", 1, "kind = 'code'"),
}
_OCR = "method in ('ocr', 'both')"
_CLUSTERS = "select cluster, count(*) as size from clusters group by 1 having size > 1"
_BY_N = "group by 1 order by n desc, name"


def _tally(column: str, where: str = "true") -> str:
    kept = "count(*) filter (coalesce(kept, true)) as kept"
    return f"select {column} as name, count(*) as n, {kept} from report_documents where {where} {_BY_N}"


# queries of the lists of the page
QUERIES = {
    "statuses": (
        "select status as name, count(*) as n, sum(size)::bigint as size from report_files group by 1 "
        f"order by list_position({list(STATUSES)}, name), name"
    ),
    # `ok` with a reason: a file that was read partially
    "outcomes": (
        "select file_status as status, reason_code as code, count(*) as n, sum(size)::bigint as size, "
        "min(path) as path, arg_min(reason, path) as reason from report_files group by 1, 2 order by n desc, 1, 2"
    ),
    "dropped": (
        "select 'dropped' as status, q.reason_code as code, count(*) as n, sum(f.size)::bigint as size, "
        "min(q.path) as path, arg_min(q.reason, q.path) as reason from quarantine q join report_files f using (path) "
        "where q.stage = 'curate' group by 2 order by n desc, 2"
    ),
    "sources": f"select source as name, count(*) as n from files {_BY_N}",
    "media_types": f"select coalesce(media_type, 'unknown') as name, count(*) as n from report_files {_BY_N}",
    "kinds": _tally("kind"),
    "languages": _tally("language", _PROSE),
    "programming_languages": _tally("coalesce(programming_language, 'unknown')", "kind = 'code'"),
    "licences": _tally("coalesce(licence, 'unknown')"),
    "pages": (
        f"select method, engine, {_OCR} as by_ocr, count(*) as n, count(error) as errors, "
        f"avg(confidence) as confidence, count(*) filter ({_OCR} and confidence < {DOUBTFUL}) as doubtful "
        "from report_pages group by all order by n desc, method, engine"
    ),
    "page_errors": (
        "select f.path, p.page, p.error from (select doc_id, page, error from report_pages where error is not null "
        f"order by doc_id, page limit {LISTED}) p join report_files f using (doc_id) "
        "where f.file_status <> 'duplicate' order by all"
    ),
    "clusters": (
        f"with largest as ({_CLUSTERS} order by size desc, cluster limit {LISTED}) "
        "select l.size, count(*) filter (f.kept) as kept, count(distinct c.text_sha256) as texts, "
        "min(f.path, 4) as paths from largest l join clusters c using (cluster) "
        "join report_files f on f.doc_id = c.doc_id and f.file_status = 'ok' "
        "group by l.cluster, l.size order by l.size desc, paths"
    ),
    "cuts": (
        "select reason_code as code, count(*) as spans, count(distinct doc_id) as documents, "
        "sum(length)::bigint as chars from cuts group by 1 order by chars desc, code"
    ),
    "private": (
        "select kind, count(*) as spans, count(distinct doc_id) as documents from (select doc_id, "
        "unnest(private) as kind from report_documents where coalesce(kept, true)) group by 1 order by spans desc, kind"
    ),
    # `encoded`: documents that were tokenised, into `tokens`
    "sides": (
        "select split as name, count(*) as documents, count(distinct cluster) as clusters, "
        "coalesce(sum(n_bytes), 0)::bigint as size, "
        "count(n_tokens) as encoded, "
        "coalesce(sum(n_tokens), 0)::bigint as tokens from report_documents where kept group by 1 "
        "order by name = 'validation', name"
    ),
}
_TOTAL = (
    "select count(*) as files, count(container) as members, "
    "coalesce(sum(size) filter (container is null), 0)::bigint as size, "
    "count(*) filter (file_status = 'ok' and doc_id is not null) as documents, "
    "count(*) filter (status in ('train', 'validation')) as kept, "
    "count(*) filter (status in ('failed', 'rejected')) as lost, "
    "count(*) filter (status = 'duplicate') as duplicates, (select count(*) from near_pairs) as pairs, "
    f"(select count(*) from ({_CLUSTERS})) as clusters, "
    f"(select coalesce(sum(size), 0)::bigint from ({_CLUSTERS})) as in_clusters from report_files"
)


def collect(catalog: Catalog) -> Row:
    """Return all figures of a corpus.

    Returns:
        The rows of each of `QUERIES` under its name, and `total` (counts), `counts` (dropped documents by reason code),
        `worst_pages`, `ocr_confidence` (mean), `histograms`, `capped` (buckets of near-duplicate candidates too large
        to compare in full), `doubtful` (the threshold of low confidence) and `preset` (of the policy).
    """
    _join(catalog)
    found = Row(**{name: rows(catalog, query) for name, query in QUERIES.items()})
    (found.total,) = rows(catalog, _TOTAL)
    found.worst_pages = _worst_pages(catalog)
    found.histograms = list(_histograms(catalog))
    found.counts = Counter({item.code: item.n for item in found.dropped})
    for item in found.statuses:
        item.title, item.tone = STATUSES.get(item.name, (item.name, "tone-quiet"))
    judged = [(item.confidence, item.n) for item in found.pages if item.by_ocr and item.confidence is not None]
    found.ocr_confidence = sum(value * n for value, n in judged) / (sum(n for _, n in judged) or 1)
    for item in (*found.outcomes, *found.dropped):
        item.known = reason_of(item.code or item.status)
        item.meaning = _meaning(item)
    redacted = _settings(catalog, "refine").get("redact", ())
    for item in found.private:
        item.redacted = item.kind in redacted
    found.doubtful = DOUBTFUL
    found.preset = _settings(catalog, "curate").get("policy", {}).get("preset", "")
    manifests = [catalog.store.find(ref.stage, ref.key) for ref in catalog.state.get("dedup", [])]
    found.capped = sum(manifest.counts.get("giant_buckets", 0) for manifest in manifests if manifest)
    return found


def _join(catalog: Catalog) -> None:
    """Create the tables that several queries use: `report_documents`, `report_files`, `report_pages`."""
    join_documents(catalog, MEASURES)
    pages = "select * from pages"
    if live_table(catalog, "normalise") == "all_normalise":  # no document lies in two segments
        pages = (
            "select p.* from all_extract p semi join (select doc_id from files where status = 'ok') f using (doc_id)"
        )
    catalog.connection.execute(f"create or replace temp view report_pages as {pages}")
    catalog.connection.execute(
        "create or replace temp table report_files as select f.path, f.container, f.status as file_status, "
        "f.reason_code, f.reason, f.size, f.media_type, f.doc_id, d.kept, "
        "case when f.status <> 'ok' then f.status when f.doc_id is null then 'container' when d.kept is null then "
        "'document' when not d.kept then 'dropped' else d.split end as status "
        "from files f left join report_documents d on f.doc_id = d.doc_id and f.status = 'ok'"
    )


def _worst_pages(catalog: Catalog) -> list[Row]:
    worst = rows(
        catalog,
        "select p.doc_id, f.path, p.page, p.confidence, f.kept, '' as text from "
        f"(select doc_id, page, confidence from report_pages where {_OCR} and confidence is not null "
        f"order by confidence, doc_id, page limit {WORST_PAGES}) p "
        "join report_files f on f.doc_id = p.doc_id and f.file_status = 'ok' order by p.confidence, f.path, p.page",
    )
    # a query of its own for texts: the one above would read those of all pages
    if worst:
        listed = ", ".join(f"({quoted(page.doc_id)}, {page.page})" for page in worst)
        texts = rows(
            catalog,
            f"select doc_id, page, left(text, 240) as text from report_pages where (doc_id, page) in ({listed}) "
            f"and {_OCR} and confidence <= {worst[-1].confidence!r}",
        )
        found = {(row.doc_id, row.page): row.text for row in texts}
        for page in worst:
            page.text = found.get((page.doc_id, page.page), "")
    return worst


def _histograms(catalog: Catalog) -> Iterator[Row]:
    """Yield histograms of documents and pages, as arguments of `bar_figure`."""
    tones = {"kept": "tone-ink", "dropped": "tone-contrary"}
    for measure, (title, note, top, where) in MEASURES.items():
        shown = {"name": f"histogram-{measure.replace('_', '-')}", "title": title, "note": note}
        upper = "not coalesce(kept, true)"
        yield from histogram(catalog, "report_documents", measure, upper, tones, shown, top=top, where=where)
    shown = {
        "name": "histogram-ocr-confidence",
        "title": "OCR confidence",
        "note": "pages by mean confidence of their words, 0 to 1",
    }
    tones = {"kept": "tone-ink"}
    for plot in histogram(catalog, "report_pages", "confidence", "false", tones, shown, top=1, where=_OCR):
        plot.median = None  # it would be read as a median over documents
        yield plot


def _meaning(item: Row) -> str:
    """Return the meaning of a code, with the reason of the first file if it is more specific."""
    if not item.code:
        return "Read." if item.status == "ok" else item.reason
    words = f"{item.known.meaning[0].upper()}{item.known.meaning[1:]}"
    # reasons "by design" name documents by their ids, which are not readable
    if item.known.weight == "by design" or item.reason in ("", item.code.replace("_", " ")):
        return f"{words}."
    return f"{words}{'. The first' if item.n > 1 else ''}: {item.reason}"


def _settings(catalog: Catalog, stage: str) -> dict[str, Any]:
    """Return the settings of a stage in the last run."""
    manifests = (catalog.store.find(ref.stage, ref.key) for ref in catalog.state.get(stage, []))
    return next((manifest.settings for manifest in manifests if manifest), {})


def notices(found: Row) -> list[Notice]:
    """Return the notices of the page, most severe first."""
    return notices_of("corpus_notices.html", **vars(found))


def corpus_page(found: Row, corpus: str) -> list[str]:
    """Return the page and its Markdown summary from the result of `collect`."""
    return draw_page(
        "corpus.html",
        notices(found),
        corpus=corpus,
        folded=folded,
        charts=[bar_figure(**vars(plot)) for plot in found.histograms],
        **vars(found),
    )


OF_MODELS = ("suggest", "train", "evaluate", "generate")  # stages that do not change the page


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's corpus; returns None without a snapshot."""
    if outcome.made("snapshot") is None:
        return None
    run = outcome.run
    state = {stage: refs for stage, refs in read_state(run.store, run.corpus).items() if stage not in OF_MODELS}
    return outcome.draw_once("corpus", f"Corpus {run.corpus}", state, lambda: outcome.draw_in_subprocess(draw_corpus))


def draw_corpus(store: str, cache: str, corpus: str, progress: Callable[[int, int], None]) -> list[str]:
    """Return page and summary of a corpus; target of `Outcome.draw_in_subprocess`."""
    return corpus_page(collect(Catalog(open_store(store, Path(cache)), corpus)), corpus)
