"""Tombstones: records of forgotten documents, which keep an ingestion from reading them again.

A document is identified by its id and by its bytes, so the same bytes in another folder or archive are refused too. One
ref holds the tombstones and the artefacts that are still to be removed, so that both change atomically and a killed
removal can be resumed. Tombstones are checked when files are listed, extracted and imported, and when a run publishes
(`tasks.upkeep.forget.refuse_forgotten`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Final

from storage.store import Store

TOMBSTONES_REF = "forgotten/documents"
FORGETTING_LOCK = "forgetting"
FORGOTTEN: Final = "forgotten"  # reason code
REASON = "it was asked to be forgotten (`sheepfold forget`)"
_EMPTY = hashlib.sha256(b"").hexdigest()  # an empty file is no document


@dataclass(frozen=True)
class Tombstone:
    """One forgotten document.

    Attributes:
        sha256: sha256 of its bytes; of the member's bytes for a member of a container.
        reason: reason given by the user.
        since: time in ISO 8601.
        seen_by: STAGE/KEY of trainings that read it; trainings that continue them are found by their bases.
        places: sha256 of its paths, absolute and relative to the source, to find it by path without recording the path.
    """

    doc_id: str
    sha256: str
    reason: str = ""
    since: str = ""
    seen_by: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tombstones:
    """All forgotten documents of a store.

    Attributes:
        pending: artefacts (stage, key) that are still to be removed; empty until they were searched, None if the store
            holds nothing of the forgotten documents.
    """

    documents: Mapping[str, Tombstone] = field(default_factory=dict)
    pending: Collection[tuple[str, str]] | None = None

    @cached_property
    def contents(self) -> frozenset[str]:
        """Sha256 of the bytes of each document."""
        return frozenset(item.sha256 for item in self.documents.values()) - {_EMPTY}

    def covers(self, doc_id: str, sha256: str) -> bool:
        """Return True if a document is forgotten."""
        return doc_id in self.documents or sha256 in self.contents


def read_tombstones(store: Store) -> Tombstones:
    """Return the forgotten documents of a store."""
    value = store.read_ref(TOMBSTONES_REF)
    if value is None:
        return Tombstones()
    documents = {
        doc_id: Tombstone(
            doc_id, **{**entry, "seen_by": tuple(entry["seen_by"]), "places": tuple(entry.get("places", ()))}
        )
        for doc_id, entry in value["documents"].items()
    }
    pending = value["pending"]
    return Tombstones(documents, None if pending is None else {(stage, key) for stage, key in pending})


def write_tombstones(store: Store, tombstones: Tombstones) -> None:
    """Replace the tombstones and the pending removals atomically."""
    documents = {}
    for doc_id, item in tombstones.documents.items():
        documents[doc_id] = asdict(item)
        del documents[doc_id]["doc_id"]
    pending = None if tombstones.pending is None else sorted(map(list, tombstones.pending))
    store.write_ref(TOMBSTONES_REF, {"documents": documents, "pending": pending})
