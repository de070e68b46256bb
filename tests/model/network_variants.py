"""Every switch of the network in at least one small setting, for tests that must hold for all of them."""

from __future__ import annotations

from typing import Any

import torch

LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
ATTENTION_VARIANTS: list[dict[str, Any]] = [
    {},
    {"pos": "sinusoidal"},
    {"pos": "none"},
    {"pos": "rope"},
    {"pos": "rope", "rope_layout": "interleaved"},
    {"pos": "rope", "rope_dim": 4},
    {"pos": "rope", "rope_layout": "interleaved", "rope_dim": 2, "head_dim": 3},
    {"pos": "rope", "rope_scaling": "linear", "rope_factor": 4.0},
    {"pos": "rope", "rope_scaling": "ntk", "rope_factor": 4.0},
    {"pos": "rope", "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 4},
    {"pos": "rope", "rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 4},
    {"n_head": 4, "n_kv_head": 2},
    {"n_head": 4, "n_kv_head": 1},
    {"head_dim": 5},
    {"qk_norm": True},
    {"qk_norm": True, "pos": "rope"},
    {"window": 3},
    {"window": 1},
    {"window": 4, "pos": "rope", "n_head": 4, "n_kv_head": 2},
    {"window": 3, "full_every": 2},
    {
        "window": 3,
        "full_every": 2,
        "pos": "rope",
        "window_pos_base": 50.0,
        "rope_scaling": "linear",
        "rope_factor": 4.0,
    },
    {"pos": "rope", "unrotated_every": 2},
    {"attn_bias": False},
    {"attn_bias": False, "qkv_bias": True},
    {**LLAMA, "n_head": 4, "n_kv_head": 2, "qk_norm": True, "window": 5, "vocab_multiple": 64},
]
VARIANTS: list[dict[str, Any]] = [
    *ATTENTION_VARIANTS,
    {"norm": "rmsnorm"},
    {"norm_order": "post"},
    {"norm_order": "post", "final_norm": False},
    {"norm_order": "both"},
    {"norm_order": "both", "norm": "rmsnorm", "embed_scale": True, "act": "geglu"},
    {"final_norm": False},
    {"norm_bias": False},
    {"norm_eps": 0.3},
    {"act": "gelu_tanh"},
    {"act": "relu"},
    {"act": "relu2"},
    {"act": "swiglu"},
    {"act": "swiglu", "ffn_bias": False},
    {"d_ff": 24},
    {"ffn_bias": False},
    {"head_bias": True},
    {"tie_weights": False},
    {"vocab_multiple": 64},
    {"vocab_multiple": 64, "tie_weights": False, "head_bias": True},
    {"init": "xavier"},
    {"init_residual_scaling": False},
    {"pos": "sinusoidal", "tie_weights": False, "attn_bias": False},
]


def ids_of(n_rows: int, n_tokens: int, vocab_size: int = 31) -> torch.Tensor:
    """The same random ids (n_rows, n_tokens) every time."""
    return torch.randint(vocab_size, (n_rows, n_tokens), generator=torch.Generator().manual_seed(1))
