"""Whether training would read from a frozen evaluation set: by document, by near-duplicate, or by text that it quotes.

Selection sees to that for the validation documents of the present; the evaluation set was frozen earlier, stays as it
is while the corpus grows, and may hold documents that are gone since.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.tables import read_columns
from tasks.curate.curate import SELECTION_FILE
from tasks.curate.dedup import containment, gram_hashes
from tasks.curate.kept import Shelf, holders, shelves_of
from tasks.curate.leaks import SignedShelf
from tasks.curate.measure import MEASURES_FILE
from tasks.curate.normalise import DOCUMENTS_FILE
from tasks.stage import Work, stage

LEAKS_FILE = "leaks.json"


@dataclass(frozen=True)
class EvalsetLeaksSettings:
    """What counts as a leak: `curate.max_containment`."""

    max_containment: float


@stage("evalset_leaks", version=1)
def evalset_leaks(
    work: Work,
    settings: EvalsetLeaksSettings,
    *,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
    evalset: ArtifactRef,
) -> str:
    """Find documents of the evaluation set that training would read; the count is `leaks`."""
    shelves = shelves_of(work.store, documents)
    measured = {shelf.segment: shelf.folder for shelf in shelves_of(work.store, measures)}
    leaks = work.apart(
        find_leaks,
        sum((Path(folder) / MEASURES_FILE).stat().st_size for folder in measured.values()),
        curated=str(work.folder(curated)),
        shelves=[asdict(shelf) for shelf in shelves],
        measured=[measured[shelf.segment] for shelf in shelves],
        evalset=str(work.folder(evalset)),
        limit=settings.max_containment,
    )
    (work.out / LEAKS_FILE).write_text(json.dumps(leaks, indent=1) + "\n", encoding="utf-8")
    work.counts["rows"] = work.counts["leaks"] = len(leaks)
    return sha256_json(leaks)


def find_leaks(
    curated: str,
    shelves: list[dict[str, Any]],
    measured: list[str],
    evalset: str,
    limit: float,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Documents of the evaluation set that leak, each with the reason; see `evalset_leaks`."""
    frozen = read_columns(Path(evalset) / DOCUMENTS_FILE, ["doc_id", "text"])
    selected = read_columns(Path(curated) / SELECTION_FILE, ["doc_id", "segment", "split", "kept"])
    split: dict[str, str] = dict(zip(selected["doc_id"], selected["split"], strict=True))
    leaks = {
        doc_id: "it, or a document that nearly equals it, is in training"
        for doc_id in frozen["doc_id"]
        if split.get(doc_id) == "train"
    }
    live: dict[str, str] = dict(zip(selected["doc_id"], selected["segment"], strict=True))
    trained = {
        doc_id: None
        for doc_id, side, kept in zip(selected["doc_id"], selected["split"], selected["kept"], strict=True)
        if kept and side == "train"
    }
    places = [Shelf(**shelf) for shelf in shelves]
    chosen = holders(live, places, DOCUMENTS_FILE)
    signed = [
        SignedShelf(Path(folder), Path(place.folder), {doc: None for doc in trained if chosen[doc] == number})
        for number, (place, folder) in enumerate(zip(places, measured, strict=True))
    ]
    found = containment(gram_hashes(frozen["text"]), (shelf.grams(range(len(shelf.doc_ids))) for shelf in signed))
    for doc_id, share in zip(frozen["doc_id"], found.validation.tolist(), strict=True):
        if share >= limit:
            leaks.setdefault(doc_id, f"{share:.1%} of its runs of thirteen words stand in training text")
    for shelf, shares in zip(signed, found.training, strict=True):
        for number in np.flatnonzero(shares >= limit).tolist():
            name = shelf.doc_ids[number]
            leaks.setdefault(name, f"a training document {shares[number]:.1%} of which stands in the evaluation set")
    progress(len(trained), len(trained))
    return [{"doc_id": doc_id, "reason": reason} for doc_id, reason in sorted(leaks.items())]
