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

WithDrift = Annotated[bool, Field(description="Measure it on documents that came after it was trained as well.")]


@flow(name="evaluate", task_runner=task_runner(), persist_result=False)
@described
def evaluate(
    model: Model = "champion",
    corpus: Corpus = "default",
    drift: WithDrift = False,
    refresh: Refresh = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Measure a model beside its baselines, and look at what it writes; on fresh documents, too, if asked for."""
    with flow_session(home, corpus, refresh) as session:
        evalset = pipeline.frozen_evalset(session, corpus)
        checkpoint = checkpoint_of(session, model)
        found, metrics = pipeline.evaluate_model(session, checkpoint, evalset)
        evaluation = artifact(found)
        pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)
        made = artifact(pipeline.sample(session, Settings(), checkpoint, evalset))
        measured, beside = measure_beside(session, model, checkpoint, evalset, evaluation, made)
        drifted = measure_drift(session, corpus, checkpoint, evaluation) if drift else None
        version = version_of(session, checkpoint)
        run_id = version.run_id if version is not None else ""
        if version is not None and run_id:
            session.act("track", partial(log_evaluation, session, run_id, version, evalset, metrics))
            if drifted is not None:
                figures = drifted[0].figures()
                session.act("track", partial(log_evaluation, session, run_id, version, drifted[1], figures))
        result = result_of(
            session,
            metrics={**metrics, **beside, **(drifted[0].figures() if drifted is not None else {})},
            mlflow_run_id=run_id or None,
            completions=completions_path(session.store, made),
        )
        return finish(session, corpus, result, measured)


if __name__ == "__main__":
    evaluate()
