"""The stage `evalset_overlap`: find the documents of a segment that share 13-grams with a frozen evaluation set.

The stage `evalset_leaks` evaluates them for each selection. This stage does not depend on the selection, so new
documents cost a search of their own segments only.

    overlap.parquet   the documents that share any: the number of their 13-grams, and of the shared ones
    runs.npy          the hashes of the shared 13-grams, document by document
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from storage.manifest import ArtifactRef
from storage.schemas import EVALSET_OVERLAP, MEASURES_FILE, OVERLAP_FILE, RUNS_FILE
from storage.tables import union_digest, unpacked_size, write_columns
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.evalset import load_grams
from tasks.text.minhash import load_signatures
from tasks.text.overlap import GramIndex, common


@stage(
    "evalset_overlap",
    version=1,
    unit="document",
    tables={OVERLAP_FILE: EVALSET_OVERLAP},
    keep_with=("measures", "evalset"),
)
def evalset_overlap(work: Work, settings: NoSettings, *, measures: ArtifactRef, evalset: ArtifactRef) -> str:
    """Find the documents of one segment that share text with the evaluation set."""
    folder = work.folder(measures)
    made = work.in_subprocess(
        find_overlap,
        unpacked_size(folder / MEASURES_FILE),
        measures=folder,
        evalset=work.folder(evalset),
        out=work.out,
    )
    work.counts["rows"], work.counts["units"] = made["rows"], made["units"]
    return str(made["digest"])


def find_overlap(measures: Path, evalset: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write the overlap of a segment with an evaluation set; return counts and a digest."""
    grams = load_signatures(measures).gram_hashes
    where, _ = GramIndex(common(grams.values, load_grams(evalset).values)).find(grams.values)
    runs = grams.values[where]
    shared = np.bincount(np.searchsorted(grams.offsets, where, side="right") - 1, minlength=len(grams))
    rows = np.flatnonzero(shared)
    ends = np.cumsum(shared[rows])
    names = pq.read_table(measures / MEASURES_FILE, columns=["doc_id"])["doc_id"].take(rows)
    columns = {
        "doc_id": names.to_pylist(),
        "grams": grams.counts[rows],
        "shared": shared[rows],
        "digest": [
            hashlib.sha256(np.append(part, np.uint64(n_grams)).astype("<u8").data).hexdigest()
            for n_grams, part in zip(grams.counts[rows], np.split(runs, ends[:-1]), strict=True)
        ] if len(rows) else [],
    }  # fmt: skip
    write_columns(out / OVERLAP_FILE, EVALSET_OVERLAP, columns)
    np.save(out / RUNS_FILE, runs, allow_pickle=False)
    progress(len(grams), len(grams))
    return {"rows": len(rows), "units": len(grams), "digest": union_digest([out / OVERLAP_FILE])}
