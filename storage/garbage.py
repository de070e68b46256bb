"""Garbage: artefacts that nothing needs any more, found by mark and sweep over manifests.

What is needed: what a name stands at, what the caller names (registered models, runs), what unfinished work reads, what
was made or used lately; and everything that one of these was made from, down to the segments. Some artefacts are at the
end of no such way, but say something about what stays (an evaluation of a model, its completions); they stay with it.

Removal takes an artefact before those that it was made from, so that at no moment something stands there whose inputs
are gone, and of each the manifest first (see `Store.remove`). It may be killed anywhere and started again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, StoreError, Unfinished
from storage.tombstones import TOMBSTONES_REF

GRACE_SECONDS = 7 * 24 * 3600.0

# Stages whose artefacts no name leads to, with the inputs that they stay with.
BESIDE = {
    "evaluate": ("checkpoint", "evalset"),
    "exam": ("checkpoint",),
    "gates": ("checkpoint", "evaluation"),
    "complete": ("checkpoint",),
    "generate": ("parts",),
    "echoes": ("completions",),
    "ngram": ("dataset",),
    "evalset_overlap": ("measures", "evalset"),
    "evalset_leaks": ("curated", "evalset"),
    "gram_overlap": ("evalset", "documents"),
    "contamination": ("evalset", "overlaps"),
    "trace_index": ("documents",),
}

Name = tuple[str, str]  # stage and key


@dataclass(frozen=True)
class StageSize:
    """How much of a stage is there, and how much of it is garbage; sizes in bytes."""

    stage: str
    artefacts: int = 0
    size: int = 0
    garbage: int = 0
    garbage_size: int = 0


@dataclass
class Garbage:
    """What can be removed.

    Attributes:
        artefacts: each before those that it was made from.
        work: unfinished work that nobody went on with.
        records: manifests of removed artefacts, to which no lineage leads any more.
        sizes: by stage.
    """

    artefacts: list[Name] = field(default_factory=list)
    work: list[Unfinished] = field(default_factory=list)
    records: list[Name] = field(default_factory=list)
    sizes: list[StageSize] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that would be free."""
        return sum(item.garbage_size for item in self.sizes) + sum(work.size for work in self.work)


@dataclass
class _Store:
    """The manifests of a store, by name and by content."""

    manifests: dict[Name, Manifest] = field(default_factory=dict)
    by_digest: dict[Name, list[Name]] = field(default_factory=lambda: defaultdict(list))
    broken: list[Name] = field(default_factory=list)

    @classmethod
    def read(cls, store: Store) -> _Store:
        found = cls()
        for stage in store.stages():
            for key in store.keys(stage):
                try:
                    manifest = store.find(stage, key)
                except StoreError:
                    continue  # `verify` says what is wrong with it
                if manifest is None:
                    found.broken.append((stage, key))
                else:
                    found.manifests[stage, key] = manifest
                    found.by_digest[stage, manifest.digest].append((stage, key))
        return found


def sizes(store: Store) -> list[StageSize]:
    """How much of each stage is there."""
    return _sizes(_Store.read(store), ())


def find_garbage(store: Store, roots: Iterable[Name], grace: float = GRACE_SECONDS) -> Garbage:
    """What nothing needs.

    Args:
        roots: artefacts that are needed although no name of the store stands at them.
        grace: seconds for which everything stays that was made or used; unfinished work too.
    """
    before = time.time() - grace
    known = _Store.read(store)
    idle = store.unfinished()
    work = [*store.unfinished(owned=True), *(item for item in idle if item.touched > before)]
    needed = [
        *roots,
        *named(store),
        *(name for item in work for name in (item.inputs or ())),
        *((item.stage, item.key) for item in work),
        *(name for name in known.manifests if store.used(*name) > before),
    ]
    marked = _marked(store, known, needed)
    names = _consumers_first({name: found for name, found in known.manifests.items() if name not in marked})
    return Garbage(
        artefacts=[*names, *(name for name in known.broken if store.used(*name) <= before)],
        work=[item for item in idle if item.touched <= before],
        records=[name for name in store.records() if name not in marked],
        sizes=_sizes(known, set(names)),
    )


def remove_garbage(store: Store, garbage: Garbage, grace: float = GRACE_SECONDS) -> list[Name]:
    """Remove it; returns what was left because somebody came to use it meanwhile."""
    left = []
    for stage, key in garbage.artefacts:
        if store.used(stage, key) > time.time() - grace:
            left.append((stage, key))
            continue
        try:
            store.remove(stage, key)
        except StoreError:
            left.append((stage, key))
    for item in garbage.work:
        store.remove_work(item.stage, item.key)
    for stage, key in garbage.records:
        store.remove_record(stage, key)
    return left


def named(store: Store) -> Iterator[Name]:
    """The artefacts that the names of a store stand at."""
    for name in store.refs(""):
        if name != TOMBSTONES_REF:
            yield from _names_in(store.read_ref(name))


def _names_in(value: Any) -> Iterator[Name]:
    if isinstance(value, dict) and {"stage", "key", "digest"} <= value.keys():
        yield value["stage"], value["key"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _names_in(item)


def _marked(store: Store, known: _Store, needed: Iterable[Name]) -> set[Name]:
    """Everything that is needed, present or removed."""
    marked: set[Name] = set()
    _mark(store, known, needed, marked)
    waiting = [manifest for manifest in known.manifests.values() if manifest.stage in BESIDE]
    while True:
        stays = [found for found in waiting if (found.stage, found.key) not in marked and _stays(found, known, marked)]
        if not stays:
            return marked
        _mark(store, known, ((found.stage, found.key) for found in stays), marked)


def _mark(store: Store, known: _Store, needed: Iterable[Name], marked: set[Name]) -> None:
    waiting = list(needed)
    while waiting:
        name = waiting.pop()
        if name in marked:
            continue
        marked.add(name)
        manifest = known.manifests.get(name) or store.record(*name)
        for ref in manifest.input_refs() if manifest is not None else ():
            waiting += _present(ref, known)


def _present(ref: ArtifactRef, known: _Store) -> Collection[Name]:
    """The artefact, or those with its content where it is gone."""
    name = (ref.stage, ref.key)
    return [name] if name in known.manifests else [name, *known.by_digest.get((ref.stage, ref.digest), ())]


def _stays(manifest: Manifest, known: _Store, marked: set[Name]) -> bool:
    inputs = (ref for name in BESIDE[manifest.stage] if name in manifest.inputs for ref in manifest.input_refs(name))
    return all(not marked.isdisjoint(_present(ref, known)) for ref in inputs)


def _consumers_first(manifests: dict[Name, Manifest]) -> list[Name]:
    """Artefacts in an order in which each comes before those that it was made from."""
    inputs = {
        name: {(ref.stage, ref.key) for ref in manifest.input_refs()} & manifests.keys()
        for name, manifest in manifests.items()
    }
    consumers = Counter(name for names in inputs.values() for name in names)
    ready = [name for name in sorted(manifests) if not consumers[name]]
    ordered = []
    while ready:
        name = ready.pop()
        ordered.append(name)
        for other in inputs[name]:
            consumers[other] -= 1
            if not consumers[other]:
                ready.append(other)
    return ordered


def _sizes(known: _Store, garbage: Collection[Name]) -> list[StageSize]:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, manifest in known.manifests.items():
        size = sum(entry.size for entry in manifest.files)
        total = totals[manifest.stage]
        total[0] += 1
        total[1] += size
        if name in garbage:
            total[2] += 1
            total[3] += size
    return [StageSize(stage, *total) for stage, total in sorted(totals.items())]
