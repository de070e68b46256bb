"""How many parameters a network has, and where they sit.

From a configuration the counts follow from the shapes alone, so that a plan for a large model allocates
nothing.
"""

from __future__ import annotations

from .architecture import ModelConfig
from .transformer import Transformer

_COMPONENTS = ("token_embedding", "position", "attention", "mlp", "norm", "head")


def count_parameters(model: ModelConfig | Transformer) -> dict[str, int]:
    """Trainable parameters by component.

    Args:
        model: a configuration, or a network whose tensors are counted.

    Returns:
        Counts under "token_embedding", "position" (0 unless learned), "attention" (QK-norm included), "mlp", "norm",
        "head" (its own matrix and bias) and "total".
    """
    counts = _count_config(model) if isinstance(model, ModelConfig) else _count_tensors(model)
    return {**counts, "total": sum(counts.values())}


def _count_config(config: ModelConfig) -> dict[str, int]:
    d, d_ff, rows = config.d_model, config.d_ff, config.padded_vocab_size
    q, kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    attention = d * (q + 2 * kv) + q * d + config.attn_bias * (q + 2 * kv + d) + config.qk_norm * 2 * config.head_dim
    ups = 2 if config.act == "swiglu" else 1
    mlp = (ups + 1) * d * d_ff + config.ffn_bias * (ups * d_ff + d)
    norm = d * (2 if config.norm_bias else 1)
    return {
        "token_embedding": rows * d,
        "position": config.max_seq_len * d if config.pos == "learned" else 0,
        "attention": config.n_layer * attention,
        "mlp": config.n_layer * mlp,
        "norm": (2 * config.n_layer + config.final_norm) * norm,
        "head": (0 if config.tie_weights else rows * d) + config.head_bias * rows,
    }


def _count_tensors(model: Transformer) -> dict[str, int]:
    counts = dict.fromkeys(_COMPONENTS, 0)
    for name, parameter in model.named_parameters():
        counts[_component(name)] += parameter.numel()
    return counts


def _component(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blocks":
        return "norm" if parts[2].startswith("norm") else parts[2]
    return {"position_table": "position", "untied_head": "head", "head_bias": "head"}.get(parts[0], parts[0])
