"""The flow `retrain`, run by `sheepfold run`: from documents to a registered model."""

from __future__ import annotations

from typing import Any

from flows.context import flow, open_run
from flows.evaluate import evaluate_model, measure_beside
from flows.generate import sample
from flows.options import RetrainOptions
from flows.plan import keep_result
from flows.prepare import ingest_and_prepare
from flows.promote import promote_model
from flows.report import finish
from flows.train import train_model
from tasks.registry.base import already_read, check_unread, continuing


@flow(RetrainOptions)
def retrain(options: RetrainOptions) -> dict[str, Any]:
    """Ingest, prepare, train, evaluate, promote by the gates, generate; unchanged parts are cached."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        settings = continuing(run, settings, options.base)
        _, prepared, base = ingest_and_prepare(run, options.source, settings)
        evalset = prepared.evalset
        check_unread(run, base, evalset)
        read = already_read(run, options.base, base, prepared.dataset)
        checkpoint = read or train_model(run, settings, prepared, base)
        questions = prepared.questions
        evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings.evaluate, questions=questions)
        done, run_id = promote_model(run, checkpoint, evaluation, settings, questions)
        made = sample(run, settings, checkpoint, evalset, questions)
        model = f"version {done.version.version} ({done.alias})"
        measured, beside = measure_beside(
            run, model, checkpoint, evalset, evaluation, made, settings.evaluate, questions
        )
        run.remember(train=checkpoint, evaluate=evaluation, generate=made)
        result = finish(
            run,
            metrics={**metrics, **beside},
            mlflow_run_id=run_id,
            completions=made,
            measured=measured,
            promoted=done,
        )
        keep_result(run, settings, result)
        return result
