"""Operations inside a network: attention, norms, activations, positions, whole layers and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from golden.networks import (
    TOY_INPUTS,
    block_of,
    embedded,
    linear,
    network_shapes,
    norm_layer,
    placed,
    projections,
    residual,
    residual_gradient,
    token_distances,
    toy_network,
)
from golden.registry import Entry, Found, Function, Shape, check_inputs
from golden.shared import built, noise, numbers, small_config, solved, watched
from model import ModelConfig, Transformer, preset
from model.attention import (
    attention_mask,
    attention_weights,
    rotary_table,
    scaled_scores,
    sinusoidal_table,
    spread,
    turn,
    wavelength_frequencies,
)
from model.sampling import running_sum
from model.transformer import FeedForward, RMSNorm, activate
from tasks.tokens.tokenizer_kinds import AsciiTokenizer

# attention


def _weights_of(scores: Tensor, causal: bool = False) -> Tensor:
    """Attention weights of given scaled scores (T, S): queries are the scores, keys the unit vectors."""
    allowed = scores > -torch.inf
    keys = torch.eye(scores.shape[-1], dtype=torch.float64) * math.sqrt(scores.shape[-1])
    return attention_weights(scores.masked_fill(~allowed, 0.0)[None], keys[None], None if causal else allowed)[0]


def _scaled_score(query: Tensor, key: Tensor) -> Tensor:
    """Scaled score of a query (E,) with a key (E,), or of several (n, E) with it."""
    return scaled_scores(query.reshape(1, -1, len(key)), key[None, None])[0, :, 0]


def _unit(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64)[0]


def softmax_rows(scores: Any, entry: Entry) -> Found:
    parts = {"corrected_causal": _weights_of(numbers(scores), causal=True)[0]}
    if "printed_row_sums" in entry:
        parts["printed_row_sums"] = _row_sums(entry["expected"])
    return Found(_weights_of(numbers(scores)), parts=parts)


def _row_sums(rows: Any) -> Tensor:
    return running_sum(numbers(rows))[..., -1]


def apply_causal_mask(scores: Any) -> Tensor:
    return numbers(scores).masked_fill(~keep_mask(numbers(scores).shape[-1]).bool(), -torch.inf)


def keep_mask(n: int) -> Tensor:
    return attention_mask(torch.arange(n), torch.arange(n)).long()


def attention_grads(Q: Any, K: Any, V: Any, dO: Any, causal: bool) -> dict[str, Tensor]:
    q, k, v = (numbers(part)[None].requires_grad_() for part in (Q, K, V))
    mask = None if causal else torch.ones(len(Q), len(K), dtype=torch.bool)
    weights = attention_weights(q, k, mask)
    weights.retain_grad()
    mixed = weights @ v
    mixed.backward(numbers(dO)[None])
    # the scores live inside attention_weights, so their gradient is asked of a pass in which they are the queries
    scores = scaled_scores(q, k)[0].detach().requires_grad_()
    _weights_of(scores, causal).backward(weights.grad[0])
    gradients = {"dA": weights.grad[0], "dS": scores.grad, "dQ": q.grad[0], "dK": k.grad[0], "dV": v.grad[0]}
    return {"O": mixed[0].detach(), "A": weights[0].detach(), "S": scores.detach(), **gradients}


def dot_scaled(q: Any, k: Any, d_k: int) -> Found:
    query, key = (torch.cat((numbers(part), torch.zeros(d_k - len(part)))) for part in (q, k))
    return Found(_scaled_score(query, key), parts={"dot": linear(query, key[:, None])})


def scale_by_sqrt_dk(score: float, d_k: int) -> Tensor:
    return _scaled_score(score * _unit(d_k), _unit(d_k))


def rsqrt(x: int) -> Tensor:
    return scale_by_sqrt_dk(1.0, x)


def scale(x: Any, factor: float) -> Found:
    scores = numbers(x)
    exact = _scaled_score(scores.flatten()[:, None] * _unit(3), _unit(3)).reshape(scores.shape)
    return Found(scores * factor, parts={"with_exact_factor": exact})


def dk_scale(d_model: int, n_heads: int) -> list[Any]:
    width = small_config(d_model=d_model, n_head=n_heads).head_dim
    return [width, 1 / rsqrt(width)[0]]


def dot_variance(d_k: int) -> dict[str, Any]:
    """Over queries and keys whose columns have mean 0 and variance 1 and are not correlated: rows and their negatives
    of an orthogonal matrix of length sqrt(d_k), so that no noise is left in the variance."""
    rows = [math.sqrt(d_k) * torch.linalg.qr(noise(d_k, d_k, seed=seed))[0] for seed in (1, 2)]
    queries, keys = (torch.cat((part, -part)) for part in rows)
    scaled = scaled_scores(queries[None], keys[None])
    return {"var_raw": linear(queries, keys.T).var(correction=0), "var_scaled": scaled.var(correction=0)}


# norms


def _mean_and_deviation(x: Any) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of LayerNorm, computed from the smallest and the largest element."""
    row = numbers(x)
    normed, ends = norm_layer(len(row), 1e-300)(row), [int(row.argmin()), int(row.argmax())]
    deviation = row[ends].diff()[0] / normed[ends].diff()[0]
    return row[ends[0]] - deviation * normed[ends[0]], deviation


def layernorm(x: Any, gamma: Any, beta: Any, eps: float) -> Found:
    mean, deviation = _mean_and_deviation(x)
    # added to the root instead of inside
    layers = [norm_layer(len(x), inside) for inside in (eps, float((deviation + eps) ** 2 - deviation**2))]
    for layer in layers:
        layer.load_state_dict({"weight": numbers(gamma), "bias": numbers(beta)})
    normed, outside = (layer(numbers(x)) for layer in layers)
    return Found(normed, parts={"mean": mean, "var": deviation**2, "std": deviation, "eps_outside": outside})


def ln_element(x: float, mean: float, var: float, eps: float) -> list[Tensor]:
    """The element stands in a row of three whose other two give the stated mean and variance."""
    distance = x - mean
    spread = math.sqrt((3 * var - 1.5 * distance**2) / 2)
    row = [x, mean - distance / 2 + spread, mean - distance / 2 - spread]
    return [norm_layer(3, eps)(numbers(row))[0]]


def sqrt(x: float) -> list[Tensor]:
    """LayerNorm's denominator: a row of a small number and its negative is divided by the root of nearly eps."""
    small, exponent = 2.0**-30, max(0, math.frexp(x)[1])  # eps is below 1
    normed = norm_layer(2, x / 4**exponent - small**2)(numbers([small, -small]))
    return [2**exponent * small / normed[0]]


def mean_var_std(x: Any) -> Found:
    mean, deviation = _mean_and_deviation(x)
    parts = {"mean": mean, "var": deviation**2, "std": deviation}
    return Found([*parts.values()], parts=parts)


def _reciprocal_rms(x: Any, eps: float) -> Tensor:
    """The factor that RMSNorm puts on every element."""
    row = numbers(x)
    place = row.abs().argmax()
    return RMSNorm(len(row), eps).to(row)(row)[place] / row[place]


def _mean_square(x: Any) -> Tensor:
    return _reciprocal_rms(x, 0.0) ** -2


def _rms_parts(x: Any, eps: float) -> dict[str, Any]:
    factor = _reciprocal_rms(x, eps)
    squares = [_mean_square([one]) if one else 0.0 for one in x]  # of rows of one
    parts = {"squares": squares, "mean_square": _mean_square(x), "rms": 1 / factor, "reciprocal_rms": factor}
    return {**parts, "correct_reciprocal_rms": factor, "normalised": numbers(x) * factor}


def rmsnorm(x: Any, weight: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps, "rmsnorm")
    layer.load_state_dict({"weight": numbers(weight)})
    return Found(layer(numbers(x)), parts=_rms_parts(x, eps))


def rms_stats(x: Any, eps: float) -> Found:
    parts = _rms_parts(x, eps)
    return Found([*parts["squares"], parts["mean_square"], parts["reciprocal_rms"]], parts=parts)


def mean_square_rsqrt(x: Any, eps: float) -> Found:
    parts = _rms_parts(x, eps)
    return Found([parts["mean_square"], parts["reciprocal_rms"]], parts=parts)


# activations


def gelu_tanh(x: Any) -> Found:
    line = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    largest = (activate(line, "gelu") - activate(line, "gelu_tanh")).abs().max()
    return Found(activate(numbers(x), "gelu_tanh"), parts={"max_abs_diff_exact_vs_tanh": largest})


def normal_cdf(x: Any) -> Tensor:
    return _distribution(numbers(x))


def _distribution(x: Tensor) -> Tensor:
    """The normal distribution function: exact GELU is x times it."""
    return activate(x, "gelu") / x


def gelu_min(interval: list[float]) -> dict[str, float]:
    low, high = (float(end) for end in interval)
    for _ in range(100):  # ternary search
        thirds = numbers([low + (high - low) / 3, high - (high - low) / 3])
        left, right = activate(thirds, "gelu")
        low, high = (low, float(thirds[1])) if left < right else (float(thirds[0]), high)
    return {"argmin": low, "min": float(activate(numbers(low), "gelu"))}


def _gated_layer(gate: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | float = 0.0) -> FeedForward:
    """A SwiGLU layer with matrices (in, out)."""
    layer = (
        FeedForward(small_config(d_model=len(gate), d_ff=gate.shape[1], act="swiglu")).double().requires_grad_(False)
    )
    for part in (layer.gate, layer.up, layer.down):
        nn.init.zeros_(part.bias)
    layer.up.bias += up_bias
    layer.gate.weight.data, layer.up.weight.data, layer.down.weight.data = gate.T, up.T, down.T
    return layer


def _gated(gate: Tensor, up: Tensor | float) -> Tensor:
    """silu(gate) * up, from a layer without further weights."""
    eye = torch.eye(len(gate), dtype=torch.float64)
    return _gated_layer(eye, 0 * eye, eye, up_bias=up)(gate)


def mul(a: Any, b: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    """Products of activated gates (above 0) and up values, from the gates that the activation brings there."""
    parts = {}
    if "with_true_silu" in entry:
        parts["with_true_silu"] = _gated(numbers(others["s003-silu"]["inputs"]["x"]), numbers(b))
    return Found(_gated(solved(lambda gate: _gated(gate, 1.0), numbers(a), 0.0, 1e3), numbers(b)), parts=parts)


# positions


def sinusoidal_pe_entries(entries: list[list[int]], d: int, base: float) -> list[Tensor]:
    table = sinusoidal_table(max(place for place, _ in entries) + 1, d, base)
    return [table[place, column] for place, column in entries]


def cycles_per_position(i: list[int], d: int, base: float) -> Found:
    cycles = wavelength_frequencies(d, base) / (2 * math.pi)
    return Found(cycles[i], parts={"lowest_cycles": cycles[-1]})


def wavelength(i: list[int], d: int, base: float) -> Found:
    frequencies = wavelength_frequencies(d, base)
    limit = 2 * math.pi / frequencies[1] ** (d / 2)  # of the series, if it went on by one pair
    return Found(2 * math.pi / frequencies[i], parts={"limit_value": limit})


def rope_cos_sin(base: float, dim: int, position: int) -> Tensor:
    even = dim + dim % 2  # an odd width has the frequencies of an even one with a higher base
    config = ModelConfig(8, n_head=1, d_model=even, pos="rope", pos_base=base ** (even / dim))
    return rotary_table(config, position + 1)[position]


def cos_sin(angles: Any) -> list[Tensor]:
    return [sinusoidal_table(2, 4, angle**-2)[1, 2:].flip(0) for angle in angles]  # the second pair turns by it


def rope_both(x: Any, position: int, base: float) -> dict[str, Tensor]:
    config = ModelConfig(8, n_head=1, d_model=len(x), pos="rope", pos_base=float(base))
    table = rotary_table(config, position + 1)[position]
    layouts = {"interleaved": "interleaved", "half_split": "half"}
    return {name: turn(numbers([x]), spread(table, layout), layout)[0] for name, layout in layouts.items()}


# whole networks


def sqdiff(a: Any, b: Any) -> list[Tensor]:
    pairs = zip(a, b, strict=True)
    return [token_distances(numbers([[one, 0.0], [other, 0.0]]))[0, 1] ** 2 for one, other in pairs]


def matmul(A: Any, B: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    parts = {}
    if "corrected_from_true_norm" in entry:  # the printed rows of A are the toy network's first norm, rounded
        toy = toy_network(others["s003-chain-none"]["inputs"])
        states = embedded(toy, others["s003-chain-none"]["inputs"]["ids"])
        parts["corrected_from_true_norm"] = linear(toy.blocks[0].norm_attention(states), numbers(B))
    return Found(linear(numbers(A), numbers(B)), parts=parts)


def toy_layer(**inputs: Any) -> dict[str, Tensor]:
    """The whole network is run; the intermediates are what its modules were given and gave."""
    check_inputs(inputs, TOY_INPUTS, TOY_INPUTS)
    model = toy_network(inputs)
    block, n_gate = model.blocks[0], len(inputs["W_gate_4cols"][0])
    attention, mlp = block.attention, block.mlp
    with torch.no_grad(), watched(attention, attention.proj, block.norm_mlp, mlp.gate, mlp.up, mlp.down) as calls:
        model(torch.tensor([inputs["ids"]]))
    (normed, _, now), _ = calls[attention][0]
    ((context,), attended), ((states,), post_norm) = calls[attention.proj][0], calls[block.norm_mlp][0]
    gate, up, (hidden,) = calls[mlp.gate][0][1], calls[mlp.up][0][1], calls[mlp.down][0][0]
    with torch.no_grad():
        (q, k, v), (q_raw, k_raw, _) = attention.project(normed, now.rotation), attention.project(normed)
    return {
        **{"attn_norm": normed[0], "q": q_raw[0], "k": k_raw[0], "q_rope": q[0], "k_rope": k[0], "v": v[0]},
        **{"scaled_scores": scaled_scores(q, k)[0], "weights": attention_weights(q, k)[0]},
        **{"context": context[0], "attn_out": attended[0], "residual": states[0], "post_norm": post_norm[0]},
        "gate_proj_4cols": gate[0, :, :n_gate],
        "silu_gate_4cols": (hidden / up)[0, :, :n_gate],  # what the layer multiplies its up projection with
    }


_SIZES = {"C": "d_model", "d": "d_model", "h": "n_head", "n_head": "n_head", "d_ff": "d_ff"}


def shapes(V: int, B: int = 0, prompt: str = "", sampled: int = 0, **sizes: int) -> dict[str, Any]:
    """Of a network, whose sizes two documents call by other letters, or of two steps of generation."""
    if prompt:
        ids = AsciiTokenizer().encode([prompt])[0].tolist()
        model = Transformer(preset("sheepop", V, n_layer=1)).eval()
        steps = [ids, [*ids, sampled]]
        first, second = (Shape(model(torch.tensor([step])).shape) for step in steps)
        return {"ids0": steps[0], "logits1": first, "ids1": steps[1], "logits2": second}
    check_inputs(sizes, ["T" if "C" in sizes else "n"], {"T", "n", *_SIZES})
    n_tokens = sizes.pop("T", 0) or sizes.pop("n")
    own = {_SIZES[name]: size for name, size in sizes.items()}
    batched = network_shapes(preset("light_llm" if "C" in sizes else "sheepop", V, **own), B or 1, n_tokens)
    if B:
        return batched
    matrices = ("W_Q", "W_K", "W_V", "W_O", "W1", "W2", "E")  # one text stands in the documents without a batch
    return {name: one if name in matrices else Shape(one[1:]) for name, one in batched.items()}


def shape(
    others: Mapping[str, Entry], rows: Any = None, columns: int = 0, cells: Any = None, d: int = 0, d_ff: int = 0
) -> Found:
    """Of a stated matrix (in, out) as the network's layer takes it, or of its first feed-forward matrix (out, in)."""
    if rows is None:
        with torch.device("meta"):
            found = Shape(FeedForward(small_config(d_model=d, d_ff=d_ff)).up.weight.shape)
        return Found(found, parts=found.parts())
    if not isinstance(rows, list):
        values = numbers(cells) if isinstance(cells, list) else torch.zeros(rows * columns)
        rows = values.reshape(rows, columns).tolist()
    found = Shape([len(rows), linear(torch.eye(len(rows), dtype=torch.float64), numbers(rows)).shape[1]])
    x = numbers(others["s000-ffn-h00"]["inputs"]["x"])
    hidden = linear(x, numbers(rows)) if len(x) == len(rows) else []
    return Found(found, parts={**found.parts(), "second_unit": hidden[1] if len(hidden) > 1 else None})


def final_state_index(L: int) -> int:
    """The embedding is X_1, with positions X_2, and each block makes the next; the final norm must read the last."""
    model = Transformer(preset("sheepop", 16, d_model=16, n_head=2, n_layer=L)).eval()
    with watched(*model.blocks, model.norm) as calls:
        model(torch.tensor([[1, 2, 3]]))
    assert torch.equal(calls[model.norm][0][0][0], calls[model.blocks[-1]][0][1])
    return 2 + sum(len(calls[block]) for block in model.blocks)


def lookup(table: Any, ids: list[int]) -> Tensor:
    model = built(small_config(vocab_size=len(table), d_model=len(table[0]), max_seq_len=max(2, len(ids))))
    model.token_embedding.weight.data = numbers(table)
    return embedded(model, ids)


def matvec(W: Any, x: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    parts = {}
    if "corrected_from_true_final_norm" in entry:
        normed = numbers(others["s003-final8"]["corrected"])
        parts["corrected_from_true_final_norm"] = linear(normed, numbers(W).T)
    return Found(linear(numbers(x), numbers(W).T), parts=parts)


def split_heads(x: Any, n_heads: int) -> Tensor:
    attention = block_of(d_model=len(x), n_head=n_heads, attn_bias=False).attention
    nn.init.eye_(projections(attention)[1][0])
    return attention.project(numbers([[x]]))[0][0, :, 0].detach()


def embed_plus_pe(x: Any, positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    """Through the network's own sum: the stated columns of the embedding are loaded, the table is its table."""
    config = small_config(vocab_size=len(x), max_seq_len=max(positions) + 2, d_model=d, pos="sinusoidal", pos_base=base)
    model = built(config)
    model.position_table = sinusoidal_table(config.max_seq_len, d, base)  # the buffer itself is rounded to float32
    model.token_embedding.weight.data[:, dims] = numbers(x)
    return placed(model, torch.arange(len(x))[None], torch.tensor(positions))[0][:, dims].detach()


_BRANCHES = {"2*x": lambda x: 2 * x, "x*x": lambda x: x * x}
FORMULAS: dict[str, Function] = {
    "apply_causal_mask_batch": apply_causal_mask,
    "softmax_rows_causal": lambda scores: _weights_of(numbers(scores), causal=True),
    "softmax_pick": lambda scores, columns, scale: _weights_of(numbers([scores]))[0, columns] * scale,
    "row_sums_required_one": lambda matrix: _row_sums(_weights_of(numbers(matrix)).tolist()),
    "attention_from_scores": lambda scores, V: linear(_weights_of(numbers(scores), causal=True), numbers(V)),
    "causal_mask": lambda n, scores: apply_causal_mask(torch.zeros(n, n).tolist()),
    "div_sqrt2": lambda x: scale_by_sqrt_dk(x, 2),
    "square": lambda x: _rms_parts(x, 1e-6)["squares"],
    "gelu_exact": lambda x: activate(numbers(x), "gelu"),
    "erf_of_x_over_sqrt2": lambda x: 2 * normal_cdf([x]) - 1,
    "normal_ppf_scaled": lambda u, sigma: sigma * solved(_distribution, numbers(u), -30.0, 31.0),
    "swiglu": lambda h, W1, W3, W2: _gated_layer(numbers(W1), numbers(W3), numbers(W2))(numbers(h)),
    "angular_freq": lambda i, d, base: wavelength_frequencies(d, base)[i],
    "freq_power": lambda i, d, base: 1 / wavelength_frequencies(d, base)[i],
    "rope_freqs": lambda base, dim: wavelength_frequencies(dim, base),
    "rope_pair": lambda x, cos, sin: turn(numbers(x), spread(numbers([[cos, sin]]), "interleaved"), "interleaved"),
    "matmul_T": lambda A, B: linear(numbers(A), numbers(B).T),
    "dot": lambda x, w: linear(numbers(x), numbers(w)[:, None]),
    "add": lambda a, b: residual(numbers(a), lambda _: numbers(b)),
    "residual_compose": lambda x, d1, d2: [residual(numbers(x), _BRANCHES[d1], _BRANCHES[d2])],
    "residual_grad_sq": lambda f, x, grad_out: residual_gradient(_BRANCHES[f], x, grad_out),
    "residual_grad": lambda dF, grad_out: residual_gradient(lambda x: dF * x, 1.0, grad_out),
    "row": lambda index, table: linear(torch.eye(len(table[0]), dtype=torch.float64), numbers(table).T)[:, index],
    "sinusoidal_pe": lambda positions, dims, d, base: sinusoidal_table(max(positions) + 1, d, base)[positions][:, dims],
    "silu": lambda x: _gated(numbers(x), 1.0),
}
