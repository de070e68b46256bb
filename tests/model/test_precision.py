"""Every precision really trains on a CPU, in its own type, and goes on to the same bits, the loss scale included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted_runs import EVERY_STEP, RARELY, Interrupted, stop_at
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from model import ModelConfig, SpanSource, TrainConfig, Trainer, load_checkpoint, save_checkpoint
from model.transformer import Attention

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = list(TYPES)
CONFIG = TrainConfig(24, batch_size=4, lr=1e-2, eval_every=24)


@pytest.fixture
def trainer(model_config: ModelConfig, build_source: Callable[..., SpanSource]) -> Callable[..., Trainer]:
    def build(precision: str, folder: Path | None = None, **settings: Any) -> Trainer:
        shape = dataclasses.replace(model_config, drop_resid=0.1)
        config = dataclasses.replace(CONFIG, precision=precision)
        settings = {"execution": EVERY_STEP, **settings}
        return Trainer(shape, config, build_source(), build_source(n=5, seed=1), checkpoint_dir=folder, **settings)

    return build


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_loss_falls_and_the_products_are_in_that_type(precision: str, trainer: Callable[..., Trainer]) -> None:
    seen = set()

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, Attention) and module.training:
            seen.add(output.dtype)

    hook = register_module_forward_hook(note)
    try:
        result = trainer(precision).fit()
    finally:
        hook.remove()
    losses = [row["train/loss"] for row in result.history]
    assert sum(losses[-4:]) / 4 < losses[0] - 0.5
    assert seen == {TYPES[precision]}
    assert {weight.dtype for weight in result.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_resumed_run_ends_with_the_same_bits_and_the_same_state(
    precision: str, trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    undisturbed = trainer(precision, tmp_path / "whole", execution=RARELY).fit()
    for step in (5, 17):
        with pytest.raises(Interrupted):
            trainer(precision, tmp_path / "killed", callbacks=stop_at(step)).fit()
    resumed = trainer(precision, tmp_path / "killed").fit()
    assert resumed.resumed_from == 17
    assert resumed.history == undisturbed.history
    whole, killed = (load_checkpoint(tmp_path / name) for name in ("whole", "killed"))
    assert whole.scaler == killed.scaler
    assert bool(whole.scaler) == (precision == "fp16")
    for name in ("weights", "optimizer", "random"):
        left, right = getattr(whole, name), getattr(killed, name)
        assert left.keys() == right.keys()
        assert all(torch.equal(value, right[key]) for key, value in left.items()), name


def test_a_loss_scale_that_is_falling_goes_on_falling_after_a_resume(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    """A scale far too high leaves updates out until it has come down, with a stop in between or without."""
    scales = []
    for name, stops in (("whole", []), ("killed", [6, 8])):
        with pytest.raises(Interrupted):
            trainer("fp16", tmp_path / name, callbacks=stop_at(3)).fit()
        state = load_checkpoint(tmp_path / name)
        state.scaler["scale"] = 2.0**24
        save_checkpoint(tmp_path / name, state)
        for step in stops:
            with pytest.raises(Interrupted):
                trainer("fp16", tmp_path / name, callbacks=stop_at(step)).fit()
        history = trainer("fp16", tmp_path / name).fit().history
        scales.append((load_checkpoint(tmp_path / name).scaler, history))
    (whole, history), (killed, others) = scales
    skipped = [row["step"] for row in history if row["grad_norm"] == 0]
    assert skipped and skipped[0] == 4 and max(skipped) >= 7  # some on either side of the first stop
    assert whole["scale"] == 2.0 ** (24 - len(skipped))
    assert whole == killed
    assert history == others
