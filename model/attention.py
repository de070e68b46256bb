"""Position tables, attention masks and scaled dot-product attention.

Positions are sinusoidal vectors added to the embedding, or rotations of queries and keys. Their tables are computed in
float64, because float32 angles lose digits at high positions.

Attention calls scaled_dot_product_attention, with is_causal instead of a mask where they are equivalent, because only
then every device selects a fused kernel. Document masks on a GPU use flex_attention, which skips masked blocks. Fused
kernels hold no scores and weights; to record these, the formula is computed a second time step by step.

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

from .architecture import DEFAULT_POS_BASE, ModelConfig

AttentionMask = Tensor | BlockMask


def wavelength_frequencies(dim: int, base: float = DEFAULT_POS_BASE) -> Tensor:
    """Return the angular frequency base^(-2i / dim) of each pair of columns (Vaswani et al. 2017, section 3.5).

    Args:
        dim: number of columns; if it is odd, the last pair has one column.
        base: base of the geometric series of wavelengths.

    Returns:
        (ceil(dim / 2),) float64, in radians per position.
    """
    return torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(base) / dim))


def sinusoidal_table(n_positions: int, d_model: int, base: float = DEFAULT_POS_BASE) -> Tensor:
    """Return sinusoidal position vectors: column 2i is sin(p / base^(2i / d_model)), column 2i + 1 the cosine.

    Returns:
        (n_positions, d_model) float64.
    """
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * wavelength_frequencies(d_model, base)
    return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(n_positions, d_model)


def rotary_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Return the frequencies of the rotated pairs after scaling, and a factor on queries and keys.

    "linear" divides every frequency by rope_factor. "ntk" raises the base, so that the highest frequency is unchanged
    and the lowest is divided by rope_factor. "yarn" and "llama3" keep high frequencies and divide low ones, by the
    number of turns within the original context, with a linear ramp between (sources: see ModelConfig.rope_scaling).

    Returns:
        (rope_dim / 2,) float64 radians per position, and the factor, above 1 with "yarn" only.
    """
    dim, factor = config.rope_dim, config.rope_factor
    base = config.pos_base * factor ** (dim / (dim - 2)) if config.rope_scaling == "ntk" else config.pos_base
    frequencies = wavelength_frequencies(dim, base)
    if config.rope_scaling == "linear":
        return frequencies / factor, 1.0
    if config.rope_scaling == "llama3":
        low, high = config.rope_ramp
        turns = config.rope_original_len * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / factor), 1.0
    if config.rope_scaling == "yarn":
        kept = _yarn_kept(config)
        return frequencies * (kept + (1 - kept) / factor), 0.1 * math.log(factor) + 1.0
    return frequencies, 1.0


def _yarn_kept(config: ModelConfig) -> Tensor:
    """Return the share of each pair's frequency that YaRN keeps: a ramp over pair numbers, not over turns."""
    pairs = config.rope_dim // 2

    def pair_of(turns: float) -> float:
        # fractional number of the pair with so many turns within the original context
        return pairs * math.log(config.rope_original_len / (turns * 2 * math.pi)) / math.log(config.pos_base)

    slow, fast = config.rope_ramp
    first = max(math.floor(pair_of(fast)), 0)
    last = min(math.ceil(pair_of(slow)), config.rope_dim - 1)
    ramp = (torch.arange(pairs, dtype=torch.float64) - first) / max(last - first, 0.001)
    return 1 - ramp.clamp(0, 1)


def rotary_table(config: ModelConfig, n_positions: int) -> Tensor:
    """Return cosine and sine of each pair's angle at each position, times the factor of `rotary_frequencies`.

    Returns:
        (n_positions, rope_dim / 2, 2) float64.
    """
    frequencies, factor = rotary_frequencies(config)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angle.cos(), angle.sin()), dim=2) * factor


def rotary_columns(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Expand a table of pairs to one cosine and one signed sine per column, for `apply_rotary`.

    Args:
        table: (..., T, rope_dim / 2, 2).
        layout: as for apply_rotary.

    Returns:
        Cosine and signed sine of each column, (..., T, 1, rope_dim), at least float32.
    """
    table = table.to(torch.promote_types(table.dtype, torch.float32))
    cos, sin = table[..., None, :, :].unbind(-1)
    if layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def apply_rotary(x: Tensor, rotation: tuple[Tensor, Tensor], layout: str) -> Tensor:
    """Rotate each pair of columns by the angle of its position (Su et al. 2021); columns beyond rope_dim stay.

    The dot product of two rotated vectors depends on the distance of their positions only.

    Args:
        x: (..., T, heads, head_dim) queries or keys.
        rotation: cosines and signed sines of the positions, from `rotary_columns`.
        layout: "half" pairs column i with i + rope_dim / 2, "interleaved" column 2i with 2i + 1.
    """
    cos, sin = rotation
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((apply_rotary(x[..., :dim], rotation, layout), x[..., dim:]), dim=-1)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    partner = wide.roll(dim // 2, -1) if layout == "half" else wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(wide * cos, partner, sin).to(x.dtype)


def attention_mask(
    queries: Tensor, keys: Tensor, window: int | None = None, documents: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return the Boolean attention mask: causal, with an optional sliding window and document boundaries.

    Args:
        queries: (..., T) positions of the queries in their sequence.
        keys: (..., S) positions of the keys.
        window: tokens that a query attends to, itself included; None means all.
        documents: document numbers of queries (..., T) and keys (..., S).

    Returns:
        (..., T, S) bool, True where a query attends to a key.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if documents is not None:
        seen = seen & (documents[0][..., :, None] == documents[1][..., None, :])  # not in place: it has a batch axis
    return seen


def additive_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores: 0 where `seen` is True, -inf elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T / sqrt(E), without a mask.

    Args:
        q: (..., H, T, E).
        k: (..., K, S, E); K divides H.

    Returns:
        (..., H, T, S).
    """
    return _products(q, k) / math.sqrt(q.shape[-1])


def _products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3).transpose(-2, -1)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(E)) over the unmasked keys.

    Args:
        q: (..., H, T, E).
        k: (..., K, S, E); K divides H.
        mask: broadcastable to (..., H, T, S), True where a query attends to a key; None means causal.
    """
    found: dict[str, Tensor] = {}
    attend(q, k, k, None if mask is None else additive_mask(mask, q.dtype), record=found.__setitem__)
    return found["weights"]


def block_mask(numbers: Tensor, window: int | None) -> BlockMask:
    """Return a causal mask for flex_attention in which tokens attend to their own document only.

    Args:
        numbers: (B, T) number of each token's document in its row.
        window: as for attention_mask.
    """

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
    record: Callable[[str, Tensor], None] | None = None,
) -> Tensor:
    """Return softmax(q k^T / sqrt(E) + mask) v.

    Args:
        q: (B, H, T, E).
        k, v: (B, K, S, E); K divides H, and each key-value head serves H / K query heads.
        mask: broadcastable to (B, H, T, S), added to the scores, or a BlockMask.
        is_causal: without a mask, attend only to keys at the position of the query and before.
        dropout: dropout probability of the weights.
        record: called with name and value of each intermediate result.

    Returns:
        (B, H, T, E).
    """
    if record is not None:
        _record_steps(q, k, v, mask, is_causal, record)
    if isinstance(mask, BlockMask):  # never together with dropout, see Transformer.plan
        mixed: Tensor = _flex()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return mixed
    # a single query is the last token, which attends to all keys
    if q.shape[2] == 1 and q.device.type == "cpu" and not dropout:
        return _single_query(q, k, v, mask)
    if mask is not None:
        mask = mask.to(q.dtype)  # under autocast the queries' dtype differs from the mask's
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal and mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def _single_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    # replaces torch's kernel, whose rounding depends on the number of threads here
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # (B, K, H / K, E): query heads in the place of tokens
    scores = (grouped @ k.transpose(-2, -1)).mul(1 / math.sqrt(q.shape[-1]))
    weights = (scores if mask is None else scores + mask.to(q.dtype)).softmax(dim=-1)
    return (weights @ v).reshape(q.shape)


@cache
def _flex() -> Callable[..., Any]:
    # uncompiled, flex_attention computes the whole score matrix
    return torch.compile(flex_attention, dynamic=False)


def _record_steps(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, record: Callable[[str, Tensor], None]
) -> None:
    if isinstance(mask, BlockMask):
        raise ValueError("intermediate values cannot be recorded with a BlockMask; pass one document at a time")
    products = _products(q, k)  # (B, H, T, S)
    scores = products / math.sqrt(q.shape[-1])
    if mask is None and is_causal:
        queries, keys = (torch.arange(part.shape[-2], device=q.device) for part in (q, k))
        mask = additive_mask(attention_mask(queries, keys), q.dtype)
    masked = scores if mask is None else scores + mask
    exponentials = (masked - masked.amax(-1, keepdim=True)).exp()
    sums = exponentials.sum(-1, keepdim=True)
    weights = exponentials / sums
    mixed = weights @ v.repeat_interleave(q.shape[-3] // v.shape[-3], dim=-3)
    named = {"products": products, "scores": scores, "masked_scores": masked, "exponentials": exponentials}
    for name, value in {**named, "sums": sums, "weights": weights, "mixed": mixed}.items():
        record(name, value)
