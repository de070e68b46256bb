"""The stages by name."""

from __future__ import annotations

from tasks.stage import Stage


def all_stages() -> dict[str, Stage]:
    """Return every stage of the flows, by name."""
    from flows import compare, evaluate, generate, ingest, prepare, trace, train
    from tasks.gates.stage import gates
    from tasks.tokens.groups import groups

    modules = (compare, evaluate, generate, ingest, prepare, trace, train)
    found = [item for module in modules for item in vars(module).values() if isinstance(item, Stage)]
    return {item.name: item for item in [*found, gates, groups]}
