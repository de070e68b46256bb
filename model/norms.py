"""Normalisation over the last axis: LayerNorm and RMSNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .architecture import ModelConfig
from .kernels import is_plain


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019).

    Args:
        x: (..., D).
        gain: (D,).
        eps: added inside the root.
    """
    if x.device.type != "cpu":
        return F.rms_norm(x, gain.shape, gain, eps)  # one kernel there; on a CPU four times slower than the formula
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


class RMSNorm(nn.Module):
    """RMSNorm with a learned gain.

    Args:
        width: D.
        eps: added inside the root.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and is_plain(x) and is_plain(self.weight):
            normed: Tensor = RMSNormed.apply(x, self.weight, self.eps)
            return normed
        return rms_norm(x, self.weight, self.eps)


class RMSNormed(torch.autograd.Function):
    """`rms_norm` for training on a CPU: fewer passes over memory than the formula's own graph takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.rsqrt(norm.square() / x.shape[-1] + eps)
        unit = x * scale
        ctx.save_for_backward(unit, scale, gain)
        return unit * gain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, scale, gain = ctx.saved_tensors
        product = gradient * unit
        of_gain = product.flatten(0, -2).sum(0)
        # d unit / d x takes the part along x out: what is left is divided by the norm
        along = torch.matmul(product, gain)[..., None] / -unit.shape[-1]
        of_x = torch.mul(gradient, gain, out=product).addcmul_(unit, along).mul_(scale)
        return of_x, of_gain, None


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm over the residual stream that the configuration asks for."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.norm_bias)
