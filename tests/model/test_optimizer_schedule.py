"""Optimisers against hand-computed steps, which weights decay, and the learning rate of each step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from model import ModelConfig, TrainConfig, Transformer
from model.optim import build_optimizer, load_optimizer_tensors, optimizer_tensors
from model.schedule import (
    learning_rate,
    noam,
    warmup_stable_decay,
)

OPTIMIZERS = ("adamw", "adam", "adam_l2", "muon")


def adam_by_hand(weight: np.ndarray, gradients: list[np.ndarray], decay: float, config: TrainConfig) -> np.ndarray:
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    (beta1, beta2), coupled = config.betas, config.optimizer == "adam_l2"
    for t, raw in enumerate(gradients, start=1):
        gradient = raw + decay * weight if coupled else raw
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + config.eps)
        weight = weight - config.lr * (step if coupled else step + decay * weight)
    return weight


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.98), (0.9, 0.999)])
@pytest.mark.parametrize("kind", ["adamw", "adam", "adam_l2", "muon"])
def test_a_layer_takes_the_steps_computed_with_numpy(kind: str, betas: tuple[float, float]) -> None:
    layer = torch.nn.Linear(5, 3, dtype=torch.float64)  # in no block, so that muon trains it as adamw does
    config = TrainConfig(
        4, optimizer=kind, lr=0.01, betas=betas, eps=1e-5, weight_decay=None if kind == "adam" else 0.2
    )
    generator = np.random.default_rng(0)
    starts = [parameter.detach().numpy().copy() for parameter in layer.parameters()]
    gradients = [[generator.standard_normal(start.shape) for _ in range(4)] for start in starts]
    optimizer = build_optimizer(layer, config)
    for t in range(4):
        for parameter, own in zip(layer.parameters(), gradients, strict=True):
            parameter.grad = torch.from_numpy(own[t])
        optimizer.step()
    for parameter, start, own in zip(layer.parameters(), starts, gradients, strict=True):
        decay = config.weight_decay if parameter.dim() == 2 else 0.0
        np.testing.assert_allclose(parameter.detach().numpy(), adam_by_hand(start, own, decay, config), atol=1e-13)


@pytest.mark.parametrize("kind", ["adamw", "adam_l2"])
def test_without_groups_all_parameters_decay(kind: str) -> None:
    model = Transformer(ModelConfig(11, n_layer=1, d_model=8, n_head=2))
    optimizer = build_optimizer(model, TrainConfig(1, optimizer=kind, weight_decay=0.1, decay_groups=False))
    (group,) = optimizer.param_groups
    assert group["weight_decay"] == 0.1
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sgd"}, "expected one of adamw, adam, adam_l2, muon"),
        ({"muon_lr": 0.02}, "trains every weight with lr"),
        ({"optimizer": "muon", "muon_lr": 0.0}, "muon_lr=0.0"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "does not decay"),
        ({"optimizer": "adam", "decay_groups": False}, "nothing decays"),
        ({"weight_decay": 0.0, "decay_groups": False}, "nothing decays"),
        ({"decay_groups": 1}, "True or False"),
        ({"schedule": "linear"}, "expected one of warmup_cosine, cosine, constant, noam, wsd"),
        ({"decay_ratio": 0.2}, "does not end with a linear fall"),
        ({"schedule": "wsd", "warmup_ratio": 0.5, "decay_ratio": 0.6}, "decay_ratio=0.6"),
        ({"schedule": "cosine", "warmup_ratio": 0.1}, "has no warm-up"),
        ({"schedule": "constant", "warmup_ratio": 0.05}, "has no warm-up"),
        ({"schedule": "constant", "min_lr_ratio": 0.1}, "has no floor"),
        ({"schedule": "noam", "min_lr_ratio": 0.1}, "has no floor"),
        ({"schedule": "noam", "warmup_ratio": 0.0}, "warmup_ratio=0.0"),
        ({"schedule": "noam", "warmup_steps": 0}, "warmup_steps=0"),
        ({"warmup_steps": 10, "warmup_ratio": 0.1}, "warmup_steps=10 gives the warm-up"),
        ({"schedule": "cosine", "warmup_steps": 10}, "has no warm-up"),
        ({"schedule": "constant", "first_step": 0}, "same rate at every step"),
        ({"schedule": "noam", "first_step": 0}, "first_step=0; expected 1"),
        ({"first_step": 2}, "first_step=2; expected 0 or 1"),
    ],
)
def test_a_training_setting_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{"max_steps": 10, **settings})


@pytest.mark.parametrize("schedule", ["warmup_cosine", "cosine", "constant", "noam", "wsd"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_resolved_training_settings_are_accepted_again(kind: str, schedule: str) -> None:
    config = TrainConfig(10, optimizer=kind, schedule=schedule)
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_state_round_trips_through_tensors(model_config: ModelConfig, kind: str) -> None:
    def trained(n_steps: int, source: torch.optim.Optimizer | None, model: Transformer) -> torch.optim.Optimizer:
        optimizer = build_optimizer(model, TrainConfig(9, optimizer=kind))
        if source:
            load_optimizer_tensors(optimizer, optimizer_tensors(source))
        for _ in range(n_steps):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return optimizer

    torch.manual_seed(0)
    straight, stopped = Transformer(model_config), Transformer(model_config)
    stopped.load_state_dict(straight.state_dict())
    trained(4, None, straight)
    trained(2, trained(2, None, stopped), stopped)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, stopped.state_dict()[name]), name


CONFIG = TrainConfig(max_steps=1000, lr=0.002, warmup_ratio=0.1, min_lr_ratio=0.0)


@pytest.mark.parametrize(
    ("done", "factor"),
    [
        (1, 0.01),
        (50, 0.5),
        (100, 1.0),
        (325, 0.853553390593274),
        (550, 0.5),
        (775, 0.146446609406726),
        (1000, 0.0),
    ],
)
def test_learning_rate_is_linear_then_cosine(done: int, factor: float) -> None:
    assert learning_rate(done - 1, CONFIG) == pytest.approx(0.002 * factor, abs=1e-12)


@pytest.mark.parametrize(("schedule", "end"), [("warmup_cosine", 0.0), ("wsd", 0.0), ("noam", 0.1**0.5)])
def test_a_warmup_is_as_long_as_its_steps_whatever_the_length_of_the_run(schedule: str, end: float) -> None:
    floor = {} if schedule == "noam" else {"min_lr_ratio": 0.0}
    config = TrainConfig(1000, lr=0.002, schedule=schedule, warmup_steps=100, **floor)
    assert TrainConfig.from_dict(config.to_dict()) == config
    for longer in (config, dataclasses.replace(config, max_steps=5000)):
        rates = [learning_rate(step, longer) for step in range(100)]
        assert rates == pytest.approx([0.002 * n / 100 for n in range(1, 101)], rel=1e-13)
    assert learning_rate(999, config) == pytest.approx(0.002 * end, abs=1e-15)


def test_a_warmup_that_is_longer_than_the_run_only_rises() -> None:
    for schedule in ("warmup_cosine", "wsd", "noam"):
        config = TrainConfig(10, lr=1.0, schedule=schedule, warmup_steps=40)
        assert [learning_rate(step, config) for step in range(10)] == pytest.approx([n / 40 for n in range(1, 11)])


def test_from_step_0_on_a_warmup_starts_at_0() -> None:
    config = TrainConfig(1000, lr=0.002, warmup_steps=100, min_lr_ratio=0.0, first_step=0)
    factors = {
        0: 0.0,
        50: 0.5,
        100: 1.0,
        325: 0.853553390593274,
        550: 0.5,
        775: 0.146446609406726,
        1000: 0.0,
        2000: 0.0,
    }
    found = [learning_rate(step, config) for step in factors]
    assert found == pytest.approx([0.002 * factor for factor in factors.values()], abs=1e-15)


def test_from_step_1_on_a_cosine_ends_at_its_floor_with_the_last_step() -> None:
    config = TrainConfig(100, lr=1.0, schedule="cosine", min_lr_ratio=0.0, first_step=1)
    assert learning_rate(49, config) == pytest.approx(0.5, abs=1e-15)
    assert learning_rate(99, config) == 0.0


@pytest.mark.parametrize("schedule", ["warmup_cosine", "wsd"])
@pytest.mark.parametrize("max_steps", [1, 2, 3])
def test_shortest_runs_have_a_rate(max_steps: int, schedule: str) -> None:
    config = TrainConfig(max_steps=max_steps, schedule=schedule)
    assert all(0 < learning_rate(step, config) <= config.lr for step in range(max_steps))


def test_a_cosine_starts_at_the_peak_and_reaches_its_floor_behind_the_last_step() -> None:
    config = TrainConfig(max_steps=10_000, lr=1e-3, schedule="cosine", min_lr_ratio=0.1)
    expected = [1e-3, 0.000868198051533946, 5.5e-4, 0.000231801948466054, 1e-4, 1e-4]
    steps = (0, 2500, 5000, 7500, 10_000, 20_000)
    assert [learning_rate(step, config) for step in steps] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (2048, 10_000)])
def test_noam_with_the_published_peak_gives_the_published_rates(d_model: int, warmup: int) -> None:
    config = TrainConfig(10 * warmup, lr=noam(warmup, d_model, warmup), schedule="noam", warmup_ratio=0.1)
    for t in (1, 100, warmup - 1, warmup, warmup + 1, 5 * warmup):
        formula = d_model**-0.5 * min(t**-0.5, t * warmup**-1.5)
        assert noam(t, d_model, warmup) == pytest.approx(formula, rel=1e-13)
        assert learning_rate(t - 1, config) == pytest.approx(formula, rel=1e-13)


def test_a_plateau_lies_between_the_warmup_and_a_linear_fall() -> None:
    config = TrainConfig(1000, lr=0.01, schedule="wsd", warmup_ratio=0.1, decay_ratio=0.2, min_lr_ratio=0.1)
    done = np.array([1, 50, 100, 101, 500, 800, 850, 900, 999, 1000, 2000])
    expected = np.interp(done, [0, 100, 800, 1000], [0.0, 0.01, 0.01, 0.001])
    assert [learning_rate(step - 1, config) for step in done.tolist()] == pytest.approx(expected.tolist(), abs=1e-15)
    assert {learning_rate(step, config) for step in range(99, 800)} == {0.01}


@pytest.mark.parametrize("max_steps", range(1, 12))
def test_the_fall_begins_behind_the_warmup_even_where_both_are_rounded_up(max_steps: int) -> None:
    config = TrainConfig(max_steps, lr=1.0, schedule="wsd", warmup_ratio=0.5, decay_ratio=0.5, min_lr_ratio=0.0)
    rates = [learning_rate(step, config) for step in range(max_steps)]
    peak = rates.index(1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == (0.0 if max_steps > config.warmup else 1.0)


def test_a_longer_run_shares_the_plateau_of_a_shorter_one() -> None:
    shorter, longer = ([warmup_stable_decay(t, 1.0, 0.1, 10, 20, n) for t in range(1, 81)] for n in (100, 1000))
    assert shorter == longer
