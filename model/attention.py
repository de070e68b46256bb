"""Causal self-attention with any number of key-value heads, rotary positions, QK-norm, a window and documents.

Attention goes through torch's scaled_dot_product_attention, with is_causal and no explicit mask wherever that says the
same, because only then the fast kernels are chosen on every device.

Shapes in comments: B rows, T tokens, D d_model, H query heads, K key-value heads, E head_dim, S key slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .architecture import ModelConfig
from .cache import CacheStep, KVCache
from .kernels import Linear, is_plain
from .norms import RMSNorm
from .positions import Rotation, rotate
from .short_attention import causal_attention, suits


def attention_mask(
    queries: Tensor, keys: Tensor, window: int | None = None, documents: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Who may look at whom: a token at itself and before, not beyond the window, and only in its own document.

    Args:
        queries: (..., T) places of the queries in their sequence.
        keys: (..., S) places of the keys.
        window: how many tokens a query sees, itself included; None means all.
        documents: numbers (..., T) and (..., S) of the documents they belong to.

    Returns:
        (..., T, S) bool, True where a query may look.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if documents is not None:
        seen = seen & (documents[0][..., :, None] == documents[1][..., None, :])  # not in place: this one has rows
    return seen


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    """q k^T / sqrt(E): how well each query fits each key, before any mask.

    Args:
        q: (..., H, T, E).
        k: (..., K, S, E); K divides H.

    Returns:
        (..., H, T, S).
    """
    shared = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    return q @ shared.transpose(-2, -1) / math.sqrt(q.shape[-1])


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(E)), forbidden scores at -inf before the softmax; rows add to one.

    The fast path never holds these weights; this is the formula, for looking inside and for checking.

    Args:
        q: (..., H, T, E).
        k: (..., K, S, E); K divides H.
        mask: broadcastable to (..., H, T, S), True where a query may look; None means causal.
    """
    scores = scaled_scores(q, k)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)


@dataclass(frozen=True)
class Reading:
    """What all layers of one forward pass have in common.

    Attributes:
        rotation: (T, rope_dim / 2, 2) or (B, T, ...) cosines and sines; None without rotary positions.
        mask: broadcastable to (B, H, T, S), True where a query may look; None if plain causal attention says the same.
        cache: keys and values read before, with the places of the new ones.
    """

    rotation: Tensor | None = None
    mask: Tensor | None = None
    cache: tuple[KVCache, CacheStep] | None = None


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = (config.n_head, config.n_kv_head, config.n_kv_head)
        self.head_dim = config.head_dim
        self.rope_layout = config.rope_layout
        self.dropout = config.drop_attn
        # One matrix for queries, keys and values, in this order: one large product is faster than three.
        self.qkv = Linear(config.d_model, sum(self.heads) * config.head_dim, bias=config.attn_bias)
        self.proj = Linear(config.n_head * config.head_dim, config.d_model, bias=config.attn_bias)
        self.norm_q = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.norm_k = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def project(self, x: Tensor, rotation: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, E), keys and values (B, K, T, E), normalised and rotated as configured."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # (B, T, H + 2K, E)
        if self.norm_q is None and rotation is not None:
            # queries and keys side by side take one rotation instead of two
            qk, v = heads.split((sum(self.heads[:2]), self.heads[2]), dim=2)
            q, k = self._rotate(qk, rotation).split(self.heads[:2], dim=2)
        else:
            q, k, v = heads.split(self.heads, dim=2)
            if self.norm_q is not None and self.norm_k is not None:
                q, k = self.norm_q(q), self.norm_k(k)
            if rotation is not None:
                q, k = (self._rotate(part, rotation) for part in (q, k))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and is_plain(x):
            turned: Tensor = Rotation.apply(x, rotation, self.rope_layout)
            return turned
        return rotate(x, rotation, self.rope_layout)

    def forward(self, x: Tensor, layer: int, reading: Reading) -> Tensor:
        q, k, v = self.project(x, reading.rotation)
        if reading.cache is not None:
            cache, step = reading.cache
            k, v = cache.write(layer, step, k, v)
        dropout = self.dropout if self.training else 0.0
        if self.training and reading.mask is None and not dropout and suits(q, k):
            mixed = causal_attention(q, k, v)
        else:
            mixed = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=reading.mask,
                dropout_p=dropout,
                is_causal=reading.mask is None,
                enable_gqa=self.heads[0] != self.heads[1],
            )
        output: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return output
