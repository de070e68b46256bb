"""Who looks at whom, and what is gathered there.

Attention goes through torch's scaled_dot_product_attention, with is_causal and no mask wherever that says the same,
because only then the fast kernels are chosen on every device; masks of documents go through flex_attention on a GPU,
which skips the blocks that are hidden. Where somebody looks on, the formula is written out.

Shapes in comments: B rows, T tokens, H query heads, K key-value heads, E head_dim, S key slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from . import kernels

AttentionMask = Tensor | BlockMask


def causal_mask(queries: Tensor, keys: Tensor, window: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """What is added to the scores: 0 where a token may look (at itself and before, within the window), -inf elsewhere.

    Args:
        queries: (..., T) places of the queries in their sequence.
        keys: (..., S) places of the keys.
        window: how many tokens a query sees, itself included; None means all.
        dtype: of the mask.

    Returns:
        (..., T, S).
    """
    distance = queries[..., :, None] - keys[..., None, :]
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def document_mask(numbers: Tensor, window: int | None, dtype: torch.dtype, *, dense: bool = False) -> AttentionMask:
    """A causal mask in which every token sees its own document alone.

    Args:
        numbers: (B, T) number of each token's document in its row.
        window: as for causal_mask.
        dtype: of the mask.
        dense: no mask of blocks, which does not go with dropout of the weights.

    Returns:
        (B, 1, T, T), or on a GPU a mask of blocks.
    """
    if numbers.device.type == "cuda" and not dense:
        return block_mask(numbers, window)
    places = torch.arange(numbers.shape[1], device=numbers.device)
    mask = causal_mask(places, places, window, dtype)
    return mask.masked_fill(numbers[:, :, None] != numbers[:, None, :], -torch.inf)[:, None]


def block_mask(numbers: Tensor, window: int | None) -> BlockMask:
    """`document_mask` for flex_attention."""

    def seen(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = (query >= key) & (numbers[row, query] == numbers[row, key])
        return allowed if window is None else allowed & (query - key < window)

    n_rows, n_tokens = numbers.shape
    return create_block_mask(seen, n_rows, None, n_tokens, n_tokens, device=numbers.device)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | None = None,
    is_causal: bool = True,
    dropout: float = 0.0,
    see: Callable[[str, Tensor], None] | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(E) + mask) v.

    Args:
        q: (B, H, T, E).
        k, v: (B, K, S, E); K divides H, and each key-value head serves H / K query heads.
        mask: broadcastable to (B, H, T, S), added to the scores, or a mask of blocks.
        is_causal: without a mask, whether a query sees only the keys at its own place and before.
        dropout: probability to leave out a weight.
        see: told each sub-step by name, in which case the formula is computed step by step.

    Returns:
        (B, H, T, E).
    """
    if see is not None:
        return _written_out(q, k, v, mask, is_causal, see)
    if isinstance(mask, BlockMask):
        mixed: Tensor = _flex()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return mixed
    if mask is None and is_causal and not dropout and kernels.suits_short_attention(q, k):
        return kernels.short_attention(q, k, v)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal and mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


@cache
def _flex() -> Callable[..., Any]:
    """flex_attention is a kernel only where it is compiled; within a compiled network it is compiled with it."""
    return torch.compile(flex_attention, dynamic=False)


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, see: Callable[[str, Tensor], None]
) -> Tensor:
    if isinstance(mask, BlockMask):
        raise ValueError("a mask of blocks cannot be looked into; look at one document by itself")
    shared_k, shared_v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
    products = q @ shared_k.transpose(-2, -1)  # (B, H, T, S)
    scores = products / math.sqrt(q.shape[-1])
    if mask is None and is_causal:
        places = torch.arange(q.shape[2], device=q.device)
        mask = causal_mask(places, places, None, q.dtype)
    masked = scores if mask is None else scores + mask
    exponentials = (masked - masked.amax(-1, keepdim=True)).exp()
    sums = exponentials.sum(-1)
    weights = exponentials / sums[..., None]
    mixed = weights @ shared_v
    named = {"products": products, "scores": scores, "masked_scores": masked, "exponentials": exponentials}
    for name, value in {**named, "sums": sums, "weights": weights, "mixed": mixed}.items():
        see(name, value)
    return mixed
