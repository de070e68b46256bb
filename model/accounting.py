"""Cost of a network before it is built: parameters, arithmetic, memory.

All counts follow from the shapes alone, so that a plan for a large model allocates nothing and needs no torch. One
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
    """Trainable parameters by component.

    Args:
        model: a configuration, or a network whose tensors are counted.

    Returns:
        Counts under "token_embedding", "position" (0 unless learned), "attention" (QK-norm included), "mlp", "norm",
        "head" (its own matrix and bias) and "total".
    """
    counts = _count_config(model) if isinstance(model, ModelConfig) else _count_tensors(model)
    return {**counts, "total": sum(counts.values())}


def layer_parameters(config: ModelConfig) -> dict[str, int]:
    """Trainable parameters of one block, under "attention" (QK-norm included), "mlp" and "norm" (both norms)."""
    d, d_ff = config.d_model, config.d_ff
    q, kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    ups = 2 if config.act == "swiglu" else 1
    biases = config.qkv_bias * (q + 2 * kv) + config.attn_bias * d
    attention = d * (q + 2 * kv) + q * d + biases + config.qk_norm * 2 * config.head_dim
    return {
        "attention": attention,
        "mlp": (ups + 1) * d * d_ff + config.ffn_bias * (ups * d_ff + d),
        "norm": 2 * _norm_parameters(config),
    }


def approximate_parameters(config: ModelConfig) -> int:
    """Return 12 d^2 parameters per layer, the token table, and the head's where it is not the same one.

    4 d^2 are attention's and 8 d^2 those of a feed-forward layer four times as wide; biases and norms are left out
    (Kaplan et al. 2020, section 2.1).
    """
    tables = 1 if config.tie_weights else 2
    return 12 * config.d_model**2 * config.n_layer + tables * config.vocab_size * config.d_model


def solve_depth(target: float, outside: float, per_layer: float) -> float:
    """Return the number of layers that bring a network to `target` parameters, of which `outside` lie outside them.

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
    """Forward FLOPs of one layer over one sequence.

    Args:
        config: the shape.
        n_tokens: its length T.

    Returns:
        "projections" (queries, keys, values, output), "scores_and_values" (4 T^2 n_head head_dim: every query with
        every key, as if nothing were masked) and "mlp". Norms, biases, softmax and activations are left out; they
        are below a hundredth of the whole at usual widths.
    """
    q, kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    matrices = 3 if config.act == "swiglu" else 2
    return {
        "projections": 2 * n_tokens * config.d_model * (2 * q + 2 * kv),
        "scores_and_values": 4 * n_tokens**2 * q,
        "mlp": 2 * n_tokens * matrices * config.d_model * config.d_ff,
    }


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a network's complexity: factor times order is what one layer, or the part alone, needs.

    Attributes:
        part: what needs it.
        order: its growth in T tokens, d columns, V ids, H heads and N parameters.
        factor: constant before it.
        per_layer: FLOPs or values of one layer; None for what stands outside the layers.
        total: the same of the whole network.
    """

    part: str
    order: str
    factor: float
    per_layer: int | None
    total: int


def time_complexity(config: ModelConfig, n_tokens: int) -> list[Term]:
    """Forward FLOPs of one sequence of n_tokens as terms O(T d^2), O(T^2 d) and O(T d V); the layers' times L."""
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
    """Values of one sequence of n_tokens as terms O(H T^2), O(T d) and O(N), as the formulas hold them."""
    n_layer, stream, parameters = config.n_layer, n_tokens * config.d_model, count_parameters(config)["total"]
    scores, kept = config.n_head * n_tokens**2, 2 * n_tokens * config.n_kv_head * config.head_dim
    return [
        Term("attention scores", "O(H T^2)", 1.0, scores, n_layer * scores),
        Term("activations", "O(T d)", 1.0, stream, n_layer * stream),
        Term("keys and values", "O(T d)", kept / stream, kept, n_layer * kept),
        Term("gradients", "O(N)", 1.0, None, parameters),
    ]


def wavelengths(config: ModelConfig, base: float | None = None) -> list[float]:
    """Wavelength of each pair of columns in tokens, 2 pi base^(2i / dim), the shortest first.

    Args:
        config: with sinusoidal or rotary positions, which turn all columns of the stream or rope_dim of a head.
        base: instead of pos_base. A rope_scaling, which comes on top, is left out.

    Raises:
        ValueError: the positions have no wavelengths.
    """
    if config.pos not in ("sinusoidal", "rope"):
        raise ValueError(f"pos={config.pos!r} has no wavelengths; choose pos='sinusoidal' or 'rope'")
    dim = config.d_model if config.pos == "sinusoidal" else config.rope_dim
    return [2 * math.pi * (base or config.pos_base) ** (i / dim) for i in range(0, dim, 2)]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What reading, training and generating cost.

    Attributes:
        batch_size, n_tokens, bytes_per_value: what was asked for.
        forward_flops_per_token: matrix products of a forward pass divided by its tokens: two per multiply-add with
            every weight matrix, the head included, the embedding (a lookup) not, plus attention_flops_per_token.
        attention_flops_per_token: of these, scores and values, 4 T n_head head_dim per layer: each query with all T
            keys, the published convention.
        visible_attention_flops_per_token: what of that the mask lets through, about half (less with a window); the
            arithmetic of a kernel that skips masked blocks lies between the two.
        training_flops_per_token: three times forward: the backward pass has two products for each one.
        rule_6n: 6 N per token of training (Kaplan et al. 2020), N all parameters but the positions' (an untied
            embedding counts although it is only looked up).
        rule_palm: 6 N + 12 L n_head head_dim T (Chowdhery et al. 2022, appendix B).
        training_step_flops: training_flops_per_token for the whole batch.
        cache_bytes_per_token: keys and values of one token in all layers, n_kv_head heads of them.
        cache_bytes: for the batch at full length. A window would need no more than its own tokens; our cache holds
            the full length all the same.
        weight_bytes, gradient_bytes: one value per parameter.
        optimizer_bytes: AdamW's two running means per parameter.
        activation_bytes: what the forward pass keeps for the backward pass; see activation_bytes().
        training_bytes: the sum of the last four. Buffers of single operations come on top.
    """

    batch_size: int
    n_tokens: int
    bytes_per_value: int
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


def estimate_cost(config: ModelConfig, *, batch_size: int, n_tokens: int, bytes_per_value: int = 4) -> Cost:
    """Arithmetic and memory of a network on batches of one size.

    Args:
        config: the shape.
        batch_size: rows B.
        n_tokens: tokens per row T, at most max_seq_len.
        bytes_per_value: of weights, gradients, optimiser state, cache and activations; 4 for float32.

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
    visible_keys = window * (window + 1) // 2 + (n_tokens - window) * window
    rule_6n = 6 * (counts["total"] - counts["position"])
    weights = counts["total"] * bytes_per_value
    activations = activation_bytes(config, batch_size, n_tokens, bytes_per_value)
    cache_per_token = 2 * config.n_layer * config.n_kv_head * config.head_dim * bytes_per_value
    return Cost(
        batch_size=batch_size,
        n_tokens=n_tokens,
        bytes_per_value=bytes_per_value,
        forward_flops_per_token=forward,
        attention_flops_per_token=attention,
        visible_attention_flops_per_token=attention * visible_keys // n_tokens**2,
        training_flops_per_token=3 * forward,
        rule_6n=rule_6n,
        rule_palm=rule_6n + 12 * config.n_layer * config.n_head * config.head_dim * n_tokens,
        training_step_flops=3 * forward * batch_size * n_tokens,
        cache_bytes_per_token=cache_per_token,
        cache_bytes=cache_per_token * batch_size * n_tokens,
        weight_bytes=weights,
        gradient_bytes=weights,
        optimizer_bytes=2 * weights,
        activation_bytes=activations,
        training_bytes=4 * weights + activations,
    )


def activation_bytes(config: ModelConfig, batch_size: int, n_tokens: int, bytes_per_value: int = 4) -> int:
    """Bytes that a training pass keeps from forward to backward, weights not counted.

    With D d_model, F d_ff, H, K and E heads, key-value heads and head_dim, each token keeps in each layer

    - 4 D: what each norm reads and what each branch reads; RMSNorm keeps what it made besides, 2 D more;
    - (H + 2 K) E + H E: queries, keys, values and what attention makes of them; 2 (H + K) E more with QK-norm;
    - the feed-forward layer: F with relu, 2 F with gelu and relu2, 4 F with swiglu (gate, its silu, up, product);
    - dropout's factors: 2 D for the branches, F behind the activation (2 F with relu, whose own result is kept too);

    and once 2 D (the final norm's input, RMSNorm's result as above, and what the head reads, or where the loss goes
    block by block, because there are more ids than D, its gradient; dropout of the embedding D more). Besides, the loss
    holds the gradient of the head's matrix, vocab_size D, or else the logits, vocab_size per token; a window keeps its
    mask of T^2 in each layer, and dropout of attention weights makes torch hold three times H T^2 of them in each
    layer, because then no fast kernel is used.

    Left out: a few values per token (norms' statistics, softmax denominators, ids) and work space. It describes the
    float32 pass on a CPU; on a GPU the logits, vocab_size per token, come on top.
    """
    d = config.d_model
    qk, kv = (config.n_head + config.n_kv_head) * config.head_dim, config.n_kv_head * config.head_dim
    attention = qk + kv + config.n_head * config.head_dim
    attention += 2 * qk * config.qk_norm
    hidden = {"relu": 1, "swiglu": 4}.get(config.act, 2)
    if config.drop_ffn:
        hidden += 2 if config.act == "relu" else 1
    of_mlp = config.drop_resid if config.drop_resid_mlp is None else config.drop_resid_mlp
    rms = config.norm == "rmsnorm"
    stream = 4 + 2 * rms + (config.drop_resid > 0) + (of_mlp > 0)
    per_token = config.n_layer * (stream * d + attention + hidden * config.d_ff)
    per_token += d * (1 + config.final_norm * (1 + rms) + (config.drop_embed > 0))
    of_loss = config.vocab_size * (d if config.vocab_size > d else batch_size * n_tokens)
    values = batch_size * n_tokens * per_token + of_loss
    if config.drop_attn:
        values += 3 * batch_size * config.n_layer * config.n_head * n_tokens**2
    elif config.window is not None and config.window < n_tokens:
        values += config.n_layer * n_tokens**2
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
