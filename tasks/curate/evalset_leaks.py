"""Whether training would read from a frozen evaluation set: by document, by near-duplicate, or by text that it quotes.

Selection sees to that for the validation documents of the present; the evaluation set was frozen earlier, stays as it
is while the corpus grows, and may hold documents that are gone since.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.tables import read_columns, unpacked_size
from tasks.curate.curate import DROPPED_FILE, SELECTION_FILE
from tasks.curate.dedup import containment
from tasks.curate.evalset import load_grams
from tasks.curate.kept import kept_documents
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
    work: Work, settings: EvalsetLeaksSettings, *, curated: ArtifactRef, measures: RefSet, evalset: ArtifactRef
) -> str:
    """Find documents of the evaluation set that training would read; the count is `leaks`."""
    trained = kept_documents(work.store, curated, "train")
    folders = [work.folder(ref) for ref in measures.refs]
    shelves = [
        {"folder": str(folder), "documents": sorted(trained.keys() & set(live))}
        for folder, live in zip(folders, measures.live or [trained] * len(folders), strict=True)
    ]
    listed = work.scratch / "shelves.json"  # may be long
    listed.write_text(json.dumps(shelves), encoding="utf-8")
    leaks = work.apart(
        find_leaks,
        sum(unpacked_size(folder / MEASURES_FILE) for folder in folders),
        curated=str(work.folder(curated)),
        shelves=str(listed),
        evalset=str(work.folder(evalset)),
        limit=settings.max_containment,
    )
    (work.out / LEAKS_FILE).write_text(json.dumps(leaks, indent=1) + "\n", encoding="utf-8")
    work.counts["rows"] = work.counts["leaks"] = len(leaks)
    return sha256_json(leaks)


def find_leaks(
    curated: str, shelves: str, evalset: str, limit: float, progress: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """Documents that leak, each with the reason.

    Args:
        curated: folder of the selection.
        shelves: JSON file with the folders of measures, and the training documents that are read in each.
        evalset: folder of the evaluation set.
        limit: largest share of a document's runs of thirteen words that may stand on the other side.
    """
    frozen = read_columns(Path(evalset) / DOCUMENTS_FILE, ["doc_id"])["doc_id"]
    leaks = _known_leaks(Path(curated), frozen)
    places = [
        SignedShelf(Path(shelf["folder"]), Path(shelf["folder"]), dict.fromkeys(shelf["documents"]))
        for shelf in json.loads(Path(shelves).read_text(encoding="utf-8"))
    ]
    found = containment(load_grams(Path(evalset)), (shelf.grams(range(len(shelf.doc_ids))) for shelf in places))
    for doc_id, share in zip(frozen, found.validation.tolist(), strict=True):
        if share > limit:
            leaks.setdefault(doc_id, f"{share:.1%} of its runs of thirteen words stand in training text")
    for shelf, shares in zip(places, found.training, strict=True):
        for number in np.flatnonzero(shares > limit).tolist():
            name = shelf.doc_ids[number]
            leaks.setdefault(name, f"a training document {shares[number]:.1%} of which stands in the evaluation set")
    progress(len(frozen), len(frozen))
    return [{"doc_id": doc_id, "reason": reason} for doc_id, reason in sorted(leaks.items())]


def _known_leaks(curated: Path, frozen: list[str]) -> dict[str, str]:
    """What selection says itself of documents of the evaluation set that are still there."""
    selected = read_columns(curated / SELECTION_FILE, ["doc_id", "split"])
    split: dict[str, str] = dict(zip(selected["doc_id"], selected["split"], strict=True))
    dropped = read_columns(curated / DROPPED_FILE, ["doc_id", "reason_code", "reason"])
    refused = {doc: (code, reason) for doc, code, reason in zip(*dropped.values(), strict=True)}
    leaks = {}
    for doc_id in frozen:
        code, reason = refused.get(doc_id, ("", ""))
        if split.get(doc_id) == "train":
            leaks[doc_id] = "it, or a document that nearly equals it, is in training"
        elif code == "contained_in_training":
            leaks[doc_id] = reason
    return leaks
