"""Runs in which something goes wrong: spikes, non-finite weights, early stopping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guarded_cases import LEAP, LEARNED, N_SEQUENCES, NETWORK, PLAIN, ROWS, source_with_noise, sources_to_learn
from interrupted_runs import EVERY_STEP, Interrupted, assert_same_run, calling, stop_at

from model import (
    Callbacks,
    ModelConfig,
    NonFiniteLoss,
    SpanSource,
    TrainConfig,
    Trainer,
    TrainResult,
    Transformer,
    evaluate_source,
    load_checkpoint,
)
from model.data import Batch, order
from model.step import Stepper


class Events(Callbacks):
    """Events of a run, without those that every run reports."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str, int]] = []

    def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        if kind != "advice":
            self.found.append((step, kind, message, len(sequences)))


def run(folder: Path | None = None, **settings: Any) -> TrainResult:
    config = dataclasses.replace(PLAIN, **settings.pop("config", {}))
    source = settings.pop("source", None) or source_with_noise()
    settings = {"execution": EVERY_STEP, "callbacks": Events(), **settings}
    return Trainer(NETWORK, config, source, checkpoint_dir=folder, **settings).fit()


def test_a_leap_is_reported_with_its_sequences_and_changes_nothing() -> None:
    events = Events()
    found = run(callbacks=events)
    unwatched = run(config={"spike_zscore": 1e9})
    (row,) = (row for row in found.history if "spike/score" in row)
    assert row["step"] == LEAP and row["spike/score"] > 8
    assert [{k: v for k, v in row.items() if k != "spike/score"} for row in found.history] == unwatched.history
    ((step, kind, message, n_sequences),) = events.found
    assert (step, kind, n_sequences) == (LEAP, "spike", 4)
    assert message.startswith(f"spike at step {LEAP}: the ")


def test_without_a_listener_a_leap_is_a_warning() -> None:
    with pytest.warns(UserWarning, match=f"spike at step {LEAP}"):
        run(callbacks=Callbacks())


def test_patience_without_sequences_to_evaluate_on_is_refused(build_source: Callable[..., SpanSource]) -> None:
    with pytest.raises(ValueError, match="patience=3 needs a validation loss"):
        run(config={"patience": 3})


# The end of progress: the network learns few sequences by heart, and the validation loss turns.


def learn(folder: Path | None = None, config: TrainConfig = LEARNED, **settings: Any) -> tuple[TrainResult, Any]:
    train, val = sources_to_learn()
    settings = {"execution": EVERY_STEP, "callbacks": Events(), **settings}
    return Trainer(NETWORK, config, train, val, checkpoint_dir=folder, **settings).fit(), val


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_run_ends_early_with_the_best_weights(with_folder: bool, tmp_path: Path) -> None:
    events = Events()
    result, val = learn(tmp_path if with_folder else None, callbacks=events)
    losses = {row["step"]: row["val/loss"] for row in result.history if "val/loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert (result.best_step, result.steps) == (best, best + 2 * LEARNED.eval_every)
    assert result.history[-1]["step"] == result.steps < LEARNED.max_steps
    assert evaluate_source(result.model, val, 8).loss == losses[best]
    ((step, kind, message, _),) = events.found
    assert (step, kind) == (result.steps, "early stop")
    assert f"ends at step {step} of 200 with the weights of step {best}" in message


def test_an_early_end_comes_at_the_same_step_after_interruptions(tmp_path: Path) -> None:
    undisturbed, _ = learn()
    for step in (3, undisturbed.steps - 6, undisturbed.steps - 1):
        with pytest.raises(Interrupted):
            learn(tmp_path, callbacks=stop_at(step))
    assert_same_run(undisturbed, learn(tmp_path)[0])
    again, _ = learn(tmp_path, callbacks=calling(step=pytest.fail))  # it had ended: nothing is computed
    assert again.resumed_from == undisturbed.steps
    assert again.best_step == undisturbed.best_step
    assert_same_run(undisturbed, again)


def test_with_patience_the_last_step_is_not_preferred_to_the_best() -> None:
    result, val = learn(config=dataclasses.replace(LEARNED, max_steps=60, patience=1000))
    losses = [row["val/loss"] for row in result.history if "val/loss" in row]
    assert result.steps == 60 and losses[-1] > min(losses)
    assert evaluate_source(result.model, val, 8).loss == min(losses)


# Numbers that are none.


def test_poisoned_weights_are_named_and_nothing_is_saved(
    build_model: Callable[..., Transformer], build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    model = build_model()
    with torch.no_grad():
        model.norm.weight[3] = math.nan
        model.blocks[1].attention.q.weight[0, 0] = math.inf
    trainer = Trainer(
        model.config,
        TrainConfig(5, batch_size=4),
        build_source(),
        checkpoint_dir=tmp_path,
        initial_weights=model.state_dict(),
    )
    with pytest.raises(NonFiniteLoss, match=r"loss is nan at step 1, .* weights are not finite: .* and 1 more"):
        trainer.fit()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_of_a_step_the_guilty_sequences_are_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_with_noise()
    guilty = int(order(N_SEQUENCES, PLAIN.seed, 0)[6 * ROWS + 2])  # the third one of step 7
    marked = source.batch(np.array([guilty])).inputs[0]
    original = Stepper._nll

    def nll(stepper: Stepper, batch: Batch) -> torch.Tensor:
        found = original(stepper, batch)
        if not (batch.inputs == marked).all(axis=1).any():
            return found
        # the root's value at 0 is 0, its slope is infinite
        return found * math.nan if what == "loss" else found + (0 * stepper.model.norm.weight).sum().sqrt()

    monkeypatch.setattr(Stepper, "_nll", nll)
    with pytest.raises(NonFiniteLoss) as caught:
        run(tmp_path, source=source, callbacks=Events())
    assert (caught.value.step, caught.value.suspects) == (7, [guilty])
    assert f"Computed alone, only [{guilty}] are not finite: check them." in str(caught.value)
    saved = load_checkpoint(tmp_path)
    assert saved.step == 6
    assert all(tensor.isfinite().all() for tensor in saved.weights.values())


def test_a_validation_loss_that_is_no_number_stops_the_run(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Transformer.nll

    def nll(model: Transformer, *arguments: Any, **named: Any) -> torch.Tensor:
        found = original(model, *arguments, **named)
        return found if model.training else found * math.nan

    monkeypatch.setattr(Transformer, "nll", nll)
    with pytest.raises(NonFiniteLoss, match="the validation loss is nan at step 4; the last checkpoint"):
        Trainer(model_config, train_config, build_source(), build_source(n=5, seed=1)).fit()
