"""Lineage: read from manifests, never from a second book."""

from __future__ import annotations

from collections.abc import Iterator

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
    """The manifest of an artefact that must be there.

    Raises:
        StoreError: if it is not.
    """
    manifest = store.find(ref.stage, ref.key)
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
