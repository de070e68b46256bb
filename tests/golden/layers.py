"""Norms and feed-forward layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Found, by_hand, operation
from golden.shared import numbers, small_config
from model.transformer import FeedForward, activate, build_norm, rms_norm


def norm_layer(width: int, eps: float, kind: str = "layernorm") -> nn.Module:
    return build_norm(small_config(d_model=width, norm=kind, norm_eps=eps)).double()


@operation("layernorm")
def layernorm(x: Any, gamma: Any, beta: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps)
    layer.load_state_dict({"weight": numbers(gamma), "bias": numbers(beta)})
    return Found(layer(numbers(x)).detach())


@operation("ln_element")
def ln_element(x: float, mean: float, var: float, eps: float) -> list[Tensor]:
    """The element stands in a row of three whose other two give the stated mean and variance."""
    distance = x - mean
    spread = math.sqrt((3 * var - 1.5 * distance**2) / 2)
    row = [x, mean - distance / 2 + spread, mean - distance / 2 - spread]
    return [norm_layer(3, eps)(numbers(row))[0].detach()]


@by_hand("mean_var_std")
def mean_var_std(x: Any) -> list[Tensor]:
    row = numbers(x)
    return [row.mean(), row.var(correction=0), row.std(correction=0)]


@operation("rmsnorm")
def rmsnorm(x: Any, weight: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps, "rmsnorm")
    layer.load_state_dict({"weight": numbers(weight)})
    return Found(layer(numbers(x)).detach(), extras={"correct_reciprocal_rms": reciprocal_rms(x, eps)})


def reciprocal_rms(x: Any, eps: float) -> Tensor:
    """The factor that RMSNorm puts on every element."""
    row = numbers(x)
    return rms_norm(row, torch.ones_like(row), eps)[0] / row[0]


@operation("rms_stats")
def rms_stats(x: Any, eps: float) -> list[Tensor]:
    squares = numbers(x).square()
    return [*squares, squares.mean(), reciprocal_rms(x, eps)]


@operation("mean_square_rsqrt")
def mean_square_rsqrt(x: Any, eps: float) -> list[Tensor]:
    return [numbers(x).square().mean(), reciprocal_rms(x, eps)]


@operation("gelu_exact")
def gelu_exact(x: Any) -> Tensor:
    return activate(numbers(x), "gelu")


@operation("gelu_tanh")
def gelu_tanh(x: Any) -> Found:
    line = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    largest = (activate(line, "gelu") - activate(line, "gelu_tanh")).abs().max()
    return Found(activate(numbers(x), "gelu_tanh"), extras={"max_abs_diff_exact_vs_tanh": largest})


@operation("normal_cdf")
def normal_cdf(x: Any) -> Tensor:
    return activate(numbers(x), "gelu") / numbers(x)  # exact GELU is x times the normal distribution function


@operation("erf_of_x_over_sqrt2")
def erf_of_x_over_sqrt2(x: float) -> Tensor:
    return 2 * normal_cdf([x]) - 1


@operation("gelu_min")
def gelu_min(interval: list[float]) -> dict[str, float]:
    low, high = (float(end) for end in interval)
    for _ in range(100):  # ternary search
        thirds = numbers([low + (high - low) / 3, high - (high - low) / 3])
        left, right = activate(thirds, "gelu")
        low, high = (low, float(thirds[1])) if left < right else (float(thirds[0]), high)
    return {"argmin": low, "min": float(activate(numbers(low), "gelu"))}


def gated_layer(gate: Tensor, up: Tensor, down: Tensor, up_bias: float = 0.0) -> FeedForward:
    """A SwiGLU layer with matrices (in, out)."""
    config = small_config(d_model=len(gate), d_ff=gate.shape[1], act="swiglu")
    layer = FeedForward(config).double()
    for part in (layer.gate, layer.up, layer.down):
        nn.init.zeros_(part.bias)
    nn.init.constant_(layer.up.bias, up_bias)
    layer.gate.weight.data, layer.up.weight.data, layer.down.weight.data = gate.T, up.T, down.T
    return layer


@operation("silu")
def silu(x: Any) -> Tensor:
    eye = torch.eye(len(x), dtype=torch.float64)
    return gated_layer(eye, 0 * eye, eye, up_bias=1.0)(numbers(x)).detach()


@operation("swiglu")
def swiglu(h: Any, W1: Any, W3: Any, W2: Any) -> Tensor:
    return gated_layer(numbers(W1), numbers(W3), numbers(W2))(numbers(h)).detach()
