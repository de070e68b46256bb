"""The evaluate flow: a registered model is measured on the corpus's frozen evaluation set."""

from functools import partial
from typing import Annotated

from prefect import flow
from pydantic import Field

from flows import pipeline
from flows.actions import checkpoint_of, completions_path, log_evaluation, result_of, version_of
from flows.context import Corpus, HomeFolder, Model, Refresh, described, finish, flow_session, task_runner
from flows.drift import measure_drift
from flows.measuring import measure_beside
from tasks.session import artifact
from tasks.settings import Settings


@flow(name="evaluate", task_runner=task_runner(), persist_result=False)
@described
def evaluate(
    model: Model = "champion",
    corpus: Corpus = "default",
    fresh: Annotated[
        bool, Field(description="Measure it on the documents that came after it as well (drift).")
    ] = False,
    refresh: Refresh = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Measure a model beside its baselines, and look at what it writes."""
    with flow_session(home, corpus, refresh) as session:
        evalset = pipeline.frozen_evalset(session, corpus)
        checkpoint = checkpoint_of(session, model)
        evaluation, metrics = pipeline.evaluate_model(session, checkpoint, evalset)
        pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)
        made = artifact(pipeline.sample(session, Settings(), checkpoint, evalset))
        measured, beside = measure_beside(session, model, checkpoint, evalset, artifact(evaluation), made)
        drift = measure_drift(session, corpus, checkpoint, metrics) if fresh else None
        version = version_of(session, checkpoint)
        run_id = version.run_id if version is not None else ""
        if version is not None and run_id:
            session.act("track", partial(log_evaluation, session, run_id, version, evalset, metrics))
            if drift is not None:
                session.act("drift", partial(log_evaluation, session, run_id, version, drift.texts, drift.metrics))
        result = result_of(
            session,
            metrics={**metrics, **beside, **(drift.metrics if drift is not None else {})},
            mlflow_run_id=run_id or None,
            completions=completions_path(session.store, made),
        )
        return finish(session, corpus, result, measured)


if __name__ == "__main__":
    evaluate()
