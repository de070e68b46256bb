"""Ready-made shapes: our own, from one that trains in seconds on a laptop, and those of well-known models.

A preset is a set of ModelConfig fields. Its vocab_size is that of the model it is named after, and gives way to the
tokeniser's. A preset named after a published document is that document's whole recipe: RECIPES holds the rest of it.
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
    """What small models are made of today: LLaMA's parts, QK-norm, a tied and padded head."""
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
        # dropout behind attention, and nowhere behind the feed-forward layer
        **{"drop_embed": 0.1, "drop_resid": 0.1, "drop_resid_mlp": 0.0, "init_residual_scaling": False},
    },
    # two heads of three columns, of which the third is not rotated
    "llama_toy": {
        **_llama(1, 2, 6, 24, max_seq_len=3),
        **{"vocab_size": 10, "rope_layout": "interleaved", "rope_dim": 2},
    },
    "llama": {**_llama(6, 6, 384, 1024, max_seq_len=256), "vocab_size": 8192, "tie_weights": True},
    # so wide, weights of 0.02 would start a tenth above a uniform guess: the logits' variance is init_std^2 d_model
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
# what the documents state beside the network, as settings of a run by dotted names; on the rest they are silent
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
    # a walk through inference, which picks the likeliest token: nothing of it says how to train
    "llama_toy": {
        **{"tokenizer.kind": "word", "tokenizer.vocab_size": 10, "tokenizer.bos": False, "tokenizer.eos": False},
        **{**_NO_FILTERS, "generate.temperature": 0.0},
    },
    "fundamentals": _FUNDAMENTALS,
    "fundamentals-pre": _FUNDAMENTALS,
}
# settings of a recipe that hold for its own choice of another one, and go when that is chosen otherwise
_DETAILS = {
    "tokenizer.kind": ("tokenizer.vocab_size",),
    "train.optimizer": ("train.weight_decay", "train.decay_groups"),
    "train.schedule": ("train.min_lr_ratio", "train.warmup_steps", "train.first_step"),
    "train.warmup_ratio": ("train.warmup_steps",),
}

# from small to large: what a suggestion chooses from
LADDER = tuple(name for name in PRESETS if name.startswith("modern-"))


def preset(name: str, vocab_size: int | None = None, **overrides: Any) -> ModelConfig:
    """The named shape.

    Args:
        name: a key of PRESETS.
        vocab_size: number of token ids; None takes that of the model the preset is named after.
        overrides: ModelConfig fields that replace the preset's.

    Raises:
        ValueError: no such preset, or an override is not allowed.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
    fields = {**PRESETS[name], **overrides}
    return ModelConfig.from_dict(fields if vocab_size is None else {**fields, "vocab_size": vocab_size})


def recipe_beside(name: str, given: Mapping[str, Any]) -> Fields:
    """The settings of a preset's recipe that hold beside given ones, by dotted names; {} without a recipe.

    Args:
        name: a preset.
        given: settings by dotted names; they win, also over what the recipe says of a choice that they replace.
    """
    recipe = RECIPES.get(name, {})
    gone = set(given)
    for choice, details in _DETAILS.items():
        if choice in given and given[choice] != recipe.get(choice):
            gone |= {*details}
    if given.get("train.weight_decay") == 0:
        gone.add("train.decay_groups")  # nothing decays
    return {setting: value for setting, value in recipe.items() if setting not in gone}
