"""The evaluate flow: a registered model is measured on the corpus's frozen evaluation set."""

from functools import partial

from prefect import flow

from flows import pipeline
from flows.actions import checkpoint_of, completions_path, log_evaluation, result_of, version_of
from flows.context import Corpus, HomeFolder, Model, Refresh, described, finish, flow_session, task_runner
from flows.measuring import measure_beside
from tasks.session import artifact
from tasks.settings import Settings


@flow(name="evaluate", task_runner=task_runner(), persist_result=False)
@described
def evaluate(
    model: Model = "champion", corpus: Corpus = "default", refresh: Refresh = "", home: HomeFolder = ""
) -> dict[str, object]:
    """Measure a model beside its baselines, and look at what it writes."""
    with flow_session(home, corpus, refresh) as session:
        evalset = pipeline.frozen_evalset(session, corpus)
        checkpoint = checkpoint_of(session, model)
        evaluation, metrics = pipeline.evaluate_model(session, checkpoint, evalset)
        pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)
        made = artifact(pipeline.sample(session, Settings(), checkpoint, evalset))
        measured, beside = measure_beside(session, model, checkpoint, evalset, artifact(evaluation), made)
        version = version_of(session, checkpoint)
        run_id = version.run_id if version is not None else ""
        if version is not None and run_id:
            session.act("track", partial(log_evaluation, session, run_id, version, evalset, metrics))
        result = result_of(
            session,
            metrics={**metrics, **beside},
            mlflow_run_id=run_id or None,
            completions=completions_path(session.store, made),
        )
        return finish(session, corpus, result, measured)


if __name__ == "__main__":
    evaluate()
