"""The stage `curate`: select documents by policy, duplicates and leaks, and split them into training and validation.

It only reads measures of earlier stages, so a changed threshold costs seconds. Dropped documents are in
`dropped.parquet` with a reason, cuts of texts in `cuts.parquet`. Documents are rows of a `Corpus`; only 13-grams are
compared outside the database, segment by segment.

The split is a pure function of texts: a document is in validation if the hashes of all texts in its cluster of
duplicates and near-duplicates are below the threshold. So growth and merging clusters only move documents out of
validation, with these exceptions: a corpus whose validation has less than `target` bytes holds out further clusters in
the order of their hashes, and growth may move those in both directions; a cluster of more than a third of the corpus is
trained on until the corpus has grown; if all clusters fall into validation, one is trained on; if all held-out
documents are contained in training text, the cluster with the next hash is held out; and a cluster may split again if
there are too many near-duplicates to compare all pairs. The frozen evaluation set does not follow the split, but is
frozen again if training text overlaps with it.

The queries read two tables of a `Corpus`: `candidates`, the live documents, numbered by `RANK`; and `refused`, the
numbers of those that are not used, with a code and a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage import schemas
from storage.digest import list_digest, sha256_json, sorted_rows_digest
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import StoreError
from storage.tables import stream_rows, unpacked_size
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, SegmentTable, matching_folders, parquet, tables_of
from tasks.curate.leaks import SHARES, SegmentSignatures, contained, evaluation_overlaps, repeated_paragraphs
from tasks.curate.policy import PolicySettings, refusal
from tasks.curate.refine import Cuts, cut
from tasks.curate.settings import CurateSettings
from tasks.text.near import Pairs, keep_best
from tasks.text.words import distinct

if TYPE_CHECKING:
    from tasks.core.run import Run

GRAM_BYTES = 64  # share of the query memory per 13-gram of validation in memory
ENOUGH_BYTES = 200_000  # of validation; a smaller corpus holds out ENOUGH_SHARE of its bytes
ENOUGH_SHARE = 0.05
MAX_HELD_OUT = 1 / 3  # of the bytes of the corpus in one cluster that is held out
MAX_NEW_SPLITS = 8  # attempts to hold out another cluster if all held-out documents are contained in training text

# The first of several duplicates is kept: born-digital before OCR, then the longest, then by id.
RANK = "ocr_share, n_bytes desc, doc_id"

# Hash of a text in [0, 1), uniform; it must never change.
_HASH_SHARE = "('0x' || left(sha256($salt || chr(0) || text_sha256), 16))::ubigint / 18446744073709551616::double"

_CUTS = pa.schema([("number", pa.int64()), ("start", pa.int64()), ("length", pa.int64()), ("code", pa.string())])

Segments = Callable[[str], Iterable[SegmentSignatures]]


class EmptyCorpus(UserError):
    """Raised if the training or the validation side has no documents."""


@dataclass(frozen=True)
class CurationSettings:
    """Settings of selection: thresholds of quality, and the split."""

    curate: CurateSettings = field(default_factory=CurateSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


@stage(
    "curate",
    version=6,
    tables={
        schemas.SELECTION_FILE: schemas.SELECTION,
        schemas.DROPPED_FILE: schemas.DROPPED,
        schemas.CUTS_FILE: schemas.CUTS,
    },
)
def curate(
    work: Work,
    settings: CurationSettings,
    *,
    snapshot: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
    scores: RefSet,
    legibility: RefSet,
    duplicates: ArtifactRef,
    evaluation: ArtifactRef,
) -> str:
    """Select documents, split them into training and validation, and remove leaks between the sides.

    `scores` are those of the user's classifier, `legibility` that of text by OCR; both may be an empty set.
    """
    measured = matching_folders(work.store, documents, measures)
    made = work.in_subprocess(
        select_documents,
        sum(unpacked_size(Path(folder) / schemas.MEASURES_FILE) for folder in measured),
        snapshot=work.folder(snapshot),
        tables=tables_of(work.store, documents),
        measured=measured,
        scored=matching_folders(work.store, documents, scores) if scores.refs else [],
        judged=matching_folders(work.store, documents, legibility) if legibility.refs else [],
        duplicates=work.folder(duplicates),
        evaluation=work.folder(evaluation),
        out=work.out,
        spill=work.scratch,
        memory_bytes=work.machine.query_bytes,
        settings=settings,
    )
    work.counts.update(made["counts"])
    # the ids do not determine the texts
    return sha256_json([made["digest"], documents.digest])


def select_documents(
    snapshot: Path,
    tables: list[SegmentTable],
    measured: list[str],
    scored: list[str],
    judged: list[str],
    duplicates: Path,
    evaluation: Path,
    out: Path,
    spill: Path,
    memory_bytes: int,
    settings: CurationSettings,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the tables of kept and dropped documents and of cuts; return counts and a digest.

    Args:
        tables: Segments and folders of the documents.
        measured, scored, judged: For each of them the folder of its measures and signatures, of its scores, and of
            its legibility; no scores without a classifier, and no legibility where nothing is judged.
        spill: Folder for temporary files.
        memory_bytes: Memory limit of queries.
    """
    chosen = settings.curate
    with Corpus(memory_bytes, spill) as corpus:
        corpus.want_live(snapshot)
        corpus.locate(tables, schemas.DOCUMENTS_FILE, ["text_sha256", "n_bytes", "ocr_share"])
        legibility = corpus.rows_of(judged, schemas.LEGIBILITY_FILE, schemas.LEGIBILITY)
        clusters = parquet(duplicates / schemas.CLUSTERS_FILE)
        _list_candidates(corpus, measured, scored, legibility, clusters, settings.policy)
        segments = partial(_segments, corpus, tables, measured)
        _cut_evaluation_text(corpus, segments, evaluation, chosen)
        _cut_illegible(corpus, legibility, settings.policy)
        refuse_duplicates(corpus, parquet(duplicates / schemas.PAIRS_FILE), chosen.near_duplicates == "drop")
        _split_without_leaks(corpus, segments, chosen, memory_bytes // GRAM_BYTES)
        if chosen.paragraphs == "cut":
            _cut_paragraphs(corpus, segments)
        made = _write(corpus, out)
    progress(made["counts"]["rows"], made["counts"]["rows"])
    return made


def _list_candidates(
    corpus: Corpus,
    measured: Sequence[str],
    scored: Sequence[str],
    legibility: str,
    clusters: str,
    policy: PolicySettings,
) -> None:
    """Create the tables `candidates` and `refused`."""
    measures = corpus.rows_of(measured, schemas.MEASURES_FILE, schemas.MEASURES)
    scores = corpus.rows_of(scored, schemas.SCORES_FILE, schemas.SCORES)
    found = corpus.sql(
        f"select distinct licence from (select licence from {measures} union select licence from wanted)"
    )
    corpus.sql(
        f"create table candidates as select row_number() over (order by {RANK}) as number, doc_id, segment, part, "
        "place, text_sha256, cluster, cluster_size, n_bytes, kind, language, licence, "
        f"{refusal(policy, [licence for (licence,) in found.fetchall()])} as refusal from (select measures.* exclude "
        "(licence), located.* exclude (doc_id, part, place), segment, cluster, cluster_size, coalesce(nullif("
        "measures.licence, ''), wanted.licence) as licence, date, score as classifier_score, error_rate from located "
        f"join {measures} as measures using (part, place) join wanted on wanted.doc_id = located.doc_id "
        f"join {clusters} as clusters on clusters.doc_id = located.doc_id left join {scores} as scores "
        f"on scores.part = located.part and scores.doc_id = located.doc_id left join {legibility} as legibility "
        "on legibility.part = located.part and legibility.doc_id = located.doc_id "
        "where measures.doc_id = located.doc_id)"
    )
    (lost,) = corpus.sql("select min(doc_id) from located anti join candidates using (doc_id)").fetchall()[0]
    if lost is not None:
        raise StoreError(
            f"document {lost} has no measures or no cluster: compute them again with `--refresh measure,dedup`"
        )
    begin_selection(corpus)
    corpus.sql(
        "insert into refused select number, refusal.code, refusal.reason from candidates where refusal is not null"
    )


def _segments(
    corpus: Corpus, tables: Sequence[SegmentTable], measured: Sequence[str], candidates: str
) -> Iterator[SegmentSignatures]:
    """Yield the signatures of candidates, segment by segment; one such iterator at a time.

    Args:
        candidates: SQL from `from` on.
    """
    corpus.sql(f"create or replace table reading as select part, place, number {candidates} order by part, place")
    for part, (table, folder) in enumerate(zip(tables, measured, strict=True)):
        places, numbers = corpus.columns(f"select place, number from reading where part = {part} order by place")
        if len(places):
            yield SegmentSignatures(Path(folder), Path(table.folder), places, numbers)


def _cut_evaluation_text(corpus: Corpus, segments: Segments, evaluation: Path, settings: CurateSettings) -> None:
    """Refuse documents that are mostly text of an external evaluation set, and cut it out of the others."""
    cuts, mostly = [], []
    grams = np.load(evaluation / schemas.GRAMS_FILE, mmap_mode="r", allow_pickle=False)
    for number, spans, share in evaluation_overlaps(segments("from in_use"), grams) if len(grams) else ():
        if share > settings.max_evaluation_share:
            mostly.append({"number": number, "share": share})
        else:
            cuts += [dict(zip(_CUTS.names, (number, *span, "evaluation_set"), strict=True)) for span in spans]
    corpus.insert("cuts", pa.Table.from_pylist(cuts, _CUTS))
    reason = f"of it stands in an evaluation set, more than {settings.max_evaluation_share:.0%}"
    _refuse_shares(corpus, pa.Table.from_pylist(mostly, SHARES), "evaluation_set", reason)


def _cut_illegible(corpus: Corpus, legibility: str, policy: PolicySettings) -> None:
    """Cut passages with more wrong characters than a document may have."""
    most = {rule.name: threshold for rule, threshold in policy.thresholds()}.get("max_error_rate")
    if most is not None:
        corpus.sql(
            "insert into cuts select number, passage.start, passage.length, 'illegible' from (select number, "
            f"unnest(passages) as passage from in_use join {legibility} as judged using (part, doc_id)) "
            "where passage.error_rate > $most",
            {"most": most},
        )


def _refuse_shares(corpus: Corpus, shares: pa.Table, code: str, reason: str) -> None:
    """Refuse documents for a share of their text, with which the reason begins."""
    corpus.connection.register("shares", shares)
    corpus.sql(
        "insert into refused select number, $code, format('{:.1f}% ', 100 * share) || $reason from shares",
        {"code": code, "reason": reason},
    )
    corpus.connection.unregister("shares")


def begin_selection(corpus: Corpus) -> None:
    """Create an empty table `refused`, and the view `in_use` of the candidates that are not in it."""
    corpus.sql(
        "create table refused (number bigint, code varchar, reason varchar); "
        "create view in_use as from candidates anti join refused using (number)"
    )


def refuse_duplicates(corpus: Corpus, near_pairs: str, drop_near: bool) -> None:
    """Refuse all but the best of exact duplicates, and near-duplicates of a kept document.

    Args:
        near_pairs: SQL table of pairs of `doc_id` and `other_id` with their `similarity`, one document per text.
        drop_near: Drop near-duplicates; exact ones are always dropped.
    """
    corpus.sql(
        "insert into refused select in_use.number, 'duplicate_text', 'same text as document ' || kept.doc_id "
        "from in_use join (select text_sha256, min(number) as best from in_use where cluster_size > 1 "
        "group by text_sha256) using (text_sha256) "
        "join candidates kept on kept.number = best where in_use.number > best"
    )
    if not drop_near:
        return
    corpus.sql(
        "create table near as select least(ours.number, theirs.number) as first, greatest(ours.number, theirs.number) "
        f"as second, similarity from {near_pairs} as pair join candidates one on one.doc_id = pair.doc_id "
        "join candidates other on other.doc_id = pair.other_id join in_use ours on ours.text_sha256 = one.text_sha256 "
        "join in_use theirs on theirs.text_sha256 = other.text_sha256"
    )
    first, second, similarity = corpus.columns("from near")
    ends = distinct(np.concatenate([first, second]))
    pairs = Pairs.sorted(np.searchsorted(ends, first), np.searchsorted(ends, second), similarity)
    kept, representative = keep_best(len(ends), pairs)
    corpus.insert("dropped", pa.table({"number": ends[~kept], "keeper": ends[representative[~kept]]}))
    corpus.sql(
        "insert into refused select dropped.number, 'near_duplicate', 'nearly the same text as document ' || doc_id "
        "|| format(' (Jaccard similarity {:.3f})', similarity) from dropped "
        "join near on first = keeper and second = dropped.number join candidates on candidates.number = keeper"
    )


def begin_split(corpus: Corpus, settings: CurateSettings) -> None:
    """Create the table `clusters` of those with a document in use, and an empty table `barred` of clusters.

    A cluster has the kind and language of its best document, and the bytes of its documents in use.
    """
    # the hashes of refused members count too: otherwise a threshold could move a cluster into validation
    corpus.sql(
        f"create table clusters as select cluster, max({_HASH_SHARE}) as share, "
        "sum(n_bytes) filter (refused.number is null) as n_bytes, "
        "arg_min((kind, language), number) filter (refused.number is null) as stratum from candidates "
        "left join refused using (number) group by cluster having bool_or(refused.number is null)",
        {"salt": settings.salt},
    )
    corpus.sql("create table barred (cluster varchar)")


def hold_out(corpus: Corpus, settings: CurateSettings) -> None:
    """Create the table `held_out` of the clusters in validation; the others, and barred ones, are trained on.

    If those below the threshold have too few bytes, others are held out too, in the order of their hashes: first in
    proportion to kinds and languages, then from the whole corpus. If no cluster falls into validation, the one with the
    lowest hash is held out; a single cluster is trained on.
    """
    ((n_bytes,),) = corpus.sql("select coalesce(sum(n_bytes), 0) from clusters").fetchall()
    largest, target = MAX_HELD_OUT * n_bytes, min(ENOUGH_BYTES, ENOUGH_SHARE * n_bytes)
    corpus.sql(
        "create or replace table held_out as select cluster from clusters anti join barred using (cluster) "
        "where share < $share and n_bytes <= $largest",
        {"share": settings.validation_share, "largest": largest},
    )
    held = "select coalesce(sum(n_bytes), 0) from clusters semi join held_out using (cluster)"
    for stratum in ("stratum", "null"):
        before = -1
        while before < (n_held := corpus.sql(held).fetchall()[0][0]) < target:
            before = n_held
            corpus.sql(_FURTHER.format(stratum=stratum), {"share": target / n_bytes})
    corpus.sql(
        "insert into held_out select cluster from clusters anti join barred using (cluster) "
        f"where not exists (from held_out) order by n_bytes > {largest}, share, cluster limit 1; "
        "delete from held_out where (select count(*) from held_out) = (select count(*) from clusters) "
        "and cluster = (select cluster from clusters order by share desc, cluster desc limit 1)"
    )


# Hold out the next clusters of each stratum while half of the cluster fits into what its share of the target lacks: so
# the bytes are rounded to whole clusters. One that does not fit ends the turn, and is passed over in the next. One
# with more than half of the bytes of its kind and language is left, so that training keeps the only document of these.
_FURTHER = """
with
    ours as (from clusters select *, {stratum} as own, cluster in (from held_out) as held),
    fitting as (
        select * from (
            select *, sum(n_bytes) over (partition by stratum) as alike, $share * sum(n_bytes) over (partition by own)
                - coalesce(sum(n_bytes) filter (held) over (partition by own), 0) as lack
            from ours
        ) anti join barred using (cluster) where not held and n_bytes / 2 <= lack and n_bytes <= alike / 2
    )
insert into held_out select cluster from fitting
qualify sum(n_bytes) over (partition by own order by share, cluster) - n_bytes / 2 <= lack
"""


def _split_without_leaks(corpus: Corpus, segments: Segments, settings: CurateSettings, grams_at_once: int) -> None:
    """Split the clusters, and refuse documents contained in the other side, those of validation first.

    If no validation document would be left, other clusters are held out, in the order of their hashes.
    """

    def leaks() -> tuple[int, pa.Table, pa.Table]:
        held_out = list(segments("from in_use semi join held_out using (cluster)"))
        trained = partial(segments, "from in_use anti join held_out using (cluster)")
        found = contained(held_out, trained, settings.max_containment, grams_at_once)
        return sum(len(part.numbers) for part in held_out), *found

    begin_split(corpus, settings)
    for _ in range(MAX_NEW_SPLITS):
        hold_out(corpus, settings)
        n_held_out, in_training, in_validation = leaks()
        if len(in_training) < n_held_out or not n_held_out:
            break
        corpus.sql("insert into barred from held_out")
    reason = f"of its 13-grams are in {{}} text; more than {settings.max_containment:.0%} are a leak"
    _refuse_shares(corpus, in_training, "contained_in_training", reason.format("training"))
    if len(in_training):  # training documents that overlapped only with those are no leaks any more
        _, _, in_validation = leaks()
    _refuse_shares(corpus, in_validation, "contained_in_validation", reason.format("validation"))


def _cut_paragraphs(corpus: Corpus, segments: Segments) -> None:
    """Cut paragraphs that a document of better rank also has, and refuse documents that are empty then."""
    repeated_paragraphs(corpus, segments("from in_use"))
    emptied = []
    for segment in segments("from in_use semi join whole using (number)"):
        query = "select number, spans from whole semi join (select unnest($numbers) as number) using (number)"
        spans = dict(corpus.sql(query, {"numbers": segment.numbers.tolist()}).fetchall())
        for number, text in segment.texts(range(len(segment.numbers))):
            if not cut(text, spans[number]).strip():
                emptied.append({"number": number})
    corpus.insert("emptied", pa.Table.from_pylist(emptied, pa.schema([("number", pa.int64())])))
    corpus.sql(
        "insert into refused select number, 'duplicate_paragraphs', 'all of its paragraphs stand in other documents' "
        "from emptied; "
        "insert into cuts select number, start, length, 'duplicate_paragraph' from repeated anti join emptied "
        "using (number)"
    )


def _write(corpus: Corpus, out: Path) -> dict[str, Any]:
    """Write the tables; return counts and a digest."""
    corpus.sql(
        "create table selected as select doc_id, segment, cluster, case when held_out.cluster is not null then "
        "'validation' when clusters.cluster is not null then 'train' else 'none' end as split, code is null as kept, "
        "licence, candidates.n_bytes, code as reason_code, reason from candidates left join refused using (number) "
        "left join clusters using (cluster) left join held_out using (cluster)"
    )
    cuts = "select doc_id, start, length, code as reason_code from cuts join candidates using (number) order by all"
    rows = "select * exclude (reason_code, reason) from selected order by doc_id"
    dropped = "select doc_id, reason_code, reason from selected where not kept order by doc_id"
    counts = {
        "rows": corpus.write(out / schemas.SELECTION_FILE, schemas.SELECTION, rows),
        "dropped": corpus.write(out / schemas.DROPPED_FILE, schemas.DROPPED, dropped),
        "cuts": corpus.write(out / schemas.CUTS_FILE, schemas.CUTS, cuts),
    }
    for side in ("train", "validation"):
        ((counts[side],),) = corpus.sql(f"select count(*) from selected where kept and split = '{side}'").fetchall()
    # the segments of documents are not part of the digest
    content = sorted_rows_digest(
        corpus.rows(
            "select doc_id, sha256(json_array(cluster, split, if(kept, null, json_array(reason_code, reason)), "
            "licence)::varchar) from selected order by doc_id"
        )
    )
    cut_rows = (dict(zip(schemas.CUTS.names, row, strict=True)) for row in corpus.rows(cuts))
    return {"counts": counts, "digest": list_digest(cut_rows, content)}


def check_split(run: Run, curated: ArtifactRef, snapshot: ArtifactRef) -> None:
    """Raise EmptyCorpus if a side of the split has no documents."""
    nothing: dict[str, int] = {}
    counts = run.read(curated, lambda ref: manifest_of(run.store, ref).counts, nothing)
    if counts.get("train", 1) and counts.get("validation", 1):
        return
    found = manifest_of(run.store, snapshot).counts["rows"]
    if not found:
        raise EmptyCorpus(
            "there are no files in the sources: name a folder or file with documents, and check whether patterns or "
            "a .gitignore exclude everything"
        )
    raise EmptyCorpus(
        f"of {found} file(s), the corpus has {counts['train']} training and {counts['validation']} validation "
        "document(s), and needs at least one of each, not contained in each other: add documents, or divide a long "
        "text with `--set extract.section_length=20000`; `sheepfold ingest "
        'SOURCE` and then `sheepfold sql "select * from quarantine"` list the refused ones with reasons'
    )


def cuts_of(run: Run, curated: ArtifactRef, live: Sequence[Collection[str]]) -> list[Cuts]:
    """Return the cuts of each segment; a plan without a selection uses those of the last one.

    Args:
        live: Live documents of each segment.
    """
    manifests = () if curated.made else run.store.manifests(curate.name)
    known = [found for found in manifests if found.version == curate.version]
    chosen = max(known, key=lambda found: found.created).ref if known else curated
    if not chosen.made:
        return [{} for _ in live]
    cuts: Cuts = {}
    for row in stream_rows(run.store.folder(chosen) / schemas.CUTS_FILE, ["doc_id", "start", "length"]):
        cuts.setdefault(row["doc_id"], []).append((row["start"], row["length"]))
    return [{doc_id: cuts[doc_id] for doc_id in own if doc_id in cuts} if cuts else {} for own in live]
