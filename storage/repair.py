"""Repair: what is damaged is set aside, so that the next run makes exactly it again; what is sound is not touched.

    <store>/.damaged/<stage>/<key>/            the artefact as it was found
    <store>/.damaged/<stage>/<key>.note.json   what was wrong with it, and since when it lies here
    <store>/.damaged/.refs/<name>.json         a name as it was found, with its note beside it

Nothing is mended in place: an artefact's key follows from its inputs and settings, so one that is not there is made
again. Its manifest is kept as that of a removed artefact, where it can be read, so that the lineage of what was made
from it still leads back.

A name is taken away only where a run writes it anew. Those of a corpus's tokeniser and evaluation set are written back
from the corpus's own ref, as without them the next run would fit and freeze others. The tombstones are never taken
away: without them forgotten documents would come back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.atomic import fsync_path, write_file
from storage.digest import sha256_file
from storage.locks import is_held, owner_lock
from storage.remote import RemoteStore
from storage.store import MANIFEST_NAME, LocalStore, Store, StoreError
from storage.tombstones import TOMBSTONES_REF
from storage.verify import Check

DAMAGED = ".damaged"
PINNED = ("tokenizer", "evalset")  # stages whose artefact a corpus keeps under `<stage>/<corpus>`
WRITTEN_AGAIN = "corpus/"  # by every run over the corpus


@dataclass(frozen=True)
class Repair:
    """What was done about one thing.

    Attributes:
        thing: STAGE/KEY of an artefact, or the name of a ref.
        done: whether it is out of the way.
        what: in a sentence, what was done, or why nothing was.
    """

    thing: str
    done: bool
    what: str


def repair(store: Store, checks: Iterable[Check]) -> list[Repair]:
    """Set aside what checks found to be damaged.

    It may be killed at any moment and called again.

    Raises:
        StoreError: if the store is of another kind.
    """
    if not isinstance(store, LocalStore):
        raise StoreError("only a store on a folder or on S3 can be repaired")
    things = {thing: check.name for check in checks for thing in check.damaged}
    names = [thing for thing, check in things.items() if check == "names"]
    artefacts = [thing for thing in things if thing not in names]
    if isinstance(store, RemoteStore):
        return [
            *(_repair_remote(store, *thing.split("/", 1)) for thing in artefacts),
            *(
                Repair(name, False, "left: restore it from a version that the bucket keeps, or remove it")
                for name in names
            ),
        ]
    # the ref of a corpus last: its other names are written back from it
    return [
        *(_repair_artefact(store, *thing.split("/", 1)) for thing in artefacts),
        *(_repair_name(store, name) for name in sorted(names, key=lambda name: name.startswith(WRITTEN_AGAIN))),
    ]


def discard_damaged(store: Store) -> None:
    """Take away the artefacts that were set aside, whatever they held; names hold no text, and stay."""
    if isinstance(store, LocalStore):
        for stage in _stages(store.root / DAMAGED):
            shutil.rmtree(stage)


def _stages(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def _repair_artefact(store: LocalStore, stage: str, key: str) -> Repair:
    thing = f"{stage}/{key}"
    lock = store.root / ".locks" / f"{stage}-{key}.lock"
    if is_held(lock):
        return Repair(thing, False, "left, because somebody works on it now: run this again when that has ended")
    with owner_lock(lock):
        wrong = _fault(store, stage, key)
        if wrong is None:
            return Repair(thing, True, "it is whole by now")
        folder = store.root / stage / key
        target = _set_aside(store, folder, Path(stage, key), thing, wrong)
    again = f"the next run that needs it makes it again; what was there lies in {target}"
    if stage in PINNED:
        again += "; a run over other documents than then makes another one in its place"
    return Repair(thing, True, f"set aside, because {wrong}: {again}")


def _repair_remote(store: RemoteStore, stage: str, key: str) -> Repair:
    """Fetch a damaged copy again, or take out what is damaged in the bucket, where nothing moves in one step."""
    thing = f"{stage}/{key}"
    store.drop_copy(stage, key)
    try:
        manifest = store.find(stage, key)
        if manifest is not None:
            store.folder(manifest.ref)
            return Repair(thing, True, "the copy on this machine was damaged and is fetched again; the bucket is whole")
        wrong = "it lacks files, or has them cut short"
    except StoreError as error:
        wrong = str(error).partition(": --refresh")[0]
    try:
        store.remove(stage, key, keep_record=True)
    except StoreError as error:
        return Repair(thing, False, f"left: {error}")
    return Repair(thing, True, f"removed from the bucket, because {wrong}: the next run that needs it makes it again")


def _fault(store: LocalStore, stage: str, key: str) -> str | None:
    """What is wrong with an artefact; the manifest of one that can be read is kept."""
    folder = store.root / stage / key
    try:
        manifest = store.find(stage, key)
    except StoreError:
        return f"its {MANIFEST_NAME} cannot be read"
    if manifest is None:
        wrong = "it lacks files, or has them cut short"
    else:
        changed = [entry.name for entry in manifest.files if sha256_file(folder / entry.name) != entry.sha256]
        if not changed:
            return None
        wrong = f"{', '.join(changed)} {'is' if len(changed) == 1 else 'are'} not what its manifest lists"
    if (folder / MANIFEST_NAME).is_file():
        store.keep_record(stage, key)
    return wrong


def _repair_name(store: LocalStore, name: str) -> Repair:
    if name == TOMBSTONES_REF:
        return Repair(
            name,
            False,
            "left: without it forgotten documents would come back; restore it from a backup, or remove it and forget "
            "them again before the next run",
        )
    stage, _, corpus = name.partition("/")
    if stage not in PINNED and not name.startswith(WRITTEN_AGAIN):
        return Repair(name, False, "left, because no run writes it anew: restore it from a backup, or remove it")
    with store.lock(name):
        try:
            store.read_ref(name)
        except StoreError as error:
            path = store.root / ".refs" / f"{name}.json"
            target = _set_aside(store, path, Path(".refs", f"{name}.json"), name, str(error))
        else:
            return Repair(name, True, "it can be read by now")
        if stage not in PINNED:
            return Repair(name, True, f"set aside: the next run over the corpus writes it again; it lay in {target}")
        known = _of_corpus(store, corpus, stage)
        if known is None:
            return Repair(
                name, True, "set aside, and no ref of the corpus tells what it stood at: the next run chooses anew"
            )
        store.write_ref(name, known)
    return Repair(name, True, f"written again from {WRITTEN_AGAIN}{corpus}: {stage}/{known['key']}")


def _of_corpus(store: LocalStore, corpus: str, stage: str) -> dict[str, Any] | None:
    """What the last complete run over a corpus used of a stage."""
    try:
        state = store.read_ref(f"{WRITTEN_AGAIN}{corpus}") or {}
    except StoreError:
        return None
    found: list[dict[str, Any]] = state.get(stage, [])
    return found[0] if found else None


def _set_aside(store: LocalStore, source: Path, place: Path, thing: str, wrong: str) -> Path:
    """Move something into the folder of damaged things, with a note beside it; returns where it lies."""
    target = store.root / DAMAGED / place
    number = 1
    while target.exists():  # it was damaged before
        number += 1
        target = store.root / DAMAGED / place.with_name(f"{place.stem}-{number}{place.suffix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    note = {"thing": thing, "wrong": wrong, "since": datetime.now(UTC).isoformat(timespec="seconds")}
    write_file(target.with_name(f"{target.name}.note.json"), json.dumps(note, indent=1).encode())
    source.rename(target)
    fsync_path(source.parent)
    fsync_path(target.parent)
    return target
