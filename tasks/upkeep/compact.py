"""Compaction of a home: join small segments, and remove the ones that were joined before."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from storage.home import Home
from storage.store import Store
from tasks.compaction.compact import AT_LEAST, compact
from tasks.forgetting.sweep import finish_forgetting
from tasks.upkeep.gc import SECONDS_PER_DAY


def compact_home(
    home: Home, store: Store, at_least: int = AT_LEAST, grace_days: float = 1, dry_run: bool = False
) -> dict[str, Any]:
    """Compact the store of a home, and return what was joined as `sheepfold compact --json` prints it.

    Args:
        at_least: number of small segments that are worth joining.
        grace_days: days for which joined segments stay after their last use.
        dry_run: join nothing, only report.
    """
    if not dry_run:
        finish_forgetting(home, store)  # before documents that a killed `forget` left are joined with others
    return {"dry_run": dry_run, **asdict(compact(store, at_least, grace_days * SECONDS_PER_DAY, dry_run))}
