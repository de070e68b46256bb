"""Documents that came or went: how many since the last model, and the event that tells of them.

What is compared are documents, not files: a copy or a move changes nothing. They are held against the documents of the
corpus's latest training, and against those of which was told before, so that each change is told once, small ones as
soon as they add up, and none that a training has seen already. An automation starts `retrain/on-new-documents` then.
"""

from __future__ import annotations

from dataclasses import asdict

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.events import Event

from storage.catalog import read_state
from storage.lineage import ancestor
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError
from storage.tables import read_rows
from tasks.ingest.snapshot import snapshot
from tasks.session import PrefectSession
from tasks.training import train

EVENT = "sheepfold.corpus.changed"
TOLD_REF = "announced"


def announce(session: PrefectSession, corpus: str, source: str, least: float) -> float:
    """Tell that a corpus changed, if it did by so much.

    Args:
        source: what the corpus is made from.
        least: share of the documents, of those there were; 0 never tells.

    Returns:
        The share that was told; 0 if none was.
    """
    listing = session.produced.get(snapshot.name)
    if not least or not listing:
        return 0.0
    now = listing[0]
    share = untold_share(session.store, corpus, now)
    if share < least:
        return 0.0
    payload = {"corpus": corpus, "source": source, "share": share, "snapshot": now.key}
    event = Event(event=EVENT, resource={"prefect.resource.id": f"sheepfold.corpus.{corpus}"}, payload=payload)
    with get_client(sync_client=True) as client:  # answered, so that what was not told is told by the next run
        client.request("POST", "/events", json=[event.model_dump(mode="json")]).raise_for_status()
    note_told(session.store, corpus, now)
    get_run_logger().info("told that %.1f %% of the documents of %s changed", 100 * share, corpus)
    return share


def untold_share(store: Store, corpus: str, now: ArtifactRef) -> float:
    """How much a corpus changed since its latest training, and since that was last told; 0 without documents."""
    documents = _documents(store, now)
    if not documents:
        return 0.0
    known = (_trained_on(store, corpus), _told(store, corpus))
    return min(changed_share(documents, _documents(store, before)) for before in known)


def note_told(store: Store, corpus: str, now: ArtifactRef) -> None:
    """Remember of which documents was told."""
    store.write_ref(f"{TOLD_REF}/{corpus}", asdict(now))


def changed_share(now: set[str], before: set[str]) -> float:
    """Documents that came or went, as a share of those there were; 1 where there were none."""
    if not before:
        return 1.0 if now else 0.0
    return len(now ^ before) / len(before)


def _documents(store: Store, listing: ArtifactRef | None) -> set[str]:
    """Documents of a snapshot; none where it was cleared away."""
    if listing is None or store.find(listing.stage, listing.key) is None:
        return set()
    rows = read_rows(store.folder(listing) / "files.parquet", ["doc_id", "status"])
    return {row["doc_id"] for row in rows if row["status"] == "ok"}


def _trained_on(store: Store, corpus: str) -> ArtifactRef | None:
    """The snapshot behind the corpus's latest training."""
    trained = read_state(store, corpus).get(train.name)
    if not trained:
        return None
    try:
        return ancestor(store, trained[0], snapshot.name).ref
    except StoreError:
        return None  # a model that was taken in comes from no documents of ours


def _told(store: Store, corpus: str) -> ArtifactRef | None:
    known = store.read_ref(f"{TOLD_REF}/{corpus}")
    return ArtifactRef(**known) if known else None
