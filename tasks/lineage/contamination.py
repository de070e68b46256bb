"""The stage `contamination`: compute the share of each evaluation document's 13-grams that training text contains.

It combines the results of `gram_overlap` for all segments. Any texts in the layout of the frozen evaluation set can be
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import CONTAMINATION, DOCUMENTS_FILE
from storage.tables import read_columns, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.evaluation.tables import Evaluated, Slice
from tasks.lineage.gram_overlap import SEEN_FILE, evalset_grams
from tasks.text.overlap import GramIndex

CONTAMINATION_FILE = "contamination.parquet"
MOSTLY_SEEN = 0.5  # share of a document's 13-grams


@stage("contamination", version=1, tables={CONTAMINATION_FILE: CONTAMINATION}, keep_with=("evalset", "overlaps"))
def contamination(work: Work, settings: NoSettings, *, evalset: ArtifactRef, overlaps: RefSet) -> str:
    """Count the 13-grams of each evaluation document that training text contains."""
    doc_ids, grams = evalset_grams(work.folder(evalset) / DOCUMENTS_FILE)
    index = GramIndex(grams.values)
    seen = np.zeros(len(index), bool)
    for ref in overlaps.refs:
        seen |= np.load(work.folder(ref) / SEEN_FILE, allow_pickle=False)
    found = GramIndex(index.values[seen]).count(grams)
    rows = [
        {"doc_id": doc_id, "grams": n, "seen": n_seen, "share": n_seen / n if n else 0.0}
        for doc_id, n, n_seen in zip(doc_ids, grams.counts.tolist(), found.tolist(), strict=True)
    ]
    work.counts["rows"] = write_table(work.out / CONTAMINATION_FILE, CONTAMINATION, rows)
    work.counts["seen"] = sum(row["seen"] > 0 for row in rows)
    return sha256_json(rows)


def read_contamination(folder: Path) -> dict[str, float]:
    """Return the share of each evaluation document's 13-grams that training text contains, by id."""
    columns = read_columns(folder / CONTAMINATION_FILE, ["doc_id", "share"])
    return dict(zip(columns["doc_id"], columns["share"], strict=True))


def by_share_seen(shares: Mapping[str, float], documents: Evaluated) -> list[Slice]:
    """Return the slices of unseen, partly seen and mostly seen documents."""
    share = np.array([shares[doc_id] for doc_id in documents.doc_id])
    some = (share > 0) & (share < MOSTLY_SEEN)
    groups = {"unseen": share == 0, "partly seen": some, "mostly seen": share >= MOSTLY_SEEN}
    return [Slice("seen", name, documents.total(np.flatnonzero(rows))) for name, rows in groups.items()]
