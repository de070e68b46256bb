"""Garbage collection: mark from the roots through manifests, and sweep what is not marked.

Roots are the store's names, artefacts that the caller names (registered models, runs), the inputs of unfinished work,
and everything that was made or used lately. Marked is what they were made from, down to the segments. Artefacts that
describe others (an evaluation of a model) stay with their inputs, see `StageFacts.keep_with`. A needed artefact that is
damaged stays, with its inputs: `verify --repair` has to find both.

An artefact is removed before its inputs, and its manifest first, so the sweep may be killed anywhere and run again.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from storage.manifest import ArtifactRef, Manifest, Name, StageFacts
from storage.store import Store, StoreError, Unfinished
from storage.tombstones import TOMBSTONES_REF


@dataclass
class StageSize:
    """Number and bytes of a stage's artefacts, and of the garbage among them."""

    stage: str
    artefacts: int = 0
    size: int = 0
    garbage: int = 0
    garbage_size: int = 0


@dataclass
class Garbage:
    """Artefacts and unfinished work that garbage collection would remove.

    Attributes:
        artefacts: each before its inputs.
        inputs: of each of them, those that are garbage too.
        work: unfinished work that has not been touched during the grace period.
        sizes: by stage.
    """

    artefacts: list[Name] = field(default_factory=list)
    inputs: dict[Name, set[Name]] = field(default_factory=dict)
    work: list[Unfinished] = field(default_factory=list)
    sizes: list[StageSize] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(item.garbage_size for item in self.sizes) + sum(work.size for work in self.work)


class _Manifests:
    """The manifests of a store, by name and by content.

    Attributes:
        bare: folders without a manifest, of artefacts whose removal was interrupted.
        unreadable: errors of manifests that cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.by_name: dict[Name, Manifest] = {}
        self.by_digest: dict[Name, list[Name]] = defaultdict(list)
        self.bare: list[Name] = []
        self.unreadable: dict[Name, str] = {}
        for name in store.artifacts():
            try:
                manifest = store.read_manifest(*name)
            except StoreError as error:
                self.unreadable[name] = str(error)
                continue
            if manifest is None:
                self.bare.append(name)
            else:
                self.by_name[name] = manifest
                self.by_digest[manifest.stage, manifest.digest].append(name)

    def resolve(self, ref: ArtifactRef) -> Collection[Name]:
        """Return an artefact, and those with its content if it is gone."""
        name = (ref.stage, ref.key)
        return [name] if name in self.by_name else [name, *self.by_digest.get((ref.stage, ref.digest), ())]

    def mark(self, needed: Iterable[Name], marked: set[Name]) -> None:
        """Add artefacts and everything they were made from to `marked`."""
        waiting = list(needed)
        while waiting:
            name = waiting.pop()
            if name in marked:
                continue
            marked.add(name)
            manifest = self.by_name.get(name) or self.store.removed_manifest(*name)
            for ref in manifest.input_refs() if manifest is not None else ():
                waiting += self.resolve(ref)

    def mark_companions(self, facts: Mapping[str, StageFacts], marked: set[Name]) -> None:
        """Mark artefacts whose `keep_with` inputs are all marked, until there are no more."""
        inputs = {}
        for name, manifest in self.by_name.items():
            if arguments := facts.get(name[0], StageFacts()).keep_with:
                known = [argument for argument in arguments if argument in manifest.inputs]
                inputs[name] = [ref for argument in known for ref in manifest.input_refs(argument)]
        while kept := [
            name
            for name, refs in inputs.items()
            if name not in marked and not any(marked.isdisjoint(self.resolve(ref)) for ref in refs)
        ]:
            self.mark(kept, marked)

    def sizes(self, garbage: Collection[Name] = ()) -> list[StageSize]:
        """Return number and bytes of each stage's artefacts."""
        found: dict[str, StageSize] = {}
        for name, manifest in sorted(self.by_name.items()):
            total, size = found.setdefault(name[0], StageSize(name[0])), sum(entry.size for entry in manifest.files)
            total.artefacts += 1
            total.size += size
            if name in garbage:
                total.garbage += 1
                total.garbage_size += size
        return list(found.values())


def sizes(store: Store) -> list[StageSize]:
    """Return number and bytes of each stage's artefacts."""
    return _Manifests(store).sizes()


def find_garbage(store: Store, roots: Iterable[Name], facts: Mapping[str, StageFacts], grace: float) -> Garbage:
    """Return what nothing needs.

    Args:
        roots: artefacts that are needed although no name of the store leads to them.
        facts: by stage.
        grace: seconds for which everything stays that was made or used, unfinished work too.

    Raises:
        StoreError: if the manifest of a needed artefact cannot be read, because its inputs are unknown then.
    """
    before = time.time() - grace
    store = copy.copy(store)  # which has no listings yet
    known = _Manifests(store)
    owned = store.unfinished(owned=True)  # before the idle: what loses its owner meanwhile is in both, not in none
    idle = store.unfinished()
    work = [*owned, *(item for item in idle if item.touched > before)]
    marked: set[Name] = set()
    known.mark(
        [
            *roots,
            *named(store),
            *(name for item in work for name in (item.inputs or ())),
            *((item.stage, item.key) for item in work),
            *(name for name in (*known.by_name, *known.unreadable) if store.last_used(*name) > before),
        ],
        marked,
    )
    known.mark_companions(facts, marked)
    for name in marked & known.unreadable.keys():
        raise StoreError(
            f"{'/'.join(name)} is needed and its manifest cannot be read ({known.unreadable[name]}), so its inputs are "
            "unknown and nothing is removed: run `sheepfold verify --repair` first"
        )
    garbage = {name: found for name, found in known.by_name.items() if name not in marked}
    inputs = {
        name: {(ref.stage, ref.key) for ref in manifest.input_refs()} & garbage.keys()
        for name, manifest in garbage.items()
    }
    bare = [name for name in known.bare if name not in marked and store.last_used(*name) <= before]
    return Garbage(
        artefacts=[*reversed(list(TopologicalSorter(inputs).static_order())), *bare],
        inputs=inputs,
        work=[item for item in idle if item.touched <= before],
        sizes=known.sizes(garbage),
    )


def remove_garbage(store: Store, garbage: Garbage, grace: float) -> list[Name]:
    """Remove garbage; returns what was left because it was used meanwhile, and the inputs of that."""
    left: list[Name] = []
    needed: set[Name] = set()
    for name in garbage.artefacts:
        if name not in needed and store.last_used(*name, fresh=True) <= time.time() - grace:
            try:
                store.remove(*name)
                continue
            except StoreError:  # a process works on it
                pass
        left.append(name)
        needed |= garbage.inputs.get(name, set())
    for item in garbage.work:
        store.remove_work(item.stage, item.key)
    return left


def named(store: Store) -> Iterator[Name]:
    """Yield the artefacts that the names of a store lead to."""
    for name in store.refs(""):
        if name != TOMBSTONES_REF:
            yield from _names_in(store.read_ref(name))


def _names_in(value: Any) -> Iterator[Name]:
    if isinstance(value, dict) and {"stage", "key", "digest"} <= value.keys():
        yield value["stage"], value["key"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _names_in(item)
