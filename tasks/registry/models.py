"""Resolve names of models to versions and checkpoints, and complete their MLflow runs."""

from __future__ import annotations

from pathlib import Path

from storage.errors import UserError
from storage.lineage import location_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, Registry, find_version, model_name, read_models, registered_versions
from storage.schemas import COUNTS_FILE
from tasks.core.run import Run
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE
from tasks.training.bundle import CHAT_FILE, CONFIG_FILE, WEIGHTS_FILE
from tasks.training.train import sync_run, train


class UnknownModel(UserError):
    """A model that does not exist."""


def resolve_version(run: Run, model: str) -> ModelVersion:
    """Return the version of an alias, a number, a `models:/` address or a run id.

    The store's record has precedence; versions registered from another store are only in MLflow.

    Raises:
        UnknownModel: there is none.
    """
    found = find_version(registered_versions(run.store), model, run.corpus)
    if found is None and run.home.has_tracking:
        found = find_version(Registry(run.tracking, run.corpus).versions(), model, run.corpus)
    if found is None:
        raise UnknownModel(
            f"no model {model!r}: give an alias (champion, challenger), a version number, "
            f"models:/{model_name(run.corpus)}@ALIAS, a run id, or a folder with a model; `sheepfold run SOURCE` "
            "makes the first one"
        )
    return found


def checkpoint_of(run: Run, model: str) -> ArtifactRef:
    """Return the checkpoint of a model, given as for `resolve_version` or as a folder.

    A recorded name has precedence over a folder of the same name, for which use `./NAME`. A model outside the store (a
    folder, or a version only in MLflow) is copied into it.

    Raises:
        UnknownModel: the model does not exist.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and find_version(registered_versions(run.store), model, run.corpus) is None:
        return _add(run, folder)
    return version_checkpoint(run, resolve_version(run, model))


def version_checkpoint(run: Run, version: ModelVersion) -> ArtifactRef:
    """Return the checkpoint of a registered version."""
    found = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    if found is not None and found.digest == version.checkpoint.digest:
        return version.checkpoint  # a refreshed training has other weights under the same key
    return _add(run, Registry(run.tracking, run.corpus).download_bundle(version))


def _add(run: Run, folder: Path) -> ArtifactRef:
    names = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, COUNTS_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnknownModel(f"{folder} is not a model folder: it lacks {', '.join(missing)}")
    found = [name for name in (*names, CHAT_FILE) if (folder / name).is_file()]
    ref, _ = run.add("bundle", {name: folder / name for name in found})
    return ref


def version_of(run: Run, checkpoint: ArtifactRef) -> ModelVersion | None:
    """Return the version of a checkpoint in MLflow; None if it was never registered.

    Raises:
        UserError: MLflow lacks a version that the store records.
    """
    known = read_models(run.store, run.corpus).models.get(checkpoint.digest)
    if known is None or not known.version:
        return None
    return Registry(run.tracking, run.corpus).recorded(checkpoint.digest)


def ensure_training_run(run: Run, checkpoint: ArtifactRef) -> str:
    """Return the MLflow run of a training; completes it from the artefact if it was interrupted."""
    manifest = run.store.find(checkpoint.stage, checkpoint.key)
    if manifest is None or checkpoint.stage != train.name:
        raise UnknownModel(f"{checkpoint.stage}/{checkpoint.key} is not a training of this store, so it has no run")
    tags = {name: value for name, value in run.tags.items() if value}
    return sync_run(run.tracking, run.store, manifest, tags)


def log_evaluation(run: Run, version: ModelVersion, evalset: ArtifactRef, metrics: dict[str, float]) -> None:
    """Log the metrics of an evaluation to MLflow, linked to model and dataset, at the last step of the training."""
    manifest = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    step = int(manifest.counts["rows"]) if manifest else 0  # less than max_steps after early stopping
    location = location_of(run.store, evalset)
    run.tracking.log_figures(version.run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
