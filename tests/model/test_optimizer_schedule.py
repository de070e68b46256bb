"""AdamW against hand-computed steps, which weights decay, and the learning rate of each step."""

from __future__ import annotations

import math

import pytest
import torch

from model import ModelConfig, TrainConfig, Transformer
from model.optim import build_optimizer, load_optimizer_tensors, optimizer_tensors
from model.schedule import learning_rate


def test_adamw_takes_the_steps_computed_by_hand() -> None:
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 0.5)
    config = TrainConfig(2, lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    optimizer = build_optimizer(layer, config)
    for gradient, expected in ((0.3, 0.498995000033333), (-0.2, 0.498845489559286)):
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        assert layer.weight.item() == pytest.approx(expected, abs=1e-9)


def test_only_matrices_decay() -> None:
    model = Transformer(ModelConfig(11, n_layer=1, d_model=8, n_head=2))
    optimizer = build_optimizer(model, TrainConfig(1, weight_decay=0.1))
    decayed = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decayed[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if p.dim() >= 2 else 0.0 for name, p in model.named_parameters()
    }


def test_optimizer_state_round_trips_through_tensors(model_config: ModelConfig) -> None:
    def trained(n_steps: int, source: torch.optim.Optimizer | None, model: Transformer) -> torch.optim.Optimizer:
        optimizer = build_optimizer(model, TrainConfig(9))
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


def test_learning_rate_ends_at_the_floor_and_stays() -> None:
    config = TrainConfig(max_steps=40, lr=1.0, min_lr_ratio=0.1)
    assert learning_rate(39, config) == pytest.approx(0.1)
    assert learning_rate(400, config) == pytest.approx(0.1)


def test_first_step_learns_something() -> None:
    assert 0 < learning_rate(0, TrainConfig(max_steps=1000, lr=1.0)) < 0.1


def test_without_warmup_the_cosine_starts_at_once() -> None:
    config = TrainConfig(max_steps=4, lr=1.0, warmup_ratio=0.0, min_lr_ratio=0.0)
    expected = [0.5 * (1 + math.cos(math.pi * done / 4)) for done in (1, 2, 3, 4)]
    assert [learning_rate(step, config) for step in range(4)] == pytest.approx(expected)


@pytest.mark.parametrize("max_steps", [1, 2, 3])
def test_shortest_runs_have_a_rate(max_steps: int) -> None:
    config = TrainConfig(max_steps=max_steps)
    assert all(0 < learning_rate(step, config) <= config.lr for step in range(max_steps))
