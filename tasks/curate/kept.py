"""Reading the documents that curation kept, from whichever segments they lie in.

Results are addressed by content, so one that is found in the store may name a segment that is no longer in use: the
same documents lie in others now. The segment that was noted decides only between several that hold a document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storage.lineage import segment_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import Store, StoreError
from storage.tables import read_columns, read_rows


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

    Raises:
        StoreError: if a document lies in none of them, or in several none of which is the noted one.
    """
    chosen = _holders(store, kept, tables, name)
    for ref in dict.fromkeys(tables.refs):
        for row in read_rows(store.folder(ref) / name, columns):
            if chosen.get(row["doc_id"]) == ref:
                yield ref, row


def _holders(store: Store, kept: dict[str, Kept], tables: RefSet, name: str) -> dict[str, ArtifactRef]:
    """Which artefact each document is read from."""
    segments = {ref: segment_of(store, ref) for ref in tables.refs}
    holders: dict[str, list[ArtifactRef]] = defaultdict(list)
    for ref in segments:
        for doc_id in read_columns(store.folder(ref) / name, ["doc_id"])["doc_id"]:
            holders[doc_id].append(ref)
    chosen = {}
    for doc_id, place in kept.items():
        found = [ref for ref in holders[doc_id] if segments[ref] == place.segment] or holders[doc_id]
        if len(found) != 1:
            raise StoreError(
                f"document {doc_id} lies in {len(found)} of the {len(segments)} segments in use, expected one: "
                "compute the listing again with `--refresh snapshot,curate`"
            )
        chosen[doc_id] = found[0]
    return chosen
