"""The last layer and its loss in one go, a few rows at a time.

With a small network the logits (rows times vocabulary) are the largest thing there is, and on a CPU the time goes into
moving them through memory three times over: logits, probabilities, gradients. Here a block of rows is turned from
features into its loss and straight into its gradient while it still lies in the processor's cache; only the gradients
of features and weights are kept for the backward pass. The arithmetic is that of linear + cross_entropy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .data import IGNORE
from .kernels import has_fast_products, product

_BLOCK_ELEMENTS = 2**21  # 8 MB of float32 logits; 2**19 to 2**22 are within a tenth of each other
_MIN_ROWS = 64  # below this the matrix products lose more than the cache gains


def linear_nll(features: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
    """Summed negative log-likelihood of the labels under softmax(features @ weight.T + bias).

    Args:
        features: (..., D) what the head reads.
        weight: (V, D) of the head.
        labels: (...) token ids; -100 is left out, and no logits are computed for it.
        bias: (V,) of the head.

    Returns:
        float64 scalar, in nats, differentiable once in features, weight and bias.
    """
    flat = labels.flatten()
    valid = (flat != IGNORE).nonzero()[:, 0]
    chosen = features.flatten(0, -2)
    if len(valid) < len(flat):
        chosen, flat = chosen[valid], flat[valid]
    nll: Tensor = _LinearNll.apply(chosen, weight, bias, flat, torch.is_grad_enabled())
    return nll


class _LinearNll(torch.autograd.Function):
    """Computes its gradients in the forward pass: they are linear in the incoming one, which only scales them."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, with_gradient: bool
    ) -> Tensor:
        n, vocab_size = len(features), len(weight)
        n_block = max(_MIN_ROWS, _BLOCK_ELEMENTS // vocab_size)
        fast = features.dtype == torch.float32 and has_fast_products()
        buffer = features.new_empty(0 if fast else min(n, n_block), vocab_size)
        total = torch.zeros((), dtype=torch.float64, device=features.device)
        feature_gradient = torch.empty_like(features) if with_gradient else None
        weight_gradient = torch.zeros_like(weight) if with_gradient else None
        bias_gradient = torch.zeros_like(bias) if with_gradient and bias is not None else None
        for first in range(0, n, n_block):
            x, y = features[first : first + n_block], labels[first : first + n_block, None]
            if fast:
                logits = product(x, weight, bias)
            else:
                logits = torch.mm(x, weight.T, out=buffer[: len(x)])
                if bias is not None:
                    logits += bias
            highest = logits.max(dim=1, keepdim=True).values
            wanted = logits.gather(1, y) - highest
            exponentials = logits.sub_(highest).exp_()  # softmax times its own denominator
            denominator = exponentials.sum(dim=1, keepdim=True)
            total += (denominator.log() - wanted).sum(dtype=torch.float64)
            if feature_gradient is not None and weight_gradient is not None:
                # d nll / d logits = softmax - one_hot; dividing the narrow side instead saves a pass over logits
                exponentials.scatter_add_(1, y, -denominator)
                scaled = x / denominator
                rows = feature_gradient[first : first + len(x)]
                if fast:
                    torch.div(product(exponentials, weight.T), denominator, out=rows)
                    weight_gradient += product(exponentials.T, scaled.T)
                else:
                    torch.mm(exponentials, weight, out=rows)
                    rows /= denominator
                    weight_gradient.addmm_(exponentials.T, scaled)
                if bias_gradient is not None:
                    bias_gradient.addmv_(exponentials.T, 1 / denominator[:, 0])
        ctx.save_for_backward(feature_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        feature_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        scaled_bias = None if bias_gradient is None else bias_gradient * gradient
        return feature_gradient * gradient, weight_gradient * gradient, scaled_bias, None, None
