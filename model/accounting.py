"""How many parameters a network has, and where they sit.

From a configuration the counts follow from the shapes alone, so that a plan for a large model allocates
nothing.
"""

from __future__ import annotations

from .config import ModelConfig
from .transformer import Transformer

_COMPONENTS = ("token_embedding", "position", "attention", "mlp", "norm", "head")


def count_parameters(model: ModelConfig | Transformer) -> dict[str, int]:
    """Trainable parameters by component.

    Args:
        model: a configuration, or a network whose tensors are counted.

    Returns:
        Counts under "token_embedding", "position" (0 if sinusoidal), "attention", "mlp", "norm", "head" (0 if
        tied) and "total".
    """
    counts = _count_config(model) if isinstance(model, ModelConfig) else _count_tensors(model)
    return {**counts, "total": sum(counts.values())}


def _count_config(config: ModelConfig) -> dict[str, int]:
    d, d_ff, bias = config.d_model, config.ff_dim, int(config.bias)
    attention = (3 * d * d + bias * 3 * d) + (d * d + bias * d)
    mlp = (d * d_ff + bias * d_ff) + (d_ff * d + bias * d)
    norm = d + bias * d
    return {
        "token_embedding": config.vocab_size * d,
        "position": config.max_seq_len * d if config.pos == "learned" else 0,
        "attention": config.n_layer * attention,
        "mlp": config.n_layer * mlp,
        "norm": (2 * config.n_layer + 1) * norm,
        "head": 0 if config.tie_weights else config.vocab_size * d,
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
    return {"position_table": "position", "untied_head": "head"}.get(parts[0], parts[0])
