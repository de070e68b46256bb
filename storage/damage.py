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


def damage_of(store: Store, refs: Iterable[ArtifactRef]) -> str:
    """Return a sentence on the first damaged file of some artefacts and what to do; empty if all are sound."""
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
def explain_damage(store: Store, refs: Iterable[ArtifactRef]) -> Iterator[None]:
    """Raise StoreError in place of an error inside, if one of the artefacts that are read is damaged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        damage = "" if lasting_fault(error) is not None else damage_of(store, refs)
        if damage:
            raise StoreError(damage) from error
        raise
