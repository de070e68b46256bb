"""The training loop: accumulation, precision, stops, callbacks, and learning at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted_runs import EVERY_STEP, assert_same_run, calling

from model import ModelConfig, NonFiniteLoss, SpanSource, TrainConfig, Trainer, evaluate_source, load_checkpoint
from model.data import Batch, Group, Part, order
from model.metrics import bits_per_byte
from model.step import Stepper, measure_step_seconds


def test_accumulation_does_not_change_the_gradient(
    model_config: ModelConfig, build_source: Callable[..., SpanSource]
) -> None:
    source = build_source(n=24)
    whole, parts = (
        Trainer(model_config, TrainConfig(6, batch_size=size, grad_accum=accum), source).fit()
        for size, accum in ((8, 1), (2, 4))
    )
    assert [row["tokens"] for row in whole.history] == [row["tokens"] for row in parts.history]
    for name in ("train/loss", "grad_norm"):
        left, right = ([row[name] for row in result.history] for result in (whole, parts))
        np.testing.assert_allclose(left, right, rtol=1e-5)


def test_micro_batch_without_labels_changes_nothing(model_config: ModelConfig) -> None:
    shard = np.arange(17, dtype=np.uint16)

    def first_loss(lengths: list[int]) -> float:
        n = len(lengths)
        source = SpanSource([shard], np.zeros(n), np.zeros(n), np.array(lengths), 16, 0)
        config = TrainConfig(1, batch_size=1, grad_accum=n)
        return Trainer(model_config, config, source).fit().history[0]["train/loss"]

    assert first_loss([9, 1]) == pytest.approx(first_loss([9]), rel=1e-6)


def test_step_without_any_label_is_survived(model_config: ModelConfig) -> None:
    source = SpanSource([np.arange(5, dtype=np.uint16)], np.zeros(3), np.arange(3), np.ones(3), 4, 0)
    history = Trainer(model_config, TrainConfig(2, batch_size=2), source).fit().history
    assert [(row["tokens"], row["train/loss"]) for row in history] == [(0, 0.0), (0, 0.0)]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
def test_half_precision_ends_within_one_percent_of_float32(
    precision: str, build_source: Callable[..., SpanSource]
) -> None:
    config = ModelConfig(31, max_seq_len=32, n_layer=2, n_head=2, d_model=32)
    full = TrainConfig(50, batch_size=8, lr=3e-3, eval_every=50)
    source, val = build_source(64, 32), build_source(16, 32, seed=1)
    expected, found = (
        Trainer(config, dataclasses.replace(full, precision=one), source, val).fit().history[-1]
        for one in ("fp32", precision)
    )
    assert expected["train/loss"] < 2.5  # something was learned, so agreement says something
    for name in ("train/loss", "val/loss"):
        assert found[name] == pytest.approx(expected[name], rel=0.01)


def test_a_part_of_the_validation_sequences_is_measured_from_step_0_and_changes_nothing_else(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    config = dataclasses.replace(train_config, patience=2)
    base = Trainer(model_config, train_config, build_source(seed=3)).fit().model
    source, val = build_source(), build_source(n=6, seed=1)
    inside = SpanSource(val.shards, val.shard[:2], val.start[:2], val.length[:2], 16, 0)
    reported: list[int] = []
    sides = {"initial_weights": base.state_dict()}
    plain = Trainer(model_config, config, source, val, **sides).fit()
    found = Trainer(
        model_config,
        config,
        source,
        val,
        replay=Part(inside, (40, 0), (90, 3)),
        callbacks=calling(step=lambda step, *_: reported.append(step)),
        **sides,
    ).fit()
    names = ("val/replay_bits_per_byte", "val/own_bits_per_byte")
    assert [row["step"] for row in found.history if names[0] in row] == [0, 4, 8, 10]
    assert reported == list(range(11))
    for row, model in ((found.history[0], base), (found.history[-1], found.model)):
        whole, part = (evaluate_source(model, one, 4).nll_nats for one in (val, inside))
        expected = (bits_per_byte(part, 40), bits_per_byte(whole - part, 90, 3))
        assert tuple(row[name] for name in names) == pytest.approx(expected, rel=1e-6)
    rest = [{name: value for name, value in row.items() if name not in names} for row in found.history[1:]]
    assert_same_run(plain, dataclasses.replace(found, history=rest))


def test_history_rows_are_plain_and_complete(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    source, val = build_source(), build_source(n=6, seed=1)
    result = Trainer(model_config, train_config, source, val).fit()
    assert [row["step"] for row in result.history] == list(range(1, 11))
    assert [row["step"] for row in result.history if "val/loss" in row] == [4, 8, 10]
    for row in result.history:
        assert {type(row[name]) for name in ("train/loss", "lr", "grad_norm")} == {float}
    assert result.history[-1]["val/loss"] == evaluate_source(result.model, val, 4).loss
    assert not result.model.training


def test_evaluation_does_not_change_training(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    config = dataclasses.replace(model_config, drop_resid=0.2)
    often, never = (
        Trainer(config, dataclasses.replace(train_config, eval_every=every), build_source(), val).fit()
        for every, val in ((1, build_source(seed=1)), (99, None))
    )
    assert [row["train/loss"] for row in often.history] == [row["train/loss"] for row in never.history]


def test_callers_random_state_neither_matters_nor_changes(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    config, losses = dataclasses.replace(model_config, drop_resid=0.2), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        losses.append(Trainer(config, train_config, build_source()).fit().history[-1]["train/loss"])
        assert torch.equal(torch.get_rng_state(), before)
    assert losses[0] == losses[1]


def test_seed_changes_the_run(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    first, second = (
        Trainer(model_config, dataclasses.replace(train_config, seed=seed), build_source()).fit().history
        for seed in (1, 2)
    )
    assert first[0]["train/loss"] != second[0]["train/loss"]


def poison(monkeypatch: pytest.MonkeyPatch, batch: int, spoil: Callable[[Any, Any], Any]) -> None:
    """Lets one micro-batch, counted from 1, return a spoilt loss."""
    original, n_read = Stepper._nll, [0]

    def nll(stepper: Stepper, data: Any) -> torch.Tensor:
        n_read[0] += 1
        found = original(stepper, data)
        return spoil(found, stepper.model) if n_read[0] == batch else found

    monkeypatch.setattr(Stepper, "_nll", nll)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nan_stops_the_run_and_names_the_batch(
    precision: str,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison(monkeypatch, batch=9, spoil=lambda nll, model: nll * float("nan"))  # two a step: the fifth step
    config = dataclasses.replace(train_config, precision=precision)
    trainer = Trainer(model_config, config, build_source(), checkpoint_dir=tmp_path, execution=EVERY_STEP)
    with pytest.raises(NonFiniteLoss, match="loss is nan at step 5") as caught:
        trainer.fit()
    read = order(20, config.seed, epoch=1)[12:]  # the fifth eight of an epoch of twenty and the next
    assert (caught.value.step, caught.value.indices) == (5, read.tolist())
    assert load_checkpoint(tmp_path).step == 4


@pytest.mark.parametrize("every", [1, 3], ids=["every-step", "every-third-step"])
def test_gradients_that_stay_nan_in_half_precision_stop_the_run(
    every: int, model_config: ModelConfig, build_source: Callable[..., SpanSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, n_read = Stepper._nll, [0]

    def nll(stepper: Stepper, data: Any) -> torch.Tensor:
        n_read[0] += 1
        found = original(stepper, data)
        spoilt = (0 * stepper.model.norm.weight).sum().sqrt()  # value 0, slope NaN
        return found + spoilt if n_read[0] % every == 0 else found

    monkeypatch.setattr(Stepper, "_nll", nll)
    config = TrainConfig(100, batch_size=2, precision="fp16")
    # the scale begins at 2**16, and each step that is skipped halves it
    with pytest.raises(NonFiniteLoss, match=f"down to 1, the gradient's norm is nan at step {17 * every}"):
        Trainer(model_config, config, build_source()).fit()


class Recorded:
    """A source that remembers which sequences were asked for."""

    def __init__(self, source: SpanSource) -> None:
        self.source = source
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: np.ndarray) -> Batch:
        self.read += indices.tolist()
        return self.source.batch(indices)


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(4, 1), (2, 2), (1, 4)])
def test_groups_are_read_as_often_as_they_say(
    batch_size: int, grad_accum: int, model_config: ModelConfig, build_source: Callable[..., SpanSource]
) -> None:
    groups = [Group(0, 5, 10), Group(5, 12, 6), Group(17, 3, 0)]
    source, val = Recorded(build_source()), Recorded(build_source(n=6, seed=1))
    config = TrainConfig(8, batch_size=batch_size, grad_accum=grad_accum, eval_every=8)  # two epochs of 16 reads
    Trainer(model_config, config, source, val, groups=groups).fit()
    for epoch in (0, 1):
        times = np.bincount(source.read[epoch * 16 : (epoch + 1) * 16], minlength=20)
        assert times[:5].tolist() == [2] * 5
        assert (times[5:17].sum(), times[5:17].max()) == (6, 1)
        assert times[17:].sum() == 0
    assert val.read == list(range(6))


class Torn(Recorded):
    """A source that cannot be read from the fourth batch on."""

    def batch(self, indices: np.ndarray) -> Batch:
        if len(self.read) >= 12:
            raise OSError("the shard is torn")
        return super().batch(indices)


def test_a_batch_that_cannot_be_built_ends_the_run_behind_the_steps_before(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(OSError, match="the shard is torn"):
        Trainer(model_config, TrainConfig(8, batch_size=4), Torn(build_source()), **settings).fit()
    assert load_checkpoint(tmp_path).step == 3


def test_without_groups_every_epoch_reads_each_sequence_once(
    model_config: ModelConfig, build_source: Callable[..., SpanSource]
) -> None:
    source = Recorded(build_source())
    Trainer(model_config, TrainConfig(15, batch_size=4), source).fit()
    assert source.read == np.concatenate([order(20, 1337, epoch) for epoch in range(3)]).tolist()


def test_a_group_beyond_the_sequences_is_refused(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    with pytest.raises(ValueError, match="sequences from 15 to 24, but there are 20; groups and sequences do not"):
        Trainer(model_config, train_config, build_source(), groups=[Group(0, 5, 5), Group(15, 10, 3)])


def test_no_sequences_are_refused(model_config: ModelConfig, train_config: TrainConfig) -> None:
    nothing = np.zeros(0)
    with pytest.raises(ValueError, match="no sequences to train on; the dataset is empty"):
        Trainer(model_config, train_config, SpanSource([], nothing, nothing, nothing, 16, 0))


def test_token_outside_the_vocabulary_is_refused(
    train_config: TrainConfig, build_source: Callable[..., SpanSource]
) -> None:
    with pytest.raises(ValueError, match="vocab_size is 8"):
        Trainer(ModelConfig(8, max_seq_len=16, d_model=16), train_config, build_source()).fit()


def test_callbacks_come_in_order(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    calls: list[tuple[str, int]] = []

    def on_checkpoint(step: int) -> None:
        assert not (tmp_path / f"step-{step:08d}").exists()
        calls.append(("checkpoint", step))

    def on_step(step: int, max_steps: int, metrics: dict[str, float]) -> None:
        assert metrics["time/tokens_per_second"] > 0
        calls.append(("step", step))

    Trainer(
        model_config,
        dataclasses.replace(train_config, max_steps=2),
        build_source(),
        checkpoint_dir=tmp_path,
        execution=EVERY_STEP,
        callbacks=calling(step=on_step, checkpoint=on_checkpoint),
    ).fit()
    assert calls == [(name, step) for step in (1, 2) for name in ("step", "checkpoint")]


def test_step_time_is_measured(model_config: ModelConfig) -> None:
    assert measure_step_seconds(model_config, TrainConfig(5, batch_size=2), steps=3) > 0
