"""The stage that keeps the anchors of one segment of documents: growth adds an index and rewrites none.

    anchors.npy         sorted anchors, mapped by whoever looks something up
    traced.parquet      of each document, how many anchors it has, in the order in which they are numbered

All documents of the segment are in it, whether they are trained on or held out: which of them are is a matter of the
whole corpus, and is asked when something is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, TRACED
from storage.tables import read_columns, unpacked_size, write_columns
from tasks.core.stage import Call, Work, stage
from tasks.lineage.anchors import ANCHOR_WORDS, ANCHORS_FILE, STRIDE, AnchorIndex, build_anchors

if TYPE_CHECKING:
    from tasks.core.run import Run

TRACED_FILE = "traced.parquet"


@dataclass(frozen=True)
class TraceIndexSettings:
    """Settings of the stage; there are none: how long spans have to be is asked when something is looked up."""


@stage("trace_index", version=1, unit="segment", keep_with=("documents",))
def trace_index(work: Work, settings: TraceIndexSettings, *, documents: ArtifactRef) -> str:
    """Index the documents of one segment, so that text which stands in them is found."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(index_segment, unpacked_size(source), source=source, out=work.out)
    work.counts.update(made)
    return sha256_json([ANCHOR_WORDS, STRIDE, documents.digest])


def index_segment(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, int]:
    """Write the index of a table of documents; returns counts."""
    doc_ids: list[str] = []

    def batches() -> Iterator[list[str]]:
        with pq.ParquetFile(source) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=["doc_id", "text"])
                doc_ids.extend(rows["doc_id"].to_pylist())
                yield rows["text"].to_pylist()
                progress(len(doc_ids), file.metadata.num_rows)

    anchors, counts = build_anchors(batches())
    np.save(out / ANCHORS_FILE, anchors, allow_pickle=False)
    write_columns(out / TRACED_FILE, TRACED, {"doc_id": doc_ids, "anchors": counts.tolist()})
    return {"rows": len(doc_ids), "anchors": len(anchors)}


@dataclass(frozen=True)
class TracedSegment:
    """An index with its documents.

    Attributes:
        doc_ids: of the documents, as the anchors number them.
        texts: the table that holds their texts, in any order.
    """

    index: AnchorIndex
    doc_ids: list[str]
    texts: Path

    @classmethod
    def load(cls, index: Path, texts: Path) -> TracedSegment:
        """The index of a folder, beside the folder with the texts."""
        columns: dict[str, list[Any]] = read_columns(index / TRACED_FILE, ["doc_id", "anchors"])
        counts = np.array(columns["anchors"], np.int64)
        return cls(AnchorIndex.load(index, counts), columns["doc_id"], texts / DOCUMENTS_FILE)


def trace_indexes(run: Run, texts: RefSet) -> RefSet:
    """Return the indexes of training texts, in their order; they are made when they are first asked for."""
    return RefSet.of(trace_index.map(run, [Call(TraceIndexSettings(), {"documents": ref}) for ref in texts.refs]))
