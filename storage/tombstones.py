"""Tombstones: documents that are forgotten, and that no ingestion brings back, whatever path they lie at.

A document is known by its id and by its bytes, so the same bytes in another folder or archive are the same forgotten
document. All of them stand in one ref, beside a note of what is still to be taken out of the store: both change in one
step, so whoever finds the note after a kill goes on from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from storage.store import Store

TOMBSTONES_REF = "forgotten/documents"
FORGETTING_LOCK = "forgetting"
FORGOTTEN: Final = "forgotten"  # the code of the reason
REASON = "it was asked to be forgotten (`sheepfold forget`)"
_ID = re.compile("[0-9a-f]{8,64}")  # an id, or enough of one
_NOTHING = hashlib.sha256(b"").hexdigest()  # the bytes of nothing are no document


@dataclass(frozen=True)
class Tombstone:
    """One forgotten document.

    Attributes:
        sha256: of its bytes; of a container's member, the member's.
        reason: why, as the person said.
        since: when, ISO 8601.
        seen_by: trainings that saw it, STAGE/KEY; those that continue them later are found by their bases.
        places: sha256 of the paths at which it lay, of each within its source and whole: by them it is found again, and
            they tell nothing.
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
        pending: None where the store holds nothing of them; else the artefacts (stage, key) that are being taken out,
            as far as that is known.
    """

    documents: Mapping[str, Tombstone] = field(default_factory=dict)
    pending: Collection[tuple[str, str]] | None = None

    @cached_property
    def contents(self) -> frozenset[str]:
        """The sha256 of the bytes of each."""
        return frozenset(item.sha256 for item in self.documents.values()) - {_NOTHING}

    def covers(self, doc_id: str, sha256: str) -> bool:
        """Whether a document is forgotten."""
        return doc_id in self.documents or sha256 in self.contents

    def named(self, name: str) -> list[Tombstone]:
        """Those that go by an id, eight digits of one or more, or a path."""
        beginning = name if _ID.fullmatch(name) else None
        places = {place_digest(name.removeprefix("./")), place_digest(str(Path(name).expanduser().absolute()))}
        return [
            item
            for doc_id, item in sorted(self.documents.items())
            if (beginning and doc_id.startswith(beginning)) or places.intersection(item.places)
        ]


def place_digest(path: str) -> str:
    """What a tombstone keeps of a path."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


def read_tombstones(store: Store) -> Tombstones:
    """The forgotten documents."""
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
    """Replace the forgotten documents, and what is to be done about them, in one step."""
    documents = {}
    for doc_id, item in tombstones.documents.items():
        documents[doc_id] = asdict(item)
        del documents[doc_id]["doc_id"]
    pending = None if tombstones.pending is None else sorted(map(list, tombstones.pending))
    store.write_ref(TOMBSTONES_REF, {"documents": documents, "pending": pending})
