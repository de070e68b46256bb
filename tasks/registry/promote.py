"""Promotion of a model, rollback of a champion, and rebuild of a lost MLflow database.

A challenger that passes all gates (`tasks.evaluation.gates`) becomes champion. Under a lock, a model is recorded in the
store and registered in MLflow, then the aliases are recorded and moved; after an interruption the next command
completes the rest.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version as installed
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

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
from tasks.core.settings import GenerateSettings
from tasks.curate.evalset import trains_on_evalset
from tasks.evaluation.compare import champion_figures
from tasks.evaluation.gates import Verdict, curated_of, failed, read_verdicts
from tasks.evaluation.tables import read_metrics
from tasks.lineage.training_data import trainings_of
from tasks.report.gates import model_card, parameters_of
from tasks.training.bundle import CONFIG_FILE, read_sampling
from tasks.training.train import sync_run, train

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature

LOCK = "promote"
DECIDES = "val/bits_per_byte"
VERDICT_TAG = "sheepfold.verdict"
WITHDRAWN_TAG = "sheepfold.withdrawn"
NO_REASON = "no reason was given"
RUN_TAGS = ("prefect.", "git.", "sheepfold.")  # prefixes of the run's tags that its model version inherits

SERVED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
SERVED_CODE = (
    "tasks/__init__.py",
    "tasks/training/__init__.py",
    "tasks/training/bundle.py",
    "tasks/tokens/__init__.py",
    *(f"tasks/tokens/{name}.py" for name in ("hf_spec", "tokenizer_kinds")),
)
_MLFLOW_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


@dataclass(frozen=True)
class Promotion:
    """Result of a promotion: the version with its alias, the reason, and the artefact of the verdicts."""

    version: ModelVersion
    alias: str
    moved: bool
    reason: str
    verdicts: Sequence[Verdict]
    gates: ArtifactRef


@dataclass(frozen=True)
class Rollback:
    """Result of a rollback, with version numbers."""

    champion: str
    withdrawn: str  # withdrawn version, now or before; empty if there is none
    moved: bool
    reason: str


@dataclass
class Rebuilt:
    """Contents of MLflow after a rebuild, and the checkpoints in neither store nor MLflow."""

    runs: int = 0  # number of trainings with a run
    versions: list[str] = field(default_factory=list)  # NAME/NUMBER
    aliases: dict[str, str] = field(default_factory=dict)  # version number by NAME@ALIAS
    lost: list[str] = field(default_factory=list)  # STAGE/KEY


class ChampionChanged(RuntimeError):
    """Another version became champion after the champion was evaluated; nothing was written."""


def trained_on(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Return True if a model or a base of it was trained on documents of an evaluation set.

    False for models trained elsewhere.
    """
    trainings = trainings_of(store, checkpoint)
    return any(trains_on_evalset(store, curated_of(store, made.ref).ref, evalset) for made in trainings)


def decide(
    verdicts: Sequence[Verdict], own: float, has_champion: bool, same_model: bool, withdrawn: str = ""
) -> tuple[bool, str]:
    """Return True if the challenger becomes (or stays) champion, and the reason.

    Args:
        own: bits per byte of the challenger.
        has_champion: True if there is a champion.
        same_model: True if the challenger is the champion.
        withdrawn: reason for which the challenger was withdrawn before; empty if it was not.
    """
    if same_model:
        return True, f"it is the champion already ({own:.4f} bits per byte)"
    if withdrawn:
        return False, f"it was taken back: {withdrawn}"
    held = failed(verdicts)
    if held:
        return False, "; ".join(item.sentence for item in held)
    if not has_champion:
        return True, f"it is the first model ({own:.4f} bits per byte)"
    return True, next(item.sentence for item in verdicts if item.gate == "bits_per_byte")


def champion_of(store: Store, registry: Registry) -> ModelVersion | None:
    """Return the champion that the store records, or None.

    Raises:
        UserError: MLflow lacks it, because its database is new or older.
    """
    digest = _record(store, registry).aliases.get(CHAMPION)
    return registry.recorded(digest, CHAMPION) if digest else None


def _record(store: Store, registry: Registry) -> Models:
    """Return the store's record, or MLflow's aliases if the store has none."""
    known = read_models(store, registry.corpus)
    if known.models or known.aliases:
        return known
    found = ((alias, version.checkpoint.digest) for version in registry.versions() for alias in version.aliases)
    return Models(aliases={alias: digest for alias, digest in found if alias in ALIASES})


def move_aliases(
    store: Store,
    registry: Registry,
    run_id: str,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    gates: ArtifactRef,
    compared: str | None,
    traced: bool = True,
) -> Promotion:
    """Register a model, move the aliases by the verdicts of the gates, and log the metrics.

    Args:
        run_id: id of the MLflow run of the training.
        evaluation: evaluation of the model.
        gates: verdicts on the model.
        compared: version of the compared champion; None if there was none.
        traced: True if later evaluations may search the training text.

    Raises:
        ChampionChanged: another version became champion meanwhile; evaluate it and promote again.
        UserError: MLflow lacks the recorded champion.
    """
    verdicts, digest = read_verdicts(store.folder(gates)), checkpoint.digest
    with store.lock(LOCK):
        champion = champion_of(store, registry)
        if champion is not None and champion.version != compared:
            found = "none" if compared is None else f"version {compared}"
            raise ChampionChanged(f"version {champion.version} is champion, but {found} was evaluated")
        known = _record(store, registry)
        old = known.models.get(digest, Registered(checkpoint, evaluation, gates))
        item = replace(old, checkpoint=checkpoint, evaluation=evaluation, gates=gates, traced=traced)
        same = champion is not None and champion.checkpoint.digest == digest
        own = read_metrics(store, evaluation)[DECIDES]
        wins, reason = decide(verdicts, own, champion is not None, same, old.tags.get(WITHDRAWN_TAG, ""))
        if not same:
            tags = old.tags or _search_tags(store, registry.tracking, run_id, item)
            held = ", ".join(verdict.gate for verdict in failed(verdicts))
            judged = {f"sheepfold.gate.{verdict.gate}": verdict.words() for verdict in verdicts}
            judged |= {"sheepfold.gates": f"failed: {held}" if held else "passed", VERDICT_TAG: reason}
            item = replace(item, tags={**tags, **judged})
        aliases = {**known.aliases, CHAMPION if wins else CHALLENGER: digest}
        if wins and aliases.get(CHALLENGER) == digest:
            del aliases[CHALLENGER]
        if wins and champion is not None and not same:
            aliases[PREVIOUS] = champion.checkpoint.digest
        write_models(store, registry.corpus, Models({**known.models, digest: item}, known.aliases))
        before = _published(store, registry, run_id, item)
        item = replace(item, version=before.version, run_id=before.run_id)
        write_models(store, registry.corpus, Models({**known.models, digest: item}, aliases))
        alias = CHAMPION if wins else CHALLENGER
        version = _sync(store, registry)[digest]
        return Promotion(version, alias, alias not in before.aliases, reason, verdicts, gates)


def roll_back(home: Home, store: Store, corpus: str, reason: str = "", to: str = "") -> Rollback:
    """Make the previous champion, or a given version, champion again.

    The withdrawn version has the reason as a tag and is not promoted again. Repeating the call changes nothing.

    Args:
        reason: reason, stored as a tag.
        to: number of the version; empty for the previous champion.

    Raises:
        UserError: the version does not exist, or MLflow lacks the recorded champion.
    """
    if CHAMPION not in read_models(store, corpus).aliases:
        raise UserError(f"corpus {corpus} has no champion to withdraw: `sheepfold run SOURCE` makes the first one")
    registry = Registry(Tracking(home), corpus)
    with store.lock(LOCK):
        known = read_models(store, corpus)
        former = registry.recorded(known.aliases[CHAMPION], CHAMPION).checkpoint.digest
        numbers = {item.version: digest for digest, item in known.models.items() if item.version}
        if to and to not in numbers:
            raise UserError(f"there is no version {to}; expected one of {', '.join(numbers)}")
        target = numbers[to] if to else known.aliases.get(PREVIOUS)
        if (target or former) not in known.models:
            raise UserError(
                f"the previous champion ({(target or former)[:12]}) was promoted from another store: set a version by "
                f"--to, one of {', '.join(item.version for item in known.models.values())}"
            )
        moved = target not in (None, former)
        if target is not None and moved:
            models = dict(known.models)
            kept = {name: text for name, text in models[target].tags.items() if name != WITHDRAWN_TAG}
            models[target] = replace(models[target], tags=kept)
            if former in models:
                tags = {**models[former].tags, WITHDRAWN_TAG: reason or NO_REASON}
                models[former] = replace(models[former], tags=tags)
            aliases = {name: digest for name, digest in known.aliases.items() if digest != target}
            write_models(store, corpus, Models(models, {**aliases, CHAMPION: target, CHALLENGER: former}))
        _sync(store, registry)
        known = read_models(store, corpus)
    champion = known.models[known.aliases[CHAMPION]]
    taken = [item for item in known.models.values() if item != champion and WITHDRAWN_TAG in item.tags]
    if taken:
        *_, last = sorted(taken, key=lambda item: item.checkpoint.digest == known.aliases.get(CHALLENGER))
        return Rollback(champion.version, last.version, moved, last.tags[WITHDRAWN_TAG])
    if target is None:
        raise UserError(
            f"version {champion.version} is the first champion, and there is no previous one: choose a version by --to"
        )
    return Rollback(champion.version, "", False, "")


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
            for item in known.models.values():
                if item.checkpoint in runs:
                    _published(store, registry, runs[item.checkpoint], item)
            present = registry.by_digest()
            lost = [item.checkpoint for digest, item in known.models.items() if digest not in present]
            done.lost += [f"{checkpoint.stage}/{checkpoint.key}" for checkpoint in lost]
            aliases = {alias: digest for alias, digest in known.aliases.items() if digest in present}
            write_models(store, corpus, Models(known.models, aliases))
            for version in _sync(store, registry).values():
                done.versions.append(f"{registry.name}/{version.version}")
                done.aliases |= {f"{registry.name}@{alias}": version.version for alias in version.aliases}
        return done


def _sync(store: Store, registry: Registry) -> dict[str, ModelVersion]:
    """Synchronise MLflow's aliases and tags with the store's record, and record MLflow's version numbers.

    Returns:
        The versions in MLflow, by digest of the checkpoint.
    """
    known, versions, models = _record(store, registry), registry.by_digest(), {}
    for digest, item in known.models.items():
        found = versions.get(digest)
        if found is None:
            models[digest] = replace(item, version="", run_id="")
            continue
        models[digest] = replace(item, version=found.version, run_id=found.run_id)
        registry.set_tags(found, item.tags)
        if WITHDRAWN_TAG in found.tags and WITHDRAWN_TAG not in item.tags:
            registry.client.delete_model_version_tag(registry.name, found.version, WITHDRAWN_TAG)
    for alias in ALIASES:
        now = next((item for item in versions.values() if alias in item.aliases), None)
        target = versions.get(known.aliases.get(alias, ""))
        if target is None and now is not None:
            registry.client.delete_registered_model_alias(registry.name, alias)
        elif target is not None and target != now:
            registry.client.set_registered_model_alias(registry.name, alias, target.version)
    write_models(store, registry.corpus, Models(models, known.aliases))
    return registry.by_digest()


def _published(store: Store, registry: Registry, run_id: str, item: Registered) -> ModelVersion:
    """Return the MLflow version of a recorded checkpoint with card and metrics; registers it if it is missing."""
    tracking, verdicts = registry.tracking, read_verdicts(store.folder(item.gates))
    flow_run = tracking.client.get_run(run_id).data.tags.get("prefect.ui_url")
    links = {"the flow run in Prefect": flow_run, "the training's run in MLflow": tracking.page_of_run(run_id)}
    known = {name: address for name, address in links.items() if address}
    card = model_card(store, item.checkpoint, item.evaluation, verdicts, registry.name, known)
    version = registry.by_digest().get(item.checkpoint.digest)
    if version is None:
        with tempfile.TemporaryDirectory(prefix="sheepfold-") as folder:
            version = registry.register(
                item.checkpoint,
                run_id,
                card,
                item.tags,
                python_model=str(Path(__file__).with_name("serving.py")),
                artifacts={"bundle": str(prepare_bundle(store.folder(item.checkpoint), Path(folder) / "bundle"))},
                signature=signature(read_sampling(store.folder(item.checkpoint, CONFIG_FILE))),
                pip_requirements=requirements(),
            )
    else:
        registry.client.update_model_version(registry.name, version.version, card)
    metrics, compared = read_metrics(store, item.evaluation), manifest_of(store, item.gates)
    for rival in compared.input_refs("champion") if "champion" in compared.inputs else []:
        if store.find(rival.stage, rival.key) is not None:
            metrics |= champion_figures(read_metrics(store, rival))
    (evalset,) = manifest_of(store, item.evaluation).input_refs("evalset")
    step, location = manifest_of(store, item.checkpoint).counts["rows"], location_of(store, evalset)
    tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
    return version


def _search_tags(store: Store, tracking: Tracking, run_id: str, item: Registered) -> dict[str, str]:
    """Return the tags for searching versions: metrics, size, inputs, and the tags of the run."""
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


# the model served by MLflow: files, requirements and signature


def prepare_bundle(checkpoint_folder: Path, target: Path) -> Path:
    """Copy a checkpoint and the code that it needs into a folder."""
    skipped = ("manifest.json", "history.parquet", "telemetry.parquet", "journal.json")
    shutil.copytree(checkpoint_folder, target, ignore=shutil.ignore_patterns(*skipped))
    root = Path(__file__).resolve().parents[2]
    code = target / "code"
    shutil.copytree(root / "model", code / "model", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "__init__.py").write_text('"""The code this model version was trained with."""\n')
    for name in SERVED_CODE:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, code / name)
    return target


def requirements() -> list[str]:
    """Return the packages that serving needs, pinned to installed versions without local tags such as +cpu."""
    pinned = [f"{name}=={installed(name).partition('+')[0]}" for name in SERVED_PACKAGES]
    return [f"mlflow=={installed('mlflow')}", *pinned]


def served_parameters(sampling: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return MLflow's type (of the items, for a list) and the default of each parameter of a request.

    `logit_bias` is a JSON object; for `details` and `echo` see `serving.SheepfoldModel`.

    Args:
        sampling: defaults recorded with the model.
    """
    from model.config import GenerationConfig

    defaults, found = GenerateSettings(**sampling), {}
    hints = get_type_hints(GenerationConfig)
    for name in (item.name for item in fields(GenerationConfig) if item.name != "eos_id"):
        (kind, *_) = [item for item in get_args(hints[name]) or (hints[name],) if item is not NoneType]
        default: Any = getattr(defaults, name)
        if kind in _MLFLOW_TYPES:
            found[name] = (_MLFLOW_TYPES[kind], list(default) if isinstance(default, tuple) else default)
        else:
            found[name] = ("string", "")
    return {
        **found,
        "ignore_eos": ("boolean", defaults.ignore_eos),
        **dict.fromkeys(("details", "echo"), ("boolean", False)),
    }


def signature(sampling: Mapping[str, Any]) -> ModelSignature:
    """Return MLflow's signature of a model: texts to texts, with the sampling parameters and their defaults."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    params = [
        ParamSpec(name, DataType[kind], default, (-1,) if isinstance(default, list) else None)
        for name, (kind, default) in served_parameters(sampling).items()
    ]
    texts = Schema([ColSpec(DataType.string)])
    return ModelSignature(inputs=texts, outputs=texts, params=ParamSchema(params))
