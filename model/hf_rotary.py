"""Rotary positions as Hugging Face writes them down: `rope_parameters` of LLaMA and Qwen3 models, and back.

Both classes of `transformers` rotate whole heads in halves and scale wavelengths in the same ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .architecture import DEFAULT_POS_BASE, ModelConfig

Fields = Mapping[str, Any]


class LayoutError(ValueError):
    """A model that cannot be written, or a folder that cannot be read, in Hugging Face's layout."""


def rope_misfits(config: ModelConfig) -> list[str]:
    """What the rotary layouts cannot say of the rotation, one phrase each."""
    found = []
    if config.rope_dim != config.head_dim:
        found.append(f"rope_dim={config.rope_dim} (it needs head_dim={config.head_dim})")
    # there the two sides' ramps, whose ends have changed places, differ
    if config.rope_scaling == "yarn" and config.rope_original_len < 2 * math.pi * config.rope_ramp[0]:
        too_short = "no pair turns rope_ramp[0] times in so few tokens"
        found.append(f"rope_original_len={config.rope_original_len} ({too_short})")
    return found


def rope_to_hf(config: ModelConfig) -> tuple[float, dict[str, Any] | None]:
    """The base of the wavelengths, and the scaling as Hugging Face writes it; None without.

    "ntk" scaling is the larger base that it is.
    """
    base, factor, dim = float(config.pos_base), float(config.rope_factor), config.rope_dim
    if config.rope_scaling == "none":
        return base, None
    if config.rope_scaling == "ntk":
        return base * factor ** (dim / (dim - 2)), None
    scaling: dict[str, Any] = {"rope_type": config.rope_scaling, "factor": factor}
    if config.rope_scaling == "linear":
        return base, scaling
    low, high = map(float, config.rope_ramp)
    scaling["original_max_position_embeddings"] = config.rope_original_len
    if config.rope_scaling == "yarn":
        return base, {**scaling, "beta_slow": low, "beta_fast": high}
    return base, {**scaling, "low_freq_factor": low, "high_freq_factor": high}


def rope_from_hf(config: Fields, length: int) -> dict[str, Any]:
    """Rotary fields of ModelConfig from `rope_parameters` or from the older `rope_theta` and `rope_scaling`.

    Args:
        config: the content of config.json.
        length: its max_position_embeddings.

    Raises:
        LayoutError: a rotation that the network here does not do.
    """
    # in this order in transformers 5 as well
    rope: Fields = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise LayoutError("config.json: rope_parameters differ between layers; all layers are rotated alike here")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise LayoutError(
            f"config.json: partial_rotary_factor={share!r} is not supported: the classes of transformers rotate "
            f"whole heads"
        )
    theta = rope.get("rope_theta") or config.get("rope_theta") or DEFAULT_POS_BASE
    fields: dict[str, Any] = {"pos": "rope", "pos_base": float(theta), "rope_layout": "half"}
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return fields
    if kind not in ("linear", "yarn", "llama3"):
        why = "its base grows with the text that is read" if kind == "dynamic" else "it is unknown here"
        raise LayoutError(
            f"config.json: rope_type={kind!r} is not supported, because {why}; expected default, linear, yarn or llama3"
        )
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or length
    factor = rope.get("factor")
    if factor is None and kind == "yarn":
        factor = length / original
    if factor is None:
        raise LayoutError(f"config.json: rope_type={kind!r} needs a factor in rope_parameters")
    if kind == "yarn":
        _check_yarn(rope, factor)
    if factor == 1:
        return fields
    fields |= {"rope_scaling": kind, "rope_factor": float(factor)}
    if kind == "linear":
        return fields
    low, high = ("beta_slow", "beta_fast") if kind == "yarn" else ("low_freq_factor", "high_freq_factor")
    defaults = (1.0, 32.0) if kind == "yarn" else (1.0, 4.0)
    fields["rope_original_len"] = original
    fields["rope_ramp"] = (float(rope.get(low) or defaults[0]), float(rope.get(high) or defaults[1]))
    if kind == "yarn" and original < 2 * math.pi * fields["rope_ramp"][0]:
        raise LayoutError(
            f"config.json: original_max_position_embeddings={original} is too few tokens for yarn: no pair turns "
            f"beta_slow times in them"
        )
    return fields


def _check_yarn(rope: Fields, factor: float) -> None:
    """Refuses what YaRN can be told beyond its paper."""
    if rope.get("truncate") is False:
        raise LayoutError("config.json: truncate=False of yarn is not supported: its ramp joins whole pairs here")
    expected = _yarn_sharpening(factor)
    given = rope.get("attention_factor")
    mscale, over = rope.get("mscale"), rope.get("mscale_all_dim")
    if given is None and mscale and over:
        given = _yarn_sharpening(factor, mscale) / _yarn_sharpening(factor, over)
    if given is not None and not math.isclose(given, expected, rel_tol=1e-7):
        raise LayoutError(
            f"config.json: yarn's attention_factor (or mscale / mscale_all_dim) is {given!r}, which is not supported; "
            f"expected {expected!r}, which is 0.1 ln(factor) + 1"
        )


def _yarn_sharpening(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
