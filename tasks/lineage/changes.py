"""Share of a corpus that changed since its latest training.

Documents are compared, not files: a copy or a move changes nothing. The present documents are compared with those of
the latest training and with those of the last announcement, so that each change is announced once, and small ones as
soon as they add up. An announcement counts for some hours: if no training followed by then, it is made again.

Both sets of documents are kept as beginnings of ids, because snapshots may be removed, and lose forgotten documents.
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
HOLDS = timedelta(hours=6)  # from an announcement to its training, which may wait for another
_DIGITS = 12  # of an id, by which documents are told apart


def unannounced_share(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> float:
    """Return the share of documents that changed since the latest training and the last announcement; 0 without any.

    Records which documents the training read. The time of the question is now where none is given.
    """
    documents = _documents(store, now)
    if not documents:
        return 0.0
    known = (_read(store, corpus, documents), _announced(store, corpus, at or datetime.now(UTC)))
    return min(changed_share(documents, before) for before in known)


def record_announcement(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> None:
    """Record which documents were announced, and when; None is now."""
    since = (at or datetime.now(UTC)).isoformat(timespec="seconds")
    store.write_ref(f"{ANNOUNCED_REF}/{corpus}", {"since": since, "documents": sorted(_documents(store, now))})


def changed_share(now: set[str], before: set[str]) -> float:
    """Return the documents that came or went, as a share of those there were; 1 where there were none."""
    if not before:
        return 1.0 if now else 0.0
    return len(now ^ before) / len(before)


def _documents(store: Store, listing: ArtifactRef) -> set[str]:
    rows = read_rows(store.folder(listing) / FILES_FILE, ["doc_id", "status"])
    return {row["doc_id"][:_DIGITS] for row in rows if row["status"] == "ok"}


def _read(store: Store, corpus: str, documents: set[str]) -> set[str]:
    """Return the documents that the corpus's latest training read.

    Args:
        documents: The present ones, which count as read where nothing was recorded in time.
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
    """Return the snapshot of the latest training: the newest, where others gave the same dataset."""
    trained, prepared = state.get("train"), state.get(dataset.name)
    if not trained:
        return None
    try:
        read = manifest_of(store, trained[0]).inputs.get("dataset", {}).get("digest")
        newest = prepared[0] if prepared and prepared[0].digest == read else trained[0]
        return ancestor(store, newest, snapshot.name).ref
    except StoreError:
        return None  # a model from elsewhere comes from no documents of this store


def _announced(store: Store, corpus: str, at: datetime) -> set[str]:
    """Return the announced documents; none if that was long ago, unless a training is running."""
    note = store.read_ref(f"{ANNOUNCED_REF}/{corpus}")
    if note is None:
        return set()
    old = at - datetime.fromisoformat(note["since"]) > HOLDS
    if old and not any(work.stage == "train" for work in store.unfinished(owned=True)):
        return set()
    return set(note["documents"])
