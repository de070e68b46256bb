"""The ingest flow: files become pages, and every path gets a row that says what became of it."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from flows import pipeline
from flows.actions import result_of
from flows.arrivals import announce
from flows.context import (
    Config,
    Corpus,
    HomeFolder,
    Overrides,
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


@flow(name="ingest", task_runner=task_runner(), persist_result=False)
@described
def ingest(
    source: Source,
    corpus: Corpus = "default",
    workers: Workers = 0,
    refresh: Refresh = "",
    retry_failed: RetryFailed = False,
    announce_share: Annotated[
        float,
        Field(
            description="Tell when so large a share of the documents came or went since the last model; 0 never.", ge=0
        ),
    ] = 0,
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Walk, hash, and extract what is new."""
    settings = flow_settings(config, overrides)
    with flow_session(home, corpus, refresh, retry_failed, workers, limits=settings.limits) as session:
        ingested = pipeline.ingest(session, resolve_sources([source]), settings)
        pipeline.remember_ingested(session, ingested)
        pipeline.publish(session, corpus)
        announce(session, corpus, source, announce_share)
        return finish(session, corpus, result_of(session))


if __name__ == "__main__":
    import sys

    ingest("\n".join(sys.argv[1:]))
