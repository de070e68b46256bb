"""The work of `sheepfold rollback` and `sheepfold rebuild-tracking`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from storage.errors import UserError
from storage.home import Home
from storage.registry import Registry, read_models
from storage.store import open_store
from storage.tracking import Tracking
from tasks.registry.promote import rebuild, roll_back


def roll_back_champion(home: str, corpus: str, reason: str = "", to: str = "") -> dict[str, Any]:
    """Take back the champion of a corpus; see `tasks.registry.promote.roll_back`.

    Raises:
        UserError: if there is no version to go back to.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    if not place.has_tracking and not read_models(store, corpus).models:
        raise UserError(f"the home {place.path} has no registered model: `sheepfold run SOURCE` makes the first one")
    return asdict(roll_back(store, Registry(Tracking(place), corpus), reason, to))


def rebuild_tracking(home: str) -> dict[str, Any]:
    """Rebuild MLflow's database from the store; see `tasks.registry.promote.rebuild`."""
    place = Home.from_environment(home or None)
    return asdict(rebuild(open_store(place.store, place.cache), Tracking(place)))
