"""Checking a store: every artefact's files against its manifest, every table against its schema, every input there."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from storage import schemas
from storage.digest import sha256_file
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, StoreError

Name = tuple[str, str]  # stage and key

WHOLE, DIGESTS, SCHEMAS, INPUTS = "artefacts whole", "file digests", "table schemas", "inputs present"
_TABLES = {
    ("extract", "extracts.parquet"): schemas.EXTRACTS,
    ("extract", "pages.parquet"): schemas.PAGES,
    ("import", "extracts.parquet"): schemas.EXTRACTS,
    ("import", "pages.parquet"): schemas.PAGES,
    ("import", "documents.parquet"): schemas.NORMALISED,
    ("snapshot", "files.parquet"): schemas.FILES,
    ("normalise", "documents.parquet"): schemas.NORMALISED,
    ("measure", "measures.parquet"): schemas.MEASURES,
    ("score", "scores.parquet"): schemas.SCORES,
    ("dedup", "pairs.parquet"): schemas.NEAR_PAIRS,
    ("dedup", "verified.parquet"): schemas.VERIFIED_PAIRS,
    ("dedup", "clusters.parquet"): schemas.CLUSTERS,
    ("curate", "selection.parquet"): schemas.SELECTION,
    ("ablate", "selection.parquet"): schemas.SELECTION,
    ("ablate", "dropped.parquet"): schemas.DROPPED,
    ("ablate", "cuts.parquet"): schemas.CUTS,
    ("curate", "dropped.parquet"): schemas.DROPPED,
    ("curate", "cuts.parquet"): schemas.CUTS,
    ("refine", "documents.parquet"): schemas.REFINED,
    ("evalset", "documents.parquet"): schemas.EVALSET,
    ("evalset_overlap", "overlap.parquet"): schemas.EVALSET_OVERLAP,
    ("tokenise", "tokens.parquet"): schemas.TOKENS,
    ("groups", "groups.parquet"): schemas.GROUPS,
    ("dataset", "sequences.parquet"): schemas.SEQUENCES,
    ("dataset", "token_counts.parquet"): schemas.TOKEN_COUNTS,
    ("train", "history.parquet"): schemas.HISTORY,
    ("train", "telemetry.parquet"): schemas.HISTORY,
    ("evaluate", "metrics.parquet"): schemas.METRICS,
    ("evaluate", "documents.parquet"): schemas.EVALUATED,
    ("evaluate", "slices.parquet"): schemas.SLICES,
    ("evaluate", "calibration.parquet"): schemas.CALIBRATION,
    ("evaluate", "positions.parquet"): schemas.POSITIONS,
    ("complete", "completions.parquet"): schemas.COMPLETIONS,
    ("generate", "completions.parquet"): schemas.COMPLETIONS,
}


@dataclass
class Check:
    """Result of one kind of check.

    Attributes:
        checked: how many things were looked at.
        problems: what is wrong, one sentence each.
        damaged: artefacts (STAGE/KEY) and names of refs that are not what was written; see `storage.repair`.
    """

    name: str
    checked: int = 0
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Fault:
    """Something wrong with an artefact.

    Attributes:
        check: the kind of check that found it.
        damages: whether the artefact is not what was written.
        half: whether it may be the moment in which somebody puts the artefact there, or takes it away.
    """

    check: str
    problem: str
    damages: bool = True
    half: bool = False


@dataclass
class _Look:
    """What one look at an artefact gave: how many things of each kind were checked, and what is wrong."""

    checked: Counter[str] = field(default_factory=Counter)
    faults: list[_Fault] = field(default_factory=list)


def check_store(store: Store) -> list[Check]:
    """Check digests, schemas and inputs of every artefact, and that names and records can be read.

    Others may work meanwhile: what they make or take out while we look is no problem.
    """
    checks = {name: Check(name) for name in (WHOLE, DIGESTS, SCHEMAS, INPUTS)}
    present = _present(store)
    suspects = []
    for name in sorted(present):
        found = _look(store, name, present)
        for check, n in found.checked.items():
            checks[check].checked += n
        if found.faults:
            suspects.append(name)
    for (stage, key), fault in _confirmed(store, suspects):
        checks[fault.check].problems.append(fault.problem)
        if fault.damages:
            checks[fault.check].damaged.append(f"{stage}/{key}")
    return [*checks.values(), _check_names(store)]


def _present(store: Store) -> set[Name]:
    return {(stage, key) for stage in store.stages() for key in store.keys(stage)}


def _confirmed(store: Store, suspects: Sequence[Name]) -> list[tuple[Name, _Fault]]:
    """What is wrong still when it is looked at again.

    An artefact is only ever half there in the hands of an owner, and the owner of a moment ago is done by the second
    look. Whoever removes takes an artefact before those that it was made from, so one whose input is gone for good
    reason is gone itself by the third.
    """
    if not suspects:
        return []
    owners = store.owners()
    again = copy.copy(store)  # a copy of a store elsewhere has listed nothing yet
    present = _present(again)
    found = [(name, fault) for name in suspects for fault in _look(again, name, present).faults]
    left = _present(copy.copy(store))
    return [(name, fault) for name, fault in found if name in left and not (fault.half and _is_owned(name, owners))]


def _is_owned(name: Name, owners: Iterable[str]) -> bool:
    return any(words.endswith(f" works on {'-'.join(name)}") for words in owners)


def _look(store: Store, name: Name, present: Collection[Name]) -> _Look:
    found = _Look()
    found.checked[WHOLE] += 1
    try:
        manifest = store.find(*name)
        if manifest is not None:
            _look_at_files(store, manifest, found)
    except StoreError as error:
        found.faults.append(_Fault(WHOLE, str(error)))
        return found
    except FileNotFoundError:  # of an artefact that was there a moment ago
        manifest = None
    if manifest is None:
        lacks = f"{'/'.join(name)} lacks files, or has them cut short; it is made again when it is needed"
        found.faults.append(_Fault(WHOLE, lacks, half=True))
        return found
    for ref in manifest.input_refs():
        found.checked[INPUTS] += 1
        if (ref.stage, ref.key) not in present and not _recorded(store, ref):
            gone = f"{'/'.join(name)} was made from {ref.stage}/{ref.key}, which is gone"
            found.faults.append(_Fault(INPUTS, gone, damages=False))
    return found


def _look_at_files(store: Store, manifest: Manifest, found: _Look) -> None:
    try:
        folder = store.folder(manifest.ref)
    except StoreError as error:  # what is fetched from elsewhere is compared on the way
        found.checked[DIGESTS] += 1
        found.faults.append(_Fault(DIGESTS, str(error)))
        return
    for entry in manifest.files:
        path = folder / entry.name
        found.checked[DIGESTS] += 1
        if sha256_file(path) != entry.sha256:
            told = f"{path} is not what its manifest lists: --refresh {manifest.stage}"
            found.faults.append(_Fault(DIGESTS, told))
            continue  # a damaged table may not even have a readable schema
        schema = _TABLES.get((manifest.stage, entry.name))
        if schema is not None:
            found.checked[SCHEMAS] += 1
            if not pq.read_schema(path).equals(schema):
                told = f"{path} does not have the schema of this version"
                found.faults.append(_Fault(SCHEMAS, told, damages=False))


def _recorded(store: Store, ref: ArtifactRef) -> bool:
    """Whether the manifest of an artefact that was taken out is there."""
    try:
        return store.record(ref.stage, ref.key) is not None
    except ValueError:
        return False


def _check_names(store: Store) -> Check:
    """Whether every name says where it stands."""
    check = Check("names")
    for name in store.refs(""):
        check.checked += 1
        try:
            store.read_ref(name)
        except StoreError as error:
            check.problems.append(str(error))
            check.damaged.append(name)
    return check
