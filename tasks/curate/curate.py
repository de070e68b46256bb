"""The stage that decides: policy, duplicates, split and leaks come together, and every document gets a row.

Everything it reads was measured before, so that another threshold costs seconds. What it drops is in `dropped.parquet`
with a reason, what it leaves out of a text in `cuts.parquet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest, sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import (
    CLUSTERS_FILE,
    CUTS,
    CUTS_FILE,
    DOCUMENTS_FILE,
    DROPPED,
    DROPPED_FILE,
    GRAMS_FILE,
    MEASURES_FILE,
    PAIRS_FILE,
    SCORES_FILE,
    SELECTION,
    SELECTION_FILE,
)
from storage.store import StoreError
from storage.tables import read_columns, unpacked_size, write_columns, write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, SegmentTable, matching_folders, tables_of
from tasks.curate.leaks import SegmentSignatures, contained, evaluation_overlaps, repeated_paragraphs
from tasks.curate.policy import PolicySettings, may_be_refused, measures_needed, refusals
from tasks.curate.selection import Candidate, refuse_duplicates, split_documents
from tasks.curate.settings import CurateSettings

if TYPE_CHECKING:
    from tasks.core.run import Run

UNUSED = "none"  # the side of a cluster none of whose documents are in use
MAX_NEW_SPLITS = 8  # how often another cluster is held out when all that were stand in training text


class EmptyCorpus(UserError):
    """There is not enough text to train on and to measure on."""


@dataclass(frozen=True)
class CurationSettings:
    """What decides: thresholds of quality, and how documents are split."""

    curate: CurateSettings = field(default_factory=CurateSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


@stage(
    "curate",
    version=3,
    tables={SELECTION_FILE: SELECTION, DROPPED_FILE: DROPPED, CUTS_FILE: CUTS},
)
def curate(
    work: Work,
    settings: CurationSettings,
    *,
    snapshot: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
    scores: RefSet,
    duplicates: ArtifactRef,
    evaluation: ArtifactRef,
) -> str:
    """Choose the documents to use, split them into training and validation, and see that nothing leaks between.

    Scores are those of the user's classifier; an empty set where there is none.
    """
    shelves = tables_of(work.store, documents)
    measured = matching_folders(work.store, documents, measures)
    made = work.in_subprocess(
        select_documents,
        sum(unpacked_size(Path(folder) / MEASURES_FILE) for folder in measured),
        snapshot=str(work.folder(snapshot)),
        shelves=[list(shelf) for shelf in shelves],
        measured=measured,
        scored=matching_folders(work.store, documents, scores) if scores.refs else [],
        duplicates=str(work.folder(duplicates)),
        evaluation=str(work.folder(evaluation)),
        out=str(work.out),
        settings=asdict(settings),
    )
    work.counts.update(made["counts"])
    # a selection of other texts under the same names is another selection
    return sha256_json([made["digest"], documents.digest])


def select_documents(
    snapshot: str,
    shelves: list[tuple[str, str]],
    measured: list[str],
    scored: list[str],
    duplicates: str,
    evaluation: str,
    out: str,
    settings: dict[str, Any],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write what is kept, dropped and cut; returns counts and a digest."""
    chosen = CurateSettings(**settings["curate"])
    places = [SegmentTable(*shelf) for shelf in shelves]
    clusters = dict(zip(*read_columns(Path(duplicates) / CLUSTERS_FILE, ["doc_id", "cluster"]).values(), strict=True))
    live, licences, read_at = _live(Path(snapshot), places)
    policy = PolicySettings(**settings["policy"])
    candidates = list(_candidates(live, licences, read_at, places, measured, scored, clusters, policy))
    cuts: list[dict[str, Any]] = []
    signed = _signed(candidates, read_at, places, measured)
    _cut_evaluation_text(candidates, signed, Path(evaluation), chosen, cuts)
    refuse_duplicates(candidates, _near(Path(duplicates)), chosen.near_duplicates == "drop")
    split = _split_without_leaks(candidates, _without_refused(signed, candidates), chosen)
    if chosen.paragraphs == "cut":
        _cut_paragraphs(candidates, _without_refused(signed, candidates), cuts)
    progress(len(candidates), len(candidates))
    return _write(Path(out), candidates, split, cuts)


def _live(snapshot: Path, shelves: Sequence[SegmentTable]) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """The segment noted for each live document, the licences of their folders, and where each is read."""
    with Corpus() as corpus:
        corpus.want_live(snapshot)
        corpus.locate(shelves, DOCUMENTS_FILE)
        rows = corpus.sql("select doc_id, segment, licence, part from wanted join located using (doc_id)").fetchall()
    return (
        {row[0]: row[1] for row in rows},
        {row[0]: row[2] for row in rows if row[2]},
        {row[0]: row[3] for row in rows},
    )


def _candidates(
    live: Mapping[str, str],
    licences: Mapping[str, str],
    read_at: Mapping[str, int],
    shelves: Sequence[SegmentTable],
    measured: Sequence[str],
    scored: Sequence[str],
    clusters: Mapping[str, str],
    policy: PolicySettings,
) -> Iterator[Candidate]:
    """The live documents, those that the policy refuses with the reason."""
    wanted = ["doc_id", "text_sha256", "n_bytes", "ocr_share"]
    needed = measures_needed(policy)
    for number, (shelf, folder) in enumerate(zip(shelves, measured, strict=True)):
        scores = _scores(Path(scored[number])) if scored else {}
        # row for row the same documents
        texts = read_columns(Path(shelf.folder) / DOCUMENTS_FILE, wanted)
        measures = pq.read_table(Path(folder) / MEASURES_FILE, columns=needed)
        if measures.column("doc_id").to_pylist() != texts["doc_id"]:
            raise StoreError(f"{folder} does not hold the measures of {shelf.folder}: --refresh measure")
        doubted = may_be_refused(measures, policy)
        rows = dict(zip(doubted, measures.take(pa.array(doubted, pa.int64())).to_pylist(), strict=True))
        own = zip(*texts.values(), measures.column("licence").to_pylist(), strict=True)
        for place, (doc_id, text_sha256, n_bytes, ocr_share, licence) in enumerate(own):
            if read_at.get(doc_id) != number:
                continue
            licence = licence or licences.get(doc_id)
            row = rows.get(place)
            if row is not None:
                row["licence"] = licence
                if scored:
                    row["classifier_score"] = scores[doc_id]
            yield Candidate(
                doc_id=doc_id,
                segment=live[doc_id],
                text_sha256=text_sha256,
                cluster=clusters[doc_id],
                n_bytes=n_bytes,
                ocr_share=ocr_share,
                licence=licence,
                refusal=None if row is None else refusals(row, policy),
            )


def _scores(folder: Path) -> dict[str, float]:
    columns = read_columns(folder / SCORES_FILE, ["doc_id", "score"])
    return dict(zip(*columns.values(), strict=True))


def _signed(
    candidates: Sequence[Candidate],
    read_at: Mapping[str, int],
    shelves: Sequence[SegmentTable],
    measured: Sequence[str],
) -> list[SegmentSignatures]:
    """Signatures of the documents that are in use by now."""
    wanted: list[dict[str, None]] = [{} for _ in shelves]
    for candidate in candidates:
        if candidate.refusal is None:
            wanted[read_at[candidate.doc_id]][candidate.doc_id] = None
    return [
        SegmentSignatures(Path(folder), Path(shelf.folder), own)
        for shelf, folder, own in zip(shelves, measured, wanted, strict=True)
    ]


def _near(duplicates: Path) -> list[tuple[str, str, float]]:
    columns = read_columns(duplicates / PAIRS_FILE, ["doc_id", "other_id", "similarity"])
    return list(zip(*columns.values(), strict=True))


def _cut_evaluation_text(
    candidates: Sequence[Candidate],
    shelves: Sequence[SegmentSignatures],
    evaluation: Path,
    settings: CurateSettings,
    cuts: list[dict[str, Any]],
) -> None:
    """Refuse documents that are mostly text of an external evaluation set, and cut it out of the others."""
    by_id = {candidate.doc_id: candidate for candidate in candidates}
    grams = np.load(evaluation / GRAMS_FILE, mmap_mode="r", allow_pickle=False)
    for doc_id, spans, share in evaluation_overlaps(shelves, grams):
        if share > settings.max_evaluation_share:
            reason = f"{share:.1%} of it stands in an evaluation set, more than {settings.max_evaluation_share:.0%}"
            by_id[doc_id].refusal = ("evaluation_set", reason)
        else:
            cuts += [_cut(doc_id, start, length, "evaluation_set") for start, length in spans]


def _split_without_leaks(
    candidates: Sequence[Candidate], shelves: Sequence[SegmentSignatures], settings: CurateSettings
) -> dict[str, str]:
    """The split of each cluster; documents that stand on the other side are refused.

    Validation documents give way first. If none would be left, other clusters are tried, in the order of their hashes.
    """
    barred: set[str] = set()
    for _ in range(MAX_NEW_SPLITS):
        split = split_documents(candidates, settings, barred)
        sides = _sides(candidates, split)
        in_training, in_validation = contained(shelves, sides)
        leaked = {doc_id: share for doc_id, share in in_training.items() if share > settings.max_containment}
        held_out = {doc_id for doc_id, side in sides.items() if side == "validation"}
        barred |= {candidate.cluster for candidate in candidates if candidate.doc_id in held_out}
        if len(leaked) < len(held_out) or not held_out:
            break
    by_id = {candidate.doc_id: candidate for candidate in candidates}
    for doc_id, share in leaked.items():
        by_id[doc_id].refusal = ("contained_in_training", _overlap(share, "training", settings))
    if leaked:  # what stood in them alone stands in no validation text any more
        _, in_validation = contained(_without_refused(shelves, candidates), _sides(candidates, split))
    for doc_id, share in in_validation.items():
        if share > settings.max_containment:
            by_id[doc_id].refusal = ("contained_in_validation", _overlap(share, "validation", settings))
    return split


def _overlap(share: float, side: str, settings: CurateSettings) -> str:
    most = f"more than {settings.max_containment:.0%} are a leak"
    return f"{share:.1%} of its runs of thirteen words stand in {side} text; {most}"


def _without_refused(
    shelves: Sequence[SegmentSignatures], candidates: Sequence[Candidate]
) -> Sequence[SegmentSignatures]:
    """The shelves, from which what was refused since is taken."""
    gone = {candidate.doc_id for candidate in candidates if candidate.refusal is not None}
    for shelf in shelves:
        shelf.drop(gone)
    return shelves


def _sides(candidates: Sequence[Candidate], split: Mapping[str, str]) -> dict[str, str]:
    return {item.doc_id: split[item.cluster] for item in candidates if item.refusal is None}


def _cut_paragraphs(
    candidates: Sequence[Candidate], shelves: Sequence[SegmentSignatures], cuts: list[dict[str, Any]]
) -> None:
    """Leave out paragraphs that a better document has as well."""
    ranked = sorted((item for item in candidates if item.refusal is None), key=lambda item: item.rank)
    order = {item.doc_id: place for place, item in enumerate(ranked)}
    by_id = {item.doc_id: item for item in ranked}
    for doc_id, spans, emptied in repeated_paragraphs(shelves, order):
        if emptied:
            by_id[doc_id].refusal = ("duplicate_paragraphs", "all of its paragraphs stand in other documents")
            continue
        cuts += [_cut(doc_id, start, length, "duplicate_paragraph") for start, length in spans]


def _cut(doc_id: str, start: int, length: int, code: str) -> dict[str, Any]:
    return {"doc_id": doc_id, "start": start, "length": length, "reason_code": code}


def _write(
    out: Path, candidates: list[Candidate], split: Mapping[str, str], cuts: list[dict[str, Any]]
) -> dict[str, Any]:
    candidates.sort(key=lambda item: item.doc_id)
    cuts.sort(key=lambda row: (row["doc_id"], row["start"], row["length"], row["reason_code"]))
    selected: dict[str, list[Any]] = {
        "doc_id": [item.doc_id for item in candidates],
        "segment": [item.segment for item in candidates],
        "cluster": [item.cluster for item in candidates],
        "split": [split.get(item.cluster, UNUSED) for item in candidates],
        "kept": [item.refusal is None for item in candidates],
        "licence": [item.licence for item in candidates],
        "n_bytes": [item.n_bytes for item in candidates],
    }
    dropped = (
        {"doc_id": item.doc_id, "reason_code": item.refusal[0], "reason": item.refusal[1]}
        for item in candidates
        if item.refusal is not None
    )
    counts = {
        "rows": write_columns(out / SELECTION_FILE, SELECTION, selected),
        "dropped": write_table(out / DROPPED_FILE, DROPPED, dropped),
        "cuts": write_table(out / CUTS_FILE, CUTS, cuts),
    }
    for side in ("train", "validation"):
        counts[side] = sum(item.refusal is None and split[item.cluster] == side for item in candidates)
    # where a document lies is not part of what was selected
    content = rows_digest((item.doc_id, canonical(item, split.get(item.cluster, UNUSED))) for item in candidates)
    return {"counts": counts, "digest": sha256_json([content, cuts])}


def canonical(item: Candidate, side: str) -> str:
    """What of a document's selection enters the digest."""
    return sha256_json([item.cluster, side, item.refusal, item.licence])


def check_split(run: Run, curated: ArtifactRef, snapshot: ArtifactRef) -> None:
    """Refuse a selection that leaves a side of the split empty.

    Raises:
        EmptyCorpus: if there is nothing to train on, or nothing to measure on.
    """
    nothing: dict[str, int] = {}
    counts = run.read(curated, lambda ref: manifest_of(run.store, ref).counts, nothing)
    if counts.get("train", 1) and counts.get("validation", 1):
        return
    found = manifest_of(run.store, snapshot).counts["rows"]
    if not found:
        raise EmptyCorpus(
            "there are no files in the sources, so there is nothing to train on: name a folder or file with documents, "
            "and see whether patterns or a .gitignore leave everything out"
        )
    raise EmptyCorpus(
        f"of {found} file(s) found, the corpus has {counts['train']} document(s) to train on and "
        f"{counts['validation']} to measure on; at least one of each is needed, and none may stand in another: add "
        'documents; `sheepfold ingest SOURCE` and then `sheepfold sql "select * from quarantine"` list what became of '
        "those that are there"
    )
