"""The train flow: a folder's dataset becomes a checkpoint, with its curve in MLflow. It registers nothing."""

from prefect import flow

from flows import pipeline
from flows.actions import ensure_training_run, result_of
from flows.context import (
    Config,
    Corpus,
    Deterministic,
    HomeFolder,
    MaxSteps,
    MaxTokens,
    Minutes,
    Overrides,
    Preset,
    Refresh,
    RetryFailed,
    Seed,
    Source,
    Workers,
    described,
    finish,
    flow_session,
    flow_settings,
    task_runner,
)
from tasks.ingest.sources.resolve import resolve_sources
from tasks.session import artifact


@flow(name="train", task_runner=task_runner(), persist_result=False)
@described
def train(
    source: Source,
    corpus: Corpus = "default",
    preset: Preset = "",
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    seed: Seed = -1,
    workers: Workers = 0,
    deterministic: Deterministic = False,
    refresh: Refresh = "",
    retry_failed: RetryFailed = False,
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Prepare what is new and train; the same request again is found in the store."""
    settings = flow_settings(
        config,
        overrides,
        model__preset=preset,
        train__minutes=minutes,
        train__max_steps=max_steps,
        train__max_tokens=max_tokens,
        train__seed=seed,
    )
    with flow_session(home, corpus, refresh, retry_failed, workers, deterministic, settings.limits) as session:
        pipeline.check_asked(session, corpus, settings)
        ingested = pipeline.ingest(session, resolve_sources([source]), settings)
        prepared = pipeline.prepare(session, corpus, settings, ingested)
        checkpoint = artifact(pipeline.train_model(session, settings, prepared))
        run_id = session.act("track", lambda: ensure_training_run(session, checkpoint))
        pipeline.remember_ingested(session, ingested)
        pipeline.remember_prepared(session, prepared)
        pipeline.remember(session, train=checkpoint)
        pipeline.publish(session, corpus)
        return finish(session, corpus, result_of(session, mlflow_run_id=run_id))


if __name__ == "__main__":
    import sys

    train("\n".join(sys.argv[1:]))
