"""The promote flow: the corpus's latest training is compared with the champion, and names move."""

from prefect import flow

from flows import pipeline
from flows.actions import model_entry, promote_model, result_of
from flows.context import (
    Config,
    Corpus,
    HomeFolder,
    Overrides,
    described,
    finish,
    flow_session,
    flow_settings,
    task_runner,
)
from tasks.session import artifact


@flow(name="promote", task_runner=task_runner(), persist_result=False)
@described
def promote(
    corpus: Corpus = "default", config: Config = "", overrides: Overrides = "", home: HomeFolder = ""
) -> dict[str, object]:
    """Register the corpus's latest training and move `champion` if it passes the gates."""
    settings = flow_settings(config, overrides)
    with flow_session(home, corpus) as session:
        evalset = pipeline.frozen_evalset(session, corpus)
        checkpoint = pipeline.latest_training(session, corpus)
        measured, metrics = pipeline.evaluate_model(session, checkpoint, evalset, settings.evaluate)
        evaluation = artifact(measured)
        done, run_id = session.act("promote", lambda: promote_model(session, checkpoint, evaluation, settings))
        pipeline.publish_evaluation(session, corpus, checkpoint, evaluation)  # not those that promotion refuses
        result = result_of(session, metrics=metrics, model=model_entry(done), mlflow_run_id=run_id)
        return finish(session, corpus, result, promoted=done)


if __name__ == "__main__":
    promote()
