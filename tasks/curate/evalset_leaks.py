"""Whether training would read from a frozen evaluation set: by document, by near-duplicate, or by text that it quotes.

Selection sees to that for the validation documents of the present; the evaluation set was frozen earlier, stays as it
is while the corpus grows, and may hold documents that are gone since.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, DROPPED_FILE, OVERLAP_FILE, RUNS_FILE, SELECTION_FILE
from storage.tables import members, read_columns
from tasks.core.stage import Work, stage
from tasks.curate.evalset import load_grams
from tasks.text import GramIndex, judged_share
from tasks.text.words import I64, U64

LEAKS_FILE = "leaks.json"


@dataclass(frozen=True)
class EvalsetLeaksSettings:
    """What counts as a leak: `curate.max_containment`."""

    max_containment: float


@stage("evalset_leaks", version=1, keep_with=("curated", "evalset"))
def evalset_leaks(
    work: Work, settings: EvalsetLeaksSettings, *, curated: ArtifactRef, overlaps: RefSet, evalset: ArtifactRef
) -> str:
    """Find documents of the evaluation set that training would read; the count is `leaks`.

    Overlaps say what each segment shares with the evaluation set.
    """
    live = overlaps.live or [None] * len(overlaps.refs)
    shared = [_read_overlap(work.folder(ref), names) for ref, names in zip(overlaps.refs, live, strict=True)]
    leaks = find_leaks(work.folder(curated), work.folder(evalset), shared, settings.max_containment)
    (work.out / LEAKS_FILE).write_text(json.dumps(leaks, indent=1) + "\n", encoding="utf-8")
    work.counts["rows"] = work.counts["leaks"] = len(leaks)
    return sha256_json(leaks)


@dataclass(frozen=True)
class Overlap:
    """Documents that share runs of thirteen words with the evaluation set.

    Attributes:
        doc_ids: n names.
        grams, shared: (n,) int64, how many runs each has, and how many of them are shared.
        runs: the hashes of all that are shared, document after document.
    """

    doc_ids: list[str]
    grams: I64
    shared: I64
    runs: U64

    def of(self, chosen: npt.NDArray[np.bool_]) -> Overlap:
        """Some of the documents."""
        doc_ids = list(compress(self.doc_ids, chosen))
        runs = self.runs[np.repeat(chosen, self.shared)]
        return Overlap(doc_ids, self.grams[chosen], self.shared[chosen], runs)


def _read_overlap(folder: Path, live: Collection[str] | None) -> Overlap:
    """What the documents of a segment share.

    Args:
        folder: of the segment's overlap.
        live: the documents that are read in this segment; None for all.
    """
    rows = pq.read_table(folder / OVERLAP_FILE, use_threads=False)
    runs = np.load(folder / RUNS_FILE, mmap_mode="r", allow_pickle=False)
    found = Overlap(rows["doc_id"].to_pylist(), rows["grams"].to_numpy(), rows["shared"].to_numpy(), runs)
    return found.of(members(rows["doc_id"], live) if live is not None else np.ones(len(rows), bool))


def find_leaks(curated: Path, evalset: Path, shared: Sequence[Overlap], limit: float) -> list[dict[str, Any]]:
    """Documents that leak, each with the reason.

    Args:
        curated: folder of the selection.
        evalset: folder of the evaluation set.
        shared: what the documents of each segment share with it.
        limit: largest share of a document's runs of thirteen words that may stand on the other side.
    """
    frozen = read_columns(evalset / DOCUMENTS_FILE, ["doc_id"])["doc_id"]
    asked = [*frozen, *(doc_id for overlap in shared for doc_id in overlap.doc_ids)]
    selected = _rows_of(curated / SELECTION_FILE, ["doc_id", "split", "kept"], asked)
    leaks = _known_leaks(curated, selected, set(frozen))
    trained = {row["doc_id"] for row in selected if row["kept"] and row["split"] == "train"}
    shared = [overlap.of(np.array([name in trained for name in overlap.doc_ids], bool)) for overlap in shared]
    grams = load_grams(evalset)
    quoted = np.concatenate([np.zeros(0, np.uint64), *(overlap.runs for overlap in shared)])
    shares = judged_share(GramIndex(quoted).count(grams), grams.counts)
    for doc_id, share in zip(frozen, shares.tolist(), strict=True):
        if share > limit:
            leaks.setdefault(doc_id, f"{share:.1%} of its runs of thirteen words stand in training text")
    for overlap in shared:
        shares = judged_share(overlap.shared, overlap.grams)
        for number in np.flatnonzero(shares > limit).tolist():
            name = overlap.doc_ids[number]
            leaks.setdefault(name, f"a training document {shares[number]:.1%} of which stands in the evaluation set")
    return [{"doc_id": doc_id, "reason": reason} for doc_id, reason in sorted(leaks.items())]


def _rows_of(table: Path, columns: list[str], doc_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of some of a corpus's documents; the others become no Python objects."""
    rows = pq.read_table(table, columns=columns, use_threads=False)
    found: list[dict[str, Any]] = rows.filter(pc.is_in(rows["doc_id"], pa.array(doc_ids, pa.string()))).to_pylist()
    return found


def _known_leaks(curated: Path, selected: Sequence[Mapping[str, Any]], frozen: Collection[str]) -> dict[str, str]:
    """What selection says itself of documents of the evaluation set that are still there.

    Args:
        selected: rows of the selection, all those of such documents among them.
        frozen: the documents of the evaluation set.
    """
    own = [row for row in selected if row["doc_id"] in frozen]
    trained = [row["doc_id"] for row in own if row["split"] == "train"]
    leaks = dict.fromkeys(trained, "it, or a document that nearly equals it, is in training")
    refused = [row["doc_id"] for row in own if not row["kept"]]
    for row in _rows_of(curated / DROPPED_FILE, ["doc_id", "reason_code", "reason"], refused) if refused else ():
        if row["reason_code"] == "contained_in_training":
            leaks.setdefault(row["doc_id"], row["reason"])
    return leaks
