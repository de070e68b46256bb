"""Causal attention over short sequences on a CPU, forward and backward, for training.

torch's kernel for the CPU is made for long sequences: it never holds the attention weights and computes them twice. Up
to some hundred tokens they are small enough to be kept, and then the work is a few batched matrix products. Queries are
taken in blocks, which see no key behind their end, so that most of what the mask hides is not computed; heads are
taken in groups whose weights fit the processor's cache.

Shapes in comments: B rows, T tokens, H heads, E head_dim, N = B H, G heads of one group, Q queries of one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .query_blocks import MAX_TOKENS, block_bounds, query_block

_GROUP_ELEMENTS = 2**18  # attention weights at once: 1 MB of float32


def suits(q: Tensor, k: Tensor) -> bool:
    """Whether queries and keys (B, H, T, E) are of a kind and a size that this is made for."""
    return (
        q.device.type == "cpu"
        and q.dtype == k.dtype == torch.float32
        and q.shape == k.shape
        and q.shape[2] <= MAX_TOKENS
        and torch.is_grad_enabled()
        and q.requires_grad
        and type(q) is Tensor
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(E)) v, each token looking at itself and before; differentiable once.

    Args:
        q: (B, H, T, E).
        k: (B, H, T, E).
        v: (B, H, T, E).

    Returns:
        (B, H, T, E).
    """
    mixed: Tensor = CausalAttention.apply(q, k, v)
    return mixed


class CausalAttention(torch.autograd.Function):
    """Attention block by block; the weights are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # (N, T, E): batched products want one batch axis
        flat_q, flat_k, flat_v = (part.reshape(-1, *part.shape[2:]) for part in (q, k, v))
        n_heads, n_tokens, width = flat_q.shape
        mixed = q.new_empty(q.shape[0], n_tokens, q.shape[1], width)  # (B, T, H, E), as the projection reads it
        by_head = mixed.transpose(1, 2)
        block, bounds = query_block(n_tokens), block_bounds(n_tokens)
        hidden = torch.full((block, block), -math.inf, dtype=q.dtype).triu_(1)
        kept = []
        result = torch.empty_like(flat_q)
        for heads in _groups(n_heads, n_tokens):
            group_q, group_k, group_v = flat_q[heads], flat_k[heads], flat_v[heads]
            for first, last in bounds:
                weights = q.new_empty(len(group_q), last - first, last)  # (G, Q, keys)
                keys = group_k[:, :last].transpose(1, 2)
                torch.baddbmm(weights, group_q[:, first:last], keys, beta=0, alpha=1 / math.sqrt(width), out=weights)
                weights[:, :, first:] += hidden[: last - first, : last - first]
                torch.softmax(weights, dim=-1, out=weights)
                result[heads, first:last] = torch.bmm(weights, group_v[:, :last])
                kept.append(weights)
        by_head.copy_(result.view(q.shape))
        ctx.save_for_backward(flat_q, flat_k, flat_v, *kept)
        return by_head

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, *kept = ctx.saved_tensors
        n_heads, n_tokens, width = q.shape
        shape = gradient.shape
        of_mixed = gradient.reshape(q.shape)
        of_q, of_k, of_v = q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)
        scale = 1 / math.sqrt(width)
        bounds = block_bounds(n_tokens)
        for number, heads in enumerate(_groups(n_heads, n_tokens)):
            group_q, group_k, group_v, group_gradient = q[heads], k[heads], v[heads], of_mixed[heads]
            # the last block sees all keys and writes their gradients; the others add to them
            for place, (first, last) in reversed(list(enumerate(bounds))):
                weights, push = kept[number * len(bounds) + place], group_gradient[:, first:last]
                of_weights = torch.bmm(push, group_v[:, :last].transpose(1, 2))
                torch._softmax_backward_data(of_weights, weights, -1, q.dtype, grad_input=of_weights)
                by_key, scores_by_key = weights.transpose(1, 2), of_weights.transpose(1, 2)
                queries = group_q[:, first:last]
                if last == n_tokens:
                    torch.bmm(by_key, push, out=of_v[heads])
                    torch.baddbmm(of_k[heads], scores_by_key, queries, beta=0, alpha=scale, out=of_k[heads])
                else:
                    of_v[heads, :last] += torch.bmm(by_key, push)
                    of_k[heads, :last].add_(torch.bmm(scores_by_key, queries), alpha=scale)
                torch.mul(torch.bmm(of_weights, group_k[:, :last]), scale, out=of_q[heads, first:last])
        return of_q.view(shape), of_k.view(shape), of_v.view(shape)


def _groups(n_heads: int, n_tokens: int) -> Iterator[slice]:
    """Heads at once."""
    size = max(2, _GROUP_ELEMENTS // (query_block(n_tokens) * n_tokens))
    for first in range(0, n_heads, size):
        yield slice(first, min(first + size, n_heads))
