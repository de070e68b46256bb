"""Find models by name, and register and promote them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from flows.context import subflow
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registered import noted_version
from storage.registry import CHAMPION, MODEL_NAME, ModelVersion, Registry
from storage.schemas import COUNTS_FILE
from tasks.bundle import CONFIG_FILE, WEIGHTS_FILE
from tasks.evaluation import read_metrics
from tasks.evaluation.compare import champion_figures
from tasks.executor import act
from tasks.gates.facts import known_leaks
from tasks.gates.stage import gates
from tasks.promotion import ChampionChanged, Promotion, Rival, promote, trained_on
from tasks.run import Run
from tasks.settings import Settings
from tasks.tokens.tokenizer import TOKENIZER_FILE
from tasks.training import sync_run


class UnknownModel(UserError):
    """A model that no name leads to."""


def resolve_version(registry: Registry, model: str) -> ModelVersion:
    """Return the registered version behind an alias, a number, a `models:/` address or a run id.

    Raises:
        UnknownModel: if there is none.
    """
    found = _find_version(registry, model)
    if found is None:
        raise UnknownModel(
            f"no model {model!r}: give an alias (champion, challenger), a version number, models:/{MODEL_NAME}@ALIAS, "
            "a run id, or a folder with a model; `sheepfold run SOURCE` makes the first one"
        )
    return found


def _find_version(registry: Registry, model: str) -> ModelVersion | None:
    name = _registered_name(model)
    if name.isascii() and name.isdigit():
        return registry.by_number(name)
    return (registry.by_alias(name) or registry.by_run(name)) if name else None


def _registered_name(model: str) -> str:
    """Return the alias, number or run id in a model's name; empty where it can only be a path."""
    name = model.removeprefix("models:/").removeprefix(f"{MODEL_NAME}@").removeprefix(f"{MODEL_NAME}/")
    return name if re.fullmatch(r"[\w-]+", name) else ""


def checkpoint_of(run: Run, model: str) -> ArtifactRef:
    """Return the checkpoint of a model named in any of the allowed ways.

    A registered name wins over a folder of the same name, which `./NAME` leads to. A model outside the store (a folder,
    or a version of a registry that outlived its store) is copied into it.

    Raises:
        UnknownModel: if the name leads nowhere.
    """
    folder = Path(model)
    if folder.is_dir() and not _registered_name(model):
        return _add(run, folder)  # needs no registry
    registry = Registry(run.tracking)
    if folder.is_dir() and _find_version(registry, model) is None:
        return _add(run, folder)
    return version_checkpoint(run, registry, resolve_version(registry, model))


def version_checkpoint(run: Run, registry: Registry, version: ModelVersion) -> ArtifactRef:
    """Return the checkpoint of a registered version."""
    found = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    if found is not None and found.digest == version.checkpoint.digest:
        return version.checkpoint  # a training that was refreshed has other weights under the same key
    return _add(run, registry.bundle_folder(version))


def _add(run: Run, folder: Path) -> ArtifactRef:
    names = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, COUNTS_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnknownModel(f"{folder} is no model folder: it lacks {', '.join(missing)}")
    ref, _ = run.add("bundle", {name: folder / name for name in names})
    return ref


def ensure_training_run(run: Run, checkpoint: ArtifactRef) -> str:
    """Return the MLflow run of a checkpoint, completed from the artefact where a kill left it unfinished."""
    manifest = run.store.find(checkpoint.stage, checkpoint.key)
    if manifest is None or checkpoint.stage != "train":
        raise UnknownModel(f"{checkpoint.stage}/{checkpoint.key} is no training of this store; it has no run")
    tags = {name: value for name, value in run.tags.items() if value}
    return sync_run(run.tracking, run.store, manifest, tags)


def log_evaluation(
    run: Run, run_id: str, version: ModelVersion, evalset: ArtifactRef, metrics: dict[str, float]
) -> None:
    """Tie the figures of an evaluation to the model and its dataset, at the end of the training's curve."""
    manifest = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    step = int(manifest.counts["rows"]) if manifest else 0  # it may have ended early
    location = str(run.store.folder(evalset))
    run.tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)


def version_of(run: Run, checkpoint: ArtifactRef) -> ModelVersion | None:
    """Return the registered version of a checkpoint; a home without a registry has none, and gets none."""
    if checkpoint.stage != "train" or not run.home.has_tracking:
        return None
    return Registry(run.tracking).by_digest(checkpoint.digest)


@subflow("promote")
def promote_model(
    run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: Settings | None = None
) -> tuple[Promotion, str]:
    """Let the gates judge a model beside the champion, measured on the same evaluation set, and move aliases.

    Args:
        evaluation: Evaluation of the model.
        settings: Settings by which it was measured, the champion is measured and the gates judge.

    Returns:
        The promotion, and the id of the MLflow run.

    Raises:
        UserError: if the model was trained on documents of the evaluation set.
    """
    settings = settings or Settings()
    (evalset,) = manifest_of(run.store, evaluation).input_refs("evalset")
    if trained_on(run.store, checkpoint, evalset):
        raise UserError(
            f"the model {checkpoint.stage}/{checkpoint.key[:12]} was trained on documents of the evaluation set "
            f"{evalset.key[:12]}, so its figures say nothing: train on the present split with `sheepfold run SOURCE`"
        )
    run_id = ensure_training_run(run, checkpoint)
    metrics = read_metrics(run.store, evaluation)
    while True:
        registry = Registry(run.tracking)
        rival = _measured_champion(run, registry, checkpoint, evaluation, settings)
        judged = _judged(run, checkpoint, evaluation, rival, settings)
        try:
            move = partial(promote, run.store, registry, run_id, checkpoint, evaluation, judged, rival)
            done = act(run, "promote", partial(move, settings.evaluate.trace), [checkpoint, evaluation, judged])
        except ChampionChanged:
            continue  # another promotion was faster; its champion is measured in turn
        figures = dict(metrics)
        if rival is not None and rival.evaluation is not None and rival.evaluation != evaluation:
            figures |= champion_figures(read_metrics(run.store, rival.evaluation))
        log_evaluation(run, run_id, done.version, evalset, figures)
        return done, run_id


def _measured_champion(
    run: Run, registry: Registry, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: Settings
) -> Rival | None:
    """Return the champion, evaluated on the same set; `evaluation` itself if it is this very checkpoint."""
    from flows.evaluate import evaluate_model

    champion = registry.by_alias(CHAMPION)
    if champion is None:
        return None
    found = version_checkpoint(run, registry, champion)
    if found == checkpoint:
        return Rival(champion.version, found, evaluation)
    (evalset,) = manifest_of(run.store, evaluation).input_refs("evalset")
    if trained_on(run.store, found, evalset):
        run.note(
            f"model version {champion.version}, which is champion, was trained on documents of this evaluation set; "
            "its figures on it would say nothing, so the two were not compared and it stays champion"
        )
        return Rival(champion.version, found, None)
    return Rival(champion.version, found, evaluate_model(run, found, evalset, settings.evaluate)[0])


def _judged(
    run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef, rival: Rival | None, settings: Settings
) -> ArtifactRef:
    """Return the gates' verdicts on a model; of the champion itself, those by which it became champion."""
    inputs = {"checkpoint": checkpoint, "evaluation": evaluation}
    if rival is not None and rival.evaluation == evaluation:
        known = noted_version(run.store, rival.version)
        if known is not None and known.gates is not None and run.store.find(known.gates.stage, known.gates.key):
            return run.reuse(gates, known.gates)
    elif rival is not None and rival.evaluation is not None:
        inputs["champion"] = rival.evaluation
    elif rival is not None:
        inputs["champion_that_knew"] = rival.checkpoint
    (evalset,) = manifest_of(run.store, evaluation).input_refs("evalset")
    leaks = known_leaks(run.store, checkpoint, evalset)
    if leaks is not None:
        inputs["leaks"] = leaks
    return gates(run, settings.gates, **inputs)


def model_entry(done: Promotion) -> dict[str, Any]:
    """Return the `model` part of a result."""
    return {
        "name": MODEL_NAME,
        "version": done.version.version,
        "alias": done.alias,
        "reason": done.reason,
        "moved": done.moved,
        "gates": [item.document() for item in done.verdicts],
    }
