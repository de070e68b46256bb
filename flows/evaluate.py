"""The flow `evaluate`: measure a model on the corpus's frozen evaluation set, on other texts, or by questions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.context import flow, open_run, subflow
from flows.finish import finish, leave_markdown, leave_table, result_of
from flows.generate import completions_path, sample
from flows.models import checkpoint_of, log_evaluation, version_checkpoint, version_of
from flows.options import EvaluateOptions
from flows.state import frozen_evalset, publish_evaluation
from flows.trace import trace_model
from storage.catalog import read_state, waits_for_run
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHAMPION, PREVIOUS, ModelVersion, read_models
from storage.store import Store
from storage.versions import RUN_PATIENCE, find_version, registered_versions
from tasks.curate.curate import curate
from tasks.evaluation import EvaluateSettings, read_metrics
from tasks.evaluation import evaluate as evaluate_stage
from tasks.evaluation.compare import champion_figures
from tasks.evaluation.fresh import Drift, FreshSettings, came_since, drift_between, fresh, known_selections
from tasks.evaluation.inputs import (
    COLUMN,
    SPLITS,
    SplitSettings,
    TextsSettings,
    copy_split,
    keep_texts,
    read_texts,
    split_inputs,
)
from tasks.evaluation.ngram import NgramSettings, dataset_of, ngram
from tasks.evaluation.tables import read_documents
from tasks.evaluation_report.collect import Measured
from tasks.exams.questions import read_questions
from tasks.exams.stages import ANSWERS_FILE, ExamSettings, QuestionsSettings, exam, keep_questions, read_exam_metrics
from tasks.executor import act
from tasks.registry.promote import trained_on
from tasks.run import Run
from tasks.settings import EvaluationSettings, Settings


@flow(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Measure a model beside its baselines and sample its text; on documents newer than its training, too, if asked."""
    with open_run(options) as run:
        checkpoint = checkpoint_of(run, options.model)
        if options.tasks:
            return _ask_questions(run, options.model, checkpoint, Path(options.tasks).expanduser().resolve())
        return _measure(run, options, checkpoint)


def _measure(run: Run, options: EvaluateOptions, checkpoint: ArtifactRef) -> dict[str, Any]:
    model, on = options.model, options.on or ""
    usual = not (options.on or options.stride)
    version = version_of(run, checkpoint)
    judged = judged_by(run.store, run.corpus, version)
    settings = replace(judged, stride=options.stride or judged.stride)
    evalset = evaluation_texts(run, on, options.column or "")
    evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings)
    read = trained_on(run.store, checkpoint, evalset)
    fair = usual and not read  # other figures stand beside the usual ones, never in their place
    if fair:
        publish_evaluation(run, checkpoint, evaluation)
    made = sample(run, Settings(), checkpoint, evalset)
    measured, beside = measure_beside(run, model, checkpoint, evalset, evaluation, made, settings)
    if not fair:
        measured = replace(measured, texts=_called(on, options.stride), read=read)
    if read:
        run.note(f"{model} was trained on some of these documents, so its figures flatter it")
    if read and options.drift:
        run.note("nothing is known of its drift, which is measured against those figures")
    drifted = measure_drift(run, checkpoint, evaluation, settings) if options.drift and not read else None
    if drifted is not None:
        leave_markdown("drift", f"Drift of {model} on {run.corpus}", f"{drifted[0].sentence()}\n")
    run_id = version.run_id if version is not None else ""
    if version is not None and run_id:
        logged = metrics if fair else _apart(metrics, evalset.stage, options.stride, read)
        act(run, "track", partial(log_evaluation, run, run_id, version, evalset, logged), [evaluation])
        if drifted is not None:
            figures = drifted[0].figures()
            act(run, "track", partial(log_evaluation, run, run_id, version, drifted[1], figures), [drifted[1]])
    result = result_of(
        run,
        metrics={**metrics, **beside, **(drifted[0].figures() if drifted is not None else {})},
        mlflow_run_id=run_id or None,
        completions=completions_path(run, made),
    )
    return finish(run, result, measured=measured)


def _ask_questions(run: Run, model: str, checkpoint: ArtifactRef, file: Path) -> dict[str, Any]:
    """Put questions to a model; returns its accuracy beside that of guessing."""
    asked = read_questions(file)
    kept = keep_questions(run, QuestionsSettings.of(asked), questions=asked)
    made = exam(run, ExamSettings(), checkpoint=checkpoint, questions=kept)
    folder = run.store.folder(made)
    metrics = read_exam_metrics(folder)
    version = version_of(run, checkpoint)
    if version is not None and version.run_id:
        act(run, "track", partial(log_evaluation, run, version.run_id, version, kept, metrics), [made])
    table = [{"figure": name, "value": value} for name, value in metrics.items()]
    leave_table("exam", f"{len(asked)} questions for {model}", table)
    return {**result_of(run, metrics=metrics).to_dict(), "answers": str(folder / ANSWERS_FILE)}


@subflow("evaluate")
def evaluate_model(
    run: Run,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    settings: EvaluationSettings | None = None,
    dataset: ArtifactRef | None = None,
) -> tuple[ArtifactRef, dict[str, float]]:
    """Measure a model; returns the evaluation and its figures (none in a plan that has to wait).

    Args:
        dataset: Training data of a model that is not there yet.
    """
    settings = settings or EvaluationSettings()
    inputs = {"checkpoint": checkpoint, "evalset": evalset}
    dataset = run.read(checkpoint, lambda ref: dataset_of(run.store, ref), dataset)
    if settings.ngram_order and dataset is not None:
        inputs["ngram"] = ngram(run, NgramSettings(settings.ngram_order, settings.ngram_tokens), dataset=dataset)
    found = evaluate_stage(run, EvaluateSettings(settings.stride), **inputs)
    return found, run.read(found, lambda ref: read_metrics(run.store, ref), {})


def evaluation_texts(run: Run, on: str, column: str = "") -> ArtifactRef:
    """Return texts to measure a model on, as an artefact with the layout of an evaluation set.

    Args:
        on: `train` or `validation` for that side of the corpus as it is now; else a text file, a folder of text files,
            JSON Lines or Parquet; empty for the corpus's frozen evaluation set.
        column: Field of JSON Lines and Parquet that holds the text; empty means `text`.

    Raises:
        StoreError: the corpus was never prepared.
        UserError: it cannot be read, or there is no text in it.
    """
    if not on:
        return frozen_evalset(run)
    if on in SPLITS:
        return copy_split(run, SplitSettings(on), **split_inputs(read_state(run.store, run.corpus)))
    texts = read_texts(Path(on).expanduser(), column or COLUMN)
    return keep_texts(run, TextsSettings.of(texts), texts=texts)


def judged_by(store: Store, corpus: str, version: ModelVersion | None) -> EvaluationSettings:
    """Return the settings by which a model was measured when it was judged last, so that new figures compare.

    Args:
        version: Registered version; None, or one without known figures, is measured by the usual settings.
    """
    noted = None if version is None else read_models(store, corpus).models.get(version.checkpoint.digest)
    if noted is None:
        return EvaluationSettings()
    judged = manifest_of(store, noted.evaluation)
    found = EvaluationSettings(stride=judged.settings["stride"], ngram_order=0, trace=noted.traced)
    if "ngram" not in judged.inputs:
        return found
    (order,) = (manifest_of(store, ref).settings for ref in judged.input_refs("ngram"))
    return replace(found, ngram_order=order["order"], ngram_tokens=order["max_tokens"])


def measure_beside(
    run: Run,
    model: str,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    evaluation: ArtifactRef,
    completions: ArtifactRef,
    settings: EvaluationSettings,
) -> tuple[Measured, dict[str, float]]:
    """Measure another champion beside a model, and trace the model's completions and documents.

    Args:
        model: Name of the model on its page.

    Returns:
        All of it, and the figures of the other champion under names of their own.
    """
    rival, figures = _other_champion(run, checkpoint, evalset, settings)
    found, seen = trace_model(run, settings, checkpoint, evalset, completions)
    measured = Measured(model, checkpoint, evalset, evaluation, rival, completions, found, seen)
    return measured, champion_figures(figures)


def _other_champion(
    run: Run, checkpoint: ArtifactRef, evalset: ArtifactRef, settings: EvaluationSettings
) -> tuple[tuple[str, ArtifactRef] | None, dict[str, float]]:
    """Return the champion, or for the champion itself the one before it, measured on the same documents."""
    versions = registered_versions(run.home, RUN_PATIENCE)
    for alias, name in ((CHAMPION, "the champion"), (PREVIOUS, "the previous champion")):
        version = find_version(versions, alias, run.corpus)
        if version is None or version.checkpoint.digest == checkpoint.digest:
            continue
        found = version_checkpoint(run, version)
        if trained_on(run.store, found, evalset):
            return None, {}
        evaluation, figures = evaluate_model(run, found, evalset, settings)
        return (f"{name} (version {version.version})", evaluation), figures
    return None, {}


def measure_drift(
    run: Run, checkpoint: ArtifactRef, evaluation: ArtifactRef, settings: EvaluationSettings
) -> tuple[Drift, ArtifactRef] | None:
    """Measure a model on the documents that came after it was trained.

    Args:
        evaluation: Evaluation of the model on its own evaluation set.

    Returns:
        Its drift, and the set of new documents; None where no document came since, or where it is not known which came
        or which the model read.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(run.store, run.corpus):
        run.note(f"{waits}; nothing is known of this model's drift before it")
        return None
    state = read_state(run.store, run.corpus)
    inputs = split_inputs(state)
    known = known_selections(run.store, checkpoint)
    if not known.refs:
        run.note("it is not known which documents this model read, so nothing is known of its drift")
        return None
    if not came_since(run.store, state[curate.name][0], known):
        run.note("no document came to the corpus since this model was trained, so nothing is known of its drift")
        return None
    found = fresh(run, FreshSettings(), known=known, **inputs)
    measured, _ = evaluate_model(run, checkpoint, found, settings)
    drift = drift_between(read_documents(run.store, measured), read_documents(run.store, evaluation))
    run.note(f"drift: {drift.sentence()}")
    return drift, found


def _called(on: str, stride: int | None) -> str:
    """Return the name of the documents and how they were read."""
    name = f"the {on} split" if on in SPLITS else Path(on).name if on else "the evaluation set"
    return f"{name}, read in strides of {stride}" if stride else name


def _apart(metrics: dict[str, float], stage: str, stride: int | None, read: bool) -> dict[str, float]:
    """Rename figures that do not belong at the end of a training's curve.

    Args:
        read: The model was trained on some of the documents, so that they flatter it.
    """
    place = f"read-{stage}" if read else stage
    place = f"{place}/stride-{stride}" if stride else place
    return {f"{place}/{name.partition('/')[2]}": value for name, value in metrics.items()}
