"""Orthogonalised momentum: its arithmetic against NumPy, which weights it trains, and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from model import ModelConfig, SpanSource, TrainConfig, Trainer, Transformer, optim
from model.optim import (
    POLYNOMIALS,
    build_optimizer,
    orthogonalise,
)

LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "qk_norm": True, "attn_bias": False, "ffn_bias": False}


def composed(values: np.ndarray) -> np.ndarray:
    for a, b, c in POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
    return values


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
    """By singular values instead of products of matrices."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    return (u * composed(values / (values**8).sum() ** 0.125)) @ v


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def with_values(values: np.ndarray, n_columns: int) -> np.ndarray:
    """A matrix with these singular values."""
    u, v = (np.linalg.qr(noise(n, n, seed=n))[0] for n in (len(values), n_columns))
    return (u * values) @ v[: len(values)]


def test_the_polynomials_bring_singular_values_near_one() -> None:
    found = composed(np.geomspace(0.003, 1.0, 100_001))
    assert found.min() > 0.77
    assert found.max() < 1.23


@pytest.mark.parametrize("n_columns", [5, 12, 17, 18, 19, 48])
def test_orthogonalising_changes_singular_values_only(n_columns: int) -> None:
    matrices = np.stack([noise(12, n_columns, seed=seed) * 10.0 ** (3 * seed - 3) for seed in range(3)])
    found = orthogonalise(torch.from_numpy(matrices)).numpy()
    np.testing.assert_allclose(found, [orthogonalised(matrix) for matrix in matrices], atol=1e-11)


@pytest.mark.parametrize("n_columns", [32, 96])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.08)])
def test_rounding_leaves_singular_values_bounded(dtype: torch.dtype, tolerance: float, n_columns: int) -> None:
    spectra = {
        "equal": np.ones(32),
        "falling": np.geomspace(1, 0.003, 32),
        "one large": np.r_[1.0, np.full(31, 0.02)],
        "one only": np.r_[1.0, np.zeros(31)],
        "tiny": np.geomspace(1e-15, 1e-17, 32),
    }
    matrices = torch.from_numpy(np.stack([with_values(values, n_columns) for values in spectra.values()]))
    found = torch.linalg.svdvals(orthogonalise(matrices.to(dtype)).double())
    assert found.max() < 1.23 + tolerance
    assert found[:, 0].min() > 0.77 - tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_columns", [8, 24])
def test_zeros_stay_zeros(n_columns: int, dtype: torch.dtype) -> None:
    assert not orthogonalise(torch.zeros(1, 8, n_columns, dtype=dtype)).any()


def steps_by_hand(weight: np.ndarray, gradients: list[np.ndarray], config: TrainConfig) -> np.ndarray:
    average = np.zeros_like(weight)
    for gradient in gradients:
        average = 0.95 * average + 0.05 * gradient
        seen = 0.05 * gradient + 0.95 * average
        n_rows, n_columns = seen.shape
        update = orthogonalised(seen) * max(1.0, n_rows / n_columns) ** 0.5
        weight = weight * (1 - config.muon_lr * config.weight_decay) - config.muon_lr * update
    return weight


@pytest.mark.parametrize(
    "name", ["attention.q", "attention.k", "attention.v", "attention.proj", "mlp.up", "mlp.gate", "mlp.down"]
)
def test_a_matrix_takes_the_steps_computed_by_hand(name: str) -> None:
    model = Transformer(ModelConfig(11, n_layer=2, n_head=4, n_kv_head=2, d_model=16, d_ff=40, **LLAMA)).double()
    config = TrainConfig(3, optimizer="muon", muon_lr=0.02, lr=1e-3, weight_decay=0.1)
    weight = model.get_parameter(f"blocks.1.{name}.weight")
    start = weight.detach().numpy().copy()
    gradients = [noise(*weight.shape, seed=seed) for seed in range(3)]
    optimizer = build_optimizer(model, config)
    for gradient in gradients:
        for other in model.parameters():
            other.grad = torch.ones_like(other)
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), steps_by_hand(start, gradients, config), atol=1e-10)


def test_what_is_no_matrix_of_a_block_takes_the_steps_of_adamw() -> None:
    models = [Transformer(ModelConfig(11, n_layer=1, n_head=2, d_model=8)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    common: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}
    optimizers = [build_optimizer(model, TrainConfig(3, optimizer=kind, **common))
                  for model, kind in zip(models, ("muon", "adamw"), strict=True)]  # fmt: skip
    for seed in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.from_numpy(noise(*parameter.shape, seed=100 * seed + number)).float()
            optimizer.step()
    other = models[1].state_dict()
    same = {name for name, value in models[0].state_dict().items() if torch.equal(value, other[name])}
    assert set(other) - same == {
        f"blocks.0.{name}.weight"
        for name in ("attention.q", "attention.k", "attention.v", "attention.proj", "mlp.up", "mlp.down")
    }


@pytest.mark.parametrize("decay_groups", [True, False])
def test_every_parameter_is_in_one_group_with_its_decay(decay_groups: bool) -> None:
    model = Transformer(ModelConfig(11, n_layer=2, n_head=2, d_model=8, tie_weights=False, qk_norm=True))
    optimizer = build_optimizer(model, TrainConfig(1, optimizer="muon", weight_decay=0.3, decay_groups=decay_groups))
    placed = [(parameter, group["weight_decay"]) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(id(parameter) for parameter, _ in placed) == sorted(map(id, model.parameters()))
    assert all(decay == (0.3 if parameter.dim() > 1 or not decay_groups else 0.0) for parameter, decay in placed)


def test_frozen_matrices_are_left_out() -> None:
    model = Transformer(ModelConfig(11, n_layer=2, n_head=2, d_model=8))
    model.blocks[0].requires_grad_(False)
    held = {id(p) for group in build_optimizer(model, TrainConfig(1, optimizer="muon")).param_groups
            for p in group["params"]}  # fmt: skip
    assert held == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}


def test_batches_that_do_not_fit_at_once_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for elements in (optim._CPU_BATCH_ELEMENTS, 1):
        monkeypatch.setattr(optim, "_CPU_BATCH_ELEMENTS", elements)
        torch.manual_seed(0)
        models.append(Transformer(ModelConfig(11, n_layer=3, n_head=2, d_model=8)).double())
        optimizer = build_optimizer(models[-1], TrainConfig(1, optimizer="muon"))
        for number, parameter in enumerate(models[-1].parameters()):
            parameter.grad = torch.from_numpy(noise(*parameter.shape, seed=number))
        optimizer.step()
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=pytest.mark.full), pytest.param("fp16", marks=pytest.mark.full)]
)
def test_a_network_learns_with_it(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], precision: str
) -> None:
    config = TrainConfig(40, batch_size=8, optimizer="muon", lr=1e-2, precision=precision, eval_every=40)
    source = build_source(64)
    history = Trainer(model_config, config, source, source).fit().history
    assert history[-1]["val/loss"] < history[0]["train/loss"] - 0.5
