"""The flow `promote`: register the corpus's latest training and let the gates judge it."""

from __future__ import annotations

from typing import Any

from flows.context import flow, open_run
from flows.evaluate import evaluate_model
from flows.finish import finish, result_of
from flows.models import model_entry, promote_model
from flows.options import CorpusOptions
from flows.state import latest_training, remember_evaluation
from tasks.curate.evalset import frozen_evalset


@flow(CorpusOptions)
def promote(options: CorpusOptions) -> dict[str, Any]:
    """Register the corpus's latest training, and make it champion if it passes the gates."""
    settings = options.load()
    with open_run(options) as run:
        evalset = frozen_evalset(run)
        checkpoint = latest_training(run)
        evaluation, metrics = evaluate_model(run, checkpoint, evalset, settings.evaluate)
        done, run_id = promote_model(run, checkpoint, evaluation, settings)
        remember_evaluation(run, checkpoint, evaluation)  # not those that promotion refuses
        return finish(
            run, result_of(run, metrics=metrics, model=model_entry(done), mlflow_run_id=run_id), promoted=done
        )
