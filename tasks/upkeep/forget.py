"""Forget documents: find them and the models that saw them, write tombstones, and take them out of the store.

`tasks.upkeep.forget_sweep` takes them out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from storage.catalog import Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.registry import registered_versions
from storage.store import Store
from storage.tombstones import FORGETTING_LOCK, Tombstone, Tombstones, read_tombstones, write_tombstones
from tasks.lineage.training_membership import exposure_report, exposures
from tasks.upkeep.forget_sweep import finish_forgetting, plan_sweep, with_copies
from tasks.upkeep.forget_targets import Target, find_targets, places_of


def forget(home: Home, store: Store, thing: str, reason: str, corpus: str, dry_run: bool) -> dict[str, Any]:
    """Forget documents, and return what was done as `sheepfold forget --json` prints it.

    Args:
        thing: an id, a path or a folder (see `find_targets`).
        reason: kept with the tombstones.
        dry_run: change nothing, only report.

    Raises:
        UserError: if nothing has that name, or another process works in the store.
    """
    known = read_tombstones(store)
    targets = find_targets(store, corpus, thing)
    before = {item.doc_id for item in known.named(thing)} | known.documents.keys() & {item.doc_id for item in targets}
    # a forgetting that was killed is finished under any name: the one it was called by may be gone by now
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
        "seen_by": exposure_report(found, registered_versions(store)),
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
        done = finish_forgetting(home, store)
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
    """Write tombstones and mark their forgetting as pending.

    Raises:
        UserError: if another process works in the store, which may have read the documents.
    """
    owners = store.owners()
    if owners:
        raise UserError(f"{'; '.join(owners)}: wait for it to end, or stop it, and forget then")
    with store.lock(FORGETTING_LOCK):
        known = read_tombstones(store)
        write_tombstones(store, Tombstones({**known.documents, **new}, known.pending or []))


def _near_duplicates(store: Store, corpus: str, doc_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the documents that stay and are near-duplicates of forgotten ones."""
    if "dedup" not in read_state(store, corpus):
        return []
    ids = ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids))
    return Catalog(store, corpus).query(
        "select distinct f.doc_id, f.path from clusters c join files f using (doc_id) where f.status = 'ok' and "
        f"c.cluster in (select cluster from clusters where doc_id in ({ids})) and f.doc_id not in ({ids}) order by path"
    )
