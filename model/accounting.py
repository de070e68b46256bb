"""Parameters, FLOPs and memory of a network before it is built.

All counts follow from the configuration, so that estimates for a large model allocate nothing and need no torch. One
multiply-add counts as two floating-point operations (FLOPs).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from .architecture import ModelConfig

if TYPE_CHECKING:
    from .transformer import Transformer


def count_parameters(model: ModelConfig | Transformer) -> dict[str, int]:
    """Return the number of trainable parameters by component.

    Args:
        model: a configuration, or a network whose tensors are counted.

    Returns:
        Counts under "token_embedding", "position" (0 unless learned), "attention" (QK-norm included), "mlp", "norm",
        "head" (its own matrix and bias) and "total".
    """
    counts = _count_config(model) if isinstance(model, ModelConfig) else _count_tensors(model)
    return {**counts, "total": sum(counts.values())}


def layer_parameters(config: ModelConfig) -> dict[str, int]:
    """Return the parameters of one block, under "attention" (QK-norm included), "mlp" and "norm" (all norms)."""
    d, d_ff = config.d_model, config.d_ff
    q, kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    ups = 1 + config.is_gated
    biases = config.qkv_bias * (q + 2 * kv) + config.attn_bias * d
    attention = d * (q + 2 * kv) + q * d + biases + config.qk_norm * 2 * config.head_dim
    return {
        "attention": attention,
        "mlp": (ups + 1) * d * d_ff + config.ffn_bias * (ups * d_ff + d),
        "norm": (4 if config.norm_order == "both" else 2) * _norm_parameters(config),
    }


def adapter_parameters(config: ModelConfig, rank: int) -> int:
    """Return the parameters of LoRA's matrices beside all linear layers of the blocks."""
    d, q, kv = config.d_model, config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    ups = 1 + config.is_gated
    return config.n_layer * rank * (2 * (d + q) + 2 * (d + kv) + (ups + 1) * (d + config.d_ff))


def approximate_parameters(config: ModelConfig) -> int:
    """Return 12 d^2 parameters per layer plus token embedding and untied head (Kaplan et al. 2020, section 2.1).

    Attention has 4 d^2 and a feed-forward layer of width 4 d has 8 d^2; biases and norms are left out.
    """
    tables = 1 if config.tie_weights else 2
    return 12 * config.d_model**2 * config.n_layer + tables * config.vocab_size * config.d_model


def solve_depth(target: float, outside: float, per_layer: float) -> float:
    """Return the number of layers of a network of `target` parameters, `outside` of which lie outside the layers.

    Raises:
        ValueError: the target leaves nothing for the layers.
    """
    if not (math.isfinite(target) and target > outside):
        raise ValueError(
            f"{target:,.0f} parameters leave nothing for the layers, because {outside:,.0f} lie outside them; "
            f"choose a larger target, or a smaller vocabulary or d_model"
        )
    return (target - outside) / per_layer


def layer_flops(config: ModelConfig, n_tokens: int) -> dict[str, int]:
    """Return the forward FLOPs of one layer over one sequence.

    Args:
        config: the shape.
        n_tokens: length T of the sequence.

    Returns:
        "projections" (queries, keys, values, output), "scores_and_values" (4 T^2 n_head head_dim: every query with
        every key, without a mask) and "mlp". Norms, biases, softmax and activations are left out; they are below
        1 % of the total at usual widths.
    """
    q, kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    matrices = 2 + config.is_gated
    return {
        "projections": 2 * n_tokens * config.d_model * (2 * q + 2 * kv),
        "scores_and_values": 4 * n_tokens**2 * q,
        "mlp": 2 * n_tokens * matrices * config.d_model * config.d_ff,
    }


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a network's complexity: factor times order, per layer or for a part outside the layers.

    Attributes:
        part: component, such as "projections".
        order: growth in T tokens, d = d_model, V ids, H heads and N parameters.
        factor: constant before the order.
        per_layer: FLOPs or values of one layer; None for a part outside the layers.
        total: FLOPs or values of the whole network.
    """

    part: str
    order: str
    factor: float
    per_layer: int | None
    total: int


def time_complexity(config: ModelConfig, n_tokens: int) -> list[Term]:
    """Return the forward FLOPs of one sequence of n_tokens as terms O(T d^2), O(T^2 d) and O(T d V)."""
    found, d = layer_flops(config, n_tokens), config.d_model
    square, quadratic = ("O(T d^2)", n_tokens * d**2), ("O(T^2 d)", n_tokens**2 * d)
    parts = [
        ("projections", found["projections"], *square),
        ("scores, values", found["scores_and_values"], *quadratic),
        ("feed-forward", found["mlp"], *square),
    ]
    terms = [Term(part, order, flops / unit, flops, config.n_layer * flops) for part, flops, order, unit in parts]
    head = 2 * n_tokens * d * config.padded_vocab_size
    return [*terms, Term("head", "O(T d V)", head / (n_tokens * d * config.vocab_size), None, head)]


def memory_complexity(config: ModelConfig, n_tokens: int) -> list[Term]:
    """Return the values kept for one sequence of n_tokens as terms O(H T^2), O(T d) and O(N); no fused kernels."""
    n_layer, stream, parameters = config.n_layer, n_tokens * config.d_model, count_parameters(config)["total"]
    scores, kept = config.n_head * n_tokens**2, 2 * n_tokens * config.n_kv_head * config.head_dim
    return [
        Term("attention scores", "O(H T^2)", 1.0, scores, n_layer * scores),
        Term("activations", "O(T d)", 1.0, stream, n_layer * stream),
        Term("keys and values", "O(T d)", kept / stream, kept, n_layer * kept),
        Term("gradients", "O(N)", 1.0, None, parameters),
    ]


def wavelengths(config: ModelConfig, base: float | None = None) -> list[float]:
    """Return the wavelength of each pair of columns in tokens, 2 pi base^(2i / dim), the shortest first.

    Args:
        config: has sinusoidal positions (dim is d_model) or rotary ones (dim is rope_dim). rope_scaling is not applied.
        base: replaces pos_base.

    Raises:
        ValueError: the positions have no wavelengths.
    """
    if config.pos not in ("sinusoidal", "rope"):
        raise ValueError(f"pos={config.pos!r} has no wavelengths; choose pos='sinusoidal' or 'rope'")
    dim = config.d_model if config.pos == "sinusoidal" else config.rope_dim
    return [2 * math.pi * (base or config.pos_base) ** (i / dim) for i in range(0, dim, 2)]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Arithmetic and memory of inference and training.

    Attributes:
        batch_size, n_tokens, bytes_per_value, adapter_rank: arguments of `estimate_cost`.
        forward_flops_per_token: FLOPs of the matrix products of a forward pass: two per weight of every matrix, the
            head included, the embedding (a lookup) not, plus attention_flops_per_token.
        attention_flops_per_token: scores and weighted values, 4 T n_head head_dim per layer; each query with all T
            keys, the published convention.
        visible_attention_flops_per_token: the unmasked part of attention_flops_per_token, about half (less with a
            window); a kernel that skips masked blocks computes between the two.
        training_flops_per_token: three times forward; the backward pass has two products for each one.
        rule_6n: 6 N per token of training (Kaplan et al. 2020); N counts all parameters except the positions (an
            untied embedding counts although it is only looked up).
        rule_palm: 6 N + 12 L n_head head_dim T (Chowdhery et al. 2022, appendix B).
        training_step_flops: training_flops_per_token for the whole batch.
        cache_bytes_per_token: keys and values of one token in all layers, n_kv_head heads each.
        cache_bytes: for the batch at full length, also with a window, because the cache keeps all tokens.
        weight_bytes: one value per parameter, adapters included.
        gradient_bytes: one value per trained parameter: all, or those of adapters.
        optimizer_bytes: AdamW's two moments per trained parameter.
        activation_bytes: activations kept for the backward pass; see activation_bytes().
        training_bytes: the sum of the last four, without temporary buffers of operations.
    """

    batch_size: int
    n_tokens: int
    bytes_per_value: int
    adapter_rank: int
    forward_flops_per_token: int
    attention_flops_per_token: int
    visible_attention_flops_per_token: int
    training_flops_per_token: int
    rule_6n: int
    rule_palm: int
    training_step_flops: int
    cache_bytes_per_token: int
    cache_bytes: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    training_bytes: int


def estimate_cost(
    config: ModelConfig,
    *,
    batch_size: int,
    n_tokens: int,
    bytes_per_value: int = 4,
    adapter_rank: int = 0,
    recompute: bool = False,
) -> Cost:
    """Return the arithmetic and memory of a network for one batch size.

    Args:
        config: the shape.
        batch_size: rows B.
        n_tokens: tokens per row T, at most max_seq_len.
        bytes_per_value: of weights, gradients, optimiser state, cache and activations; 4 for float32.
        adapter_rank: rank of LoRA's matrices beside all linear layers, which alone are trained; 0 trains all weights.
        recompute: activations of the blocks are computed again in the backward pass.

    Raises:
        ValueError: a number is below 1, or the rows are longer than the context.
    """
    for name, value in (("batch_size", batch_size), ("n_tokens", n_tokens), ("bytes_per_value", bytes_per_value)):
        if value < 1:
            raise ValueError(f"{name}={value}; expected a whole number of at least 1")
    if n_tokens > config.max_seq_len:
        raise ValueError(f"n_tokens={n_tokens} is longer than max_seq_len={config.max_seq_len}; choose at most that")
    counts = count_parameters(config)
    layer = layer_flops(config, n_tokens)
    head = 2 * config.padded_vocab_size * config.d_model
    forward = config.n_layer * sum(layer.values()) // n_tokens + head
    attention = config.n_layer * layer["scores_and_values"] // n_tokens
    window = min(config.window or n_tokens, n_tokens)
    all_keys = n_tokens * (n_tokens + 1) // 2
    window_keys = window * (window + 1) // 2 + (n_tokens - window) * window
    n_windows = sum(map(config.has_window, range(config.n_layer)))
    visible_keys = n_windows * window_keys + (config.n_layer - n_windows) * all_keys  # in all layers
    rule_6n = 6 * (counts["total"] - counts["position"])
    weights = counts["total"] * bytes_per_value
    added = adapter_parameters(config, adapter_rank) * bytes_per_value
    trained = added if adapter_rank else weights
    activations = activation_bytes(config, batch_size, n_tokens, bytes_per_value, adapter_rank, recompute)
    cache_per_token = 2 * config.n_layer * config.n_kv_head * config.head_dim * bytes_per_value
    return Cost(
        batch_size=batch_size,
        n_tokens=n_tokens,
        bytes_per_value=bytes_per_value,
        adapter_rank=adapter_rank,
        forward_flops_per_token=forward,
        attention_flops_per_token=attention,
        visible_attention_flops_per_token=attention * visible_keys // (config.n_layer * n_tokens**2),
        training_flops_per_token=3 * forward,
        rule_6n=rule_6n,
        rule_palm=rule_6n + 12 * config.n_layer * config.n_head * config.head_dim * n_tokens,
        training_step_flops=3 * forward * batch_size * n_tokens,
        cache_bytes_per_token=cache_per_token,
        cache_bytes=cache_per_token * batch_size * n_tokens,
        weight_bytes=weights + added,
        gradient_bytes=trained,
        optimizer_bytes=2 * trained,
        activation_bytes=activations,
        training_bytes=weights + added + 3 * trained + activations,
    )


def activation_bytes(
    config: ModelConfig,
    batch_size: int,
    n_tokens: int,
    bytes_per_value: int = 4,
    adapter_rank: int = 0,
    recompute: bool = False,
) -> int:
    """Return the bytes of activations that a float32 training pass on a CPU keeps for the backward pass.

    With D d_model, F d_ff, H heads, K key-value heads and E head_dim, each token keeps these numbers per layer:

    - 4 D: inputs of both norms and both branches; 2 D more for the outputs of RMSNorm;
    - (H + 2 K) E + H E: queries, keys, values and the output of attention; 2 (H + K) E more with QK-norm;
    - F with relu, 2 F with gelu and relu2, 4 F with swiglu (gate, its SiLU, up, product) in the feed-forward layer;
    - dropout masks: 2 D for the branches, F after the activation (2 F with relu, whose output is kept too).

    Outside the layers a token keeps the input of the final norm, the output of its RMSNorm, the input of the head (or
    its gradient, where the loss is computed in blocks because vocab_size exceeds D) and the embedding's dropout mask, D
    each. The loss keeps the gradient of the head's matrix, vocab_size D, or otherwise the logits, vocab_size per token.
    With adapters a layer keeps their rank for each of its matrices, but no outputs of RMSNorm, whose gains are frozen;
    the first layer keeps no input of its norm, and the loss no gradient of the head's matrix. With recompute a layer
    keeps its input only, and one layer at a time the rest.
    A window keeps a mask of T^2 per layer. Dropout of attention weights keeps 3 H T^2 per layer, because no fused
    kernel is used.

    Left out: a few values per token (statistics of norms, softmax denominators, ids) and work space. On a GPU the
    logits, vocab_size per token, are added.
    """
    d = config.d_model
    qk, kv = (config.n_head + config.n_kv_head) * config.head_dim, config.n_kv_head * config.head_dim
    attention = qk + kv + config.n_head * config.head_dim
    attention += (1 if adapter_rank else 2) * qk * config.qk_norm
    hidden = {"relu": 1, "swiglu": 4, "geglu": 4}.get(config.act, 2)
    if config.drop_ffn:
        hidden += 2 if config.act == "relu" else 1
    of_mlp = config.drop_resid if config.drop_resid_mlp is None else config.drop_resid_mlp
    rms = config.norm == "rmsnorm" and not adapter_rank
    stream = (
        4
        + (2 if config.norm_order != "both" else 4) * rms
        + 2 * (config.norm_order == "both")
        + (config.drop_resid > 0)
        + (of_mlp > 0)
    )
    n_matrices = 6 + config.is_gated
    of_layer = stream * d + attention + hidden * config.d_ff + n_matrices * adapter_rank
    per_token = config.n_layer * d + of_layer if recompute else config.n_layer * of_layer - d * (adapter_rank > 0)
    per_token += d * (1 + config.final_norm * (1 + rms) + (config.drop_embed > 0))
    in_blocks = config.vocab_size > d
    of_loss = 0 if in_blocks and adapter_rank else config.vocab_size * (d if in_blocks else batch_size * n_tokens)
    values = batch_size * n_tokens * per_token + of_loss
    if config.drop_attn:
        values += 3 * batch_size * config.n_layer * config.n_head * n_tokens**2
    elif config.window is not None and config.window < n_tokens:
        values += sum(map(config.has_window, range(config.n_layer))) * n_tokens**2
    return values * bytes_per_value


def _norm_parameters(config: ModelConfig) -> int:
    return config.d_model * (2 if config.norm_bias else 1)


def _count_config(config: ModelConfig) -> dict[str, int]:
    d, rows, layer = config.d_model, config.padded_vocab_size, layer_parameters(config)
    return {
        "token_embedding": rows * d,
        "position": config.max_seq_len * d if config.pos == "learned" else 0,
        "attention": config.n_layer * layer["attention"],
        "mlp": config.n_layer * layer["mlp"],
        "norm": config.n_layer * layer["norm"] + config.final_norm * _norm_parameters(config),
        "head": (0 if config.tie_weights else rows * d) + config.head_bias * rows,
    }


def _count_tensors(model: Transformer) -> dict[str, int]:
    other_names = {"position_table": "position", "untied_head": "head", "head_bias": "head"}
    counts = dict.fromkeys(("token_embedding", "position", "attention", "mlp", "norm", "head"), 0)
    for name, parameter in model.named_parameters():
        part = name.split(".")[2 if name.startswith("blocks.") else 0]
        counts["norm" if part.startswith("norm") else other_names.get(part, part)] += parameter.numel()
    return counts
