"""Attention: weights from scores, masks, scales, gradients, heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Found, operation
from golden.shared import numbers, small_config
from model.attention import Attention, attention_mask, attention_weights


def weights_of(scores: Tensor, causal: bool = False) -> Tensor:
    """Attention weights of given scaled scores (T, S): queries are the scores, keys the unit vectors."""
    allowed = scores > -torch.inf
    keys = torch.eye(scores.shape[-1], dtype=torch.float64) * math.sqrt(scores.shape[-1])
    return attention_weights(scores.masked_fill(~allowed, 0.0)[None], keys[None], None if causal else allowed)[0]


def scaled_score(query: Tensor, key: Tensor) -> Tensor:
    """Scaled score of a query (E,) with a key (E,): the log-odds of the key beside a key of zeros."""
    keys = torch.stack((key, torch.zeros_like(key)))
    weights = attention_weights(query[None, None], keys[None], torch.ones(1, 2, dtype=torch.bool))[0, 0]
    return weights[0].log() - weights[1].log()


def unit(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64)[0]


@operation("softmax_rows")
def softmax_rows(scores: Any) -> Found:
    scores = numbers(scores)
    return Found(weights_of(scores), extras={"corrected_causal": weights_of(scores, causal=True)[0]})


@operation("softmax_rows_causal")
def softmax_rows_causal(scores: Any) -> Tensor:
    return weights_of(numbers(scores), causal=True)


@operation("softmax_pick")
def softmax_pick(scores: Any, columns: list[int], scale: float) -> Tensor:
    return weights_of(numbers([scores]))[0, columns] * scale


@operation("row_sums_required_one")
def row_sums_required_one(matrix: Any) -> Found:
    return Found(weights_of(numbers(matrix)).sum(-1), printed=weights_of(numbers(matrix)).sum(-1))


@operation("attention_from_scores")
def attention_from_scores(scores: Any, V: Any) -> Tensor:
    return weights_of(numbers(scores), causal=True) @ numbers(V)


@operation("apply_causal_mask", "apply_causal_mask_batch")
def apply_causal_mask(scores: Any) -> Tensor:
    places = torch.arange(len(scores[0]))
    return numbers(scores).masked_fill(~attention_mask(places, places), -torch.inf)


@operation("causal_mask")
def causal_mask(n: int, scores: Any) -> Tensor:
    places = torch.arange(n)
    return torch.zeros(n, n, dtype=torch.float64).masked_fill(~attention_mask(places, places), -torch.inf)


@operation("keep_mask")
def keep_mask(n: int) -> Tensor:
    return attention_mask(torch.arange(n), torch.arange(n)).long()


@operation("attention_grads")
def attention_grads(Q: Any, K: Any, V: Any, dO: Any, causal: bool) -> dict[str, Tensor]:
    q, k, v = (numbers(part)[None].requires_grad_() for part in (Q, K, V))
    mask = None if causal else torch.ones(len(Q), len(K), dtype=torch.bool)
    weights = attention_weights(q, k, mask)
    weights.retain_grad()
    mixed = weights @ v
    mixed.backward(numbers(dO)[None])
    # the scores live inside attention_weights, so their gradient is asked of a pass in which they are the queries
    scores = (numbers(Q) @ numbers(K).T / math.sqrt(len(Q[0]))).requires_grad_()
    weights_of(scores, causal).backward(weights.grad[0])
    gradients = {"dA": weights.grad[0], "dS": scores.grad, "dQ": q.grad[0], "dK": k.grad[0], "dV": v.grad[0]}
    return {"O": mixed[0].detach(), **gradients}


@operation("dot_scaled")
def dot_scaled(q: Any, k: Any, d_k: int) -> list[Tensor]:
    query, key = (torch.cat((numbers(part), torch.zeros(d_k - len(part)))) for part in (q, k))
    return [scaled_score(query, key)]


@operation("scale_by_sqrt_dk")
def scale_by_sqrt_dk(score: float, d_k: int) -> list[Tensor]:
    return [scaled_score(score * unit(d_k), unit(d_k))]


@operation("rsqrt")
def rsqrt(x: int) -> list[Tensor]:
    return [scaled_score(unit(x), unit(x))]


@operation("dk_scale")
def dk_scale(d_model: int, n_heads: int) -> list[Any]:
    width = small_config(d_model=d_model, n_head=n_heads).head_dim
    return [width, 1 / scaled_score(unit(width), unit(width))]


@operation("dot_variance")
def dot_variance(d_k: int) -> dict[str, Any]:
    # d_k independent products of unit variance; the scale enters squared
    return {"var_raw": float(d_k), "var_scaled": d_k * scaled_score(unit(d_k), unit(d_k)) ** 2}


@operation("split_heads")
def split_heads(x: Any, n_heads: int) -> Tensor:
    attention = Attention(small_config(d_model=len(x), n_head=n_heads, attn_bias=False)).double()
    nn.init.zeros_(attention.qkv.weight)
    nn.init.eye_(attention.qkv.weight.data[: len(x)])
    return attention.project(numbers([[x]]))[0][0, :, 0]
