"""The flow `evaluate`: evaluate a model on the corpus's frozen evaluation set or on other texts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from flows.context import flow, open_run, subflow
from flows.generate import sample
from flows.options import EvaluateOptions
from flows.report import finish, leave
from storage.catalog import read_state
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.registry import CHAMPION, PREVIOUS, ModelVersion, find_version, read_models, registered_versions
from storage.store import Store
from tasks.chat.answers import Questions, answers
from tasks.chat.evaluate_answers import evaluate_answers
from tasks.core.executor import act
from tasks.core.run import Run
from tasks.core.settings import EvaluationSettings, Settings, load_settings
from tasks.core.stage import Call, NoSettings
from tasks.evaluation.compare import Drift, champion_figures, drift_between, other_figures
from tasks.evaluation.evaluate import EvaluateSettings
from tasks.evaluation.evaluate import evaluate as evaluate_stage
from tasks.evaluation.fresh import fresh_documents
from tasks.evaluation.ngram import NgramSettings, dataset_of, ngram
from tasks.evaluation.tables import read_documents, read_metrics
from tasks.evaluation.texts import evaluation_texts, texts_name
from tasks.lineage.contamination import contamination
from tasks.lineage.gram_overlap import OverlapSettings, gram_overlap
from tasks.lineage.memorised import MemorisedSettings, memorised
from tasks.lineage.trace_index import trace_indexes
from tasks.lineage.training_data import base_of, trained_texts
from tasks.registry.models import checkpoint_of, log_evaluation, version_checkpoint, version_of
from tasks.registry.promote import trained_on
from tasks.report.evaluation import Measured
from tasks.training.train import train as train_stage


@flow(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Evaluate a model and its baselines, sample its text and, on request, measure its drift on newer documents."""
    with open_run(options, load_settings().limits) as run:
        model, checkpoint = options.model, checkpoint_of(run, options.model)
        version = version_of(run, checkpoint)
        settings, questions = promotion_settings(run.store, run.corpus, version)
        questions = None if options.on else questions
        evalset = evaluation_texts(run, options.on, options.column)
        evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings, questions=questions)
        read = trained_on(run.store, checkpoint, evalset)
        usual = not (options.on or read)  # figures of other texts are logged under other names
        if usual:
            remember_evaluation(run, checkpoint, evaluation)
        made = sample(run, Settings(), checkpoint, evalset, questions)
        measured, beside = measure_beside(run, model, checkpoint, evalset, evaluation, made, settings, questions)
        if not usual:
            measured = replace(measured, texts=texts_name(options.on), read=read)
        if read:
            run.note(f"{model} was trained on some of these documents, so its figures are too good")
        if read and options.drift:
            run.note("its drift is unknown, because it is measured against these figures")
        if questions is not None and options.drift:
            run.note("the drift of a model that answers is not measured")
        wanted = options.drift and not read and questions is None
        drifted = measure_drift(run, checkpoint, evaluation, settings) if wanted else None
        if drifted is not None:
            leave("drift", f"Drift of {model} on {run.corpus}", f"{drifted[0].sentence()}\n")
        if version is not None:
            logged = metrics if usual else other_figures(metrics, evalset.stage, read)
            act(run, "track", partial(log_evaluation, run, version, evalset, logged), [evaluation])
            if drifted is not None:
                figures = drifted[0].figures()
                act(run, "track", partial(log_evaluation, run, version, drifted[1], figures), [drifted[1]])
        return finish(
            run,
            metrics={**metrics, **beside, **(drifted[0].figures() if drifted is not None else {})},
            mlflow_run_id=None if version is None else version.run_id,
            completions=made,
            measured=measured,
        )


@subflow("evaluate")
def evaluate_model(
    run: Run,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    settings: EvaluationSettings | None = None,
    dataset: ArtifactRef | None = None,
    questions: Questions | None = None,
) -> tuple[ArtifactRef, dict[str, float]]:
    """Evaluate a model; returns the evaluation and its figures (empty for a missing artefact in a plan).

    Args:
        dataset: Training data of a model that is missing in a plan.
        questions: Of the evaluation documents, whose answers a model is measured on instead of their text.
    """
    settings = settings or EvaluationSettings()
    inputs = {"checkpoint": checkpoint, "evalset": evalset}
    if questions is not None:
        given = answers(run, questions, **inputs)
        found = evaluate_answers(run, questions, **inputs, answers=given)
        return found, run.read(found, lambda ref: read_metrics(run.store, ref), {})
    dataset = run.read(checkpoint, lambda ref: dataset_of(run.store, ref), dataset)
    if settings.ngram_order and dataset is not None:
        inputs["ngram"] = ngram(run, NgramSettings(settings.ngram_order, settings.ngram_tokens), dataset=dataset)
    found = evaluate_stage(run, EvaluateSettings(settings.stride), **inputs)
    return found, run.read(found, lambda ref: read_metrics(run.store, ref), {})


def remember_evaluation(run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef) -> None:
    """Record an evaluation for the ref of the corpus, if it is of the corpus's latest training."""
    if read_state(run.store, run.corpus).get(train_stage.name) == [checkpoint]:
        run.remember(evaluate=evaluation)


def promotion_settings(
    store: Store, corpus: str, version: ModelVersion | None
) -> tuple[EvaluationSettings, Questions | None]:
    """Return the evaluation settings and the questions of a model's last promotion, so that new figures are comparable.

    Args:
        version: Registered version; the defaults are returned for None and for a version without a record.
    """
    noted = None if version is None else read_models(store, corpus).models.get(version.checkpoint.digest)
    if noted is None:
        return EvaluationSettings(), None
    judged = manifest_of(store, noted.evaluation)
    if judged.stage == evaluate_answers.name:
        kinds = tuple(judged.settings["kinds"])
        return EvaluationSettings(trace=noted.traced), Questions(**{**judged.settings, "kinds": kinds})
    found = EvaluationSettings(stride=judged.settings["stride"], ngram_order=0, trace=noted.traced)
    if "ngram" not in judged.inputs:
        return found, None
    (baseline,) = (manifest_of(store, ref).settings for ref in judged.input_refs("ngram"))
    return replace(found, ngram_order=baseline["order"], ngram_tokens=baseline["max_tokens"]), None


@subflow("trace")
def trace_model(
    run: Run, settings: EvaluationSettings, checkpoint: ArtifactRef, evalset: ArtifactRef, completions: ArtifactRef
) -> tuple[ArtifactRef | None, ArtifactRef | None]:
    """Find memorised spans of completions and contaminated evaluation documents in a model's training text.

    Returns:
        Artefacts of `memorised` and `contamination`; None if the settings exclude it or the training text is unknown.
    """
    texts = trained_texts(run, checkpoint) if settings.trace else None
    if texts is None:
        return None, None
    found = memorised(run, MemorisedSettings(), completions=completions, texts=texts, indexes=trace_indexes(run, texts))
    calls = []
    for ref, trained in zip(texts.refs, texts.live or (), strict=True):
        inputs = {"evalset": evalset, "documents": ref, "trained": set(trained)}
        calls.append(Call(OverlapSettings.of(trained), inputs))
    overlaps = RefSet.of(gram_overlap.map(run, calls))
    return found, contamination(run, NoSettings(), evalset=evalset, overlaps=overlaps)


def measure_beside(
    run: Run,
    model: str,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    evaluation: ArtifactRef,
    completions: ArtifactRef,
    settings: EvaluationSettings,
    questions: Questions | None = None,
) -> tuple[Measured, dict[str, float]]:
    """Evaluate another champion for comparison, and trace the model's completions and documents.

    Args:
        model: Name of the model on its page.

    Returns:
        All results for the page, and the figures of the other champion under separate names.
    """
    rival, figures = _other_champion(run, checkpoint, evalset, settings, questions)
    found, seen = trace_model(run, settings, checkpoint, evalset, completions)
    base = run.read(checkpoint, lambda ref: base_of(run.store, ref), None) if questions is not None else None
    beside = None if base is None else ("its base", evaluate_model(run, base, evalset, questions=questions)[0])
    measured = Measured(model, checkpoint, evalset, evaluation, rival, beside, completions, found, seen)
    return measured, champion_figures(figures)


def _other_champion(
    run: Run,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    settings: EvaluationSettings,
    questions: Questions | None,
) -> tuple[tuple[str, ArtifactRef] | None, dict[str, float]]:
    """Return the champion (for the champion itself, the previous one), evaluated on the same documents."""
    versions = registered_versions(run.store)
    for alias, name in ((CHAMPION, "the champion"), (PREVIOUS, "the previous champion")):
        version = find_version(versions, alias, run.corpus)
        if version is None or version.checkpoint.digest == checkpoint.digest:
            continue
        found = version_checkpoint(run, version)
        if trained_on(run.store, found, evalset):
            return None, {}
        evaluation, figures = evaluate_model(run, found, evalset, settings, questions=questions)
        return (f"{name} (version {version.version})", evaluation), figures
    return None, {}


def measure_drift(
    run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: EvaluationSettings
) -> tuple[Drift, ArtifactRef] | None:
    """Evaluate a model on the documents that were added after its training.

    Args:
        evaluation: Evaluation of the model on its own evaluation set.

    Returns:
        Its drift, and the set of new documents; None if no document was added, or if the new documents or those of the
        training are unknown.

    Raises:
        UserError: The corpus was never ingested.
    """
    found = fresh_documents(run, checkpoint)
    if found is None:
        return None
    measured, _ = evaluate_model(run, checkpoint, found, settings)
    drift = drift_between(read_documents(run.store, measured), read_documents(run.store, evaluation))
    run.note(f"drift: {drift.sentence()}")
    return drift, found
