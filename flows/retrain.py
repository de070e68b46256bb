"""The flow `retrain`, behind `sheepfold run`: from documents to a registered model; and the plan of it."""

from __future__ import annotations

from typing import Any

from flows.context import flow, open_run
from flows.evaluate import evaluate_model, measure_beside, trace_model
from flows.finish import finish, result_of
from flows.generate import completions_path, sample
from flows.options import RetrainOptions
from flows.prepare import ingest_and_prepare
from flows.promote import model_entry, promote_model
from flows.train import train_model
from storage.home import Home, check_corpus_name
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.registry.base import already_read, check_unread, continuing


@flow(RetrainOptions)
def retrain(options: RetrainOptions) -> dict[str, Any]:
    """Ingest, prepare, train, evaluate, let the gates judge, promote, generate; only what changed is computed."""
    from flows.unchanged import keep_result

    settings = options.load()
    with open_run(options, settings.limits) as run:
        settings = continuing(run, settings, options.base)
        _, prepared, base = ingest_and_prepare(run, options.source, settings)
        evalset = prepared.evalset
        check_unread(run, base, evalset)
        read = already_read(run, options.base, base, prepared.dataset)
        checkpoint = read or train_model(run, settings, prepared, base)
        evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings.evaluate)
        done, run_id = promote_model(run, checkpoint, evaluation, settings)
        made = sample(run, settings, checkpoint, evalset)
        model = f"version {done.version.version} ({done.alias})"
        measured, beside = measure_beside(run, model, checkpoint, evalset, evaluation, made, settings.evaluate)
        run.remember(train=checkpoint, evaluate=evaluation, generate=made)
        result = result_of(
            run,
            metrics={**metrics, **beside},
            model=model_entry(done),
            mlflow_run_id=run_id,
            completions=completions_path(run, made),
        )
        finished = finish(run, result, measured=measured, promoted=done)
        keep_result(run, settings, finished)
        return finished


def plan(options: RetrainOptions) -> Run:
    """Go the way of `retrain` without computing anything; the run's reports say what would be computed.

    No artefact is made and no source is downloaded.
    """
    settings = options.load()
    check_corpus_name(options.corpus)
    home = Home.from_environment(options.home)
    run = Run(home, None, options.corpus, options.stages_to_refresh(), bool(options.retry_failed), plan=True)
    plan_retraining(run, options.source, continuing(run, settings, options.base))
    return run


def plan_retraining(run: Run, source: str, settings: Settings) -> None:
    """Call the stages of a retraining in its order under a planning run.

    Left out is what makes no artefact (checks, the registry), and the champion, which is measured beside the model.
    """
    _, prepared, base = ingest_and_prepare(run, source, settings)
    checkpoint = train_model(run, settings, prepared, base)
    evaluation, _ = evaluate_model(run, checkpoint, prepared.evalset, settings.evaluate, prepared.dataset)
    made = sample(run, settings, checkpoint, prepared.evalset)
    trace_model(run, settings.evaluate, checkpoint, prepared.evalset, made)
    run.remember(train=checkpoint, evaluate=evaluation, generate=made)
