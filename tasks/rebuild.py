"""MLflow's database made again from the store: runs with their curves, versions with their numbers, cards and names.

Runs come from the manifests of trainings and the curves beside them, figures from the evaluations, and what only a
registry knows (numbers, tags, names) from the store's book of versions (`storage.registered`). MLflow gives runs new
ids; all else is as it was. It may be killed at any moment and called again, and where nothing is missing it writes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.errors import UserError
from storage.lineage import location_of, manifest_of
from storage.manifest import ArtifactRef
from storage.registered import Registered, newest_number, noted_names, noted_versions
from storage.registry import NAMES, ModelVersion, Registry
from storage.store import Store
from storage.tracking import Tracking
from tasks.evaluation.compare import champion_figures
from tasks.evaluation.tables import read_metrics
from tasks.promotion import WITHDRAWN_TAG
from tasks.registration import LOCK, register
from tasks.training import sync_run, train


@dataclass
class Rebuilt:
    """What MLflow holds again.

    Attributes:
        runs: trainings that have a run.
        versions: numbers of the registered versions.
        names: version by alias.
        lost: versions whose checkpoint the store does not hold any more.
        deleted: versions that somebody took out of the registry, which gives no number twice.
    """

    runs: int = 0
    versions: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


def rebuild(store: Store, tracking: Tracking) -> Rebuilt:
    """Make MLflow hold what the store knows.

    Raises:
        UserError: if a version in the registry is another one than the store's book says.
    """
    with store.lock(LOCK):
        return _rebuild(store, tracking)


def _rebuild(store: Store, tracking: Tracking) -> Rebuilt:
    done = Rebuilt()
    noted = noted_versions(store)
    registry = Registry(tracking)
    registry.note_newest(registry.newest_number())  # one that never said it would count as whole, half done
    tags = {item.checkpoint.key: dict(item.run_tags) for item in noted}
    unwanted = tracking.deleted_train_keys() - tags.keys()
    for manifest in store.manifests(train.name):
        if manifest.key not in unwanted:
            sync_run(tracking, store, manifest, tags.get(manifest.key, {}))
            done.runs += 1
    newest = {item.checkpoint.digest: item.version for item in noted}  # a deleted one may have been promoted again
    for item in noted:
        if not _can_be_had(store, registry, item):
            done.lost.append(item.version)
        elif newest[item.checkpoint.digest] == item.version and _version(store, registry, item):
            done.versions.append(item.version)
        else:
            done.deleted.append(item.version)
    _move_names(registry, noted_names(store))
    done.names = {alias: version for alias, version in registry.names().items() if alias in NAMES}
    registry.note_newest(newest_number(store))  # last: until it stands there, the registry counts as lost
    return done


def _move_names(registry: Registry, names: Mapping[str, str]) -> None:
    for alias in NAMES:
        if alias not in names:
            registry.drop_alias(alias)
        elif registry.by_number(names[alias]) is not None:
            registry.move_alias(alias, names[alias])


def _can_be_had(store: Store, registry: Registry, item: Registered) -> bool:
    """Whether a version's own weights are in the store, or in the registry under its number.

    A training that was refreshed has other weights under the same key.
    """
    if _is_stored(store, item):
        return True
    known = registry.by_digest(item.checkpoint.digest)
    return known is not None and known.version == item.version


def _is_stored(store: Store, item: Registered) -> bool:
    held = store.find(item.checkpoint.stage, item.checkpoint.key)
    return held is not None and held.digest == item.checkpoint.digest


def _version(store: Store, registry: Registry, item: Registered) -> bool:
    """A registered version with its tags and figures; False if its number cannot be had again."""
    run_id = registry.tracking.find_run(item.checkpoint.key) or ""
    found = registry.by_digest(item.checkpoint.digest)
    if found is not None and int(found.version) > int(item.version):
        raise UserError(
            f"the store's book has this model as version {item.version}, but the registry has it as version "
            f"{found.version}: two registries were written from one store; remove the newer one and run again"
        )
    if found is None and any(int(known.version) > int(item.version) for known in registry.versions()):
        return False
    if found is None or found.version != item.version:
        found = register(store, registry, run_id, item.checkpoint, item.description, item.tags, item.version)
    if found.version != item.version:
        registry.delete(found.version)
        return False
    registry.tag(found.version, {name: text for name, text in item.tags.items() if found.tags.get(name) != text})
    if WITHDRAWN_TAG not in item.tags:
        registry.untag(found.version, WITHDRAWN_TAG)
    evaluation = item.evaluation
    if evaluation is not None and _is_stored(store, item) and store.find(evaluation.stage, evaluation.key) is not None:
        _figures(store, registry.tracking, run_id, found, item, evaluation)
    return True


def _figures(
    store: Store, tracking: Tracking, run_id: str, version: ModelVersion, item: Registered, evaluation: ArtifactRef
) -> None:
    """The figures of a version, and the champion's beside which it was judged, at the run and at the model."""
    metrics = read_metrics(store, evaluation)
    rivals = manifest_of(store, item.gates) if item.gates is not None else None
    if rivals is not None and "champion" in rivals.inputs:
        (rival,) = rivals.input_refs("champion")
        if store.find(rival.stage, rival.key) is not None:
            metrics |= champion_figures(read_metrics(store, rival))
    (evalset,) = manifest_of(store, evaluation).input_refs("evalset")
    step = manifest_of(store, item.checkpoint).counts["rows"]
    location = location_of(store, evalset)
    tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
