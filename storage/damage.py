"""Errors of readers, explained by damaged inputs.

Gigabytes are not hashed before each use. The files are checked when something cannot be read, because the errors of the
libraries name no cause; damage that can still be read is found by `sheepfold verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from storage.digest import sha256_file
from storage.errors import UserError, lasting_fault
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError


def find_damage(store: Store, stage: str, key: str) -> str:
    """Return a phrase on what is wrong with an artefact; empty if it is sound.

    Raises:
        StoreError: if its manifest cannot be read, or a file in a store on S3 is not what the manifest lists.
    """
    manifest = store.find(stage, key, fresh=True)
    if manifest is None:
        return f"{stage}/{key} lacks files, or has them cut short"
    folder = store.folder(manifest.ref)
    for entry in manifest.files:
        if sha256_file(folder / entry.name) != entry.sha256:
            return f"{folder / entry.name} is damaged: it is not what its manifest lists"
    return ""


@contextmanager
def explain_damage(store: Store, refs: Iterable[ArtifactRef]) -> Iterator[None]:
    """Raise StoreError in place of an error inside, if one of the artefacts that are read is damaged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        for ref in refs if lasting_fault(error) is None else ():
            damage = find_damage(store, ref.stage, ref.key)
            if damage:
                raise StoreError(
                    f"{damage}, so the disk or another program changed it: run again with --refresh {ref.stage}, or "
                    "let `sheepfold verify --repair` remove all that is damaged and run again"
                ) from error
        raise
