"""What `sheepfold forget` does: find the documents and the models that saw them, then take them out of the home.

How they are taken out, `tasks.forgetting.sweep` says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from flows.direct import registered_versions
from storage.catalog import Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.store import Store, open_store
from storage.tombstones import FORGETTING_LOCK, Tombstone, Tombstones, read_tombstones, write_tombstones
from tasks.exposure import exposures, told
from tasks.forgetting.sweep import finish_forgetting, plan_sweep, with_copies
from tasks.forgetting.targets import Target, find_targets, places_of


def forget(home: str, thing: str, reason: str, corpus: str, dry_run: bool) -> dict[str, Any]:
    """Forget documents, or say what that would do.

    Args:
        thing: an id, a path or a folder (see `find_targets`).

    Raises:
        UserError: if nothing goes by that name, or somebody works in the store.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    known = read_tombstones(store)
    targets = find_targets(store, corpus, thing)
    before = {item.doc_id for item in known.named(thing)} | known.documents.keys() & {item.doc_id for item in targets}
    # what a kill left is finished by whatever it is called: what it was called by may be gone by now
    if not targets and not before and known.pending is None:
        raise UserError(
            f"no document of corpus {corpus!r} goes by {thing!r}: give an id or eight digits of one, a path or "
            "folder as `sheepfold sql \"select path, doc_id from files\"` shows it, or the beginning of paths and '*'"
        )
    wanted = with_copies(store, _buried(known, targets, reason))
    new = wanted.documents.keys() - known.documents.keys()
    found = exposures(store, new) if new else []
    result: dict[str, Any] = {
        "documents": [{"doc_id": target.doc_id, "path": target.path} for target in targets if target.doc_id in new],
        "known": len(before),
        "seen_by": told(found, registered_versions(place)),
        "near_duplicates": _near_duplicates(store, corpus, wanted.documents.keys()) if new else [],
        "dry_run": dry_run,
    }
    if dry_run:
        sweep = plan_sweep(store, wanted)
    else:
        seen_by = tuple(f"{item.checkpoint.stage}/{item.checkpoint.key}" for item in found)
        places = places_of(store, {doc_id: wanted.documents[doc_id].sha256 for doc_id in new})
        buried = {doc_id: replace(wanted.documents[doc_id], seen_by=seen_by, places=places[doc_id]) for doc_id in new}
        _bury(store, buried)
        done = finish_forgetting(place, store)
        sweep = done if done is not None else plan_sweep(store, Tombstones())
    return {
        **result,
        "rewritten": {"extract": len(sweep.segments), "evalset": len(sweep.evalsets), "curate": len(sweep.selections)},
        "removed": sweep.counts(),
    }


def _buried(known: Tombstones, targets: Collection[Target], reason: str) -> Tombstones:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    new = {target.doc_id: Tombstone(target.doc_id, target.sha256, reason, since) for target in targets}
    return Tombstones({**new, **known.documents}, known.pending)


def _bury(store: Store, new: dict[str, Tombstone]) -> None:
    """Write tombstones, and that there is something to be done about them.

    Raises:
        UserError: if somebody works in the store, who may have read the documents.
    """
    owners = store.owners()
    if owners:
        raise UserError(f"{'; '.join(owners)}: wait for it to end, or stop it, and forget then")
    with store.lock(FORGETTING_LOCK):
        known = read_tombstones(store)
        write_tombstones(store, Tombstones({**known.documents, **new}, known.pending or []))


def _near_duplicates(store: Store, corpus: str, doc_ids: Collection[str]) -> list[dict[str, Any]]:
    """Documents that stay and are nearly the same as forgotten ones."""
    if "dedup" not in read_state(store, corpus):
        return []
    ids = ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids))
    return Catalog(store, corpus).query(
        "select distinct f.doc_id, f.path from clusters c join files f using (doc_id) where f.status = 'ok' and "
        f"c.cluster in (select cluster from clusters where doc_id in ({ids})) and f.doc_id not in ({ids}) order by path"
    )
