"""Compute the share of a corpus that changed since its latest training.

Documents are compared, not files: a copy or a move is no change. The current documents are compared with those of the
latest training and of the last announcement, so that each change is announced once, and small ones when they add up. An
announcement expires after some hours without a training, and is repeated then.

Both sets of documents are stored as prefixes of ids, because snapshots may be removed, and lose forgotten documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from storage.catalog import read_state
from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import FILES_FILE
from storage.store import Store, StoreError
from storage.tables import read_rows
from storage.tombstones import read_tombstones
from tasks.ingest.snapshot import snapshot
from tasks.tokens.dataset import dataset

ANNOUNCED_REF = "announced"
READ_REF = "read"
HOLDS = timedelta(hours=6)  # until an announcement expires; its training may wait for another
_DIGITS = 12  # length of the prefixes of ids


def unannounced_share(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> float:
    """Return the share of documents that changed since the latest training and the last announcement.

    Also records the documents that the training read. `at` is by default the current time.
    """
    documents = _documents(store, now)
    if not documents:
        return 0.0
    known = (_read(store, corpus, documents), _announced(store, corpus, at or datetime.now(UTC)))
    return min(changed_share(documents, before) for before in known)


def record_announcement(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> None:
    """Record the announced documents and the time, by default the current time."""
    since = (at or datetime.now(UTC)).isoformat(timespec="seconds")
    store.write_ref(f"{ANNOUNCED_REF}/{corpus}", {"since": since, "documents": sorted(_documents(store, now))})


def changed_share(now: set[str], before: set[str]) -> float:
    """Return added and removed documents as a share of those before; 1 if there were none before."""
    if not before:
        return 1.0 if now else 0.0
    return len(now ^ before) / len(before)


def _documents(store: Store, listing: ArtifactRef) -> set[str]:
    rows = read_rows(store.folder(listing) / FILES_FILE, ["doc_id", "status"])
    return {row["doc_id"][:_DIGITS] for row in rows if row["status"] == "ok"}


def _read(store: Store, corpus: str, documents: set[str]) -> set[str]:
    """Return the documents that the corpus's latest training read.

    Args:
        documents: The current ones, which count as read if there is neither a record nor a snapshot.
    """
    state = read_state(store, corpus)
    listing = _listing_behind(store, state)
    if listing is None:
        return set()
    name, training = f"{READ_REF}/{corpus}", state["train"][0].key
    note = store.read_ref(name)
    known = set(note["documents"]) if note is not None and note["training"] == training else None
    if store.find(listing.stage, listing.key) is not None:
        gone = {doc_id[:_DIGITS] for doc_id in read_tombstones(store).documents}  # a snapshot loses forgotten documents
        found = _documents(store, listing) | (gone & (known or set()))
    else:
        found = documents if known is None else known
    if found != known:
        store.write_ref(name, {"training": training, "documents": sorted(found)})
    return found


def _listing_behind(store: Store, state: Mapping[str, Sequence[ArtifactRef]]) -> ArtifactRef | None:
    """Return the snapshot of the latest training; of several that gave the same dataset, the newest."""
    trained, prepared = state.get("train"), state.get(dataset.name)
    if not trained:
        return None
    try:
        read = manifest_of(store, trained[0]).inputs.get("dataset", {}).get("digest")
        newest = prepared[0] if prepared and prepared[0].digest == read else trained[0]
        return ancestor(store, newest, snapshot.name).ref
    except StoreError:
        return None  # an imported model has no documents in this store


def _announced(store: Store, corpus: str, at: datetime) -> set[str]:
    """Return the announced documents; empty if the announcement expired and no training is running."""
    note = store.read_ref(f"{ANNOUNCED_REF}/{corpus}")
    if note is None:
        return set()
    old = at - datetime.fromisoformat(note["since"]) > HOLDS
    if old and not any(work.stage == "train" for work in store.unfinished(owned=True)):
        return set()
    return set(note["documents"])
