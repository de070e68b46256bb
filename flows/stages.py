"""The stages by name."""

from __future__ import annotations

from flows import corpus, corpus_import, drift, pipeline, tracing
from storage.errors import UserError
from storage.manifest import StageFacts
from tasks.stage import Stage


def all_stages() -> dict[str, Stage]:
    """Every stage that the pipeline uses, by name."""
    from tasks.ablation import ablate
    from tasks.exams.stages import exam, keep_questions
    from tasks.gates.stage import gates
    from tasks.generation.stage import adopt_bundle

    found = [
        item
        for module in (corpus, corpus_import, drift, pipeline, tracing)
        for item in vars(module).values()
        if isinstance(item, Stage)
    ]
    return {item.name: item for item in [*found, ablate, adopt_bundle, exam, gates, keep_questions]}


def stage_facts() -> dict[str, StageFacts]:
    """Return what the upkeep of a store needs to know of each stage."""
    return {name: item.facts for name, item in all_stages().items()}


def stage_names(refresh: str) -> list[str]:
    """The stages named in a comma-separated list.

    Raises:
        UserError: for a stage that does not exist.
    """
    known = all_stages()
    names = [name.strip() for name in refresh.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"--refresh {', '.join(unknown)}: no such stage; stages are {', '.join(sorted(known))}")
    return names
