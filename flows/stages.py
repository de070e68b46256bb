"""The stages by name."""

from __future__ import annotations

from storage.manifest import StageFacts
from tasks.stage import Stage


def all_stages() -> dict[str, Stage]:
    """Return every stage of the flows, by name."""
    from flows import compare, evaluate, generate, ingest, prepare, trace, train
    from tasks.gates.stage import gates
    from tasks.tokens.groups import groups

    modules = (compare, evaluate, generate, ingest, prepare, trace, train)
    found = [item for module in modules for item in vars(module).values() if isinstance(item, Stage)]
    return {item.name: item for item in [*found, gates, groups]}


def stage_facts() -> dict[str, StageFacts]:
    """Return tables, retention and pinning of each stage, for the upkeep of a store."""
    return {name: item.facts for name, item in all_stages().items()}
