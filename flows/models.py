"""Find models by name, and register and promote them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.context import subflow
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, Registry, bundle_folder, may_be_registered, model_name, read_models
from storage.schemas import COUNTS_FILE
from storage.versions import RUN_PATIENCE, find_version, registered_versions
from tasks.bundle import CONFIG_FILE, WEIGHTS_FILE
from tasks.executor import act
from tasks.gates.facts import known_leaks
from tasks.gates.stage import gates
from tasks.registry.promote import ChampionChanged, Promotion, Rival, champion_of, promote, trained_on
from tasks.run import Run
from tasks.settings import Settings
from tasks.tokens.tokenizer import TOKENIZER_FILE
from tasks.training import sync_run


class UnknownModel(UserError):
    """A model that no name leads to."""


def resolve_version(run: Run, model: str) -> ModelVersion:
    """Return the registered version behind an alias, a number, a `models:/` address or a run id.

    Raises:
        UnknownModel: if there is none.
    """
    found = find_version(registered_versions(run.home, RUN_PATIENCE), model, run.corpus)
    if found is None:
        raise UnknownModel(
            f"no model {model!r}: give an alias (champion, challenger), a version number, "
            f"models:/{model_name(run.corpus)}@ALIAS, a run id, or a folder with a model; `sheepfold run SOURCE` "
            "makes the first one"
        )
    return found


def checkpoint_of(run: Run, model: str) -> ArtifactRef:
    """Return the checkpoint of a model named in any of the allowed ways.

    A registered name wins over a folder of the same name, which `./NAME` leads to. A model outside the store (a folder,
    or a version of a registry that outlived its store) is copied into it.

    Raises:
        UnknownModel: if the name leads nowhere.
    """
    folder = Path(model)
    if folder.is_dir() and not may_be_registered(model):
        return _add(run, folder)  # needs no registry
    champion_of(run.store, Registry(run.tracking, run.corpus))  # refuses a registry that lost the champion
    if folder.is_dir() and find_version(registered_versions(run.home, RUN_PATIENCE), model, run.corpus) is None:
        return _add(run, folder)
    return version_checkpoint(run, resolve_version(run, model))


def version_checkpoint(run: Run, version: ModelVersion) -> ArtifactRef:
    """Return the checkpoint of a registered version."""
    found = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    if found is not None and found.digest == version.checkpoint.digest:
        return version.checkpoint  # a training that was refreshed has other weights under the same key
    return _add(run, bundle_folder(version))


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
    return Registry(run.tracking, run.corpus).by_digest(checkpoint.digest)


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
    while True:
        registry = Registry(run.tracking, run.corpus)
        rival = _measured_champion(run, registry, checkpoint, evaluation, settings)
        judged = _judged(run, checkpoint, evaluation, rival, settings)
        try:
            move = partial(promote, run.store, registry, run_id, checkpoint, evaluation, judged, rival)
            decide = partial(move, settings.evaluate.trace)
            return act(run, "promote", decide, [checkpoint, evaluation, judged]), run_id
        except ChampionChanged:
            continue  # another promotion was faster; its champion is measured in turn


def _measured_champion(
    run: Run, registry: Registry, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: Settings
) -> Rival | None:
    """Return the champion, evaluated on the same set; `evaluation` itself if it is this very checkpoint."""
    from flows.evaluate import evaluate_model

    champion = champion_of(run.store, registry)
    if champion is None:
        return None
    found = version_checkpoint(run, champion)
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
        known = read_models(run.store, run.corpus).models.get(checkpoint.digest)
        if known is not None and run.store.find(known.gates.stage, known.gates.key):
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
        "name": done.version.name,
        "version": done.version.version,
        "alias": done.alias,
        "reason": done.reason,
        "moved": done.moved,
        "gates": [item.document() for item in done.verdicts],
    }
