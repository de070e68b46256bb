"""Averages of the weights: what a training with `average` ends with, evaluates and resumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model import ModelConfig, TrainConfig, Trainer
from model.callbacks import Callbacks, TrainingStopped
from model.data import SpanSource
from model.trainer import TrainResult

SPAN = 3


class Kept(Callbacks):
    """Keeps the weights of each sample, and stops after a step."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop, self.stop_after, self.weights = threading.Event(), stop_after, list[dict[str, Tensor]]()

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        if step == self.stop_after:
            self.stop.set()

    def sample(self, step: int, model: Any) -> None:
        self.weights.append({name: one.detach().clone() for name, one in model.named_parameters()})


@pytest.fixture
def fit(model_config: ModelConfig, build_source: Callable[..., SpanSource]) -> Callable[..., TrainResult]:
    """Train for nine steps, with an evaluation after each."""

    def run(average: int, kept: Kept | None = None, folder: Path | None = None, **fields: Any) -> TrainResult:
        plan = TrainConfig(max_steps=9, batch_size=2, eval_every=1, average=average, **{"lr": 3e-3, **fields})
        kept, source = kept or Kept(), build_source()
        trainer = Trainer(
            model_config, plan, source, source, checkpoint_dir=folder, callbacks=kept, stop=kept.stop
        )  # fmt: skip
        return trainer.fit()

    return run


def weights_of(found: TrainResult) -> dict[str, Tensor]:
    return dict(found.model.named_parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_result_is_the_moving_average_of_the_weights_of_all_steps(
    fit: Callable[..., TrainResult], optimizer: str
) -> None:
    fit(0, plain := Kept(), optimizer=optimizer)
    found = weights_of(fit(SPAN, optimizer=optimizer))
    for name, weight in found.items():
        expected = plain.weights[0][name]
        for step, weights in enumerate(plain.weights[1:], 2):
            share = (SPAN + 1) / (SPAN + step)
            expected = (1 - share) * expected + share * weights[name]
        torch.testing.assert_close(weight, expected)
        assert not torch.equal(weight, plain.weights[-1][name])


def test_evaluations_and_samples_have_the_averaged_weights(fit: Callable[..., TrainResult]) -> None:
    found = fit(SPAN, kept := Kept())
    assert all(torch.equal(kept.weights[-1][name], weight) for name, weight in weights_of(found).items())
    losses = [row["val/loss"] for row in found.history]
    assert losses != [row["val/loss"] for row in fit(0).history]
    assert [row["train/loss"] for row in found.history] == [row["train/loss"] for row in fit(0).history]


@pytest.mark.parametrize("patience", [0, 1])
def test_a_resumed_training_ends_with_the_same_average(
    fit: Callable[..., TrainResult], tmp_path: Path, patience: int
) -> None:
    whole = fit(SPAN, folder=tmp_path / "whole", patience=patience)
    with pytest.raises(TrainingStopped):
        fit(SPAN, Kept(stop_after=4), tmp_path / "parts", patience=patience)
    resumed = fit(SPAN, folder=tmp_path / "parts", patience=patience)
    assert resumed.resumed_from == 5
    assert all(torch.equal(weights_of(resumed)[name], weight) for name, weight in weights_of(whole).items())


@pytest.mark.parametrize("with_folder", [True, False])
def test_the_best_step_is_kept_as_its_average(
    fit: Callable[..., TrainResult], tmp_path: Path, with_folder: bool
) -> None:
    found = fit(SPAN, kept := Kept(), tmp_path if with_folder else None, patience=2, lr=0.3, schedule="constant")
    assert found.best_step is not None
    assert found.best_step < found.steps
    best = kept.weights[found.best_step - 1]
    assert all(torch.equal(best[name], weight) for name, weight in weights_of(found).items())
