"""The stages by name."""

from __future__ import annotations

from flows import compare, retrain  # noqa: F401 - together they import the modules of all stages
from storage.manifest import StageFacts
from tasks.core.stage import Stage, imported_stages


def all_stages() -> dict[str, Stage]:
    """Return every stage of the flows, by name."""
    return imported_stages()


def stage_facts() -> dict[str, StageFacts]:
    """Return the facts of each stage (tables, retention, pinning), for the upkeep of a store."""
    return {name: item.facts for name, item in all_stages().items()}
