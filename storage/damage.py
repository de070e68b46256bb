"""Damage: files of artefacts that are not any more what their manifests list.

Nobody hashes gigabytes before each use. It is done when something cannot be read, because what libraries say of that
helps nobody; damage that still can be read is found by `sheepfold verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from storage.digest import sha256_file
from storage.errors import UserError, lasting_fault
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError


def damage_of(store: Store, refs: Iterable[ArtifactRef]) -> str:
    """The first damaged file of some artefacts in words, and what to do; empty where they are all as they were made."""
    for ref in refs:
        try:
            manifest = store.find(ref.stage, ref.key)
        except StoreError as error:
            return str(error)
        if manifest is None:
            return f"{ref.stage}/{ref.key} lacks files, or has them cut short: run the same command again"
        folder = store.folder(ref)
        for entry in manifest.files:
            if sha256_file(folder / entry.name) != entry.sha256:
                return (
                    f"{folder / entry.name} is damaged: it is not what its manifest lists, so the disk or another "
                    f"program changed it: run again with --refresh {ref.stage}, or let `sheepfold verify --repair` set "
                    "aside all that is damaged and run again"
                )
    return ""


@contextmanager
def told_of_damage(store: Store, refs: Iterable[ArtifactRef]) -> Iterator[None]:
    """Name the damaged artefact, where one is behind an error of those who read these inside.

    Raises:
        StoreError: then, in place of the error.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        damage = "" if lasting_fault(error) is not None else damage_of(store, refs)
        if damage:
            raise StoreError(damage) from error
        raise
