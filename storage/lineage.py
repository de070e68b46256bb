"""Lineage: read from manifests, never from a second book."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, StoreError

# Along which input a per-segment artefact leads back to its segment.
_TOWARDS_SEGMENT = {
    "normalise": "segment",
    "measure": "documents",
    "score": "documents",
    "refine": "documents",
    "tokenise": "documents",
}


def manifest_of(store: Store, ref: ArtifactRef) -> Manifest:
    """The manifest of an artefact that must be there, or have been taken out while what was made from it stays.

    Raises:
        StoreError: if it is neither.
    """
    manifest = store.find(ref.stage, ref.key) or store.record(ref.stage, ref.key)
    if manifest is None:
        raise StoreError(f"the artefact {ref.stage}/{ref.key} is not in the store: run the command that made it again")
    return manifest


def segment_of(store: Store, ref: ArtifactRef) -> str:
    """Key of the extraction segment that a per-segment artefact comes from."""
    while ref.stage in _TOWARDS_SEGMENT:
        ref = manifest_of(store, ref).input_refs(_TOWARDS_SEGMENT[ref.stage])[0]
    return ref.key


def ancestors(store: Store, ref: ArtifactRef) -> Iterator[tuple[int, Manifest]]:
    """An artefact and all it was made from, nearest first, each once, with its distance."""
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
    """The nearest artefact of a stage behind `ref`.

    Raises:
        StoreError: if there is none.
    """
    for _, manifest in ancestors(store, ref):
        if manifest.stage == stage:
            return manifest
    raise StoreError(f"no artefact of stage {stage} stands behind {ref.stage}/{ref.key}")


def location_of(store: Store, ref: ArtifactRef) -> str:
    """Where an artefact lies; of one that is gone, its name."""
    return str(store.folder(ref)) if store.find(ref.stage, ref.key) is not None else f"{ref.stage}/{ref.key}"


def descendants(store: Store, sources: Iterable[ArtifactRef], beyond: Collection[str] = ()) -> list[Manifest]:
    """What was made from some artefacts, directly or not, in no order; the artefacts themselves are not among it.

    Artefacts are found by content, so a manifest may name an input of the same content under another key: what counts
    is the content. Where what stands between was taken out, its record leads on.

    Args:
        beyond: stages whose artefacts are given, but not what was made from those.
    """
    made: dict[tuple[str, str], list[Manifest]] = defaultdict(list)
    for stage in store.stages():
        for manifest in store.manifests(stage):
            for ref in set(manifest.input_refs()):
                made[ref.stage, ref.digest].append(manifest)
    gone = set()
    for name in store.records():
        record = None if store.find(*name) else store.record(*name)
        if record is not None:
            gone.add(record.ref)
            for ref in set(record.input_refs()):
                made[ref.stage, ref.digest].append(record)
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
