"""Rebuild MLflow's runs, versions, aliases and metrics from the store.

Runs come from the artefacts of trainings, versions and aliases from the record in the store. MLflow assigns new run ids
and may assign other version numbers. It can be repeated after a kill, and writes nothing where nothing is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.lineage import location_of, manifest_of
from storage.registry import (
    CHALLENGER,
    CHAMPION,
    MODELS_REF,
    PREVIOUS,
    ModelVersion,
    Registered,
    Registry,
    read_models,
)
from storage.store import Store
from storage.tracking import Tracking
from tasks.evaluation.compare import champion_figures
from tasks.evaluation.tables import read_metrics
from tasks.registry.promote import LOCK, WITHDRAWN_TAG, record_aliases, registered_version
from tasks.training import sync_run, train


@dataclass
class Rebuilt:
    """Contents of MLflow after a rebuild.

    Attributes:
        runs: number of trainings with a run.
        versions: model versions, as NAME/NUMBER.
        aliases: number of the version by NAME@ALIAS.
        lost: checkpoints, as STAGE/KEY, that are neither in the store nor in MLflow.
    """

    runs: int = 0
    versions: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def rebuild(store: Store, tracking: Tracking) -> Rebuilt:
    """Make MLflow hold what the store records."""
    with store.lock(LOCK):
        done = Rebuilt()
        corpora = [name.removeprefix(MODELS_REF) for name in store.refs(MODELS_REF)]
        recorded = {digest: item for corpus in corpora for digest, item in read_models(store, corpus).models.items()}
        registered = {item.checkpoint.key for item in recorded.values()}
        unwanted = tracking.train_keys(deleted=True) - registered
        runs = {}
        for manifest in store.manifests(train.name):
            if manifest.key not in unwanted:
                tags = recorded[manifest.digest].tags if manifest.digest in recorded else {}
                own = {name: tags[name] for name in tags if name.startswith(("prefect.", "git.", "sheepfold.corpus"))}
                runs[manifest.key, manifest.digest] = sync_run(tracking, store, manifest, own)
        done.runs = len(runs)
        for corpus in corpora:
            _rebuild_model(store, Registry(tracking, corpus), runs, done)
        return done


def _rebuild_model(store: Store, registry: Registry, runs: dict[tuple[str, str], str], done: Rebuilt) -> None:
    known = read_models(store, registry.corpus)
    champion = registry.by_alias(CHAMPION)
    if champion is not None and champion.checkpoint.digest != known.aliases.get(CHAMPION):
        registry.drop_alias(CHAMPION)  # first: promotion refuses to work until all is restored
    for digest, item in known.models.items():
        run_id = runs.get((item.checkpoint.key, digest))
        if run_id is None and registry.by_digest(digest) is None:
            done.lost.append(f"{item.checkpoint.stage}/{item.checkpoint.key}")
        elif run_id is not None:
            version = registered_version(store, registry, run_id, item)
            if WITHDRAWN_TAG not in item.tags:
                registry.delete_tag(version, WITHDRAWN_TAG)
            _log_metrics(store, registry.tracking, run_id, version, item)
    for alias in (PREVIOUS, CHALLENGER, CHAMPION):
        found = registry.by_digest(known.aliases[alias]) if alias in known.aliases else None
        if found is None:
            registry.drop_alias(alias)
        else:
            registry.move_alias(alias, found.version)
    record_aliases(store, registry)
    done.versions += [f"{registry.name}/{version.version}" for version in registry.versions()]
    done.aliases |= {f"{registry.name}@{alias}": version for alias, version in registry.aliases().items()}


def _log_metrics(store: Store, tracking: Tracking, run_id: str, version: ModelVersion, item: Registered) -> None:
    metrics = read_metrics(store, item.evaluation)
    compared = manifest_of(store, item.gates)
    for rival in compared.input_refs("champion") if "champion" in compared.inputs else []:
        if store.find(rival.stage, rival.key) is not None:
            metrics |= champion_figures(read_metrics(store, rival))
    (evalset,) = manifest_of(store, item.evaluation).input_refs("evalset")
    step = manifest_of(store, item.checkpoint).counts["rows"]
    location = location_of(store, evalset)
    tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
