"""Presets of ModelConfig: own ones of all sizes, and those of published models.

The vocab_size of a preset is that of the published model; a training replaces it by the tokeniser's. Presets named
after a document also have the document's other settings in RECIPES.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .architecture import ModelConfig

Fields = dict[str, Any]


def _gpt2(n_layer: int, n_head: int, d_model: int) -> Fields:
    """GPT-2: learned positions, pre-norm, tanh GELU, all biases, tied head (Radford et al. 2019)."""
    shape = {"n_layer": n_layer, "n_head": n_head, "d_model": d_model, "max_seq_len": 1024, "vocab_size": 50257}
    return {**shape, "act": "gelu_tanh"}


def _llama(n_layer: int, n_head: int, d_model: int, d_ff: int, max_seq_len: int = 2048) -> Fields:
    """LLaMA: rotary positions, RMSNorm, SwiGLU, no biases (Touvron et al. 2023)."""
    return {
        **{"n_layer": n_layer, "n_head": n_head, "d_model": d_model, "d_ff": d_ff, "max_seq_len": max_seq_len},
        **{"vocab_size": 32000, "pos": "rope", "norm": "rmsnorm", "norm_eps": 1e-6, "act": "swiglu"},
        **{"attn_bias": False, "ffn_bias": False, "tie_weights": False, "init_residual_scaling": False},
    }


def _modern(n_layer: int, n_head: int, d_model: int, d_ff: int, max_seq_len: int, vocab_size: int) -> Fields:
    """LLaMA with QK-norm and a tied, padded head, for small models."""
    return {
        **_llama(n_layer, n_head, d_model, d_ff, max_seq_len),
        **{"vocab_size": vocab_size, "qk_norm": True, "tie_weights": True, "vocab_multiple": 64},
        "init_residual_scaling": True,
    }


def _fundamentals(norm_order: str) -> Fields:
    """The textbook Transformer of one billion parameters: learned positions, ReLU, tied head."""
    return {
        **{"n_layer": 18, "n_head": 16, "d_model": 2048, "max_seq_len": 1024, "vocab_size": 50000},
        **{"norm_order": norm_order, "act": "relu", "init_residual_scaling": False},
        **{"drop_attn": 0.1, "drop_ffn": 0.1, "drop_resid": 0.1},
    }


PRESETS: dict[str, Fields] = {
    "tiny": {"n_layer": 2, "n_head": 2, "d_model": 64, "max_seq_len": 128, "vocab_size": 512},
    "small": {"n_layer": 4, "n_head": 4, "d_model": 128, "max_seq_len": 128, "vocab_size": 1024},
    "medium": {"n_layer": 6, "n_head": 6, "d_model": 384, "max_seq_len": 256, "vocab_size": 8192},
    # characters as ids, sinusoidal positions, pre-norm, no biases in attention
    "sheepop": {
        **{"n_layer": 6, "n_head": 8, "d_model": 512, "max_seq_len": 512, "vocab_size": 128},
        **{"pos": "sinusoidal", "attn_bias": False, "tie_weights": False, "init_residual_scaling": False},
        **{"drop_embed": 0.1, "drop_ffn": 0.1, "drop_resid": 0.1},
    },
    "light_llm": {
        **{"n_layer": 6, "n_head": 6, "d_model": 384, "max_seq_len": 1024, "vocab_size": 50257},
        # dropout after attention, none after the feed-forward layer
        **{"drop_embed": 0.1, "drop_resid": 0.1, "drop_resid_mlp": 0.0, "init_residual_scaling": False},
    },
    # head_dim is 3, and the third column is not rotated
    "llama_toy": {
        **_llama(1, 2, 6, 24, max_seq_len=3),
        **{"vocab_size": 10, "rope_layout": "interleaved", "rope_dim": 2},
    },
    "llama": {**_llama(6, 6, 384, 1024, max_seq_len=256), "vocab_size": 8192, "tie_weights": True},
    # at this width init_std=0.02 starts well above the uniform loss: the variance of the logits is init_std^2 d_model
    "llama-7b": {**_llama(32, 32, 4096, 11008), "init_std": 0.0125},
    "llama-13b": {**_llama(40, 40, 5120, 13824), "init_std": 0.0125},
    "fundamentals": _fundamentals("post"),
    "fundamentals-pre": _fundamentals("pre"),
    "gpt2": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
    "modern-200k": _modern(3, 2, 64, 192, 256, 512),
    "modern-1m": _modern(4, 2, 128, 384, 256, 2048),
    "modern-5m": _modern(5, 4, 256, 704, 256, 4096),
    "modern-15m": _modern(6, 6, 384, 1024, 512, 8192),
    "modern-30m": _modern(8, 8, 512, 1408, 1024, 8192),
    "modern-125m": _modern(12, 12, 768, 2048, 1024, 50257),
    "modern-350m": _modern(24, 16, 1024, 2816, 2048, 50257),
    "modern-1b": {**_modern(20, 16, 2048, 5632, 2048, 50257), "n_kv_head": 8},
}

_NO_FILTERS = {"generate.temperature": 1.0, "generate.top_k": 0, "generate.top_p": 1.0, "generate.min_new_tokens": 0}
_FUNDAMENTALS = {
    **{"train.optimizer": "adam", "train.betas": (0.9, 0.98), "train.eps": 1e-9},
    **{"train.schedule": "noam", "train.warmup_steps": 4000},  # its peak follows from the width
    **_NO_FILTERS,
    "generate.max_new_tokens": 100,
}
# settings of a run that the documents state besides the network, by dotted names
RECIPES: dict[str, Fields] = {
    "sheepop": {
        **{"tokenizer.kind": "ascii", "dataset.packing": "chunk"},
        **{"train.optimizer": "adamw", "train.betas": (0.9, 0.999), "train.eps": 1e-8, "train.lr": 1e-3},
        **{"train.weight_decay": 0.01, "train.decay_groups": False, "train.clip_norm": 1.0},
        **{"train.schedule": "cosine", "train.min_lr_ratio": 0.0, "train.first_step": 0},
        **_NO_FILTERS,
    },
    "light_llm": {
        **{"tokenizer.kind": "bpe", "tokenizer.vocab_size": 50257},
        **{"train.optimizer": "adamw", "train.betas": (0.9, 0.95), "train.eps": 1e-8, "train.decay_groups": True},
        **{"train.schedule": "warmup_cosine", "train.min_lr_ratio": 0.0, "train.first_step": 0},
        **_NO_FILTERS,
    },
    # a document about inference only, with greedy decoding
    "llama_toy": {
        **{"tokenizer.kind": "word", "tokenizer.vocab_size": 10, "tokenizer.bos": False, "tokenizer.eos": False},
        **{**_NO_FILTERS, "generate.temperature": 0.0},
    },
    "fundamentals": _FUNDAMENTALS,
    "fundamentals-pre": _FUNDAMENTALS,
}
# settings of a recipe that are dropped when another setting differs from the recipe
_DEPENDENT = {
    "tokenizer.kind": ("tokenizer.vocab_size",),
    "train.optimizer": ("train.weight_decay", "train.decay_groups"),
    "train.schedule": ("train.min_lr_ratio", "train.warmup_steps", "train.first_step"),
    "train.warmup_ratio": ("train.warmup_steps",),
}

# presets that are suggested, from small to large
LADDER = tuple(name for name in PRESETS if name.startswith("modern-"))


def preset(name: str, vocab_size: int | None = None, **overrides: Any) -> ModelConfig:
    """Return the configuration of a preset.

    Args:
        name: a key of PRESETS.
        vocab_size: number of token ids; None means the preset's.
        overrides: ModelConfig fields that replace the preset's.

    Raises:
        ValueError: the preset is unknown, or an override is not allowed.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
    fields = {**PRESETS[name], **overrides}
    return ModelConfig.from_dict(fields if vocab_size is None else {**fields, "vocab_size": vocab_size})


def recipe_beside(name: str, given: Mapping[str, Any]) -> Fields:
    """Return the settings of a preset's recipe that are compatible with given ones, by dotted names.

    Args:
        name: a preset; without a recipe the result is empty.
        given: settings by dotted names, which replace those of the recipe and drop its dependent settings.
    """
    recipe = RECIPES.get(name, {})
    dropped = set(given)
    for choice, details in _DEPENDENT.items():
        if choice in given and given[choice] != recipe.get(choice):
            dropped |= {*details}
    if given.get("train.weight_decay") == 0:
        dropped.add("train.decay_groups")  # nothing decays
    return {setting: value for setting, value in recipe.items() if setting not in dropped}
