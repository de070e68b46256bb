"""What `sheepfold compact` does: join small segments, and remove what was joined before."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flows.clearing import SECONDS_PER_DAY
from storage.home import Home
from storage.store import open_store
from tasks.compaction.compact import AT_LEAST, compact
from tasks.forgetting.sweep import finish_forgetting


def compact_home(home: str, at_least: int = AT_LEAST, grace_days: float = 1, dry_run: bool = False) -> dict[str, Any]:
    """Compact a home's store, or say what that would join; see `tasks.compaction.compact`.

    Args:
        grace_days: what was joined stays for so long after its last use.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    if not dry_run:
        finish_forgetting(place, store)  # what a kill left of it, before it is joined with what stays
    return {"dry_run": dry_run, **asdict(compact(store, at_least, grace_days * SECONDS_PER_DAY, dry_run))}
