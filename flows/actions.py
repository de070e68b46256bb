"""What flows and commands do around the stages: find models by name, promote, and put results together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.report import RunResult
from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHAMPION, ModelVersion, Registry, bundle_folder, may_be_registered, read_models
from storage.store import Store
from tasks.bundle import CONFIG_FILE, WEIGHTS_FILE
from tasks.gates.facts import known_leaks
from tasks.gates.stage import gates
from tasks.generation.stage import COMPLETIONS_FILE, BundleSettings, adopt_bundle
from tasks.registry.promote import ChampionChanged, Promotion, Rival, champion_of, promote, trained_on
from tasks.session import Session, artifact
from tasks.settings import Settings
from tasks.suggest import read_suggestion, suggest
from tasks.tokens.index import COUNTS_FILE
from tasks.tokens.tokenizer import TOKENIZER_FILE
from tasks.training import sync_run


class UnknownModel(UserError):
    """A model that no name leads to."""


def resolve_version(registry: Registry, model: str) -> ModelVersion:
    """The registered version behind an alias, a number, a `models:/` address or a run id.

    Raises:
        UnknownModel: if there is none.
    """
    found = registry.find(model)
    if found is None:
        raise UnknownModel(
            f"no model {model!r}: give an alias (champion, challenger), a version number, "
            f"models:/{registry.name}@ALIAS, a run id, or a folder with a model; `sheepfold run SOURCE` makes the "
            "first one"
        )
    return found


def registry_of(session: Session) -> Registry:
    """Return the registry of the session's corpus.

    Raises:
        UserError: if MLflow lacks the champion that the store records.
    """
    registry = Registry(session.resources.tracking, session.corpus)
    champion_of(session.store, registry)
    return registry


def checkpoint_of(session: Session, model: str) -> ArtifactRef:
    """The checkpoint artefact of a model named in any of the allowed ways.

    A registered name wins over a folder of the same name, which `./NAME` leads to. A model that lies outside the store
    (a folder, or a version of a registry that outlived its store) is taken in.

    Raises:
        UnknownModel: if the name leads nowhere.
    """
    folder = Path(model)
    if folder.is_dir() and not may_be_registered(model):
        return _adopt(session, folder)  # no registry is needed, nor made
    registry = registry_of(session)
    if folder.is_dir() and registry.find(model) is None:
        return _adopt(session, folder)
    return version_checkpoint(session, resolve_version(registry, model))


def version_checkpoint(session: Session, version: ModelVersion) -> ArtifactRef:
    """The checkpoint artefact of a registered version."""
    found = session.store.find(version.checkpoint.stage, version.checkpoint.key)
    if found is not None and found.digest == version.checkpoint.digest:
        return version.checkpoint  # a training that was refreshed has other weights under the same key
    return _adopt(session, bundle_folder(version))


def _adopt(session: Session, folder: Path) -> ArtifactRef:
    names = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, COUNTS_FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnknownModel(f"{folder} is no model folder: it lacks {', '.join(missing)}")
    session.resources.bundle_folder = folder
    digest = sha256_json({name: sha256_file(folder / name) for name in names})
    return artifact(session.run(adopt_bundle, BundleSettings(digest)))


def ensure_training_run(session: Session, checkpoint: ArtifactRef) -> str:
    """The MLflow run of a checkpoint, completed from the artefact where a kill left it unfinished."""
    manifest = session.store.find(checkpoint.stage, checkpoint.key)
    if manifest is None or checkpoint.stage != "train":
        raise UnknownModel(f"{checkpoint.stage}/{checkpoint.key} is no training of this store; it has no run")
    tags = {name: value for name, value in session.resources.run_tags.items() if value}
    return sync_run(session.resources.tracking, session.store, manifest, tags)


def log_evaluation(
    session: Session, run_id: str, version: ModelVersion, evalset: ArtifactRef, metrics: dict[str, float]
) -> None:
    """Tie an evaluation's figures to the model and to what it was measured on, at the end of the training's curve."""
    manifest = session.store.find(version.checkpoint.stage, version.checkpoint.key)
    step = int(manifest.counts["rows"]) if manifest else 0  # it may have ended early
    location = str(session.store.folder(evalset))
    tracking = session.resources.tracking
    tracking.log_figures(run_id, version.model_id, metrics, step, evalset.stage, evalset.digest, location)


def version_of(session: Session, checkpoint: ArtifactRef) -> ModelVersion | None:
    """The registered version of a checkpoint; a home without a registry has none, and gets none."""
    if checkpoint.stage != "train" or not session.home.has_tracking:
        return None
    return Registry(session.resources.tracking, session.corpus).by_digest(checkpoint.digest)


def promote_model(
    session: Session, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: Settings | None = None
) -> tuple[Promotion, str]:
    """Let the gates judge a model beside the champion, measured on the same evaluation set, and move names.

    Args:
        evaluation: the model's.
        settings: by which it was measured, the champion is, and the gates judge.

    Returns:
        What was done, and the id of the MLflow run.

    Raises:
        UserError: if the model was trained on documents of the evaluation set.
    """
    settings = settings or Settings()
    (evalset,) = manifest_of(session.store, evaluation).input_refs("evalset")
    if trained_on(session.store, checkpoint, evalset):
        raise UserError(
            f"the model {checkpoint.stage}/{checkpoint.key[:12]} was trained on documents of the evaluation set "
            f"{evalset.key[:12]}, so its figures say nothing: train on the present split with `sheepfold run SOURCE`"
        )
    run_id = ensure_training_run(session, checkpoint)
    while True:
        registry = registry_of(session)
        rival = _measured_champion(session, registry, checkpoint, evaluation, settings)
        judged = _judged(session, checkpoint, evaluation, rival, settings)
        try:
            traced = settings.evaluate.trace
            return promote(session.store, registry, run_id, checkpoint, evaluation, judged, rival, traced), run_id
        except ChampionChanged:
            continue  # another promotion was faster; its champion is measured in turn


def _measured_champion(
    session: Session, registry: Registry, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: Settings
) -> Rival | None:
    """The present champion, evaluated on the same set; `evaluation` itself if it is this very checkpoint."""
    from flows.pipeline import evaluate_model

    champion = champion_of(session.store, registry)
    if champion is None:
        return None
    found = version_checkpoint(session, champion)
    if found == checkpoint:
        return Rival(champion.version, found, evaluation)
    (evalset,) = manifest_of(session.store, evaluation).input_refs("evalset")
    if trained_on(session.store, found, evalset):
        session.note(
            f"model version {champion.version}, which is champion, was trained on documents of this evaluation set; "
            "its figures on it would say nothing, so the two were not compared and it stays champion"
        )
        return Rival(champion.version, found, None)
    return Rival(champion.version, found, artifact(evaluate_model(session, found, evalset, settings.evaluate)[0]))


def _judged(
    session: Session, checkpoint: ArtifactRef, evaluation: ArtifactRef, rival: Rival | None, settings: Settings
) -> ArtifactRef:
    """The verdicts of the gates on a model; of the champion itself, those by which it became champion."""
    inputs = {"checkpoint": checkpoint, "evaluation": evaluation}
    if rival is not None and rival.evaluation == evaluation:
        known = read_models(session.store, session.corpus).models.get(checkpoint.digest)
        if known is not None and session.store.find(known.gates.stage, known.gates.key):
            return session.reuse(gates, known.gates)
    elif rival is not None and rival.evaluation is not None:
        inputs["champion"] = rival.evaluation
    elif rival is not None:
        inputs["champion_that_knew"] = rival.checkpoint
    (evalset,) = manifest_of(session.store, evaluation).input_refs("evalset")
    leaks = known_leaks(session.store, checkpoint, evalset)
    if leaks is not None:
        inputs["leaks"] = leaks
    return artifact(session.run(gates, settings.gates, **inputs))


def model_entry(done: Promotion) -> dict[str, Any]:
    """The `model` part of a result."""
    return {
        "name": done.version.name,
        "version": done.version.version,
        "alias": done.alias,
        "reason": done.reason,
        "moved": done.moved,
        "gates": [item.document() for item in done.verdicts],
    }


def completions_path(store: Store, ref: ArtifactRef) -> str:
    """Path of a generation's table."""
    return str(store.folder(ref) / COMPLETIONS_FILE)


def result_of(session: Session, **parts: Any) -> RunResult:
    """A result with the session's report, and the suggestion that it followed, if there is one."""
    made = session.produced.get(suggest.name)
    suggestion = read_suggestion(session.store.folder(made[0])) if made else None
    return RunResult(stages=session.report_list(), notes=list(session.notes), suggestion=suggestion, **parts)


def champion_entry(registry: Registry) -> dict[str, Any] | None:
    """The champion in `status`."""
    version = registry.by_alias(CHAMPION)
    if version is None:
        return None
    figures = {
        name.removeprefix("sheepfold."): value for name, value in version.tags.items() if name.startswith("sheepfold.")
    }
    return {
        "name": version.name,
        "version": version.version,
        "uri": f"models:/{version.name}@{CHAMPION}",
        "run_id": version.run_id,
        "checkpoint": asdict(version.checkpoint),
        "tags": figures,
    }
