"""The suggest flow: what to train on a folder of documents, on this device, in so much time."""

from prefect import flow

from flows import pipeline
from flows.actions import result_of
from flows.context import (
    Config,
    Corpus,
    HomeFolder,
    MaxSteps,
    MaxTokens,
    Minutes,
    Overrides,
    Preset,
    Refresh,
    RetryFailed,
    Source,
    Workers,
    described,
    finish,
    flow_session,
    flow_settings,
    task_runner,
)
from tasks.ingest.sources.resolve import resolve_sources


@flow(name="suggest", task_runner=task_runner(), persist_result=False)
@described
def suggest(
    source: Source,
    corpus: Corpus = "default",
    preset: Preset = "",
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    workers: Workers = 0,
    refresh: Refresh = "",
    retry_failed: RetryFailed = False,
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Prepare what is new, time networks of several sizes, and propose one; a training takes the proposal."""
    settings = flow_settings(
        config,
        overrides,
        model__preset=preset,
        train__minutes=minutes,
        train__max_steps=max_steps,
        train__max_tokens=max_tokens,
    )
    with flow_session(home, corpus, refresh, retry_failed, workers, limits=settings.limits) as session:
        pipeline.check_asked(session, corpus, settings)
        ingested = pipeline.ingest(session, resolve_sources([source]), settings)
        prepared = pipeline.prepare(session, corpus, settings, ingested)
        pipeline.remember(session, suggest=pipeline.suggest_training(session, settings, prepared))
        pipeline.remember_ingested(session, ingested)
        pipeline.remember_prepared(session, prepared)
        pipeline.publish(session, corpus)
        return finish(session, corpus, result_of(session))


if __name__ == "__main__":
    import sys

    suggest("\n".join(sys.argv[1:]))
