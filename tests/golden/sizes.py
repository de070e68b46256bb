"""Sizes: parameters, widths, activations, operations."""

from __future__ import annotations

from typing import Any

import torch

from golden.attention import dk_scale
from golden.registry import Found, operation
from model import ModelConfig, Transformer, accounting, preset
from model.transformer import Attention


def total(config: ModelConfig) -> int:
    return accounting.count_parameters(config)["total"]


@operation("count")
def count(V: int, d: int, L: int, d_ff: int = 0, ff: int = 0) -> int:
    return total(preset("sheepop" if d_ff else "llama_toy", V, d_model=d, n_layer=L, d_ff=d_ff or ff))


def gpt2(V: int, n_pos: int, d: int, L: int, bias: bool, tied: bool, n_heads: int = 0, d_ff: int = 0) -> ModelConfig:
    shape = {"max_seq_len": n_pos, "d_model": d, "n_layer": L, "n_head": n_heads or d // 64, "d_ff": d_ff or 4 * d}
    return preset("gpt2", V, attn_bias=bias, ffn_bias=bias, tie_weights=tied, **shape)


@operation("gpt2_params", "gpt2_params_unit")
def gpt2_params(tied: bool, unit: float = 1e6, **sizes: Any) -> Found:
    exact = total(gpt2(tied=tied, **sizes))
    rough = accounting.approximate_parameters(gpt2(tied=True, **sizes))
    extras = {"exact_count": exact, "untied_count": total(gpt2(tied=False, **sizes)), "approx_12d2_tied": rough}
    return Found([exact / unit], extras=extras)


@operation("llama_params_unit")
def llama_params_unit(V: int, d: int, L: int, n_heads: int, d_ff: int, unit: float) -> Found:
    exact = total(preset("llama-7b", V, d_model=d, n_layer=L, n_head=n_heads, d_ff=d_ff))
    return Found([exact / unit], extras={"exact_count": exact})


@operation("encoder_lm_params")
def encoder_lm_params(V: int, d: int, n_heads: int, d_ff: int, L: int, max_len: int) -> int:
    shape = {"d_model": d, "n_head": n_heads, "d_ff": d_ff, "n_layer": L, "max_seq_len": max_len}
    config = preset("fundamentals", V, **shape)
    built = accounting.count_parameters(Transformer(config))["total"]
    assert built == total(config)
    return built


@operation("product")
def product(V: int, d: int) -> list[int]:
    return [accounting.count_parameters(preset("fundamentals", V, d_model=d))["token_embedding"]]


@operation("layer_params")
def layer_params(d: int) -> list[int]:
    return [accounting.rule_of_thumb(d, 1)]


def branches(d: int) -> list[int]:
    """Parameters of attention and feed-forward of one layer without biases."""
    layer = accounting.layer_parameters(preset("fundamentals", d_model=d, attn_bias=False, ffn_bias=False))
    return [layer["attention"], layer["mlp"]]


@operation("attn_ffn_params")
def attn_ffn_params(d: int) -> list[int]:
    return branches(d)


@operation("attn_ffn_total")
def attn_ffn_total(d: int, L: int) -> Found:
    counts = [L * part for part in branches(d)]
    return Found([part / 1e6 for part in counts], extras={"exact_counts": counts})


@operation("attn_ffn_share")
def attn_ffn_share(d: int, L: int, V: int) -> list[float]:
    whole = accounting.approximate_parameters(preset("fundamentals", V, d_model=d, n_layer=L))
    return [100 * L * part / whole for part in branches(d)]


@operation("approx_params")
def approx_params(V: int, d: int, L: int) -> Found:
    config = preset("fundamentals", V, d_model=d, n_layer=L)
    rough = accounting.approximate_parameters(config)
    left_out = total(config) - accounting.count_parameters(config)["position"] - rough
    untied = accounting.approximate_parameters(preset("fundamentals", V, d_model=d, n_layer=L, tie_weights=False))
    return Found({"tied": rough, "untied": untied}, extras={"extra_bias_norm": left_out})


@operation("solve_layers")
def solve_layers(target: float, embed: float, layer: float) -> list[float]:
    return [accounting.solve_depth(target, embed, layer)]


@operation("ff_rule")
def ff_rule(d4: list[int], d83: list[int], multiple: int) -> list[int]:
    wide = [ModelConfig(8, n_head=1, d_model=d).d_ff for d in d4]
    return wide + [accounting.gated_d_ff(d, multiple) for d in d83]


@operation("ratio")
def ratio(d: list[int], h: list[int]) -> list[int]:
    return [ModelConfig(8, d_model=width, n_head=heads).head_dim for width, heads in zip(d, h, strict=True)]


@operation("light_dims")
def light_dims(n_embd: int, n_head: int) -> list[Any]:
    config = preset("light_llm", d_model=n_embd, n_head=n_head)
    with torch.device("meta"):
        fused = Attention(config).qkv.out_features
    return [*dk_scale(n_embd, n_head), fused, config.d_ff]


@operation("act_count")
def act_count(n_layer: int, T: int, n_embd: int) -> Found:
    found = accounting.activation_values(preset("light_llm", n_layer=n_layer, d_model=n_embd), T)
    return Found([found / 1e6], extras={"exact_count": found})


@operation("attn_score_count")
def attn_score_count(n_head: int, T: int) -> Found:
    found = accounting.attention_scores(preset("light_llm", n_head=n_head), T)
    return Found([found / 1e6], extras={"exact_count": found})


@operation("flops")
def flops(T: int, d: int, d_ff: int) -> dict[str, float]:
    found = accounting.layer_flops(preset("light_llm", d_model=d, d_ff=d_ff), T)
    names = {"qkvo": "projections", "scores_and_values": "scores_and_values", "ffn": "mlp"}
    return {name: found[ours] / 2 for name, ours in names.items()}  # the document counts multiply-adds
