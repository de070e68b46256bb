"""The stage `evalset_leaks`: find documents of a frozen evaluation set that the training text contains.

A document leaks by its id, by a near-duplicate, or by shared text. The stage `curate` prevents this for the current
validation documents only; the evaluation set was frozen earlier and may have documents that the corpus has no longer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage import schemas
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.tables import read_columns
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, parquet
from tasks.curate.evalset import load_grams
from tasks.text.overlap import MIN_GRAMS, GramIndex, judged_share

LEAKS_FILE = "leaks.json"


@dataclass(frozen=True)
class EvalsetLeaksSettings:
    """Threshold of a leak: `curate.max_containment`."""

    max_containment: float


@stage("evalset_leaks", version=2, keep_with=("curated", "evalset"))
def evalset_leaks(
    work: Work, settings: EvalsetLeaksSettings, *, curated: ArtifactRef, overlaps: RefSet, evalset: ArtifactRef
) -> str:
    """Find documents of the evaluation set that training would read; `counts` has their number as `leaks`."""
    folders = [work.folder(ref) for ref in overlaps.refs]
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        _list_trained(corpus, work.folder(curated), folders, overlaps.live)
        leaks = _find_leaks(corpus, work.folder(curated), work.folder(evalset), settings.max_containment)
    (work.out / LEAKS_FILE).write_text(json.dumps(leaks, indent=1) + "\n", encoding="utf-8")
    work.counts["rows"] = work.counts["leaks"] = len(leaks)
    return sha256_json(leaks)


def _list_trained(
    corpus: Corpus, curated: Path, overlaps: Sequence[Path], live: Sequence[Collection[str]] | None
) -> None:
    """Create the tables `trained` of training documents that share 13-grams with the set, and `runs` of these."""
    rows = corpus.rows_of(list(map(str, overlaps)), schemas.OVERLAP_FILE, schemas.EVALSET_OVERLAP, live)
    corpus.sql(
        f"create view selection as from {parquet(curated / schemas.SELECTION_FILE)}; "
        f"create table trained as select part, place, doc_id, if(grams < {MIN_GRAMS}, 0, shared / grams) as share "
        f"from {rows} semi join (from selection where kept and split = 'train') using (doc_id); "
        "create table runs (part bigint, place bigint, hash ubigint)"
    )
    for part, folder in enumerate(overlaps):
        counts = read_columns(folder / schemas.OVERLAP_FILE, ["shared"])["shared"]
        place = np.repeat(np.arange(len(counts)), np.array(counts, np.int64))
        hashes = np.load(folder / schemas.RUNS_FILE, allow_pickle=False)
        corpus.insert("runs", pa.table([np.full(len(place), part), place, hashes], ["part", "place", "hash"]))


def _find_leaks(corpus: Corpus, curated: Path, evalset: Path, limit: float) -> list[dict[str, Any]]:
    """Return the leaked documents, each with the first reason."""
    (quoted,) = corpus.columns("select distinct hash from runs semi join trained using (part, place)")
    grams = load_grams(evalset)
    shares = judged_share(GramIndex(quoted).count(grams), grams.counts)
    corpus.insert("quoted", pa.table([np.arange(len(shares)), shares], ["place", "share"]))
    found = corpus.sql(
        f"""
        with frozen as (from {corpus.rows_of([str(evalset)], schemas.DOCUMENTS_FILE, schemas.EVALSET)})
        select doc_id, arg_min(reason, rank) from (
            select doc_id, 0 as rank, 'it, or a document that nearly equals it, is in training' as reason
            from frozen join selection using (doc_id) where split = 'train'
            union all
            select doc_id, 1, reason from frozen join {parquet(curated / schemas.DROPPED_FILE)} using (doc_id)
            where reason_code = 'contained_in_training'
            union all
            select doc_id, 2, format('{{:.1f}}% of its 13-grams are in training text', 100 * share)
            from frozen join quoted using (place) where share > $limit
            union all
            select doc_id, 3 + part,
                format('a training document {{:.1f}}% of which stands in the evaluation set', 100 * share)
            from trained where share > $limit
        ) group by doc_id order by doc_id
        """,
        {"limit": limit},
    )
    return [{"doc_id": doc_id, "reason": reason} for doc_id, reason in found.fetchall()]
