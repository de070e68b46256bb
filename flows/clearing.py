"""What `sheepfold gc` does: ask the registry and the runs what they need, and clear the store of what nothing does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flows.direct import registered_versions
from storage.garbage import find_garbage, remove_garbage, sizes
from storage.home import Home
from storage.store import Store, open_store
from tasks.training import train

SECONDS_PER_DAY = 24 * 3600.0


def clear_up(home: str, grace_days: float, dry_run: bool) -> dict[str, Any]:
    """Remove what nothing needs, or say what that is.

    Args:
        grace_days: what was made or used within so many days stays; a run that goes on uses what it has not named yet.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    grace = grace_days * SECONDS_PER_DAY
    found = find_garbage(store, _roots(place, store), grace)
    left = [] if dry_run else remove_garbage(store, found, grace)
    return {
        "dry_run": dry_run,
        "artefacts": len(found.artefacts),
        "removed": [f"{stage}/{key}" for stage, key in found.artefacts if (stage, key) not in left],
        "work": len(found.work),
        "bytes": found.size,
        "left": [f"{stage}/{key}" for stage, key in left],
        "sizes": [asdict(item) for item in found.sizes],
    }


def sizes_of(home: str) -> dict[str, dict[str, int]]:
    """Artefacts and bytes of each stage."""
    place = Home.from_environment(home or None)
    found = sizes(open_store(place.store, place.cache))
    return {item.stage: {"artefacts": item.artefacts, "bytes": item.size} for item in found}


def _roots(place: Home, store: Store) -> set[tuple[str, str]]:
    """The checkpoints of registered models, and the trainings whose run nobody deleted.

    That MLflow has no run of a training says nothing: its database may be new, lost, or another home's.
    """
    known = {(train.name, key) for key in store.keys(train.name)}
    trainings = known | {(stage, key) for stage, key in store.records() if stage == train.name}
    if not place.has_tracking:
        return trainings
    from storage.tracking import Tracking

    versions = {(found.checkpoint.stage, found.checkpoint.key) for found in registered_versions(place)}
    return versions | (trainings - {(train.name, key) for key in Tracking(place).deleted_train_keys()})
