"""The store's own book of registered models: which versions there are, what they rest on, and who bears which name.

MLflow's registry is what people browse, and a projection: with this book, and the manifests that it names, a lost one
is built again with the same numbers and the same names. Each version and the names have a ref of their own, so that a
promotion writes two small files however many versions there are; and what refs name is never cleared up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.manifest import ArtifactRef
from storage.store import Store

VERSIONS = "registered/versions/"
NAMES = "registered/names"


@dataclass(frozen=True)
class Registered:
    """One registered version.

    Attributes:
        version: its number.
        checkpoint: the artefact it was made from.
        evaluation: the figures that it was registered with; None where they are not known.
        gates: the verdicts that were passed on it last.
        traced: whether its training text may be looked into when it is measured, as the person said who had it judged.
        tags, description: as they stand in the registry.
        run_tags: tags of its training's run that do not follow from the store.
    """

    version: str
    checkpoint: ArtifactRef
    evaluation: ArtifactRef | None = None
    gates: ArtifactRef | None = None
    traced: bool = True
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    run_tags: Mapping[str, str] = field(default_factory=dict)


def note_version(store: Store, item: Registered) -> None:
    """Write a version into the book, if it is not there like this."""
    value = asdict(item)
    del value["version"]
    _write(store, f"{VERSIONS}{item.version}", value)


def noted_version(store: Store, version: str) -> Registered | None:
    """A version as the book has it, or None."""
    value = store.read_ref(f"{VERSIONS}{version}")
    return None if value is None else _registered(version, value)


def noted_versions(store: Store) -> list[Registered]:
    """All versions, the oldest first."""
    numbers = (name.removeprefix(VERSIONS) for name in store.refs(VERSIONS))
    found = (noted_version(store, number) for number in sorted(numbers, key=int))
    return [item for item in found if item is not None]


def note_names(store: Store, names: Mapping[str, str]) -> None:
    """Write who bears which name.

    Args:
        names: version by alias.
    """
    _write(store, NAMES, dict(names))


def newest_number(store: Store) -> int:
    """The highest number in the book; 0 where it is empty."""
    return max((int(name.removeprefix(VERSIONS)) for name in store.refs(VERSIONS)), default=0)


def noted_names(store: Store) -> dict[str, str]:
    """Version by alias; empty before the first promotion."""
    return store.read_ref(NAMES) or {}


def _write(store: Store, name: str, value: dict[str, Any]) -> None:
    if store.read_ref(name) != value:
        store.write_ref(name, value)


def _registered(version: str, value: Mapping[str, Any]) -> Registered:
    refs = {
        name: None if value[name] is None else ArtifactRef(**value[name])
        for name in ("checkpoint", "evaluation", "gates")
    }
    return Registered(**{**value, **refs, "version": version})
