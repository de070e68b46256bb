"""Verification of a store (files, table schemas, inputs, refs) and repair of damage.

Repair removes a damaged artefact; the next run that needs it makes it again. A damaged ref is removed only if a run
writes it again. The ref of a pinned stage (tokeniser, evaluation set) is restored from the corpus's ref, because
without it the next run would make another artefact. A damaged ref of tombstones is kept: without it forgotten documents
would be read again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from storage.digest import sha256_file
from storage.errors import UserError, lasting_fault
from storage.manifest import ArtifactRef, Manifest, Name, StageFacts
from storage.store import Store, StoreError
from storage.tombstones import TOMBSTONES_REF

WHOLE, DIGESTS, SCHEMAS = "artefacts whole", "file digests", "table schemas"
INPUTS, NAMES = "inputs present", "names"
CORPUS = "corpus/"  # refs that every run over a corpus writes


@dataclass
class Check:
    """Result of one kind of check.

    Attributes:
        checked: number of items that were checked.
        problems: messages, one per problem.
        damaged: STAGE/KEY of artefacts, and refs, whose content is not what was written.
    """

    name: str
    checked: int = 0
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Repair:
    """Repair of one artefact or ref.

    Attributes:
        thing: STAGE/KEY of an artefact, or name of a ref.
        done: False if it is still damaged.
        what: a phrase on the repair, or on why there was none.
    """

    thing: str
    done: bool
    what: str


def check_store(store: Store, facts: Mapping[str, StageFacts]) -> list[Check]:
    """Check digests, schemas and inputs of every artefact, and that refs can be read.

    Other processes may make and remove artefacts during the check.

    Args:
        facts: properties of the stages, by name.
    """
    checked: Counter[str] = Counter()
    present = set(store.artifacts())
    suspects = [name for name in sorted(present) if _faults(store, facts, name, present, checked)]
    checks = {kind: Check(kind, checked[kind]) for kind in (WHOLE, DIGESTS, SCHEMAS, INPUTS)}
    if suspects:  # checked again, because they may have been in the middle of a commit
        again = copy.copy(store)  # the copy has no cached listings
        present = set(again.artifacts())
        found = [(name, fault) for name in suspects for fault in _faults(again, facts, name, present, Counter())]
        left = set(copy.copy(store).artifacts())  # garbage collection removes an artefact before its inputs
        for name, (kind, problem) in found:
            if name in left:
                checks[kind].problems.append(problem)
                checks[kind].damaged += ["/".join(name)] if kind in (WHOLE, DIGESTS) else []
    return [*checks.values(), _check_names(store)]


def _faults(
    store: Store, facts: Mapping[str, StageFacts], name: Name, present: Collection[Name], checked: Counter[str]
) -> list[tuple[str, str]]:
    """Return the problems of an artefact: (kind of check, message)."""
    checked[WHOLE] += 1
    owned = store.is_owned(*name)  # before it is read: it may be incomplete while an owner commits or removes it
    faults = []
    try:
        manifest = store.find(*name)
        if manifest is not None:
            faults = _file_faults(store, facts, manifest, checked)
    except StoreError as error:
        return [(WHOLE, str(error))]
    except FileNotFoundError:  # removed during the check
        manifest = None
    if manifest is None:
        lacks = f"{'/'.join(name)} lacks files, or has truncated ones; it is made again when it is needed"
        return faults if owned else [*faults, (WHOLE, lacks)]
    for ref in manifest.input_refs():
        checked[INPUTS] += 1
        if (ref.stage, ref.key) not in present and not _is_recorded(store, ref):
            faults.append((INPUTS, f"{'/'.join(name)} was made from {ref.stage}/{ref.key}, which is not in the store"))
    return faults


def _file_faults(
    store: Store, facts: Mapping[str, StageFacts], manifest: Manifest, checked: Counter[str]
) -> list[tuple[str, str]]:
    try:
        folder = store.folder(manifest.ref)
    except StoreError as error:  # a store on S3 checks digests when it downloads
        checked[DIGESTS] += 1
        return [(DIGESTS, str(error))]
    tables = facts.get(manifest.stage, StageFacts()).tables
    faults = []
    for entry in manifest.files:
        path = folder / entry.name
        checked[DIGESTS] += 1
        if fault := _content_fault(path, entry.sha256):
            faults.append((DIGESTS, f"{path} {fault}: --refresh {manifest.stage}"))
        elif entry.name in tables:
            checked[SCHEMAS] += 1
            if not pq.read_schema(path).equals(tables[entry.name]):
                faults.append((SCHEMAS, f"{path} does not have the schema of this version"))
    return faults


def _is_recorded(store: Store, ref: ArtifactRef) -> bool:
    try:
        return store.removed_manifest(ref.stage, ref.key) is not None
    except StoreError:
        return False


def _check_names(store: Store) -> Check:
    check = Check(NAMES)
    for name in store.refs(""):
        check.checked += 1
        try:
            store.read_ref(name)
        except StoreError as error:
            check.problems.append(str(error))
            check.damaged.append(name)
    return check


def find_damage(store: Store, stage: str, key: str) -> str:
    """Return a phrase on the damage of an artefact; empty if there is none.

    Raises:
        StoreError: if its manifest cannot be read, or a file in a store on S3 is not what the manifest lists.
    """
    manifest = store.find(stage, key, fresh=True)
    if manifest is None:
        return f"{stage}/{key} lacks files, or has truncated ones"
    folder = store.folder(manifest.ref)
    for entry in manifest.files:
        if fault := _content_fault(folder / entry.name, entry.sha256):
            return f"{folder / entry.name} is damaged: it {fault}"
    return ""


def _content_fault(path: Path, sha256: str) -> str:
    """Return the damage of a file as the end of a sentence; empty if there is none."""
    try:
        return "" if sha256_file(path) == sha256 else "is not what its manifest lists"
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"cannot be read ({error.strerror})"


@contextmanager
def explain_damage(store: Store, refs: Iterable[ArtifactRef]) -> Iterator[None]:
    """Replace an error inside by StoreError if one of the artefacts that are read is damaged.

    Files are not hashed before each use, but after an error, because errors of the libraries do not name the cause.
    """
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
                    "remove all damaged artefacts by `sheepfold verify --repair` and run again"
                ) from error
        raise


def repair(store: Store, checks: Iterable[Check], facts: Mapping[str, StageFacts]) -> list[Repair]:
    """Remove damaged artefacts and refs; may be killed at any moment and called again.

    Args:
        checks: results of `check_store`.
        facts: properties of the stages, by name.
    """
    damaged = {check.name: check.damaged for check in checks}
    # refs of corpora last: pinned refs are restored from them
    names = sorted(damaged.pop(NAMES), key=lambda name: name.startswith(CORPUS))
    artefacts = dict.fromkeys(thing for things in damaged.values() for thing in things)
    return [
        *(_repair_artifact(store, facts, thing) for thing in artefacts),
        *(_repair_name(store, facts, name) for name in names),
    ]


def _repair_artifact(store: Store, facts: Mapping[str, StageFacts], thing: str) -> Repair:
    stage, key = thing.split("/", 1)
    store.drop_copy(stage, key)
    try:
        wrong = find_damage(store, stage, key)
    except StoreError as error:
        wrong = str(error).rpartition(": ")[0]  # without the advice
    if not wrong:
        return Repair(thing, True, "no longer damaged, or downloaded again from S3")
    try:
        store.remove(stage, key, keep_manifest=True)
    except StoreError as error:
        return Repair(thing, False, f"kept: {error}")
    pinned = facts.get(stage, StageFacts()).pinned
    other = "; from other documents than at the time it will be another one" if pinned else ""
    return Repair(thing, True, f"removed, because {wrong}: the next run that needs it makes it again{other}")


def _repair_name(store: Store, facts: Mapping[str, StageFacts], name: str) -> Repair:
    if name == TOMBSTONES_REF:
        return Repair(
            name,
            False,
            "kept: without it forgotten documents would be read again; restore it from a backup, or remove it and "
            "forget them again before the next run",
        )
    stage, _, corpus = name.partition("/")
    if not name.startswith(CORPUS) and not facts.get(stage, StageFacts()).pinned:
        return Repair(name, False, "kept, because no run writes it again: restore it from a backup, or remove it")
    with store.lock(name):
        if _read_name(store, name) is not None:
            return Repair(name, True, "it is readable again")
        known = (_read_name(store, f"{CORPUS}{corpus}") or {}).get(stage)
        if known:
            store.write_ref(name, known[0])
            return Repair(name, True, f"written again from {CORPUS}{corpus}: {stage}/{known[0]['key']}")
        store.remove_ref(name)
    return Repair(name, True, "removed: the next run over the corpus writes it again")


def _read_name(store: Store, name: str) -> dict[str, Any] | None:
    """Return the value of a ref; None if it is absent or cannot be read."""
    try:
        return store.read_ref(name)
    except StoreError:
        return None
