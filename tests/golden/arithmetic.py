"""Arithmetic of the documents for which the project has no function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from golden.registry import OPERATIONS, Found, Operation, by_hand
from golden.shared import numbers


@by_hand("matmul")
def matmul(A: Any, B: Any) -> Tensor:
    return numbers(A) @ numbers(B)


@by_hand("matmul_T")
def matmul_transposed(A: Any, B: Any) -> Tensor:
    return numbers(A) @ numbers(B).T


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"2*x": lambda x: 2 * x, "x*x": lambda x: x * x}


@by_hand("residual_compose")
def residual_compose(x: float, d1: str, d2: str) -> list[Tensor]:
    middle = numbers(x) + FUNCTIONS[d1](numbers(x))
    return [middle + FUNCTIONS[d2](middle)]


@by_hand("residual_grad_sq")
def residual_grad_sq(f: str, x: float, grad_out: float) -> Tensor:
    point = numbers(x).requires_grad_()
    (point + FUNCTIONS[f](point)).backward(numbers(grad_out))
    return point.grad


@by_hand("residual_grad")
def residual_grad(dF: float, grad_out: float) -> Tensor:
    point = numbers(1.0).requires_grad_()
    (point + dF * point).backward(numbers(grad_out))
    return point.grad


@by_hand("normal_ppf_scaled")
def normal_ppf_scaled(u: Any, sigma: float) -> Tensor:
    return sigma * torch.special.ndtri(numbers(u))


@by_hand("exp_over")
def exp_over(logit: float, denominator: float) -> list[float]:
    return [math.exp(logit) / denominator]


@by_hand("sumexp")
def sumexp(x: Any) -> list[Tensor]:
    return [numbers(x).exp().sum()]


@by_hand("scaled")
def scaled(x: float, factor: float) -> list[float]:
    return [x * factor]


@by_hand("scale")
def scale(x: Any, factor: float) -> Found:
    return Found(numbers(x) * factor, extras={"with_exact_factor": numbers(x) / math.sqrt(3)})


@by_hand("percent")
def percent(parts: Any) -> Tensor:
    return 100 * numbers(parts) / numbers(parts).sum()


OPERATIONS.update(
    {
        "add": Operation(lambda a, b: numbers(a) + numbers(b), own=False),
        "mul": Operation(lambda a, b: numbers(a) * numbers(b), own=False),
        "dot": Operation(lambda x, w: [numbers(x) @ numbers(w)], own=False),
        "sqdiff": Operation(lambda a, b: (numbers(a) - numbers(b)).square(), own=False),
        "square": Operation(lambda x: numbers(x).square(), own=False),
        "sqrt": Operation(lambda x: [math.sqrt(x)], own=False),
        "div_sqrt2": Operation(lambda x: [x / math.sqrt(2)], own=False),
        "log": Operation(lambda x: numbers(x).log(), own=False),
        "cumsum": Operation(lambda p: numbers(p).cumsum(0), own=False),
    }
)
