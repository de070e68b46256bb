"""The stage `score`: how likely each document of a segment is good, by the trained classifier.

A score decides nothing; thresholds are the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SCORES, SCORES_FILE
from storage.tables import stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import Work, stage
from tasks.curate.classifier.classifier import WEIGHTS_FILE
from tasks.curate.classifier.training import score_texts

BATCH_DOCUMENTS = 256


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of the stage; there are none: the classifier is an input."""


@stage("score", version=1, unit="document", tables={SCORES_FILE: SCORES})
def score(work: Work, settings: ScoreSettings, *, documents: ArtifactRef, classifier: ArtifactRef) -> str:
    """Score the documents of one segment: the probability that each is good."""
    source = work.folder(documents) / DOCUMENTS_FILE
    weights = work.folder(classifier) / WEIGHTS_FILE
    size = unpacked_size(source)
    made = work.in_subprocess(score_segment, size, source=source, weights=weights, out=work.out)
    work.counts["rows"] = work.counts["units"] = made["rows"]
    return str(made["digest"])


def score_segment(source: Path, weights: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write the scores of a table of documents; returns their number and a digest."""
    parameters = np.load(weights, allow_pickle=False)

    def rows() -> Iterator[dict[str, Any]]:
        documents = stream_rows(source, ["doc_id", "text"])
        done = 0
        while batch := list(islice(documents, BATCH_DOCUMENTS)):
            scores = score_texts([row["text"] for row in batch], parameters).tolist()
            for row, value in zip(batch, scores, strict=True):
                yield {"doc_id": row["doc_id"], "score": value, "digest": sha256_json(value)}
            done += len(batch)
            progress(done, done)

    table = out / SCORES_FILE
    count = write_table(table, SCORES, rows())
    return {"rows": count, "digest": union_digest([table])}
