"""The stage `gram_overlap`: find the 13-grams of an evaluation set that the training text of a segment contains.

Training text is the text that the model reads, after cuts and redactions, so text that was cut as a leak does not
count. There is one artefact per segment, so that only new segments are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from storage.digest import sha256_file, sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE
from storage.tables import count_rows, read_columns, stream_columns, unpacked_size
from tasks.core.stage import Work, stage
from tasks.text.minhash import gram_hashes
from tasks.text.overlap import GramIndex
from tasks.text.words import Hashes

SEEN_FILE = "seen.npy"


@dataclass(frozen=True)
class OverlapSettings:
    """Training documents of the segment.

    Attributes:
        trained: Digest of their ids.
    """

    trained: str

    @classmethod
    def of(cls, doc_ids: Iterable[str]) -> OverlapSettings:
        """Return the settings for some documents."""
        return cls(sha256_json(sorted(doc_ids)))


@stage("gram_overlap", version=1, unit="segment", keep_with=("evalset", "documents"), unkeyed=("trained",))
def gram_overlap(
    work: Work, settings: OverlapSettings, *, evalset: ArtifactRef, documents: ArtifactRef, trained: Collection[str]
) -> str:
    """Mark the 13-grams of an evaluation set that the training text of one segment contains."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(
        mark_seen,
        unpacked_size(source),
        evalset=work.folder(evalset) / DOCUMENTS_FILE,
        source=source,
        trained=sorted(trained),
        out=work.out / SEEN_FILE,
    )
    work.counts.update(made)
    return sha256_file(work.out / SEEN_FILE)


def mark_seen(
    evalset: Path, source: Path, trained: list[str], out: Path, progress: Callable[[int, int], None]
) -> dict[str, int]:
    """Write for each distinct 13-gram of the evaluation set, in sorted order, True if training text contains it."""
    index = _index(evalset)
    seen = np.zeros(len(index), bool)
    wanted = set(trained)
    done, n_rows = 0, count_rows(source)
    for rows in stream_columns(source, ["doc_id", "text"]):
        texts = [text for doc_id, text in zip(rows["doc_id"], rows["text"], strict=True) if doc_id in wanted]
        seen[index.find(gram_hashes(texts).values)[1]] = True
        done += len(rows["doc_id"])
        progress(done, n_rows)
    np.save(out, seen, allow_pickle=False)
    return {"rows": len(seen), "seen": int(seen.sum())}


@lru_cache(maxsize=1)  # the same process marks the segments one after the other
def _index(evalset: Path) -> GramIndex:
    return GramIndex(evalset_grams(evalset)[1].values)


def evalset_grams(evalset: Path) -> tuple[list[str], Hashes]:
    """Return ids and 13-grams of an evaluation set's documents; a shorter document has one hash, of all its words."""
    columns = read_columns(evalset, ["doc_id", "text"])
    return columns["doc_id"], gram_hashes(columns["text"])
