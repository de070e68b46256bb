"""The evaluate flow: a registered model is measured on the corpus's frozen evaluation set."""

from prefect import flow

from flows import pipeline
from flows.actions import checkpoint_of, result_of
from flows.context import Corpus, HomeFolder, Model, Refresh, described, finish, flow_session, task_runner


@flow(name="evaluate", task_runner=task_runner(), persist_result=False)
@described
def evaluate(
    model: Model = "champion", corpus: Corpus = "default", refresh: Refresh = "", home: HomeFolder = ""
) -> dict[str, object]:
    """Measure a model beside its baselines."""
    with flow_session(home, corpus, refresh) as session:
        evalset = pipeline.frozen_evalset(session, corpus)
        checkpoint = checkpoint_of(session, model)
        evaluation, metrics = pipeline.evaluate_model(session, checkpoint, evalset)
        pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)
        return finish(session, corpus, result_of(session, metrics=metrics))


if __name__ == "__main__":
    evaluate()
