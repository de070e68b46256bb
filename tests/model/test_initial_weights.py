"""Training that starts from given weights instead of random ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from interrupted_runs import EVERY_STEP, Interrupted, stop_at

from model import ModelConfig, SpanSource, TrainConfig, Trainer, Transformer


def test_the_first_step_starts_from_the_given_weights(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
) -> None:
    model, source = build_model(seed=3), build_source()
    still = dataclasses.replace(train_config, max_steps=1, lr=1e-30, weight_decay=0.0)
    result = Trainer(model_config, still, source, initial_weights=model.state_dict()).fit()
    for name, value in result.model.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], rtol=0, atol=1e-20), name


def test_a_resumed_run_from_given_weights_ends_with_the_same_bits(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    start = {"initial_weights": build_model(seed=3).state_dict()}
    whole = Trainer(model_config, train_config, build_source(), **start).fit()
    kept = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(Interrupted):
        Trainer(model_config, train_config, build_source(), **start, **kept, callbacks=stop_at(4)).fit()
    resumed = Trainer(model_config, train_config, build_source(), **start, **kept).fit()
    assert resumed.resumed_from == 4
    assert resumed.history == whole.history
    assert all(torch.equal(value, resumed.model.state_dict()[name]) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("other", [None, 4])
def test_a_checkpoint_of_another_start_is_refused(
    other: int | None,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    start = build_model(seed=3).state_dict()
    Trainer(model_config, train_config, build_source(), checkpoint_dir=tmp_path, initial_weights=start).fit()
    weights = None if other is None else build_model(seed=other).state_dict()
    again = Trainer(model_config, train_config, build_source(), checkpoint_dir=tmp_path, initial_weights=weights)
    with pytest.raises(ValueError, match="'initial_weights' was"):
        again.fit()


def test_weights_of_another_shape_are_refused(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
) -> None:
    weights = build_model(n_layer=3).state_dict()
    with pytest.raises(ValueError, match="initial weights do not fit"):
        Trainer(model_config, train_config, build_source(), initial_weights=weights).fit()
