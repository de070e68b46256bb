"""MLflow's database made again from the store: runs with their curves, versions with their numbers, cards and names.

Runs come from the manifests of trainings and the curves beside them, figures from the evaluations, and what only a
registry knows (numbers, tags, names) from the store's book of versions (`storage.registered`). MLflow gives runs new
ids; all else is as it was. It may be killed at any moment and called again, and where nothing is missing it writes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.errors import UserError
from storage.lineage import location_of, manifest_of
from storage.manifest import ArtifactRef
from storage.registered import Registered, noted_names, noted_versions
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
    tags = {item.checkpoint.key: dict(item.run_tags) for item in noted}
    for manifest in store.manifests(train.name):
        sync_run(tracking, store, manifest, tags.get(manifest.key, {}))
        done.runs += 1
    registry = Registry(tracking)
    for item in noted:
        if store.find(item.checkpoint.stage, item.checkpoint.key) is None:
            done.lost.append(item.version)
        elif _version(store, registry, item):
            done.versions.append(item.version)
        else:
            done.deleted.append(item.version)
    names = noted_names(store)
    for alias in NAMES:
        version = names.get(alias)
        if version in done.versions:
            registry.move_alias(alias, version)
            done.names[alias] = version
        else:
            registry.drop_alias(alias)
    registry.see_names(names)  # last: until it stands there, the registry counts as lost
    return done


def is_lost(store: Store, registry: Registry) -> bool:
    """Whether names were given that the registry has not seen: it is new, or older than the store's book.

    Names that somebody moved in the registry itself are no loss, nor are versions that somebody deleted there.
    """
    names = noted_names(store)
    return bool(names) and registry.names_seen() != names


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
    if item.evaluation is not None and store.find(item.evaluation.stage, item.evaluation.key) is not None:
        _figures(store, registry.tracking, run_id, found, item, item.evaluation)
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
