"""Lineage: the inputs and the descendants of artefacts, read from manifests alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, StoreError


def manifest_of(store: Store, ref: ArtifactRef) -> Manifest:
    """Return the manifest of an artefact in the store, or the kept manifest of a removed one.

    Raises:
        StoreError: if there is none.
    """
    manifest = store.find(ref.stage, ref.key) or store.removed_manifest(ref.stage, ref.key)
    if manifest is None:
        raise StoreError(f"the artefact {ref.stage}/{ref.key} is not in the store: run the command that made it again")
    return manifest


def segment_of(store: Store, ref: ArtifactRef) -> str:
    """Return the key of the extraction segment that a per-segment artefact comes from."""
    while True:
        manifest = manifest_of(store, ref)
        if "segment" in manifest.inputs:
            return manifest.input_refs("segment")[0].key
        if "documents" not in manifest.inputs:
            return ref.key
        ref = manifest.input_refs("documents")[0]


def ancestors(store: Store, ref: ArtifactRef) -> Iterator[tuple[int, Manifest]]:
    """Yield distance and manifest of an artefact and of its inputs, direct and indirect: nearest first, each once."""
    seen = {ref.key}
    waiting = [(0, ref)]
    while waiting:
        depth, current = waiting.pop(0)
        manifest = manifest_of(store, current)
        yield depth, manifest
        for parent in manifest.input_refs():
            if parent.key not in seen:
                seen.add(parent.key)
                waiting.append((depth + 1, parent))


def ancestor(store: Store, ref: ArtifactRef, stage: str) -> Manifest:
    """Return the manifest of the nearest artefact of a stage among `ref` and its ancestors.

    Raises:
        StoreError: if there is none.
    """
    for _, manifest in ancestors(store, ref):
        if manifest.stage == stage:
            return manifest
    raise StoreError(f"{ref.stage}/{ref.key} was not made from an artefact of stage {stage}")


def location_of(store: Store, ref: ArtifactRef) -> str:
    """Return the folder or the `s3://` address of an artefact; nothing is downloaded."""
    return f"{store.address}/{ref.stage}/{ref.key}"


def descendants(store: Store, sources: Iterable[ArtifactRef], beyond: Collection[str] = ()) -> list[Manifest]:
    """Return the manifests of all artefacts made from `sources`, directly or not, in any order.

    Inputs are compared by content: a manifest may name an input of the same content under another key. Removed
    artefacts are followed by their kept manifests, and not returned.

    Args:
        sources: the artefacts to start from; not returned themselves.
        beyond: stages at which the search ends: their artefacts are returned, without their descendants.
    """
    made: dict[tuple[str, str], list[Manifest]] = defaultdict(list)
    present = [manifest for stage in store.stages() for manifest in store.manifests(stage)]
    removed = [store.removed_manifest(*name) for name in store.removed() if store.find(*name) is None]
    gone = {manifest.ref: manifest for manifest in removed if manifest is not None}
    for manifest in (*present, *gone.values()):
        for ref in set(manifest.input_refs()):
            made[ref.stage, ref.digest].append(manifest)
    found: dict[ArtifactRef, Manifest] = {}
    given = set(sources)
    waiting = list(given)
    while waiting:
        ref = waiting.pop()
        for manifest in made[ref.stage, ref.digest]:
            if manifest.ref not in found and manifest.ref not in given:
                found[manifest.ref] = manifest
                if manifest.stage not in beyond:
                    waiting.append(manifest.ref)
    return [manifest for ref, manifest in found.items() if ref not in gone]
