"""A stage that says where it ran; in a module of its own, because Ray's workers import it by name."""

from __future__ import annotations

from dataclasses import dataclass

from storage.digest import sha256_json
from tasks.core.stage import Work, stage


@dataclass(frozen=True)
class Place:
    """One of several requests."""

    number: int


@stage("place", version=1)
def place(work: Work, settings: Place) -> str:
    """Write down the node and the extraction processes of this task."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (work.out / "node.txt").write_text(f"{node} {work.machine.workers}")
    return sha256_json(settings.number)
