"""Checking a store: every artefact's files against its manifest, every table against its schema, every input there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow.parquet as pq

from storage import schemas
from storage.digest import sha256_file
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store, StoreError

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


def check_store(store: Store) -> list[Check]:
    """Check digests, schemas and inputs of every artefact, and that names and records can be read."""
    whole = Check("artefacts whole")
    digests, tables, inputs = Check("file digests"), Check("table schemas"), Check("inputs present")
    present = {(stage, key) for stage in store.stages() for key in store.keys(stage)}
    for stage in store.stages():
        for key in store.keys(stage):
            manifest = _found(store, stage, key, whole)
            if manifest is None:
                continue
            try:
                folder = store.folder(manifest.ref)
            except StoreError as error:  # what is fetched from elsewhere is compared on the way
                digests.checked += 1
                digests.problems.append(str(error))
                digests.damaged.append(f"{stage}/{key}")
                continue
            for entry in manifest.files:
                digests.checked += 1
                if sha256_file(folder / entry.name) != entry.sha256:
                    digests.problems.append(f"{folder / entry.name} is not what its manifest lists: --refresh {stage}")
                    digests.damaged.append(f"{stage}/{key}")
                    continue  # a damaged table may not even have a readable schema
                schema = _TABLES.get((stage, entry.name))
                if schema is not None:
                    tables.checked += 1
                    if not pq.read_schema(folder / entry.name).equals(schema):
                        tables.problems.append(f"{folder / entry.name} does not have the schema of this version")
            for ref in manifest.input_refs():
                inputs.checked += 1
                if (ref.stage, ref.key) not in present and not _recorded(store, ref):
                    inputs.problems.append(f"{stage}/{manifest.key} was made from {ref.stage}/{ref.key}, which is gone")
    return [whole, digests, tables, inputs, _check_names(store)]


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


def _found(store: Store, stage: str, key: str, check: Check) -> Manifest | None:
    """The artefact, if it is whole; else None, and a problem of `check`."""
    check.checked += 1
    try:
        manifest = store.find(stage, key)
    except StoreError as error:
        check.problems.append(str(error))
        check.damaged.append(f"{stage}/{key}")
        return None
    if manifest is None:
        check.problems.append(f"{stage}/{key} lacks files, or has them cut short; it is made again when it is needed")
        check.damaged.append(f"{stage}/{key}")
    return manifest
