"""Garbage: artefacts that nothing needs any more, found by mark and sweep over manifests.

What is needed: what a name stands at, what the caller names (registered models, runs), what unfinished work reads, what
was made or used lately; and everything that one of these was made from, down to the segments. Some artefacts are at the
end of no such way, but say something about what stays (an evaluation of a model, its completions); they stay with it.

What is needed stays although it is damaged, with what it was made from: `verify --repair` has to find both.

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
        inputs: what each of them was made from.
        work: unfinished work that nobody went on with.
        records: manifests of removed artefacts, to which no lineage leads any more.
        sizes: by stage.
    """

    artefacts: list[Name] = field(default_factory=list)
    inputs: dict[Name, set[Name]] = field(default_factory=dict)
    work: list[Unfinished] = field(default_factory=list)
    records: list[Name] = field(default_factory=list)
    sizes: list[StageSize] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that would be free."""
        return sum(item.garbage_size for item in self.sizes) + sum(work.size for work in self.work)


@dataclass
class _Store:
    """The manifests of a store, by name and by content.

    Attributes:
        bare: folders without a manifest, of artefacts whose removal was interrupted.
        unreadable: what is wrong with a manifest that cannot be read.
    """

    manifests: dict[Name, Manifest] = field(default_factory=dict)
    by_digest: dict[Name, list[Name]] = field(default_factory=lambda: defaultdict(list))
    bare: list[Name] = field(default_factory=list)
    unreadable: dict[Name, str] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store) -> _Store:
        found = cls()
        for stage in store.stages():
            for key in store.keys(stage):
                try:
                    manifest = store.told(stage, key)
                except StoreError as error:
                    found.unreadable[stage, key] = str(error)
                    continue
                if manifest is None:
                    found.bare.append((stage, key))
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

    Raises:
        StoreError: if the manifest of something that is needed cannot be read: it alone says what else is.
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
        *(name for name in (*known.manifests, *known.unreadable) if store.used(*name) > before),
    ]
    marked = _marked(store, known, needed)
    for name in marked & known.unreadable.keys():
        raise StoreError(
            f"{'/'.join(name)} is needed and its manifest cannot be read ({known.unreadable[name]}), so nobody knows "
            "what it was made from and nothing is removed: `sheepfold verify --repair` first"
        )
    inputs = _inputs_of({name: found for name, found in known.manifests.items() if name not in marked}, known)
    names = _consumers_first(inputs)
    bare = [name for name in known.bare if name not in marked and store.used(*name) <= before]
    return Garbage(
        artefacts=[*names, *bare],
        inputs=inputs,
        work=[item for item in idle if item.touched <= before],
        records=[name for name in store.records() if name not in marked],
        sizes=_sizes(known, set(names)),
    )


def remove_garbage(store: Store, garbage: Garbage, grace: float = GRACE_SECONDS) -> list[Name]:
    """Remove it; returns what was left because somebody came to use it meanwhile, or what that was made from."""
    left: list[Name] = []
    needed: set[Name] = set()
    for name in garbage.artefacts:
        if name not in needed and store.used(*name) <= time.time() - grace and _removed(store, name):
            continue
        left.append(name)
        needed |= garbage.inputs.get(name, set())
    for item in garbage.work:
        store.remove_work(item.stage, item.key)
    for stage, key in garbage.records:
        store.remove_record(stage, key)
    return left


def _removed(store: Store, name: Name) -> bool:
    try:
        store.remove(*name)
    except StoreError:
        return False  # somebody works on it
    return True


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


def _inputs_of(manifests: dict[Name, Manifest], known: _Store) -> dict[Name, set[Name]]:
    """Those of some artefacts that each of them was made from."""
    return {
        name: {found for ref in manifest.input_refs() for found in _present(ref, known)} & manifests.keys() - {name}
        for name, manifest in manifests.items()
    }


def _consumers_first(inputs: dict[Name, set[Name]]) -> list[Name]:
    """Artefacts in an order in which each comes before those that it was made from."""
    consumers = Counter(name for names in inputs.values() for name in names)
    ready = [name for name in sorted(inputs) if not consumers[name]]
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
