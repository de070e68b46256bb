"""Ready-made shapes, from one that trains in seconds on a laptop to GPT-2's smallest.

A preset is a set of ModelConfig fields without the vocabulary, which comes from the tokeniser.
"""

from __future__ import annotations

from typing import Any

from .config import ModelConfig

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_head": 2, "d_model": 64, "max_seq_len": 128},
    "small": {"n_layer": 4, "n_head": 4, "d_model": 128, "max_seq_len": 128},
    "medium": {"n_layer": 6, "n_head": 6, "d_model": 384, "max_seq_len": 256},
    "gpt2": {"n_layer": 12, "n_head": 12, "d_model": 768, "max_seq_len": 1024},
}


def preset(name: str, vocab_size: int, **overrides: Any) -> ModelConfig:
    """The named shape with this vocabulary.

    Args:
        name: a key of PRESETS.
        vocab_size: number of token ids.
        overrides: ModelConfig fields that replace the preset's.

    Raises:
        ValueError: no such preset, or an override is not allowed.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return ModelConfig.from_dict({**PRESETS[name], **overrides, "vocab_size": vocab_size})
