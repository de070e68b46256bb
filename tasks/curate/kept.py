"""Reading the documents that curation kept, from whichever segments they lie in.

Results are addressed by content, so one that is found in the store may name a segment that is no longer in use: the
same documents lie in others now. The segment that was noted decides only between several that hold a document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.lineage import manifest_of, segment_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import Store, StoreError
from storage.tables import read_columns, read_rows, stream_rows


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
    store: Store, kept: Mapping[str, Kept], tables: RefSet, name: str, columns: Sequence[str]
) -> Iterator[tuple[ArtifactRef, dict[str, Any]]]:
    """Rows of the kept documents, each with the artefact it lies in.

    Args:
        tables: per-segment artefacts; the same document may lie in several, one of which is the live one.
        name: file name of the table in each of them.

    Raises:
        StoreError: if a document lies in none of them, or in several none of which is the noted one.
    """
    left = set(kept)
    for ref, live in zip(tables.refs, _live_in(store, kept, tables, name), strict=True):
        for row in stream_rows(store.folder(ref) / name, columns):
            if row["doc_id"] in left and row["doc_id"] in live:
                left.remove(row["doc_id"])
                yield ref, row
    if left:
        raise _misplaced(min(left), 0, len(tables.refs))


def _live_in(store: Store, kept: Mapping[str, Kept], tables: RefSet, name: str) -> Sequence[Collection[str]]:
    """For each artefact, the documents that are to be read there: as told, or by the segment noted for each."""
    if tables.live is not None:
        return tables.live
    shelves = shelves_of(store, tables)
    chosen = holders({doc_id: place.segment for doc_id, place in kept.items()}, shelves, name)
    live: list[set[str]] = [set() for _ in shelves]
    for doc_id, place in chosen.items():
        live[place].add(doc_id)
    return live


@dataclass(frozen=True)
class Shelf:
    """A per-segment artefact as a process apart sees it.

    Attributes:
        segment: key of the extraction segment behind it.
        folder: where its tables lie.
    """

    segment: str
    folder: str


def shelves_of(store: Store, tables: RefSet) -> list[Shelf]:
    """The artefacts of a set, in its order."""
    segments = tables.segments or [segment_of(store, ref) for ref in tables.refs]
    folders = [str(store.folder(ref)) for ref in tables.refs]
    return [Shelf(segment, folder) for segment, folder in zip(segments, folders, strict=True)]


def folders_beside(store: Store, documents: RefSet, beside: RefSet) -> list[str]:
    """For each artefact of documents, the folder of what was made of it.

    Args:
        beside: artefacts with the input `documents`. They are matched by its content: of two segments with the same
            documents, one artefact may have been made.
    """
    made = {manifest_of(store, ref).inputs["documents"]["digest"]: str(store.folder(ref)) for ref in set(beside.refs)}
    return [made[ref.digest] for ref in documents.refs]


def holders(live: Mapping[str, str], shelves: Sequence[Shelf], name: str) -> dict[str, int]:
    """On which shelf each document is read.

    Args:
        live: the segment noted for each document.
        name: file name of the table on each shelf.

    Raises:
        StoreError: if a document lies on none of them, or on several none of which is the noted one.
    """
    found: dict[str, int] = {}
    doubtful: dict[str, list[int]] = {}
    for place, shelf in enumerate(shelves):
        for doc_id in read_columns(Path(shelf.folder) / name, ["doc_id"])["doc_id"]:
            if doc_id not in live:
                continue
            if doc_id in found:
                doubtful.setdefault(doc_id, [found[doc_id]]).append(place)
            found[doc_id] = place
    for doc_id, places in doubtful.items():
        noted = [place for place in places if shelves[place].segment == live[doc_id]]
        if len(noted) != 1:
            raise _misplaced(doc_id, len(places), len(shelves))
        found[doc_id] = noted[0]
    for doc_id in live:
        if doc_id not in found:
            raise _misplaced(doc_id, 0, len(shelves))
    return found


def _misplaced(doc_id: str, n_found: int, n_shelves: int) -> StoreError:
    return StoreError(
        f"document {doc_id} lies in {n_found} of the {n_shelves} segments in use, expected one: "
        "compute the listing again with `--refresh snapshot,curate`"
    )


def live_documents(folder: Path) -> dict[str, str]:
    """The segment noted for each live document of a snapshot.

    Args:
        folder: of the snapshot.
    """
    columns = read_columns(folder / "files.parquet", ["doc_id", "status", "segment"])
    segments: dict[str, str] = {}
    return {
        doc_id: segments.setdefault(segment, segment)
        for doc_id, status, segment in zip(columns["doc_id"], columns["status"], columns["segment"], strict=True)
        if status == "ok" and doc_id is not None
    }
