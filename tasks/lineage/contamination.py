"""The stage `contamination`: the share of each evaluation document's 13-grams that stand in training text.

It joins what `gram_overlap` found in each segment. The evaluation set comes in the layout of the frozen one, so
that any texts in that layout can be asked about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.metrics import bits_per_byte
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import CONTAMINATION, DOCUMENTS_FILE
from storage.tables import read_columns, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.lineage.gram_overlap import SEEN_FILE, evalset_grams
from tasks.text.overlap import GramIndex

CONTAMINATION_FILE = "contamination.parquet"
MOSTLY_SEEN = 0.5  # share of a document's 13-grams


@stage("contamination", version=1, keep_with=("evalset", "overlaps"))
def contamination(work: Work, settings: NoSettings, *, evalset: ArtifactRef, overlaps: RefSet) -> str:
    """Count the 13-grams of each evaluation document that stand in training text."""
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
    """Return the share of each evaluation document's 13-grams that stand in training text."""
    columns = read_columns(folder / CONTAMINATION_FILE, ["doc_id", "share"])
    return dict(zip(columns["doc_id"], columns["share"], strict=True))


@dataclass(frozen=True)
class Exposure:
    """Evaluation documents of which some share stands in training text.

    Attributes:
        name: `unseen`, `partly seen` or `mostly seen`.
        documents, n_bytes: Number of documents and of their bytes.
        bits_per_byte: Result of the model on them; NaN where there are no bytes.
    """

    name: str
    documents: int
    n_bytes: int
    bits_per_byte: float


def by_exposure(shares: Mapping[str, float], documents: Iterable[Mapping[str, Any]]) -> list[Exposure]:
    """Return bits per byte of documents that training text holds nothing, something and most of.

    Args:
        shares: As `read_contamination` gives them.
        documents: Rows with `doc_id`, `nll_nats`, `charged_nats`, `bytes` and `lost_bytes`, as an evaluation has them.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {"unseen": [], "partly seen": [], "mostly seen": []}
    for row in documents:
        share = shares[row["doc_id"]]
        groups["unseen" if not share else "mostly seen" if share >= MOSTLY_SEEN else "partly seen"].append(row)
    found = []
    for name, rows in groups.items():
        n_bytes, lost = (sum(row[column] for row in rows) for column in ("bytes", "lost_bytes"))
        nats = sum(row["nll_nats"] + row["charged_nats"] for row in rows)
        bits = bits_per_byte(nats, n_bytes, lost) if n_bytes else math.nan
        found.append(Exposure(name, len(rows), n_bytes, bits))
    return found
