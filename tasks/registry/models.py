"""Find models by name, and complete their runs in MLflow."""

from __future__ import annotations

from pathlib import Path

from storage.errors import UserError
from storage.lineage import location_of
from storage.manifest import ArtifactRef
from storage.registry import ModelVersion, Registry, find_version, model_name, read_models, registered_versions
from storage.schemas import COUNTS_FILE
from tasks.core.run import Run
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE
from tasks.training.train import sync_run, train


class UnknownModel(UserError):
    """A model that no name leads to."""


def resolve_version(run: Run, model: str) -> ModelVersion:
    """Return the version behind an alias, a number, a `models:/` address or a run id.

    The store's record comes first; versions that another store registered are known to MLflow alone.

    Raises:
        UnknownModel: if there is none.
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
    """Return the checkpoint of a model named in any of the allowed ways.

    A name that the store records wins over a folder of the same name, which `./NAME` leads to. A model outside the
    store (a folder, or a version that MLflow alone knows) is copied into it.

    Raises:
        UnknownModel: if the name leads nowhere.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and find_version(registered_versions(run.store), model, run.corpus) is None:
        return _add(run, folder)
    return version_checkpoint(run, resolve_version(run, model))


def version_checkpoint(run: Run, version: ModelVersion) -> ArtifactRef:
    """Return the checkpoint of a registered version."""
    found = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    if found is not None and found.digest == version.checkpoint.digest:
        return version.checkpoint  # a training that was refreshed has other weights under the same key
    return _add(run, Registry(run.tracking, run.corpus).download_bundle(version))


def _add(run: Run, folder: Path) -> ArtifactRef:
    names = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, COUNTS_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnknownModel(f"{folder} is no model folder: it lacks {', '.join(missing)}")
    ref, _ = run.add("bundle", {name: folder / name for name in names})
    return ref


def version_of(run: Run, checkpoint: ArtifactRef) -> ModelVersion | None:
    """Return the version of a checkpoint in MLflow; None if it was never registered.

    Raises:
        UserError: if MLflow lacks a version that the store records.
    """
    known = read_models(run.store, run.corpus).models.get(checkpoint.digest)
    if known is None or not known.version:
        return None
    return Registry(run.tracking, run.corpus).recorded(checkpoint.digest)


def ensure_training_run(run: Run, checkpoint: ArtifactRef) -> str:
    """Return the MLflow run of a checkpoint, completed from the artefact where a kill left it unfinished."""
    manifest = run.store.find(checkpoint.stage, checkpoint.key)
    if manifest is None or checkpoint.stage != train.name:
        raise UnknownModel(f"{checkpoint.stage}/{checkpoint.key} is no training of this store; it has no run")
    tags = {name: value for name, value in run.tags.items() if value}
    return sync_run(run.tracking, run.store, manifest, tags)


def log_evaluation(run: Run, version: ModelVersion, evalset: ArtifactRef, metrics: dict[str, float]) -> None:
    """Tie the figures of an evaluation to the model and its dataset, at the end of the training's curve."""
    manifest = run.store.find(version.checkpoint.stage, version.checkpoint.key)
    step = int(manifest.counts["rows"]) if manifest else 0  # it may have ended early
    location = location_of(run.store, evalset)
    run.tracking.log_figures(version.run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)
