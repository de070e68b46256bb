"""Documents that came or went: how many since the last model, and the event that tells of them.

What is compared are documents, not files: a copy or a move changes nothing. They are held against the documents of the
corpus's latest training, and against those of which was told before, so that each change is told once, small ones as
soon as they add up, and none that a training has seen already. An automation starts `retrain/on-new-documents` then.
What was told holds for some hours: if no training has come of it by then, it is told again.

Both sets of documents are noted, by the beginnings of their ids, because their listings may go, and lose what is
forgotten.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.events import Event

from storage.catalog import read_state
from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError
from storage.tables import read_rows
from storage.tombstones import read_tombstones
from tasks.ingest.snapshot import snapshot
from tasks.run import Run
from tasks.tokens.dataset import dataset
from tasks.training import train

EVENT = "sheepfold.corpus.changed"
TOLD_REF = "told"
READ_REF = "read"
HOLDS = timedelta(hours=6)  # from telling to the training that comes of it, which may wait for another
_DIGITS = 12  # of an id, by which documents are told apart


def announce(run: Run, source: str, least: float) -> float:
    """Tell that a corpus changed, if it did by so much.

    Args:
        source: what the corpus is made from.
        least: share of the documents, of those there were; 0 never tells.

    Returns:
        The share that was told; 0 if none was.
    """
    listing = run.produced.get(snapshot.name)
    if not least or not listing:
        return 0.0
    now, corpus = listing[0], run.corpus
    share = untold_share(run.store, corpus, now)
    if share < least:
        return 0.0
    event = change(corpus, source, share, now.key)
    with get_client(sync_client=True) as client:  # answered, so that what was not told is told by the next run
        client.request("POST", "/events", json=[event.model_dump(mode="json")]).raise_for_status()
    note_told(run.store, corpus, now)
    get_run_logger().info("told that %.1f %% of the documents of %s changed", 100 * share, corpus)
    return share


def change(corpus: str, source: str, share: float, snapshot: str) -> Event:
    """The event that tells of a change; its resource tells changes apart, of which each starts one run."""
    return Event(
        event=EVENT,
        resource={"prefect.resource.id": f"sheepfold.corpus.{corpus}", "sheepfold.snapshot": snapshot},
        payload={"corpus": corpus, "source": source, "share": share, "snapshot": snapshot},
    )


def untold_share(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> float:
    """How much a corpus changed since its latest training, and since that was last told; 0 without documents.

    Notes of which documents the training read.

    Args:
        at: when this is asked; now if it is None.
    """
    documents = _documents(store, now)
    if not documents:
        return 0.0
    known = (_read(store, corpus, documents), _told(store, corpus, at or datetime.now(UTC)))
    return min(changed_share(documents, before) for before in known)


def note_told(store: Store, corpus: str, now: ArtifactRef, at: datetime | None = None) -> None:
    """Remember of which documents was told, and when; now if `at` is None."""
    since = (at or datetime.now(UTC)).isoformat(timespec="seconds")
    store.write_ref(f"{TOLD_REF}/{corpus}", {"since": since, "documents": sorted(_documents(store, now))})


def changed_share(now: set[str], before: set[str]) -> float:
    """Documents that came or went, as a share of those there were; 1 where there were none."""
    if not before:
        return 1.0 if now else 0.0
    return len(now ^ before) / len(before)


def _documents(store: Store, listing: ArtifactRef) -> set[str]:
    """Beginnings of the ids of a snapshot's documents."""
    rows = read_rows(store.folder(listing) / "files.parquet", ["doc_id", "status"])
    return {row["doc_id"][:_DIGITS] for row in rows if row["status"] == "ok"}


def _read(store: Store, corpus: str, documents: set[str]) -> set[str]:
    """The documents that the corpus's latest training read.

    Args:
        documents: those of now, which count as read where nobody noted in time which they were.
    """
    trained = read_state(store, corpus).get(train.name)
    listing = _listing_behind(store, corpus)
    if not trained or listing is None:
        return set()
    name, training = f"{READ_REF}/{corpus}", trained[0].key
    note = store.read_ref(name)
    known = set(note["documents"]) if note is not None and note["training"] == training else None
    if store.find(listing.stage, listing.key) is not None:
        gone = {doc_id[:_DIGITS] for doc_id in read_tombstones(store).documents}  # a listing loses what is forgotten
        found = _documents(store, listing) | (gone & (known or set()))
    else:
        found = documents if known is None else known
    if found != known:
        store.write_ref(name, {"training": training, "documents": sorted(found)})
    return found


def _listing_behind(store: Store, corpus: str) -> ArtifactRef | None:
    """The snapshot behind what the corpus's latest training read: the newest, where others gave the same dataset."""
    state = read_state(store, corpus)
    trained, prepared = state.get(train.name), state.get(dataset.name)
    if not trained:
        return None
    try:
        read = manifest_of(store, trained[0]).inputs.get("dataset", {}).get("digest")
        newest = prepared[0] if prepared and prepared[0].digest == read else trained[0]
        return ancestor(store, newest, snapshot.name).ref
    except StoreError:
        return None  # a model that was taken in comes from no documents of ours


def _told(store: Store, corpus: str, at: datetime) -> set[str]:
    """The documents of which was told; none where that was long ago, unless something is being trained still."""
    note = store.read_ref(f"{TOLD_REF}/{corpus}")
    if note is None:
        return set()
    old = at - datetime.fromisoformat(note["since"]) > HOLDS
    if old and not any(work.stage == train.name for work in store.unfinished(owned=True)):
        return set()
    return set(note["documents"])
