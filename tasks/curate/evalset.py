"""The evaluation set: the frozen documents that models are compared on.

It keeps its own copy of the texts, so that it stays the same when the corpus grows, and any tokeniser can be measured
on it; and the runs of thirteen words of each, so that training text that quotes it is seen when the document is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import EVALSET
from storage.store import Store
from storage.tables import read_columns, write_table
from tasks.curate.dedup import Hashes
from tasks.curate.dedup.words import joined
from tasks.curate.kept import Kept, kept_documents, kept_rows
from tasks.curate.leaks import SignedShelf
from tasks.stage import Work, stage

GRAMS_FILE = "grams.npy"
OFFSETS_FILE = "gram_offsets.npy"


@dataclass(frozen=True)
class EvalsetSettings:
    """Settings of the stage; there are none yet."""


def trains_on_evalset(store: Store, curated: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Whether the training side holds a document of a frozen evaluation set."""
    frozen = read_columns(store.folder(evalset) / "documents.parquet", ["doc_id"])["doc_id"]
    return not kept_documents(store, curated, "train").keys().isdisjoint(frozen)


@stage("evalset", version=2)
def freeze_evalset(
    work: Work, settings: EvalsetSettings, *, curated: ArtifactRef, documents: RefSet, measures: RefSet
) -> str:
    """Copy the validation documents into a set of their own."""
    wanted = kept_documents(work.store, curated, "validation")
    found = kept_rows(work.store, wanted, documents, "documents.parquet", ["doc_id", "kind", "text"])
    rows = [row for _, row in found]
    rows.sort(key=lambda row: str(row["doc_id"]))
    grams = _grams(work, wanted, measures)
    hashes = joined([grams[row["doc_id"]] for row in rows])
    np.save(work.out / GRAMS_FILE, hashes.values, allow_pickle=False)
    np.save(work.out / OFFSETS_FILE, hashes.offsets, allow_pickle=False)
    work.counts["rows"] = write_table(work.out / "documents.parquet", EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return sha256_json([[row["doc_id"], row["text"]] for row in rows])


def _grams(work: Work, wanted: dict[str, Kept], measures: RefSet) -> dict[str, Hashes]:
    """Runs of thirteen words of some documents, as they were before anything was cut or redacted."""
    grams: dict[str, Hashes] = {}
    for ref, live in zip(measures.refs, measures.live or [wanted] * len(measures.refs), strict=True):
        folder = work.folder(ref)
        shelf = SignedShelf(folder, folder, {doc_id: None for doc_id in wanted if doc_id in live})
        found = shelf.grams(range(len(shelf.doc_ids)))
        for doc_id, (first, last) in zip(shelf.doc_ids, pairwise(found.offsets.tolist()), strict=True):
            grams[doc_id] = Hashes(found.values[first:last], np.array([0, last - first]))
    return grams


def load_grams(folder: Path) -> Hashes:
    """Runs of thirteen words of an evaluation set's documents, in the order of its rows."""
    return Hashes(
        np.load(folder / GRAMS_FILE, mmap_mode="r", allow_pickle=False),
        np.load(folder / OFFSETS_FILE, allow_pickle=False),
    )
