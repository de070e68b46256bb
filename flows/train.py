"""The flows `train` and `suggest`: choose what the settings leave open, and train. They register nothing."""

from __future__ import annotations

from typing import Any

from flows.base import Base, with_base
from flows.context import flow, open_run, subflow
from flows.finish import finish, result_of
from flows.models import ensure_training_run
from flows.options import TrainOptions
from flows.prepare import Prepared, document_tokens, prepare_source
from flows.state import publish
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.executor import act
from tasks.machine import describe_device, detect_device
from tasks.run import Run
from tasks.settings import AUTO, Settings, TrainSettings
from tasks.suggest import SUGGESTED, SuggestSettings, candidates_of, read_suggestion
from tasks.suggest import suggest as suggest_stage
from tasks.tokens.index import groups_of, load_index
from tasks.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from tasks.training import TrainStageSettings, model_config, steps_of_epochs, steps_of_tokens, train_config
from tasks.training import train as train_stage


@flow(TrainOptions)
def train(options: TrainOptions) -> dict[str, Any]:
    """Prepare what is new and train a network; the same request again is found in the store."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested, prepared, base = prepare_source(run, options.source, settings)
        checkpoint = train_model(run, settings, prepared, base)
        run_id = act(run, "track", lambda: ensure_training_run(run, checkpoint), [checkpoint])
        ingested.remember(run)
        prepared.remember(run)
        run.remember(train=checkpoint)
        publish(run)
        return finish(run, result_of(run, mlflow_run_id=run_id), sources=ingested.sources)


@flow(TrainOptions)
def suggest(options: TrainOptions) -> dict[str, Any]:
    """Prepare what is new, time networks of several sizes, and propose one; a training takes the proposal."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested, prepared, _ = prepare_source(run, options.source, settings)
        run.remember(suggest=suggest_training(run, settings, prepared))
        ingested.remember(run)
        prepared.remember(run)
        publish(run)
        return finish(run, result_of(run), sources=ingested.sources)


def suggest_training(run: Run, settings: Settings, prepared: Prepared) -> ArtifactRef:
    """Return the proposal of a shape and of the steps that the budget has room for, measured once and kept."""

    def asked() -> SuggestSettings:
        device = describe_device(detect_device())
        vocab_size = _vocab_size(run, prepared.tokenizer)
        shapes, plans = candidates_of(settings.model, settings.train, vocab_size, prepared.seq_len, device)
        tokens, document = document_tokens(run, prepared.shards) if len(shapes) > 1 else (0, 0)
        by_steps = settings.train.max_steps * plans[next(iter(plans))]["batch_size"] * prepared.seq_len
        read_tokens = by_steps or settings.train.max_tokens
        minutes = 0.0 if read_tokens else settings.train.minutes
        means = ", ".join(filter(None, (device, settings.execution.words())))
        return SuggestSettings(minutes, tokens, document, read_tokens, shapes, plans, means)

    after = (prepared.tokenizer, *prepared.shards)
    return suggest_stage(run, asked, execution=settings.execution, after=after)


@subflow("train")
def train_model(run: Run, settings: Settings, prepared: Prepared, base: Base | None = None) -> ArtifactRef:
    """Choose what the settings leave open, and train, from a base if there is one; returns the checkpoint."""
    settings = with_base(settings, base)
    run.expect_seconds(train_stage, _expected_seconds(settings.train))
    by_time = not (settings.train.max_steps or settings.train.max_tokens)
    suggestion = None
    if by_time or settings.model.preset == AUTO:
        suggestion = suggest_training(run, settings, prepared)
        run.remember(suggest=suggestion)

    def asked() -> TrainStageSettings:
        suggested, fitting = {}, 0
        if suggestion is not None:
            found = read_suggestion(run.store.folder(suggestion))
            network, fitting = found["model"], found["max_steps"]
            suggested = {name: found["train"][name] for name in SUGGESTED}
        else:
            network = model_config(settings.model, _vocab_size(run, prepared.tokenizer))
        if base is not None:
            network["vocab_size"] = base.shape["vocab_size"]  # its rows may be more than the tokeniser has ids
        probe = train_config(settings.train, network, 1_000, **suggested)
        steps = _resolve_steps(run, settings.train, probe, prepared.dataset, fitting)
        return TrainStageSettings(network, train_config(settings.train, network, steps, **suggested))

    inputs = {"dataset": prepared.dataset, "tokenizer": prepared.tokenizer}
    if base is not None:
        inputs["base"] = base.checkpoint
    after = () if suggestion is None else (suggestion,)
    return train_stage(run, asked, **inputs, execution=settings.execution, tags=run.tags, after=after)


def _vocab_size(run: Run, fitted: ArtifactRef) -> int:
    return int(load_tokenizer(run.store.folder(fitted) / TOKENIZER_FILE).vocab_size)


def _resolve_steps(run: Run, settings: TrainSettings, probe: dict[str, Any], cut: ArtifactRef, fitting: int) -> int:
    """Return the steps of a training: as given, or from tokens, or those that fit the minutes.

    Args:
        probe: Configuration of the training, but for its steps.
        fitting: Steps that fit the minutes.
    """
    if settings.max_steps:
        return settings.max_steps
    counts = manifest_of(run.store, cut).counts
    most = steps_of_epochs(settings.max_epochs, probe, counts["train_reads"])
    if settings.max_tokens:
        folder = run.store.folder(cut)
        labels = load_index(folder, "train").labels
        return steps_of_tokens(settings.max_tokens, probe, labels, groups_of(folder), most)
    return min(most, fitting)


def _expected_seconds(settings: TrainSettings) -> float | None:
    return None if settings.max_steps or settings.max_tokens else settings.minutes * 60
