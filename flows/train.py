"""The flows `train` and `suggest`: choose the settings that are not given, and train. They register no model."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from flows.context import flow, open_run, subflow
from flows.options import TrainOptions
from flows.prepare import Prepared, ingest_and_prepare
from flows.report import finish
from storage.catalog import read_state
from storage.manifest import ArtifactRef
from storage.store import StoreError
from tasks.chat.settings import SAMPLING
from tasks.core.executor import act
from tasks.core.machine import detect_device
from tasks.core.run import Run
from tasks.core.settings import AUTO, ModelSettings, Settings, TrainSettings
from tasks.evaluation.ngram import NgramSettings, ngram
from tasks.registry.base import Base, with_base
from tasks.registry.models import ensure_training_run
from tasks.tokens.tokenise import TokeniseSettings
from tasks.training.forecast import ForecastSettings, forecast, forecast_sentence, read_forecast
from tasks.training.suggest import SUGGESTED, read_suggestion, suggest_settings, suggestion_sentence
from tasks.training.suggest import suggest as suggest_stage
from tasks.training.train import (
    TrainStageSettings,
    model_config,
    most_steps,
    recorded_sampling,
    steps_of,
    train_config,
    vocab_size_of,
)
from tasks.training.train import train as train_stage

logger = logging.getLogger("sheepfold")


@flow(TrainOptions)
def train(options: TrainOptions) -> dict[str, Any]:
    """Prepare new documents and train a network; the same request again is cached."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        _, prepared, base = ingest_and_prepare(run, options.source, settings)
        checkpoint = train_model(run, settings, prepared, base)
        run_id = act(run, "track", partial(ensure_training_run, run, checkpoint), [checkpoint])
        return finish(run, mlflow_run_id=run_id)


@flow(TrainOptions)
def suggest(options: TrainOptions) -> dict[str, Any]:
    """Prepare new documents, time networks of several sizes, and suggest one; trainings use the suggestion."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        _, prepared, _ = ingest_and_prepare(run, options.source, settings)
        found = suggest_training(run, settings, prepared)
        forecast_training(run, settings, prepared, found)
        return finish(run)


def forecast_training(run: Run, settings: Settings, prepared: Prepared, suggestion: ArtifactRef) -> None:
    """Say what the training is expected to reach, if its settings are those that forecasts are fitted to."""
    asked, usual, order = settings.train, TrainSettings(), settings.evaluate.ngram_order
    free: dict[str, Any] = {"minutes": asked.minutes, "max_epochs": asked.max_epochs, "seed": asked.seed}
    if prepared.questions is not None:  # of texts
        return
    if settings.model != ModelSettings() or asked != replace(usual, **free) or order != NgramSettings().order:
        return
    found = forecast(
        run,
        ForecastSettings(
            asked.minutes, asked.max_epochs, TokeniseSettings(settings.tokenizer.bos, settings.tokenizer.eos)
        ),
        suggestion=suggestion,
        dataset=prepared.dataset,
        ngram=ngram(run, NgramSettings(order, settings.evaluate.ngram_tokens), dataset=prepared.dataset),
        tokenizer=prepared.tokenizer,
        evalset=prepared.evalset,
    )
    run.remember(forecast=found)
    run.read(found, lambda ref: logger.info(forecast_sentence(read_forecast(run.store.folder(ref)))), None)


def suggest_training(run: Run, settings: Settings, prepared: Prepared) -> ArtifactRef:
    """Return the suggested shape of the network and number of steps within the budget; measured once and cached."""
    asked = partial(suggest_settings, run, settings, prepared.tokenizer, prepared.shards, prepared.seq_len)
    after = (prepared.tokenizer, *prepared.shards)
    found = suggest_stage(run, asked, execution=settings.execution, after=after)
    run.remember(suggest=found)
    return found


@subflow("train")
def train_model(run: Run, settings: Settings, prepared: Prepared, base: Base | None = None) -> ArtifactRef:
    """Choose the settings that are not given, and train, from a base if there is one; returns the checkpoint."""
    sampling = recorded_sampling(settings.model.preset) if base is None else base.sampling
    if prepared.questions is not None:
        sampling = {**SAMPLING, **sampling}
    settings = with_base(settings, base)
    budget = settings.train
    by_time = not (budget.max_steps or budget.max_tokens)
    if by_time:
        run.expect_seconds(train_stage, budget.minutes * 60)
    suggestion = suggest_training(run, settings, prepared) if by_time or settings.model.preset == AUTO else None
    if suggestion is not None:
        run.read(suggestion, lambda ref: _say(read_suggestion(run.store.folder(ref))), None)
        if base is None:
            forecast_training(run, settings, prepared, suggestion)

    def asked() -> TrainStageSettings:
        if suggestion is None:
            network, suggested, fitting = model_config(settings.model, vocab_size_of(run, prepared.tokenizer)), {}, 0
        else:
            found = read_suggestion(run.store.folder(suggestion))
            network, fitting = found["model"], found["max_steps"]
            suggested = {name: found["train"][name] for name in SUGGESTED}
        if base is not None:
            # the base may have more rows than its tokeniser has ids, and a tokeniser may be extended
            network["vocab_size"] = max(base.shape["vocab_size"], vocab_size_of(run, prepared.tokenizer))
        device = detect_device()
        probe = train_config(budget, network, device, 1_000, **suggested)
        steps = steps_of(run, budget, probe, prepared.dataset, fitting)
        if by_time:
            suggested |= {"minutes": budget.minutes, "most_steps": most_steps(run, budget, probe, prepared.dataset)}
        return TrainStageSettings(network, train_config(budget, network, device, steps, **suggested), sampling)

    inputs = {"dataset": prepared.dataset, "tokenizer": prepared.tokenizer}
    if base is not None:
        inputs["base"] = base.checkpoint
    after = () if suggestion is None else (suggestion,)
    unkeyed = {"execution": settings.execution, "tags": run.tags, "replay": settings.gates.replay if base else ""}
    checkpoint = train_stage(run, asked, **inputs, **unkeyed, after=after)
    run.remember(train=checkpoint)
    return checkpoint


def _say(suggestion: dict[str, Any]) -> None:
    logger.info("suggest: %s", suggestion_sentence(suggestion))


def latest_training(run: Run) -> ArtifactRef:
    """Return the checkpoint of the corpus's last completed training.

    Raises:
        StoreError: if there is none.
    """
    found = read_state(run.store, run.corpus).get(train_stage.name)
    if not found:
        raise StoreError(f"corpus {run.corpus!r} has no training yet: run `sheepfold train SOURCE` or `run` first")
    return found[0]
