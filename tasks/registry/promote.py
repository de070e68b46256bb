"""Promotion registers a model and moves aliases; rollback takes a champion back.

A challenger that passes all gates (`tasks.gates`) becomes champion, which implies fewer bits per byte than the champion
on the same evaluation set. Both hold the store's lock and can be repeated after a kill at any point: the store records
the model before MLflow has it, and the aliases after MLflow has moved them.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version as installed
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import (
    ALIASES,
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    Models,
    ModelVersion,
    Registered,
    Registry,
    check_champion,
    read_models,
    write_models,
)
from storage.store import Store
from tasks.curate.evalset import trains_on_evalset
from tasks.evaluation.tables import read_metrics
from tasks.gates.facts import curated_of
from tasks.gates.verdicts import Verdict, failed, read_verdicts
from tasks.model_card import model_card, parameters_of
from tasks.settings import GenerateSettings

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature

LOCK = "promote"  # held while aliases move
DECIDES = "val/bits_per_byte"
VERDICT_TAG = "sheepfold.verdict"
WITHDRAWN_TAG = "sheepfold.withdrawn"
NO_REASON = "no reason was given"
RUN_TAGS = ("prefect.", "sheepfold.", "git.")  # prefixes of the run's tags that its model version inherits
SERVED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
SERVED_CODE = (
    "tasks/__init__.py",
    "tasks/bundle.py",
    "tasks/tokens/__init__.py",
    *(f"tasks/tokens/{name}.py" for name in ("interface", "subword", "tables", "tokenizer")),
)
_MLFLOW_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


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


class ChampionChanged(RuntimeError):
    """Another version became champion after the champion was evaluated; nothing was written."""


class RollbackError(UserError):
    """There is no version to go back to."""


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
    """Register a model and move the aliases by the verdicts of the gates.

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
    verdicts = read_verdicts(store.folder(gates))
    with store.lock(LOCK):
        check_champion(store, registry)
        champion = registry.by_alias(CHAMPION)
        evaluated = None if rival is None else rival.version
        if champion is not None and champion.version != evaluated:
            found = "none" if evaluated is None else f"version {evaluated}"
            raise ChampionChanged(f"version {champion.version} is champion, but {found} was evaluated")
        own = read_metrics(store, evaluation)[DECIDES]
        version = registry.by_digest(checkpoint.digest)
        same = version is not None and champion is not None and champion.version == version.version
        withdrawn = "" if version is None else version.tags.get(WITHDRAWN_TAG, "")
        wins, reason = decide(verdicts, own, rival if champion is not None else None, same, withdrawn)
        item = Registered(checkpoint, evaluation, gates, traced)
        if version is None:
            tags = {**search_tags(store, registry, run_id, item), **verdict_tags(verdicts), VERDICT_TAG: reason}
        else:
            tags = {**version.tags, **({} if same else {**verdict_tags(verdicts), VERDICT_TAG: reason})}
        item = replace(item, tags=tags)
        known = read_models(store, registry.corpus)
        models = {**known.models, checkpoint.digest: item}
        write_models(store, registry.corpus, Models(models, known.aliases))
        version = registered_version(store, registry, run_id, item, update_card=not same)
        store.check_lock(LOCK)  # registration may take longer than a remote store's lease
        alias = CHAMPION if wins else CHALLENGER
        moved = alias not in version.aliases
        if wins and champion is not None and not same:
            registry.move_alias(PREVIOUS, champion.version)  # first: a kill must not lose the former champion
        registry.move_alias(alias, version.version)
        if wins:
            _drop_if_at(registry, CHALLENGER, version.version)
        record_aliases(store, registry)
        return Promotion(registry.by_number(version.version) or version, alias, moved, reason, verdicts, gates)


def roll_back(store: Store, registry: Registry, reason: str = "", to: str = "") -> Rollback:
    """Make the previous champion, or a named version, champion again.

    The version that is taken back keeps the reason as a tag and is not promoted again. Repeating it changes nothing.

    Args:
        reason: why, for the tag.
        to: number of the version to go back to; empty for the previous champion.

    Raises:
        RollbackError: if there is no such version.
        UserError: if MLflow lacks the champion that the store records.
    """
    with store.lock(LOCK):
        check_champion(store, registry)
        champion = registry.by_alias(CHAMPION)
        if champion is None:
            raise RollbackError("there is no champion to take back: `sheepfold run SOURCE` makes the first one")
        target = _rollback_target(registry, champion, to)
        moved = target is not None and target.version != champion.version
        if target is not None and moved:
            registry.set_tags(champion, {WITHDRAWN_TAG: reason or NO_REASON})  # first, so that it is not promoted again
            registry.delete_tag(target, WITHDRAWN_TAG)
            registry.move_alias(CHALLENGER, champion.version)
            registry.move_alias(CHAMPION, target.version)
        if target is not None:
            _drop_if_at(registry, PREVIOUS, target.version)
            _drop_if_at(registry, CHALLENGER, target.version)
            record_aliases(store, registry)
            if moved:
                return Rollback(target.version, champion.version, True, reason or NO_REASON)
        last = _last_withdrawn(registry, champion)
        if last is None:
            return Rollback(champion.version, "", False, "")
        return Rollback(champion.version, last.version, False, last.tags[WITHDRAWN_TAG])


def _rollback_target(registry: Registry, champion: ModelVersion, to: str) -> ModelVersion | None:
    if to:
        found = registry.by_number(to)
        if found is None:
            known = ", ".join(item.version for item in registry.versions())
            raise RollbackError(f"there is no version {to} to go back to; there are {known}")
        return found
    previous = registry.by_alias(PREVIOUS)
    if previous is not None or _last_withdrawn(registry, champion) is not None:
        return previous
    raise RollbackError(
        f"version {champion.version} is the first champion, so there is none to go back to: name a version by --to"
    )


def _last_withdrawn(registry: Registry, champion: ModelVersion) -> ModelVersion | None:
    taken = [item for item in registry.versions() if WITHDRAWN_TAG in item.tags and item.version != champion.version]
    return max(taken, key=lambda item: (CHALLENGER in item.aliases, int(item.version)), default=None)


def _drop_if_at(registry: Registry, alias: str, version: str) -> None:
    found = registry.by_alias(alias)
    if found is not None and found.version == version:
        registry.drop_alias(alias)


def record_aliases(store: Store, registry: Registry) -> None:
    """Record MLflow's aliases and the tags of its versions in the store."""
    known = read_models(store, registry.corpus)
    versions = {item.checkpoint.digest: item for item in registry.versions()}
    models = {
        digest: replace(item, tags=versions[digest].tags) if digest in versions else item
        for digest, item in known.models.items()
    }
    aliases = {alias: digest for digest, item in versions.items() for alias in item.aliases if alias in ALIASES}
    write_models(store, registry.corpus, Models(models, aliases))


def registered_version(
    store: Store, registry: Registry, run_id: str, item: Registered, update_card: bool = True
) -> ModelVersion:
    """Return the version of a recorded checkpoint, with its tags and card; register it if MLflow lacks it."""
    version = registry.by_digest(item.checkpoint.digest)
    if version is not None and not update_card:
        return version
    verdicts = read_verdicts(store.folder(item.gates))
    card = model_card(store, item.checkpoint, item.evaluation, verdicts, registry.name, _links(registry, run_id))
    if version is not None:
        registry.set_tags(version, item.tags)
        registry.describe(version.version, card)
        return version
    with tempfile.TemporaryDirectory(prefix="sheepfold-") as folder:
        bundle = prepare_bundle(store.folder(item.checkpoint), Path(folder) / "bundle")
        script = Path(__file__).parent.with_name("serving.py")
        return registry.register(bundle, script, run_id, item.checkpoint, signature(), requirements(), card, item.tags)


def _links(registry: Registry, run_id: str) -> dict[str, str]:
    flow_run = registry.tracking.tags(run_id, ("prefect.ui_url",)).get("prefect.ui_url")
    found = {"the flow run in Prefect": flow_run, "the training's run in MLflow": registry.tracking.page_of_run(run_id)}
    return {name: address for name, address in found.items() if address}


def verdict_tags(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return the verdicts as tags of a model version."""
    held = failed(verdicts)
    summary = "failed: " + ", ".join(item.gate for item in held) if held else "passed"
    return {"sheepfold.gates": summary, **{f"sheepfold.gate.{item.gate}": item.words() for item in verdicts}}


def search_tags(store: Store, registry: Registry, run_id: str, item: Registered) -> dict[str, str]:
    """Return the tags by which versions are searched: metrics, size, inputs, and the tags of the run."""
    made, evaluated = manifest_of(store, item.checkpoint), manifest_of(store, item.evaluation)
    metrics = read_metrics(store, item.evaluation)
    figures = {name: f"{metrics[name]:.6f}" for name in (DECIDES, "val/loss", "val/perplexity")}
    return {
        **registry.tracking.tags(run_id, RUN_TAGS),
        **{name.replace("val/", "sheepfold."): value for name, value in figures.items()},
        "sheepfold.evalset": evaluated.inputs["evalset"]["digest"],
        "sheepfold.dataset": made.inputs["dataset"]["digest"],
        "sheepfold.tokenizer": made.inputs["tokenizer"]["digest"],
        "sheepfold.base": made.inputs["base"]["digest"] if "base" in made.inputs else "none",
        "sheepfold.parameters": str(parameters_of(made)),
        "sheepfold.python": platform.python_version(),
    }


def prepare_bundle(checkpoint_folder: Path, target: Path) -> Path:
    """Copy a checkpoint and the code that runs it into one folder."""
    skipped = ("manifest.json", "history.parquet", "telemetry.parquet", "journal.json")  # of the training
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
    """Return the packages that serve the model, in the installed versions without local build tags such as +cpu."""
    pinned = [f"{name}=={installed(name).partition('+')[0]}" for name in SERVED_PACKAGES]
    return [f"mlflow=={installed('mlflow')}", *pinned]


def served_parameters() -> dict[str, tuple[str, Any]]:
    """Return MLflow's type and the default of each parameter of a request; a list's type is that of its items.

    `logit_bias` is a JSON object, and `details` asks for more than texts (see `tasks.serving`).
    """
    from model.config import GenerationConfig

    defaults, found = GenerateSettings(), {}
    hints = get_type_hints(GenerationConfig)
    for name in (item.name for item in fields(GenerationConfig) if item.name != "eos_id"):
        (kind, *_) = [item for item in get_args(hints[name]) or (hints[name],) if item is not NoneType]
        default: Any = getattr(defaults, name)
        if kind in _MLFLOW_TYPES:
            found[name] = (_MLFLOW_TYPES[kind], list(default) if isinstance(default, tuple) else default)
        else:
            found[name] = ("string", "")
    return {**found, "ignore_eos": ("boolean", defaults.ignore_eos), "details": ("boolean", False)}


def signature() -> ModelSignature:
    """Return MLflow's signature of the served model: texts to texts, with the parameters of generation."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    params = [
        ParamSpec(name, DataType[kind], default, (-1,) if isinstance(default, list) else None)
        for name, (kind, default) in served_parameters().items()
    ]
    texts = Schema([ColSpec(DataType.string)])
    return ModelSignature(inputs=texts, outputs=texts, params=ParamSchema(params))
