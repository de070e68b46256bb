"""The flow `promote`: register the corpus's latest training and compare it with the champion by the gates."""

from __future__ import annotations

from functools import partial
from typing import Any

from flows.context import flow, open_run, subflow
from flows.evaluate import evaluate_model, remember_evaluation
from flows.options import SettingsOptions
from flows.report import finish
from flows.train import latest_training
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import Registry, read_models
from tasks.chat.answers import Questions
from tasks.core.executor import act
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.curate.evalset import frozen_evalset
from tasks.evaluation.evaluate import EvaluateSettings, evaluate
from tasks.evaluation.gates import gates, known_leaks
from tasks.lineage.training_data import base_of, forgotten_since
from tasks.registry.models import ensure_training_run, version_checkpoint
from tasks.registry.promote import ChampionChanged, Promotion, champion_of, move_aliases, trained_on


@flow(SettingsOptions)
def promote(options: SettingsOptions) -> dict[str, Any]:
    """Register the corpus's latest training, and make it champion if it passes the gates."""
    settings = options.load()
    with open_run(options) as run:
        evalset = frozen_evalset(run)
        checkpoint = latest_training(run)
        questions = trained_questions(run, settings, checkpoint)
        evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings.evaluate, questions=questions)
        done, run_id = promote_model(run, checkpoint, evaluation, settings, questions)
        remember_evaluation(run, checkpoint, evaluation)  # after the promotion, which may refuse it
        return finish(run, metrics=metrics, mlflow_run_id=run_id, promoted=done)


@subflow("promote")
def promote_model(
    run: Run,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    settings: Settings | None = None,
    questions: Questions | None = None,
) -> tuple[Promotion, str]:
    """Compare a model with the champion by the gates, on the same evaluation set, and move the aliases.

    Args:
        evaluation: Evaluation of the model.
        settings: Settings of this evaluation, of the champion's evaluation and of the gates.
        questions: What this evaluation asked.

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
            f"{evalset.key[:12]}, so its figures are not valid: train on the present split with `sheepfold run SOURCE`"
        )
    run_id = ensure_training_run(run, checkpoint)
    while True:
        registry = Registry(run.tracking, run.corpus)
        compared, beside = _measured_champion(run, registry, checkpoint, evaluation, settings, questions)
        is_champion = compared is not None and not beside
        verdicts = _verdicts(run, checkpoint, evaluation, beside, settings, is_champion, questions)
        try:
            move = partial(move_aliases, run.store, registry, run_id, checkpoint, evaluation, verdicts, compared)
            decide = partial(move, settings.evaluate.trace)
            return act(run, "promote", decide, [checkpoint, evaluation, verdicts]), run_id
        except ChampionChanged:
            continue  # another promotion was faster: compare with its champion


def _measured_champion(
    run: Run,
    registry: Registry,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    settings: Settings,
    questions: Questions | None,
) -> tuple[str | None, dict[str, ArtifactRef]]:
    """Return the champion's version, and the gates' input for it: its evaluation on the same set, if that is valid.

    The input is empty without a champion, and if the model is the champion itself.
    """
    champion = champion_of(run.store, registry)
    if champion is None:
        return None, {}
    found = version_checkpoint(run, champion)
    if found == checkpoint:
        return champion.version, {}
    (evalset,) = manifest_of(run.store, evaluation).input_refs("evalset")
    if n := forgotten_since(run.store, found):
        run.note(
            f"the champion, version {champion.version}, was trained on {n} document(s) that were forgotten since; if "
            "it stays champion, `sheepfold rollback --to VERSION` makes one without them champion"
        )
    if trained_on(run.store, found, evalset):
        run.note(
            f"the champion, version {champion.version}, was trained on documents of this evaluation set, so its "
            "figures on it are not valid; the two were not compared and it stays champion"
        )
        return champion.version, {"champion_that_knew": found}
    return champion.version, {
        "champion": evaluate_model(run, found, evalset, settings.evaluate, questions=questions)[0]
    }


def _verdicts(
    run: Run,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    beside: dict[str, ArtifactRef],
    settings: Settings,
    is_champion: bool,
    questions: Questions | None,
) -> ArtifactRef:
    """Return the gates' verdicts on a model; for the champion itself, those of its promotion."""
    known = read_models(run.store, run.corpus).models.get(checkpoint.digest)
    if is_champion and known is not None and run.store.find(known.gates.stage, known.gates.key):
        return run.reuse(gates, known.gates)
    inputs = {"checkpoint": checkpoint, "evaluation": evaluation, **beside}
    (evalset,) = manifest_of(run.store, evaluation).input_refs("evalset")
    leaks = known_leaks(run.store, checkpoint, evalset)
    if leaks is not None:
        inputs["leaks"] = leaks
    if settings.gates.max_quantisation_loss and questions is not None:
        run.note("gates.max_quantisation_loss is for models of texts: what rounding costs answers is not measured")
    elif settings.gates.max_quantisation_loss:
        rounded = EvaluateSettings(settings.evaluate.stride, settings.gates.quantisation)
        inputs["quantised"] = evaluate(run, rounded, checkpoint=checkpoint, evalset=evalset)
    base = base_of(run.store, checkpoint)
    if settings.gates.replay and base is not None:
        inputs["base"] = evaluate_model(run, base, evalset, settings.evaluate)[0]
        if questions is not None:  # what is to be remembered are texts
            inputs["texts"] = evaluate_model(run, checkpoint, evalset, settings.evaluate)[0]
    if questions is not None and base is not None:
        inputs["base_answers"] = evaluate_model(run, base, evalset, questions=questions)[0]
    return gates(run, settings.gates, **inputs)


def trained_questions(run: Run, settings: Settings, checkpoint: ArtifactRef) -> Questions | None:
    """Return the questions for a model that was trained on conversations; None for others."""
    made = manifest_of(run.store, checkpoint)
    (dataset,) = made.input_refs("dataset")
    form = next(
        (ref for ref in manifest_of(run.store, dataset).input_refs("tokens") if ref.stage == "tokenise_pairs"), None
    )
    if form is None:
        return None
    written = manifest_of(run.store, form).settings
    return Questions(written["template"], tuple(written["kinds"]), settings.chat.answers, settings.chat.answer_tokens)
