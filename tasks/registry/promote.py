"""Promotion registers a model and moves aliases; rollback takes a champion back; a rebuild restores a lost MLflow.

A challenger that passes all gates (`tasks.gates`) becomes champion, which implies fewer bits per byte than the champion
on the same evaluation set. Under a lock a model is recorded in the store and registered, then the aliases are recorded
and moved: after a kill at any point the next command does the rest.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage.errors import UserError
from storage.home import Home
from storage.lineage import location_of, manifest_of
from storage.manifest import ArtifactRef
from storage.registry import (
    ALIASES,
    CHALLENGER,
    CHAMPION,
    MODELS_REF,
    PREVIOUS,
    Models,
    ModelVersion,
    Registered,
    Registry,
    read_models,
    write_models,
)
from storage.store import Store
from storage.tracking import CORPUS_TAG, Tracking
from tasks.curate.evalset import trains_on_evalset
from tasks.evaluation.compare import champion_figures
from tasks.evaluation.tables import read_metrics
from tasks.gates.facts import curated_of
from tasks.gates.verdicts import Verdict, failed, read_verdicts
from tasks.model_card import model_card, parameters_of
from tasks.registry.bundle import prepare_bundle, requirements, signature
from tasks.training import sync_run, train

LOCK = "promote"
DECIDES = "val/bits_per_byte"
VERDICT_TAG = "sheepfold.verdict"
WITHDRAWN_TAG = "sheepfold.withdrawn"
NO_REASON = "no reason was given"
RUN_TAGS = ("prefect.", "git.", "sheepfold.")  # prefixes of the run's tags that its model version inherits


@dataclass(frozen=True)
class Promotion:
    """Result of a promotion.

    Attributes:
        alias: of the version now.
        moved: True if an alias moved.
        reason: the decision in one sentence.
        verdicts: of the gates, in their order.
        gates: the artefact that holds them.
    """

    version: ModelVersion
    alias: str
    moved: bool
    reason: str
    verdicts: Sequence[Verdict]
    gates: ArtifactRef


@dataclass(frozen=True)
class Rival:
    """The champion that a challenger is compared with.

    Attributes:
        version: its number.
        evaluation: its metrics on the challenger's evaluation set; None if it was trained on documents of that set.
    """

    version: str
    checkpoint: ArtifactRef
    evaluation: ArtifactRef | None


@dataclass(frozen=True)
class Rollback:
    """Result of a rollback.

    Attributes:
        champion: number of the version that is champion now.
        withdrawn: number of the version that was taken back, now or before; empty if none.
        moved: True if an alias moved.
        reason: why it was taken back.
    """

    champion: str
    withdrawn: str
    moved: bool
    reason: str


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


class ChampionChanged(RuntimeError):
    """Another version became champion after the champion was evaluated; nothing was written."""


def trained_on(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Return True if a model or one of its bases was trained on documents of an evaluation set.

    False for models that were trained elsewhere.
    """
    if checkpoint.stage != "train":
        return False
    if trains_on_evalset(store, curated_of(store, checkpoint).ref, evalset):
        return True
    inputs = manifest_of(store, checkpoint)
    return "base" in inputs.inputs and any(trained_on(store, base, evalset) for base in inputs.input_refs("base"))


def decide(
    verdicts: Sequence[Verdict], own: float, rival: Rival | None, same_model: bool, withdrawn: str = ""
) -> tuple[bool, str]:
    """Return whether the challenger becomes (or stays) champion, and why.

    Args:
        own: bits per byte of the challenger.
        rival: the champion; None when there is none.
        same_model: True if the challenger is the champion.
        withdrawn: reason for which the challenger was taken back before; empty if it was not.
    """
    if same_model:
        return True, f"it is the champion already ({own:.4f} bits per byte)"
    if withdrawn:
        return False, f"it was taken back: {withdrawn}"
    held = failed(verdicts)
    if held:
        return False, "; ".join(item.sentence for item in held)
    if rival is None:
        return True, f"there was no champion ({own:.4f} bits per byte)"
    return True, next(item.sentence for item in verdicts if item.gate == "bits_per_byte")


def champion_of(store: Store, registry: Registry) -> ModelVersion | None:
    """Return the champion that the store records, or None.

    Raises:
        UserError: if MLflow lacks it, because its database is new or older.
    """
    digest = _record(store, registry).aliases.get(CHAMPION)
    champion = registry.by_digest(digest) if digest else None
    if digest and champion is None:
        raise UserError(
            f"MLflow at {registry.tracking.home.shown_tracking_uri} lacks the champion {digest[:12]} of corpus "
            f"{registry.corpus}, which the store records: restore its database, or run `sheepfold rebuild-tracking`"
        )
    return champion


def _record(store: Store, registry: Registry) -> Models:
    """Return the store's record, or the aliases of a registry that outlived its store."""
    known = read_models(store, registry.corpus)
    if known.models or known.aliases:
        return known
    found = ((alias, version.checkpoint.digest) for version in registry.versions() for alias in version.aliases)
    return Models(aliases={alias: digest for alias, digest in found if alias in ALIASES})


def promote(
    store: Store,
    registry: Registry,
    run_id: str,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    gates: ArtifactRef,
    rival: Rival | None,
    traced: bool = True,
) -> Promotion:
    """Register a model, move the aliases by the verdicts of the gates, and log the metrics.

    Args:
        run_id: MLflow run of the training.
        evaluation: metrics of the model.
        gates: verdicts on the model, compared with the rival.
        rival: the champion as it was evaluated; None when there was none.
        traced: True if the training text may be searched when the model is evaluated again.

    Raises:
        ChampionChanged: if another version became champion meanwhile: evaluate that one and promote again.
        UserError: if MLflow lacks the champion that the store records.
    """
    verdicts, digest = read_verdicts(store.folder(gates)), checkpoint.digest
    with store.lock(LOCK):
        champion = champion_of(store, registry)
        evaluated = None if rival is None else rival.version
        if champion is not None and champion.version != evaluated:
            found = "none" if evaluated is None else f"version {evaluated}"
            raise ChampionChanged(f"version {champion.version} is champion, but {found} was evaluated")
        known, version = _record(store, registry), registry.by_digest(digest)
        old_tags = known.models[digest].tags if digest in known.models else version.tags if version else {}
        item = Registered(checkpoint, evaluation, gates, traced, old_tags)
        same = champion is not None and champion.checkpoint.digest == digest
        own = read_metrics(store, evaluation)[DECIDES]
        wins, reason = decide(
            verdicts, own, rival if champion is not None else None, same, old_tags.get(WITHDRAWN_TAG, "")
        )
        if not same:
            tags = old_tags or _search_tags(store, registry.tracking, run_id, item)
            item = replace(item, tags={**tags, **_verdict_tags(verdicts), VERDICT_TAG: reason})
        aliases = {**known.aliases, CHAMPION if wins else CHALLENGER: digest}
        if wins and aliases.get(CHALLENGER) == digest:
            del aliases[CHALLENGER]
        if wins and champion is not None and not same:
            aliases[PREVIOUS] = champion.checkpoint.digest
        models = {**known.models, digest: item}
        write_models(store, registry.corpus, Models(models, known.aliases))
        before = _published(store, registry, run_id, item)
        write_models(store, registry.corpus, Models(models, aliases))
        _sync(store, registry)
        alias = CHAMPION if wins else CHALLENGER
        version = registry.by_digest(digest) or before
        return Promotion(version, alias, alias not in before.aliases, reason, verdicts, gates)


def roll_back(home: Home, store: Store, corpus: str, reason: str = "", to: str = "") -> Rollback:
    """Make the previous champion, or a named version, champion again.

    The version that is taken back keeps the reason as a tag and is not promoted again. Repeating it changes nothing.

    Args:
        reason: why, for the tag.
        to: number of the version to go back to; empty for the previous champion.

    Raises:
        UserError: if there is no such version, or MLflow lacks the champion that the store records.
    """
    if not home.has_tracking and not read_models(store, corpus).models:
        raise UserError(f"the home {home.path} has no registered model: `sheepfold run SOURCE` makes the first one")
    registry = Registry(Tracking(home), corpus)
    with store.lock(LOCK):
        champion = champion_of(store, registry)
        if champion is None:
            raise UserError("there is no champion to take back: `sheepfold run SOURCE` makes the first one")
        known, versions = _record(store, registry), registry.versions()
        target = _rollback_target(known, versions, to)
        moved = target is not None and target.version != champion.version
        if target is not None and moved:
            own, former = target.checkpoint.digest, champion.checkpoint.digest
            tags = {**_tags(known, champion), WITHDRAWN_TAG: reason or NO_REASON}
            kept = {name: text for name, text in _tags(known, target).items() if name != WITHDRAWN_TAG}
            models = {
                digest: replace(item, tags={former: tags, own: kept}.get(digest, item.tags))
                for digest, item in known.models.items()
            }
            aliases = {name: digest for name, digest in known.aliases.items() if digest != own}
            write_models(store, corpus, Models(models, {**aliases, CHAMPION: own, CHALLENGER: former}))
            registry.set_tags(champion, tags)  # here as well, for versions that the store does not record
            registry.delete_tag(target, WITHDRAWN_TAG)
            champion = target
        _sync(store, registry)
        others = [item for item in registry.versions() if item.version != champion.version]
        taken = [item for item in others if WITHDRAWN_TAG in item.tags]
        last = max(taken, key=lambda item: (CHALLENGER in item.aliases, int(item.version)), default=None)
        if last is not None:
            return Rollback(champion.version, last.version, moved, last.tags[WITHDRAWN_TAG])
        if target is not None:
            return Rollback(champion.version, "", False, "")
        raise UserError(
            f"version {champion.version} is the first champion, so there is none to go back to: name a version by --to"
        )


def _tags(known: Models, version: ModelVersion) -> Mapping[str, str]:
    recorded = known.models.get(version.checkpoint.digest)
    return version.tags if recorded is None else recorded.tags


def _rollback_target(known: Models, versions: Sequence[ModelVersion], to: str) -> ModelVersion | None:
    if not to:
        return next((item for item in versions if item.checkpoint.digest == known.aliases.get(PREVIOUS)), None)
    found = next((item for item in versions if item.version == to), None)
    if found is None:
        listed = ", ".join(item.version for item in versions)
        raise UserError(f"there is no version {to} to go back to; there are {listed}")
    return found


def rebuild(home: Home, store: Store) -> Rebuilt:
    """Restore MLflow's runs, versions, aliases and metrics from the store.

    MLflow assigns new run ids, and may assign other version numbers. Checkpoints that are lost lose their aliases.
    """
    tracking = Tracking(home)
    with store.lock(LOCK):
        done = Rebuilt()
        corpora = [name.removeprefix(MODELS_REF) for name in store.refs(MODELS_REF)]
        recorded = {digest: item for corpus in corpora for digest, item in read_models(store, corpus).models.items()}
        unwanted = tracking.deleted_train_keys() - {item.checkpoint.key for item in recorded.values()}
        runs = {}
        for manifest in store.manifests(train.name):
            if manifest.key not in unwanted:
                tags = recorded[manifest.digest].tags if manifest.digest in recorded else {}
                own = {name: tags[name] for name in tags if name.startswith(("prefect.", "git.", CORPUS_TAG))}
                runs[manifest.ref] = sync_run(tracking, store, manifest, own)
        done.runs = len(runs)
        for corpus in corpora:
            registry, known = Registry(tracking, corpus), read_models(store, corpus)
            for digest, item in known.models.items():
                if item.checkpoint in runs:
                    _published(store, registry, runs[item.checkpoint], item)
                elif registry.by_digest(digest) is None:
                    done.lost.append(f"{item.checkpoint.stage}/{item.checkpoint.key}")
            present = {item.checkpoint.digest for item in registry.versions()}
            aliases = {alias: digest for alias, digest in known.aliases.items() if digest in present}
            write_models(store, corpus, Models(known.models, aliases))
            _sync(store, registry)
            for version in registry.versions():
                done.versions.append(f"{registry.name}/{version.version}")
                done.aliases |= {f"{registry.name}@{alias}": version.version for alias in version.aliases}
        return done


def _sync(store: Store, registry: Registry) -> None:
    """Make MLflow's aliases and tags equal to the store's record."""
    known = _record(store, registry)
    versions = registry.versions()
    for version in versions:
        digest = version.checkpoint.digest
        if digest in known.models:
            registry.set_tags(version, known.models[digest].tags)
            if WITHDRAWN_TAG not in known.models[digest].tags:
                registry.delete_tag(version, WITHDRAWN_TAG)
    for alias in ALIASES:
        now = next((item for item in versions if alias in item.aliases), None)
        target = next((item for item in versions if item.checkpoint.digest == known.aliases.get(alias)), None)
        if target is None and now is not None:
            registry.client.delete_registered_model_alias(registry.name, alias)
        elif target is not None and target != now:
            registry.client.set_registered_model_alias(registry.name, alias, target.version)


def _published(store: Store, registry: Registry, run_id: str, item: Registered) -> ModelVersion:
    """Return the version of a recorded checkpoint with its tags, card and metrics; register it if MLflow lacks it."""
    tracking, verdicts = registry.tracking, read_verdicts(store.folder(item.gates))
    flow_run = tracking.client.get_run(run_id).data.tags.get("prefect.ui_url")
    links = {"the flow run in Prefect": flow_run, "the training's run in MLflow": tracking.page_of_run(run_id)}
    known = {name: address for name, address in links.items() if address}
    card = model_card(store, item.checkpoint, item.evaluation, verdicts, registry.name, known)
    version = registry.by_digest(item.checkpoint.digest)
    if version is None:
        with tempfile.TemporaryDirectory(prefix="sheepfold-") as folder:
            version = registry.register(
                item.checkpoint,
                run_id,
                card,
                item.tags,
                python_model=str(Path(__file__).parent.with_name("serving.py")),
                artifacts={"bundle": str(prepare_bundle(store.folder(item.checkpoint), Path(folder) / "bundle"))},
                signature=signature(),
                pip_requirements=requirements(),
            )
    else:
        registry.set_tags(version, item.tags)
        registry.client.update_model_version(registry.name, version.version, card)
    metrics, compared = read_metrics(store, item.evaluation), manifest_of(store, item.gates)
    for rival in compared.input_refs("champion") if "champion" in compared.inputs else []:
        if store.find(rival.stage, rival.key) is not None:
            metrics |= champion_figures(read_metrics(store, rival))
    (evalset,) = manifest_of(store, item.evaluation).input_refs("evalset")
    step, location = manifest_of(store, item.checkpoint).counts["rows"], location_of(store, evalset)
    tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
    return version


def _verdict_tags(verdicts: Sequence[Verdict]) -> dict[str, str]:
    held = failed(verdicts)
    summary = "failed: " + ", ".join(item.gate for item in held) if held else "passed"
    return {"sheepfold.gates": summary, **{f"sheepfold.gate.{item.gate}": item.words() for item in verdicts}}


def _search_tags(store: Store, tracking: Tracking, run_id: str, item: Registered) -> dict[str, str]:
    """Return the tags by which versions are searched: metrics, size, inputs, and the tags of the run."""
    made, evaluated = manifest_of(store, item.checkpoint), manifest_of(store, item.evaluation)
    metrics = read_metrics(store, item.evaluation)
    of_run = tracking.client.get_run(run_id).data.tags
    return {
        **{name: text for name, text in of_run.items() if name.startswith(RUN_TAGS)},
        **{
            name.replace("val/", "sheepfold."): f"{metrics[name]:.6f}"
            for name in (DECIDES, "val/loss", "val/perplexity")
        },
        "sheepfold.evalset": evaluated.inputs["evalset"]["digest"],
        "sheepfold.dataset": made.inputs["dataset"]["digest"],
        "sheepfold.tokenizer": made.inputs["tokenizer"]["digest"],
        "sheepfold.base": made.inputs["base"]["digest"] if "base" in made.inputs else "none",
        "sheepfold.parameters": str(parameters_of(made)),
        "sheepfold.python": platform.python_version(),
    }
