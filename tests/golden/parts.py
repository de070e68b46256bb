"""Attention, norms, activations and positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from golden.networks import linear
from golden.registry import Entry, Found, operation
from golden.shared import noise, numbers, small_config, solved
from model import ModelConfig
from model.attention import attention_mask, attention_weights, scaled_scores
from model.norms import build_norm, rms_norm
from model.positions import rotary_table, rotate, sinusoidal_table, wavelength_frequencies
from model.sampling import running_sum
from model.transformer import FeedForward, activate

# attention


def weights_of(scores: Tensor, causal: bool = False) -> Tensor:
    """Attention weights of given scaled scores (T, S): queries are the scores, keys the unit vectors."""
    allowed = scores > -torch.inf
    keys = torch.eye(scores.shape[-1], dtype=torch.float64) * math.sqrt(scores.shape[-1])
    return attention_weights(scores.masked_fill(~allowed, 0.0)[None], keys[None], None if causal else allowed)[0]


def scaled_score(query: Tensor, key: Tensor) -> Tensor:
    """Scaled score of a query (E,) with a key (E,), or of several (n, E) with it."""
    return scaled_scores(query.reshape(1, -1, len(key)), key[None, None])[0, :, 0]


def unit(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64)[0]


@operation("softmax_rows")
def softmax_rows(scores: Any, entry: Entry) -> Found:
    parts = {"corrected_causal": weights_of(numbers(scores), causal=True)[0]}
    if "printed_row_sums" in entry:
        parts["printed_row_sums"] = row_sums(entry["expected"])
    return Found(weights_of(numbers(scores)), parts=parts)


def row_sums(rows: Any) -> Tensor:
    return running_sum(numbers(rows))[..., -1]


@operation("softmax_rows_causal")
def softmax_rows_causal(scores: Any) -> Tensor:
    return weights_of(numbers(scores), causal=True)


@operation("softmax_pick")
def softmax_pick(scores: Any, columns: list[int], scale: float) -> Tensor:
    return weights_of(numbers([scores]))[0, columns] * scale


@operation("row_sums_required_one")
def row_sums_required_one(matrix: Any) -> Tensor:
    return row_sums(weights_of(numbers(matrix)).tolist())


@operation("attention_from_scores")
def attention_from_scores(scores: Any, V: Any) -> Tensor:
    return linear(weights_of(numbers(scores), causal=True), numbers(V))


@operation("apply_causal_mask", "apply_causal_mask_batch")
def apply_causal_mask(scores: Any) -> Tensor:
    return numbers(scores).masked_fill(~keep_mask(numbers(scores).shape[-1]).bool(), -torch.inf)


@operation("causal_mask")
def causal_mask(n: int, scores: Any) -> Tensor:
    return apply_causal_mask(torch.zeros(n, n).tolist())


@operation("keep_mask")
def keep_mask(n: int) -> Tensor:
    return attention_mask(torch.arange(n), torch.arange(n)).long()


@operation("attention_grads")
def attention_grads(Q: Any, K: Any, V: Any, dO: Any, causal: bool) -> dict[str, Tensor]:
    q, k, v = (numbers(part)[None].requires_grad_() for part in (Q, K, V))
    mask = None if causal else torch.ones(len(Q), len(K), dtype=torch.bool)
    weights = attention_weights(q, k, mask)
    weights.retain_grad()
    mixed = weights @ v
    mixed.backward(numbers(dO)[None])
    # the scores live inside attention_weights, so their gradient is asked of a pass in which they are the queries
    scores = scaled_scores(q, k)[0].detach().requires_grad_()
    weights_of(scores, causal).backward(weights.grad[0])
    gradients = {"dA": weights.grad[0], "dS": scores.grad, "dQ": q.grad[0], "dK": k.grad[0], "dV": v.grad[0]}
    return {"O": mixed[0].detach(), "A": weights[0].detach(), "S": scores.detach(), **gradients}


@operation("dot_scaled")
def dot_scaled(q: Any, k: Any, d_k: int) -> Found:
    query, key = (torch.cat((numbers(part), torch.zeros(d_k - len(part)))) for part in (q, k))
    return Found(scaled_score(query, key), parts={"dot": linear(query, key[:, None])})


@operation("scale_by_sqrt_dk")
def scale_by_sqrt_dk(score: float, d_k: int) -> Tensor:
    return scaled_score(score * unit(d_k), unit(d_k))


@operation("div_sqrt2")
def div_sqrt2(x: float) -> Tensor:
    return scale_by_sqrt_dk(x, 2)


@operation("rsqrt")
def rsqrt(x: int) -> Tensor:
    return scale_by_sqrt_dk(1.0, x)


@operation("scale")
def scale(x: Any, factor: float) -> Found:
    scores = numbers(x)
    exact = scaled_score(scores.flatten()[:, None] * unit(3), unit(3)).reshape(scores.shape)
    return Found(scores * factor, parts={"with_exact_factor": exact})


@operation("dk_scale")
def dk_scale(d_model: int, n_heads: int) -> list[Any]:
    width = small_config(d_model=d_model, n_head=n_heads).head_dim
    return [width, 1 / rsqrt(width)[0]]


@operation("dot_variance")
def dot_variance(d_k: int) -> dict[str, Any]:
    """Over queries and keys whose columns have mean 0 and variance 1 and are not correlated: rows and their negatives
    of an orthogonal matrix of length sqrt(d_k), so that no noise is left in the variance."""
    rows = [math.sqrt(d_k) * torch.linalg.qr(noise(d_k, d_k, seed=seed))[0] for seed in (1, 2)]
    queries, keys = (torch.cat((part, -part)) for part in rows)
    scaled = scaled_scores(queries[None], keys[None])
    return {"var_raw": linear(queries, keys.T).var(correction=0), "var_scaled": scaled.var(correction=0)}


# norms


def norm_layer(width: int, eps: float, kind: str = "layernorm") -> nn.Module:
    layer = build_norm(small_config(d_model=width, norm=kind)).double()
    layer.eps = eps
    return layer.requires_grad_(False)


def mean_and_deviation(x: Any) -> tuple[Tensor, Tensor]:
    """What LayerNorm takes away from each element and divides it by, from its two most distant elements."""
    row = numbers(x)
    normed, ends = norm_layer(len(row), 1e-300)(row), [int(row.argmin()), int(row.argmax())]
    deviation = row[ends].diff()[0] / normed[ends].diff()[0]
    return row[ends[0]] - deviation * normed[ends[0]], deviation


@operation("layernorm")
def layernorm(x: Any, gamma: Any, beta: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps)
    layer.load_state_dict({"weight": numbers(gamma), "bias": numbers(beta)})
    normed = layer(numbers(x))
    mean, deviation = mean_and_deviation(x)
    layer.eps = float((deviation + eps) ** 2 - deviation**2)  # as if eps were added to the root
    parts = {"mean": mean, "var": deviation**2, "std": deviation, "eps_outside": layer(numbers(x))}
    return Found(normed, parts=parts)


@operation("ln_element")
def ln_element(x: float, mean: float, var: float, eps: float) -> list[Tensor]:
    """The element stands in a row of three whose other two give the stated mean and variance."""
    distance = x - mean
    spread = math.sqrt((3 * var - 1.5 * distance**2) / 2)
    row = [x, mean - distance / 2 + spread, mean - distance / 2 - spread]
    return [norm_layer(3, eps)(numbers(row))[0]]


@operation("sqrt")
def sqrt(x: float) -> list[Tensor]:
    """LayerNorm's denominator: a row of a small number and its negative is divided by the root of nearly eps."""
    small = 2.0**-30
    return [small / norm_layer(2, x - small**2)(numbers([small, -small]))[0]]


@operation("mean_var_std")
def mean_var_std(x: Any) -> list[Tensor]:
    mean, deviation = mean_and_deviation(x)
    return [mean, deviation**2, deviation]


def reciprocal_rms(x: Any, eps: float) -> Tensor:
    """The factor that RMSNorm puts on every element."""
    row = numbers(x)
    place = row.abs().argmax()
    return rms_norm(row, torch.ones_like(row), eps)[place] / row[place]


def mean_square(x: Any) -> Tensor:
    return reciprocal_rms(x, 0.0) ** -2


@operation("rmsnorm")
def rmsnorm(x: Any, weight: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps, "rmsnorm")
    layer.load_state_dict({"weight": numbers(weight)})
    factor = reciprocal_rms(x, eps)
    parts = {"correct_reciprocal_rms": factor, "reciprocal_rms": factor, "rms": 1 / factor, "mean_square": mean_square(x)}
    return Found(layer(numbers(x)), parts=parts)


@operation("square")
def square(x: Any) -> list[Tensor]:
    return [mean_square([one]) if one else numbers(0.0) for one in x]  # of a row of one


@operation("rms_stats")
def rms_stats(x: Any, eps: float) -> list[Tensor]:
    return [*square(x), *mean_square_rsqrt(x, eps)]


@operation("mean_square_rsqrt")
def mean_square_rsqrt(x: Any, eps: float) -> list[Tensor]:
    return [mean_square(x), reciprocal_rms(x, eps)]


# activations


@operation("gelu_exact")
def gelu_exact(x: Any) -> Tensor:
    return activate(numbers(x), "gelu")


@operation("gelu_tanh")
def gelu_tanh(x: Any) -> Found:
    line = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    largest = (activate(line, "gelu") - activate(line, "gelu_tanh")).abs().max()
    return Found(activate(numbers(x), "gelu_tanh"), parts={"max_abs_diff_exact_vs_tanh": largest})


@operation("normal_cdf")
def normal_cdf(x: Any) -> Tensor:
    return distribution(numbers(x))


def distribution(x: Tensor) -> Tensor:
    """The normal distribution function: exact GELU is x times it."""
    return activate(x, "gelu") / x


@operation("erf_of_x_over_sqrt2")
def erf_of_x_over_sqrt2(x: float) -> Tensor:
    return 2 * normal_cdf([x]) - 1


@operation("normal_ppf_scaled")
def normal_ppf_scaled(u: Any, sigma: float) -> Tensor:
    return sigma * solved(distribution, numbers(u), -30.0, 31.0)


@operation("gelu_min")
def gelu_min(interval: list[float]) -> dict[str, float]:
    low, high = (float(end) for end in interval)
    for _ in range(100):  # ternary search
        thirds = numbers([low + (high - low) / 3, high - (high - low) / 3])
        left, right = activate(thirds, "gelu")
        low, high = (low, float(thirds[1])) if left < right else (float(thirds[0]), high)
    return {"argmin": low, "min": float(activate(numbers(low), "gelu"))}


def gated_layer(gate: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | float = 0.0) -> FeedForward:
    """A SwiGLU layer with matrices (in, out)."""
    layer = FeedForward(small_config(d_model=len(gate), d_ff=gate.shape[1], act="swiglu")).double().requires_grad_(False)
    for part in (layer.gate, layer.up, layer.down):
        nn.init.zeros_(part.bias)
    layer.up.bias += up_bias
    layer.gate.weight.data, layer.up.weight.data, layer.down.weight.data = gate.T, up.T, down.T
    return layer


def gated(gate: Tensor, up: Tensor | float) -> Tensor:
    """silu(gate) * up, from a layer without further weights."""
    eye = torch.eye(len(gate), dtype=torch.float64)
    return gated_layer(eye, 0 * eye, eye, up_bias=up)(gate)


@operation("silu")
def silu(x: Any) -> Tensor:
    return gated(numbers(x), 1.0)


@operation("mul")
def mul(a: Any, b: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    """Products of activated gates (above 0) and up values, from the gates that the activation brings there."""
    parts = {}
    if "with_true_silu" in entry:
        parts["with_true_silu"] = gated(numbers(others["s003-silu"]["inputs"]["x"]), numbers(b))
    return Found(gated(solved(lambda gate: gated(gate, 1.0), numbers(a), 0.0, 1e3), numbers(b)), parts=parts)


@operation("swiglu")
def swiglu(h: Any, W1: Any, W3: Any, W2: Any) -> Tensor:
    return gated_layer(numbers(W1), numbers(W3), numbers(W2))(numbers(h))


# positions


@operation("sinusoidal_pe")
def sinusoidal_pe(positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    return sinusoidal_table(max(positions) + 1, d, base)[positions][:, dims]


@operation("sinusoidal_pe_entries")
def sinusoidal_pe_entries(entries: list[list[int]], d: int, base: float) -> list[Tensor]:
    table = sinusoidal_table(max(place for place, _ in entries) + 1, d, base)
    return [table[place, column] for place, column in entries]


@operation("angular_freq")
def angular_freq(i: list[int], d: int, base: float) -> Tensor:
    return wavelength_frequencies(d, base)[i]


@operation("cycles_per_position")
def cycles_per_position(i: list[int], d: int, base: float) -> Found:
    cycles = wavelength_frequencies(d, base) / (2 * math.pi)
    return Found(cycles[i], parts={"lowest_cycles": cycles[-1]})


@operation("freq_power")
def freq_power(i: list[int], d: int, base: float) -> Tensor:
    return 1 / wavelength_frequencies(d, base)[i]


@operation("wavelength")
def wavelength(i: list[int], d: int, base: float) -> Found:
    frequencies = wavelength_frequencies(d, base)
    limit = 2 * math.pi / frequencies[1] ** (d / 2)  # of the series, if it went on by one pair
    return Found(2 * math.pi / frequencies[i], parts={"limit_value": limit})


@operation("rope_freqs")
def rope_freqs(base: float, dim: int) -> Tensor:
    return wavelength_frequencies(dim, base)


@operation("rope_cos_sin")
def rope_cos_sin(base: float, dim: int, position: int) -> Tensor:
    even = dim + dim % 2  # an odd width has the frequencies of an even one with a higher base
    config = ModelConfig(8, n_head=1, d_model=even, pos="rope", pos_base=base ** (even / dim))
    return rotary_table(config, position + 1)[position]


@operation("cos_sin")
def cos_sin(angles: Any) -> list[Tensor]:
    return [sinusoidal_table(2, 4, angle**-2)[1, 2:].flip(0) for angle in angles]  # the second pair turns by it


@operation("rope_pair")
def rope_pair(x: Any, cos: float, sin: float) -> Tensor:
    return rotate(numbers(x), numbers([[cos, sin]]), "interleaved")


@operation("rope_both")
def rope_both(x: Any, position: int, base: float) -> dict[str, Tensor]:
    config = ModelConfig(8, n_head=1, d_model=len(x), pos="rope", pos_base=float(base))
    table = rotary_table(config, position + 1)[position]
    layouts = {"interleaved": "interleaved", "half_split": "half"}
    return {name: rotate(numbers([x]), table, layout)[0] for name, layout in layouts.items()}
