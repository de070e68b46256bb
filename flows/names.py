"""What `sheepfold rollback` and `sheepfold rebuild-tracking` do: names of models that a person moves, or gets back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flows.actions import has_registry
from storage.errors import UserError
from storage.home import Home
from storage.registry import Registry
from storage.store import open_store
from storage.tracking import Tracking
from tasks.rebuild import rebuild
from tasks.rollback import roll_back


def roll_back_champion(home: str, reason: str = "", to: str = "") -> dict[str, Any]:
    """Take the champion back; see `tasks.rollback`.

    Raises:
        UserError: if there is no version to go back to.
    """
    place = Home.from_environment(home or None)
    if not has_registry(place):
        raise UserError(f"the home {place.path} has no registered model: `sheepfold run SOURCE` makes the first one")
    return asdict(roll_back(open_store(place.store, place.cache), Registry(Tracking(place)), reason, to))


def rebuild_tracking(home: str) -> dict[str, Any]:
    """Make MLflow's database again from the store; see `tasks.rebuild`."""
    place = Home.from_environment(home or None)
    return asdict(rebuild(open_store(place.store, place.cache), Tracking(place)))
