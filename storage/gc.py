"""Garbage collection: mark artefacts from the roots through manifests, and remove those that are not marked.

Roots are the refs of the store, artefacts given by the caller (registered models, runs), the inputs of unfinished work,
and artefacts made or used within the grace period. Their inputs are marked too, down to the segments. Artefacts that
describe others (an evaluation of a model) are kept with them, see `StageFacts.keep_with`. A marked artefact that is
damaged is kept with its inputs, for `verify --repair`.

An artefact is removed before its inputs, and its manifest first, so a removal may be killed anywhere and run again.
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
        artefacts: stage and key, each before its inputs.
        inputs: for each of them, its inputs that are garbage too.
        work: unfinished work without a change during the grace period.
        sizes: number and bytes of artefacts, per stage.
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
        bare: folders without a manifest, which an interrupted removal left.
        unreadable: error message of each manifest that cannot be read.
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
        """Return an artefact; if it was removed, also the artefacts with the same content."""
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
        """Mark artefacts whose `keep_with` inputs are all marked, until no more are found."""
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
        """Return number and bytes of the artefacts per stage."""
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
    """Return number and bytes of the artefacts per stage."""
    return _Manifests(store).sizes()


def find_garbage(store: Store, roots: Iterable[Name], facts: Mapping[str, StageFacts], grace: float) -> Garbage:
    """Return the artefacts and the unfinished work that can be removed.

    Args:
        roots: artefacts to keep in addition to those that refs of the store name.
        facts: properties of the stages, by name.
        grace: seconds since the last use during which artefacts and unfinished work are kept.

    Raises:
        StoreError: if the manifest of a needed artefact cannot be read, so that its inputs are unknown.
    """
    before = time.time() - grace
    store = copy.copy(store)  # the copy has no cached listings
    known = _Manifests(store)
    owned = store.unfinished(owned=True)  # before the idle: work that loses its owner in between is in both
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
    """Remove garbage; returns the artefacts that were kept because they are in use again, and their inputs."""
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
    """Yield the artefacts that the refs of a store name."""
    for name in store.refs(""):
        if name != TOMBSTONES_REF:
            yield from _names_in(store.read_ref(name))


def _names_in(value: Any) -> Iterator[Name]:
    if isinstance(value, dict) and {"stage", "key", "digest"} <= value.keys():
        yield value["stage"], value["key"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _names_in(item)
