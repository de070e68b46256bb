"""Positions and attention: tables of angles, masks, and the products of queries, keys and values.

Positions are sinusoidal vectors added to the embedding, or rotations of queries and keys. Their tables are computed in
float64, because a float32 angle of a late position has already lost digits.

Attention goes through torch's scaled_dot_product_attention, with is_causal and no mask wherever that says the same,
because only then the fast kernels are chosen on every device; masks of documents go through flex_attention on a GPU,
which skips the blocks that are hidden. For who looks on, the formula is written out beside it.

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
    """Angular frequency of each pair of columns, base^(-2i / dim): from 1 radian per position downwards.

    Args:
        dim: number of columns; an odd one has a last pair without a partner.
        base: of the geometric series of wavelengths.

    Returns:
        (ceil(dim / 2),) float64, in radians per position (Vaswani et al. 2017, section 3.5).
    """
    return torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(base) / dim))


def sinusoidal_table(n_positions: int, d_model: int, base: float = DEFAULT_POS_BASE) -> Tensor:
    """Fixed position vectors: column 2i is sin(p / base^(2i / d_model)), column 2i + 1 the cosine of that angle.

    Returns:
        (n_positions, d_model) float64.
    """
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * wavelength_frequencies(d_model, base)
    return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(n_positions, d_model)


def rotary_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Frequencies of the rotated pairs after scaling, and a factor on queries and keys.

    "linear" divides every frequency by rope_factor; "ntk" raises the base, so that the fastest pair stays and the
    slowest is divided by rope_factor; "yarn" and "llama3" leave pairs alone that turn often within the original context
    and divide those that turn seldom, with a ramp between.

    Returns:
        (rope_dim / 2,) float64 radians per position, and the factor (above 1 with "yarn" only: longer contexts need
        sharper attention).
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
    """Share of each pair's own frequency that YaRN keeps: a ramp over whole pair numbers, not over turns."""
    pairs = config.rope_dim // 2

    def pair_of(turns: float) -> float:
        """The (fractional) number of the pair that turns so often within the original context."""
        return pairs * math.log(config.rope_original_len / (turns * 2 * math.pi)) / math.log(config.pos_base)

    slow, fast = config.rope_ramp
    first = max(math.floor(pair_of(fast)), 0)
    last = min(math.ceil(pair_of(slow)), config.rope_dim - 1)
    ramp = (torch.arange(pairs, dtype=torch.float64) - first) / max(last - first, 0.001)
    return 1 - ramp.clamp(0, 1)


def rotary_table(config: ModelConfig, n_positions: int) -> Tensor:
    """Cosine and sine of each pair's angle at each position, times the scaling's factor.

    Returns:
        (n_positions, rope_dim / 2, 2) float64.
    """
    frequencies, factor = rotary_frequencies(config)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angle.cos(), angle.sin()), dim=2) * factor


def spread(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of positions column by column, as `turn` takes them.

    Args:
        table: (..., T, rope_dim / 2, 2).
        layout: as for turn.

    Returns:
        Cosine and signed sine of each column, (..., T, 1, rope_dim), at least float32.
    """
    table = table.to(torch.promote_types(table.dtype, torch.float32))
    cos, sin = table[..., None, :, :].unbind(-1)
    if layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def turn(x: Tensor, rotation: tuple[Tensor, Tensor], layout: str) -> Tensor:
    """Turn each pair of columns by its position's angle (Su et al. 2021); columns beyond rope_dim stay.

    Each column times its cosine, plus its partner times its signed sine. The dot product of two rotated vectors depends
    on their distance only.

    Args:
        x: (..., T, heads, head_dim) queries or keys.
        rotation: of their positions, by `spread`.
        layout: "half" pairs column i with i + rope_dim / 2, "interleaved" column 2i with 2i + 1.
    """
    cos, sin = rotation
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((turn(x[..., :dim], rotation, layout), x[..., dim:]), dim=-1)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    partner = wide.roll(dim // 2, -1) if layout == "half" else wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(wide * cos, partner, sin).to(x.dtype)


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


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where a query may look, -inf elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    """q k^T / sqrt(E): how well each query fits each key, before any mask.

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
    """softmax(q k^T / sqrt(E)) of the keys that a query may look at; rows add to one.

    Args:
        q: (..., H, T, E).
        k: (..., K, S, E); K divides H.
        mask: broadcastable to (..., H, T, S), True where a query may look; None means causal.
    """
    found: dict[str, Tensor] = {}
    attend(q, k, k, None if mask is None else additive(mask, q.dtype), see=found.__setitem__)
    return found["weights"]


def block_mask(numbers: Tensor, window: int | None) -> BlockMask:
    """A causal mask for flex_attention in which every token sees its own document alone.

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
    see: Callable[[str, Tensor], None] | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(E) + mask) v.

    Args:
        q: (B, H, T, E).
        k, v: (B, K, S, E); K divides H, and each key-value head serves H / K query heads.
        mask: broadcastable to (B, H, T, S), added to the scores, or a mask of blocks.
        is_causal: without a mask, whether a query sees only the keys at its own place and before.
        dropout: probability to leave out a weight.
        see: told each sub-step of the formula by name.

    Returns:
        (B, H, T, E).
    """
    if see is not None:
        _write_out(q, k, v, mask, is_causal, see)
    if isinstance(mask, BlockMask):  # which is not planned where weights are dropped
        mixed: Tensor = _flex()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return mixed
    # a single query is the last token, which sees all keys
    if q.shape[2] == 1 and q.device.type == "cpu" and not dropout:
        return _of_one_query(q, k, v, mask)
    if mask is not None:
        mask = mask.to(q.dtype)  # under autocast queries have another type than the weights
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal and mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def _of_one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of rows of one token, whose bits torch's kernel would let depend on the number of threads."""
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the heads of a group as its tokens
    scores = (grouped @ k.transpose(-2, -1)).mul(1 / math.sqrt(q.shape[-1]))
    weights = (scores if mask is None else scores + mask.to(q.dtype)).softmax(dim=-1)
    return (weights @ v).reshape(q.shape)


@cache
def _flex() -> Callable[..., Any]:
    """flex_attention is a kernel only where it is compiled; within a compiled network it is compiled with it."""
    return torch.compile(flex_attention, dynamic=False)


def _write_out(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, is_causal: bool, see: Callable[[str, Tensor], None]
) -> None:
    """The same by the formula, of which the fast kernels hold nothing."""
    if isinstance(mask, BlockMask):
        raise ValueError("a mask of blocks cannot be looked into; look at one document by itself")
    products = _products(q, k)  # (B, H, T, S)
    scores = products / math.sqrt(q.shape[-1])
    if mask is None and is_causal:
        queries, keys = (torch.arange(part.shape[-2], device=q.device) for part in (q, k))
        mask = additive(attention_mask(queries, keys), q.dtype)
    masked = scores if mask is None else scores + mask
    exponentials = (masked - masked.amax(-1, keepdim=True)).exp()
    sums = exponentials.sum(-1, keepdim=True)
    weights = exponentials / sums
    mixed = weights @ v.repeat_interleave(q.shape[-3] // v.shape[-3], dim=-3)
    named = {"products": products, "scores": scores, "masked_scores": masked, "exponentials": exponentials}
    for name, value in {**named, "sums": sums, "weights": weights, "mixed": mixed}.items():
        see(name, value)
