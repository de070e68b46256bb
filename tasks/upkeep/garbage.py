"""Garbage collection of a home, from refs and trainings with an MLflow run; and the sizes of its artefacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from storage.gc import find_garbage, remove_garbage, sizes
from storage.home import Home
from storage.manifest import StageFacts
from storage.store import Store

SECONDS_PER_DAY = 24 * 3600.0
TRAIN = "train"


def collect_garbage(
    home: Home, store: Store, facts: Mapping[str, StageFacts], grace_days: float, dry_run: bool
) -> dict[str, Any]:
    """Remove unneeded artefacts and return them, as `sheepfold gc --json` prints them.

    Args:
        facts: Facts of every stage.
        grace_days: Days after creation or last use during which artefacts are kept, as runs in progress use artefacts
            without a ref.
        dry_run: Only report.
    """
    grace = grace_days * SECONDS_PER_DAY
    found = find_garbage(store, _roots(home, store), facts, grace)
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


def sizes_of(store: Store) -> dict[str, dict[str, int]]:
    """Return the number of artefacts and their bytes, by stage."""
    return {item.stage: {"artefacts": item.artefacts, "bytes": item.size} for item in sizes(store)}


def _roots(home: Home, store: Store) -> set[tuple[str, str]]:
    """Return the trainings whose run was not deleted in MLflow.

    A training without a run in MLflow is kept, too: the database may be new, lost, or another home's.
    """
    known = {(TRAIN, key) for key in store.keys(TRAIN)}
    trainings = known | {(stage, key) for stage, key in store.removed() if stage == TRAIN}
    if not home.has_tracking:
        return trainings
    from storage.tracking import Tracking

    return trainings - {(TRAIN, key) for key in Tracking(home).deleted_train_keys()}
