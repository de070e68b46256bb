"""What `sheepfold rollback` and `sheepfold rebuild-tracking` do: names of models that a person moves, or gets back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from storage.errors import UserError
from storage.home import Home
from storage.registered import noted_names
from storage.registry import Registry
from storage.store import open_store
from storage.tracking import Tracking
from tasks.rebuild import rebuild
from tasks.registration import is_lost
from tasks.rollback import roll_back


def roll_back_champion(home: str, reason: str = "", to: str = "") -> dict[str, Any]:
    """Take the champion back; see `tasks.rollback`. A registry that was lost is made again first, as promotion does.

    Returns:
        What was done, and in `rebuilt` how many versions were put back into the registry.

    Raises:
        UserError: if there is no version to go back to.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    if not place.has_tracking and not noted_names(store):
        raise UserError(f"the home {place.path} has no registered model: `sheepfold run SOURCE` makes the first one")
    registry = Registry(Tracking(place))
    rebuilt = len(rebuild(store, registry.tracking).versions) if is_lost(store, registry) else 0
    return {**asdict(roll_back(store, registry, reason, to)), "rebuilt": rebuilt}


def rebuild_tracking(home: str) -> dict[str, Any]:
    """Make MLflow's database again from the store; see `tasks.rebuild`."""
    place = Home.from_environment(home or None)
    return asdict(rebuild(open_store(place.store, place.cache), Tracking(place)))
