"""Status of a home: addresses, corpora, champions, artefacts and their sizes; and the collection of its garbage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from storage.catalog import corpora
from storage.gc import find_garbage, remove_garbage, sizes
from storage.home import Home
from storage.manifest import StageFacts
from storage.registry import CHAMPION, ModelVersion, find_version, registered_versions
from storage.store import Store

SECONDS_PER_DAY = 24 * 3600.0
TRAIN = "train"
_TAGS = "sheepfold."  # prefix of the tags that hold a version's figures and inputs


def status_of(home: Home, store: Store, corpus: str = "default") -> dict[str, Any]:
    """Return the status, as `sheepfold status --json` prints it.

    Args:
        corpus: whose champion is shown as `champion`.
    """
    known = corpora(store)
    versions = registered_versions(store)
    champions = {name: _champion(versions, name) for name in known}
    return {
        "home": str(home.path),
        "store": home.store,
        # without a server, each command starts one of its own and ends it
        "prefect_api_url": os.environ.get("PREFECT_API_URL"),
        "mlflow_tracking_uri": home.shown_tracking_uri,
        "corpora": known,
        "artifacts": {stage: len(store.keys(stage)) for stage in store.stages()},
        CHAMPION: champions[corpus] if corpus in champions else _champion(versions, corpus),
        "champions": champions,
    }


def _champion(versions: list[ModelVersion], corpus: str) -> dict[str, Any] | None:
    found = find_version(versions, CHAMPION, corpus)
    if found is None:
        return None
    return {
        "name": found.name,
        "version": found.version,
        "uri": f"models:/{found.name}@{CHAMPION}",
        "run_id": found.run_id,
        "checkpoint": asdict(found.checkpoint),
        "tags": {name.removeprefix(_TAGS): value for name, value in found.tags.items() if name.startswith(_TAGS)},
    }


def status_at_a_glance(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status for a person: of the champions of corpora only the versions, of the chosen one everything."""
    champions = {
        corpus: "none" if found is None else f"{found['name']} version {found['version']}"
        for corpus, found in document["champions"].items()
    }
    return {**document, "champions": champions}


# garbage: what neither a name nor the training of a run needs


def collect_garbage(
    home: Home, store: Store, facts: Mapping[str, StageFacts], grace_days: float, dry_run: bool
) -> dict[str, Any]:
    """Remove what nothing needs and return what was removed, as `sheepfold gc --json` prints it.

    Args:
        facts: facts of every stage.
        grace_days: days for which everything stays that was made or used; runs in progress use what no name leads to.
        dry_run: remove nothing, only report.
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
    """Return the trainings whose run was not deleted in MLflow; those of registered models the store knows by itself.

    A training without a run in MLflow is kept, too: the database may be new, lost, or another home's.
    """
    known = {(TRAIN, key) for key in store.keys(TRAIN)}
    trainings = known | {(stage, key) for stage, key in store.removed() if stage == TRAIN}
    if not home.has_tracking:
        return trainings
    from storage.tracking import Tracking

    return trainings - {(TRAIN, key) for key in Tracking(home).deleted_train_keys()}
