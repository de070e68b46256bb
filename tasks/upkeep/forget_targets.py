"""Resolve the name of documents to be forgotten: an id, a path, or a prefix of either.

A path stands for everything that ever lay there as far as the store knows, in all listings of the corpus's sources, and
for what lies in it: the members of an archive, the files of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.catalog import LISTED, read_state
from storage.manifest import ArtifactRef
from storage.schemas import EXTRACTS_FILE, FILES_FILE
from storage.store import Store
from storage.tombstones import place_digest
from tasks.ingest.extract import document_id
from tasks.sources.git import without_commit

SEGMENT_STAGES = ("extract", "import")  # whose artefacts hold documents as they were read
_ID = re.compile("[0-9a-f]{8,64}")  # an id, or enough of one


@dataclass(frozen=True, order=True)
class Target:
    """A document that is meant.

    Attributes:
        sha256: of its bytes.
        path: where it lay; empty where no listing has it.
    """

    doc_id: str
    sha256: str
    path: str = ""


def find_targets(store: Store, corpus: str, thing: str) -> list[Target]:
    """The documents that go by a name, by id.

    Args:
        corpus: in whose sources a path is looked for; ids are of the whole store.
        thing: an id or at least eight digits of one, a path, a folder, or the beginning of paths with `*` behind it.
    """
    found: dict[str, Target] = {}
    if _ID.fullmatch(thing):
        for target in _by_id(store, thing):
            if target.doc_id not in found or target.path:
                found[target.doc_id] = target
    for target in _by_path(store, corpus, thing):
        found[target.doc_id] = target
    return sorted(found.values(), key=lambda target: (target.path, target.doc_id))


def places_of(store: Store, targets: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Digests of the paths at which documents lay in any listing, by id: each path within its source and whole.

    Args:
        targets: sha256 of the documents' bytes, by id.
    """
    found: dict[str, set[str]] = {doc_id: set() for doc_id in targets}
    wanted = pa.array(sorted(set(targets.values())), pa.string())
    for ref in _refs(store, "snapshot"):
        columns = ["doc_id", "sha256", "source", "path"]
        table = pq.read_table(store.folder(ref) / FILES_FILE, columns=columns)
        for row in table.filter(pc.is_in(table["sha256"], value_set=wanted)).to_pylist():
            doc_id = row["doc_id"] or document_id(row["sha256"])
            if doc_id in found:
                found[doc_id] |= {place_digest(row["path"]), place_digest(f"{row['source'].rstrip('/')}/{row['path']}")}
    return {doc_id: tuple(sorted(digests)) for doc_id, digests in found.items()}


def _by_id(store: Store, beginning: str) -> Iterator[Target]:
    def wanted(table: pa.Table) -> Any:
        return pc.fill_null(pc.starts_with(table["doc_id"], beginning), False)

    for stage in SEGMENT_STAGES:
        for ref in _refs(store, stage):
            yield from _rows(store, ref, EXTRACTS_FILE, ["doc_id", "sha256"], wanted)
    for ref in _refs(store, "snapshot"):
        yield from _rows(store, ref, FILES_FILE, ["doc_id", "sha256", "path"], wanted)


def _by_path(store: Store, corpus: str, thing: str) -> Iterator[Target]:
    state = read_state(store, corpus)
    current = state.get("snapshot") or state.get(LISTED, [])
    sources = {without_commit(source) for ref in current for source in _sources(store, ref)}
    inside = thing.rstrip("/") + "/"

    def wanted(table: pa.Table) -> Any:
        paths = table["path"]
        if thing.endswith("*"):
            named = pc.starts_with(paths, thing[:-1])
        else:
            named = pc.or_(pc.equal(paths, thing), pc.starts_with(paths, inside))
        own = [source for source in pc.unique(table["source"]).to_pylist() if without_commit(source) in sources]
        return pc.and_(named, pc.is_in(table["source"], value_set=pa.array(own, pa.string())))

    for ref in _refs(store, "snapshot") if sources else ():
        yield from _rows(store, ref, FILES_FILE, ["doc_id", "sha256", "path", "source"], wanted)


def _refs(store: Store, stage: str) -> Iterator[ArtifactRef]:
    return (manifest.ref for manifest in store.manifests(stage))


def _sources(store: Store, ref: ArtifactRef) -> list[str]:
    found: list[str] = pc.unique(pq.read_table(store.folder(ref) / FILES_FILE, columns=["source"])["source"])
    return [str(name) for name in found]


def _rows(
    store: Store, ref: ArtifactRef, name: str, columns: list[str], wanted: Callable[[pa.Table], Any]
) -> Iterator[Target]:
    """The documents of some rows of a table, a row group at a time; files whose bytes nobody read are none."""
    with pq.ParquetFile(store.folder(ref) / name) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=columns)
            for row in table.filter(wanted(table)).to_pylist():
                if row["sha256"] is not None:
                    # a container is no document, but its bytes are found again like those of one
                    yield Target(row["doc_id"] or document_id(row["sha256"]), row["sha256"], row.get("path", ""))
