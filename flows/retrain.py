"""The retrain flow: everything, from a folder of documents to a registered model and a sample of its text."""

from prefect import flow

from flows import pipeline
from flows.actions import completions_path, model_entry, promote_model, result_of
from flows.base import champion_of, check_unread, continuing
from flows.context import (
    Base,
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
from flows.measuring import measure_beside
from tasks.ingest.sources.resolve import resolve_sources
from tasks.session import artifact


@flow(name="retrain", task_runner=task_runner(), persist_result=False)
@described
def retrain(
    source: Source,
    corpus: Corpus = "default",
    preset: Preset = "",
    minutes: Minutes = 0,
    max_steps: MaxSteps = 0,
    max_tokens: MaxTokens = 0,
    seed: Seed = -1,
    base: Base = "",
    workers: Workers = 0,
    deterministic: Deterministic = False,
    refresh: Refresh = "",
    retry_failed: RetryFailed = False,
    config: Config = "",
    overrides: Overrides = "",
    home: HomeFolder = "",
) -> dict[str, object]:
    """Ingest, prepare, train, evaluate, let the gates judge, promote, generate; only what changed is computed."""
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
        settings = continuing(session, settings, base)
        pipeline.check_asked(session, corpus, settings)
        ingested = pipeline.ingest(session, resolve_sources([source]), settings)
        prepared = pipeline.prepare(session, corpus, settings, ingested)
        evalset = artifact(prepared.evalset)
        check_unread(session, settings, evalset)
        read = champion_of(session, base, artifact(prepared.dataset))
        checkpoint = read or artifact(pipeline.train_model(session, settings, prepared))
        measured, metrics = pipeline.evaluate_model(session, checkpoint, evalset, settings.evaluate)
        evaluation = artifact(measured)
        done, run_id = session.act("promote", lambda: promote_model(session, checkpoint, evaluation, settings))
        made = artifact(pipeline.sample(session, settings, checkpoint, evalset))
        model = f"version {done.version.version} ({done.alias})"
        shown, beside = measure_beside(session, model, checkpoint, evalset, evaluation, made, settings.evaluate)
        pipeline.remember_ingested(session, ingested)
        pipeline.remember_prepared(session, prepared)
        pipeline.remember(session, train=checkpoint, evaluate=evaluation, generate=made)
        pipeline.publish(session, corpus)
        result = result_of(
            session,
            metrics={**metrics, **beside},
            model=model_entry(done),
            mlflow_run_id=run_id,
            completions=completions_path(session.store, made),
        )
        return finish(session, corpus, result, shown, done)


if __name__ == "__main__":
    import sys

    retrain("\n".join(sys.argv[1:]))
