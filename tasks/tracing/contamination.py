"""Contamination: how many of an evaluation document's runs of thirteen words stand in training text.

Training text is what the model reads, after cuts and redactions; so what was cut out of it because it stands in an
evaluation set does not count. One artefact for each segment says which of the evaluation set's runs stand in it, so
that growth looks at what is new; a table puts them together. The evaluation set comes in the layout of the frozen one,
so that any texts in that layout can be asked about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from model.metrics import bits_per_byte
from storage.digest import sha256_file, sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import CONTAMINATION, DOCUMENTS_FILE
from storage.tables import read_columns, unpacked_size, write_table
from tasks.curate.dedup import GramIndex, Hashes, gram_hashes
from tasks.stage import Work, stage

SEEN_FILE = "seen.npy"
CONTAMINATION_FILE = "contamination.parquet"


@dataclass(frozen=True)
class OverlapSettings:
    """Which documents of the segment are trained on.

    Attributes:
        trained: digest of their ids.
    """

    trained: str

    @classmethod
    def of(cls, doc_ids: Iterable[str]) -> OverlapSettings:
        """The settings for some documents."""
        return cls(sha256_json(sorted(doc_ids)))


@dataclass(frozen=True)
class ContaminationSettings:
    """Settings of the stage; there are none: what share is too much is for whoever reads it."""


@stage("gram_overlap", version=1, unit="segment", keep_with=("evalset", "documents"), unkeyed=("trained",))
def gram_overlap(
    work: Work, settings: OverlapSettings, *, evalset: ArtifactRef, documents: ArtifactRef, trained: Collection[str]
) -> str:
    """Mark the runs of thirteen words of an evaluation set that stand in the training text of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    listed = work.scratch / "trained.txt"  # may be long
    listed.write_text("\n".join(sorted(trained)), encoding="utf-8")
    made = work.apart(
        mark_seen,
        unpacked_size(source),
        evalset=str(work.folder(evalset) / DOCUMENTS_FILE),
        source=str(source),
        trained=str(listed),
        out=str(work.out / SEEN_FILE),
    )
    work.counts.update(made)
    return sha256_file(work.out / SEEN_FILE)


def mark_seen(
    evalset: str, source: str, trained: str, out: str, progress: Callable[[int, int], None]
) -> dict[str, int]:
    """Write, for each distinct run of the evaluation set in sorted order, whether it stands in training text."""
    index = GramIndex(_grams(Path(evalset))[1].values)
    seen = np.zeros(len(index), bool)
    wanted = set(Path(trained).read_text(encoding="utf-8").split("\n"))
    with pq.ParquetFile(source) as file:
        done = 0
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=["doc_id", "text"])
            chosen = [doc_id in wanted for doc_id in rows["doc_id"].to_pylist()]
            texts = [text for text, asked in zip(rows["text"].to_pylist(), chosen, strict=True) if asked]
            seen[index.find(gram_hashes(texts).values)[1]] = True
            done += len(chosen)
            progress(done, file.metadata.num_rows)
    np.save(out, seen, allow_pickle=False)
    return {"rows": len(seen), "seen": int(seen.sum())}


@stage("contamination", version=1, keep_with=("evalset", "overlaps"))
def contamination(work: Work, settings: ContaminationSettings, *, evalset: ArtifactRef, overlaps: RefSet) -> str:
    """Say of each evaluation document how many of its runs of thirteen words stand in training text."""
    doc_ids, grams = _grams(work.folder(evalset) / DOCUMENTS_FILE)
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
    """The share of each evaluation document's runs of thirteen words that stand in training text."""
    columns = read_columns(folder / CONTAMINATION_FILE, ["doc_id", "share"])
    return dict(zip(columns["doc_id"], columns["share"], strict=True))


@dataclass(frozen=True)
class Exposure:
    """Evaluation documents of which some share stands in training text.

    Attributes:
        name: `unseen`, `partly seen` or `mostly seen`.
        documents, n_bytes: how many, and how long they are together.
        bits_per_byte: of the model on them; NaN where there are no bytes.
    """

    name: str
    documents: int
    n_bytes: int
    bits_per_byte: float


def by_exposure(
    shares: Mapping[str, float], documents: Iterable[Mapping[str, Any]], mostly: float = 0.5
) -> list[Exposure]:
    """Bits per byte of documents that training text holds nothing, something and most of.

    Args:
        shares: as `read_contamination` gives them.
        documents: rows with `doc_id`, `nll_nats`, `charged_nats`, `bytes` and `lost_bytes`, as an evaluation has them.
        mostly: the share from which on most of a document was seen.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {"unseen": [], "partly seen": [], "mostly seen": []}
    for row in documents:
        share = shares[row["doc_id"]]
        groups["unseen" if not share else "mostly seen" if share >= mostly else "partly seen"].append(row)
    found = []
    for name, rows in groups.items():
        n_bytes, lost = (sum(row[column] for row in rows) for column in ("bytes", "lost_bytes"))
        nats = sum(row["nll_nats"] + row["charged_nats"] for row in rows)
        bits = bits_per_byte(nats, n_bytes, lost) if n_bytes else math.nan
        found.append(Exposure(name, len(rows), n_bytes, bits))
    return found


def _grams(evalset: Path) -> tuple[list[str], Hashes]:
    """Documents of an evaluation set and their runs of thirteen words; a shorter one has one, of all its words."""
    columns = read_columns(evalset, ["doc_id", "text"])
    return columns["doc_id"], gram_hashes(columns["text"])
