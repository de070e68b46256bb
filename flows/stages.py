"""The stages by name."""

from __future__ import annotations

import sys

from storage.manifest import StageFacts
from tasks.core.stage import Stage


def all_stages() -> dict[str, Stage]:
    """Return every stage of the flows, by name."""
    from flows import compare, retrain  # noqa: F401 - they import the modules of all stages

    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tasks.")]
    return {item.name: item for module in modules for item in vars(module).values() if isinstance(item, Stage)}


def stage_facts() -> dict[str, StageFacts]:
    """Return tables, retention and pinning of each stage, for the upkeep of a store."""
    return {name: item.facts for name, item in all_stages().items()}
