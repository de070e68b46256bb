"""The prepare flow: files become a dataset that is ready for training."""

from prefect import flow

from flows import pipeline
from flows.actions import result_of
from flows.context import (
    Config,
    Corpus,
    HomeFolder,
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


@flow(name="prepare", task_runner=task_runner(), persist_result=False)
@described
def prepare(
    source: Source,
    corpus: Corpus = "default",
    preset: Preset = "",
    workers: Workers = 0,
    refresh: Refresh = "",
    retry_failed: RetryFailed = False,
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Ingest what is new, then normalise, split, tokenise and cut into sequences."""
    settings = flow_settings(config, overrides, model__preset=preset)
    with flow_session(home, corpus, refresh, retry_failed, workers, limits=settings.limits) as session:
        pipeline.check_asked(session, corpus, settings)
        ingested = pipeline.ingest(session, resolve_sources([source]), settings)
        prepared = pipeline.prepare(session, corpus, settings, ingested)
        pipeline.remember_ingested(session, ingested)
        pipeline.remember_prepared(session, prepared)
        pipeline.publish(session, corpus)
        return finish(session, corpus, result_of(session))


if __name__ == "__main__":
    import sys

    prepare("\n".join(sys.argv[1:]))
