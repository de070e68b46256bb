"""Where a token stands: sinusoidal vectors added to the embedding, or rotations of queries and keys.

Tables are computed in float64, because a float32 angle of a late position has already lost digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .architecture import DEFAULT_POS_BASE, ModelConfig


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


def rotate(x: Tensor, table: Tensor, layout: str) -> Tensor:
    """Turn each pair of columns by its position's angle (Su et al. 2021); columns beyond the table stay.

    The dot product of two rotated vectors depends on their distance only.

    Args:
        x: (..., T, heads, head_dim) queries or keys.
        table: (..., T, rope_dim / 2, 2) cosines and sines of their positions.
        layout: "half" pairs column i with i + rope_dim / 2, "interleaved" column 2i with 2i + 1.
    """
    return turn(x, spread(table.to(torch.promote_types(x.dtype, torch.float32)), layout), layout)


def spread(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of each column (..., T, 1, rope_dim), at least float32, as `turn` takes them."""
    table = table.to(torch.promote_types(table.dtype, torch.float32))
    cos, sin = table[..., None, :, :].unbind(-1)
    if layout == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def turn(x: Tensor, rotation: tuple[Tensor, Tensor], layout: str) -> Tensor:
    """`rotate` by what `spread` made: each column times its cosine, plus its partner times its signed sine."""
    cos, sin = rotation
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((turn(x[..., :dim], rotation, layout), x[..., dim:]), dim=-1)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    partner = wide.roll(dim // 2, -1) if layout == "half" else wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(wide * cos, partner, sin).to(x.dtype)
