"""Reading the documents that curation kept, from whichever segments they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storage.lineage import segment_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import Store
from storage.tables import read_rows


@dataclass(frozen=True)
class Kept:
    """Place and side of a kept document."""

    segment: str
    split: str


def kept_documents(store: Store, curated: ArtifactRef, split: str | None = None) -> dict[str, Kept]:
    """The kept documents by id; only one side of the split when given."""
    rows = read_rows(store.folder(curated) / "selection.parquet", ["doc_id", "segment", "split", "kept"])
    return {
        row["doc_id"]: Kept(row["segment"], row["split"])
        for row in rows
        if row["kept"] and split in (None, row["split"])
    }


def kept_rows(
    store: Store, kept: dict[str, Kept], tables: RefSet, name: str, columns: Sequence[str]
) -> Iterator[tuple[ArtifactRef, dict[str, Any]]]:
    """Rows of the kept documents, each with the artefact it lies in.

    Args:
        tables: per-segment artefacts; the same document may lie in several, one of which is the live one.
        name: file name of the table in each of them.
    """
    for ref in tables.refs:
        segment = segment_of(store, ref)
        for row in read_rows(store.folder(ref) / name, columns):
            place = kept.get(row["doc_id"])
            if place is not None and place.segment == segment:
                yield ref, row
