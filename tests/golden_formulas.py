"""How the project computes what each operation of the golden file names.

One function per operation, its parameters named like the entry's inputs (and `entry` where the rest of it is needed).
It goes through the project's own functions wherever there are any; `by_hand` marks mere arithmetic of a document.
Everything is float64. Products in the documents are row vector times matrix, and torch stores a layer's matrix as
(out, in), so stated matrices are transposed on their way into a layer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model import (
    GenerationConfig,
    ModelConfig,
    NllSum,
    SpanSource,
    TrainConfig,
    Transformer,
    accounting,
    generate,
    preset,
    schedule,
)
from model.attention import Attention, attention_mask, attention_weights
from model.data import IGNORE
from model.loss import linear_nll
from model.metrics import perplexity
from model.norms import build_norm, rms_norm
from model.optim import build_optimizer
from model.positions import rotary_table, rotate, sinusoidal_table, wavelength_frequencies
from model.sampling import draw, filter_top_k, filter_top_p, token_probabilities
from model.transformer import FeedForward, activate
from tasks.tokens.chunk import chunk_spans
from tasks.tokens.tokenizer import AsciiTokenizer, CharTokenizer

Entry = dict[str, Any]


@dataclass
class Found:
    """What an operation comes to.

    Attributes:
        value: the project's value of what the entry's `exact` or `corrected` states.
        printed: the project's value of what `expected` states, where that is something else than `corrected`.
        extras: the project's values of further fields of the entry.
    """

    value: Any
    printed: Any = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """A function that computes an entry, and whether the project's own code does the work."""

    compute: Callable[..., Any]
    own: bool

    def __call__(self, entry: Entry) -> Found:
        given = {"entry": entry} if "entry" in inspect.signature(self.compute).parameters else {}
        found = self.compute(**entry["inputs"], **given)
        return found if isinstance(found, Found) else Found(found)


OPERATIONS: dict[str, Operation] = {}
Function = Callable[..., Any]


def operation(*names: str) -> Callable[[Function], Function]:
    """Registers a function that goes through the project."""
    return _registrar(names, own=True)


def by_hand(*names: str) -> Callable[[Function], Function]:
    """Registers arithmetic for which the project has no function."""
    return _registrar(names, own=False)


def _registrar(names: Sequence[str], own: bool) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        OPERATIONS.update(dict.fromkeys(names, Operation(function, own)))
        return function

    return register


def numbers(values: Any) -> Tensor:
    """Nested lists as float64; "inf" and "-inf" are strings in the file."""

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list) else float(value)

    return torch.tensor(plain(values), dtype=torch.float64)


@contextmanager
def float64() -> Iterator[None]:
    """Networks built here have float64 weights from the start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def small_config(**fields: Any) -> ModelConfig:
    """A shape for a single layer of it."""
    return ModelConfig(**{"vocab_size": 8, "max_seq_len": 8, "n_layer": 1, "n_head": 1, "pos": "none", **fields})


# ---- attention


def weights_of(scores: Tensor, causal: bool = False) -> Tensor:
    """Attention weights of given scaled scores (T, S): queries are the scores, keys the unit vectors."""
    allowed = scores > -torch.inf
    keys = torch.eye(scores.shape[-1], dtype=torch.float64) * math.sqrt(scores.shape[-1])
    return attention_weights(scores.masked_fill(~allowed, 0.0)[None], keys[None], None if causal else allowed)[0]


def scaled_score(query: Tensor, key: Tensor) -> Tensor:
    """Scaled score of a query (E,) with a key (E,): the log-odds of the key beside a key of zeros."""
    keys = torch.stack((key, torch.zeros_like(key)))
    weights = attention_weights(query[None, None], keys[None], torch.ones(1, 2, dtype=torch.bool))[0, 0]
    return weights[0].log() - weights[1].log()


def unit(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64)[0]


@operation("softmax_rows")
def softmax_rows(scores: Any) -> Found:
    scores = numbers(scores)
    return Found(weights_of(scores), extras={"corrected_causal": weights_of(scores, causal=True)[0]})


@operation("softmax_rows_causal")
def softmax_rows_causal(scores: Any) -> Tensor:
    return weights_of(numbers(scores), causal=True)


@operation("softmax_pick")
def softmax_pick(scores: Any, columns: list[int], scale: float) -> Tensor:
    return weights_of(numbers([scores]))[0, columns] * scale


@operation("row_sums_required_one")
def row_sums_required_one(matrix: Any) -> Found:
    return Found(weights_of(numbers(matrix)).sum(-1), printed=weights_of(numbers(matrix)).sum(-1))


@operation("attention_from_scores")
def attention_from_scores(scores: Any, V: Any) -> Tensor:
    return weights_of(numbers(scores), causal=True) @ numbers(V)


@operation("apply_causal_mask", "apply_causal_mask_batch")
def apply_causal_mask(scores: Any) -> Tensor:
    places = torch.arange(len(scores[0]))
    return numbers(scores).masked_fill(~attention_mask(places, places), -torch.inf)


@operation("causal_mask")
def causal_mask(n: int, scores: Any) -> Tensor:
    places = torch.arange(n)
    return torch.zeros(n, n, dtype=torch.float64).masked_fill(~attention_mask(places, places), -torch.inf)


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
    scores = (numbers(Q) @ numbers(K).T / math.sqrt(len(Q[0]))).requires_grad_()
    weights_of(scores, causal).backward(weights.grad[0])
    gradients = {"dA": weights.grad[0], "dS": scores.grad, "dQ": q.grad[0], "dK": k.grad[0], "dV": v.grad[0]}
    return {"O": mixed[0].detach(), **gradients}


@operation("dot_scaled")
def dot_scaled(q: Any, k: Any, d_k: int) -> list[Tensor]:
    query, key = (torch.cat((numbers(part), torch.zeros(d_k - len(part)))) for part in (q, k))
    return [scaled_score(query, key)]


@operation("scale_by_sqrt_dk")
def scale_by_sqrt_dk(score: float, d_k: int) -> list[Tensor]:
    return [scaled_score(score * unit(d_k), unit(d_k))]


@operation("rsqrt")
def rsqrt(x: int) -> list[Tensor]:
    return [scaled_score(unit(x), unit(x))]


@operation("dk_scale")
def dk_scale(d_model: int, n_heads: int) -> list[Any]:
    width = small_config(d_model=d_model, n_head=n_heads).head_dim
    return [width, 1 / scaled_score(unit(width), unit(width))]


@operation("dot_variance")
def dot_variance(d_k: int) -> dict[str, Any]:
    # d_k independent products of unit variance; the scale enters squared
    return {"var_raw": float(d_k), "var_scaled": d_k * scaled_score(unit(d_k), unit(d_k)) ** 2}


@operation("split_heads")
def split_heads(x: Any, n_heads: int) -> Tensor:
    attention = Attention(small_config(d_model=len(x), n_head=n_heads, attn_bias=False)).double()
    nn.init.zeros_(attention.qkv.weight)
    nn.init.eye_(attention.qkv.weight.data[: len(x)])
    return attention.project(numbers([[x]]))[0][0, :, 0]


# ---- positions


@operation("sinusoidal_pe")
def sinusoidal_pe(positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    return sinusoidal_table(max(positions) + 1, d, base)[positions][:, dims]


@operation("sinusoidal_pe_entries")
def sinusoidal_pe_entries(entries: list[list[int]], d: int, base: float) -> list[Tensor]:
    table = sinusoidal_table(max(place for place, _ in entries) + 1, d, base)
    return [table[place, column] for place, column in entries]


@operation("embed_plus_pe")
def embed_plus_pe(x: Any, positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    """Through the network's own sum: the stated columns of the embedding are loaded, the table is its table."""
    config = small_config(vocab_size=len(x), max_seq_len=8, d_model=d, pos="sinusoidal", pos_base=float(base))
    model = Transformer(config).double().eval()
    model.position_table = sinusoidal_table(config.max_seq_len, d, base)  # the buffer itself is rounded to float32
    model.token_embedding.weight.data[:, dims] = numbers(x)
    return model.embed(torch.arange(len(x))[None], torch.tensor(positions))[0][:, dims].detach()


@operation("angular_freq")
def angular_freq(i: list[int], d: int, base: float) -> Tensor:
    return wavelength_frequencies(d, base)[i]


@operation("cycles_per_position")
def cycles_per_position(i: list[int], d: int, base: float) -> Found:
    cycles = wavelength_frequencies(d, base) / (2 * math.pi)
    return Found(cycles[i], extras={"lowest_cycles": cycles[-1]})


@operation("freq_power")
def freq_power(i: list[int], d: int, base: float) -> Tensor:
    return 1 / wavelength_frequencies(d, base)[i]


@operation("wavelength")
def wavelength(i: list[int], d: int, base: float) -> Tensor:
    return 2 * math.pi / wavelength_frequencies(d, base)[i]


@operation("rope_freqs")
def rope_freqs(base: float, dim: int) -> Tensor:
    return wavelength_frequencies(dim, base)


@operation("rope_cos_sin")
def rope_cos_sin(base: float, dim: int, position: int) -> Tensor:
    angle = position * wavelength_frequencies(dim, base)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


@operation("rope_pair")
def rope_pair(x: Any, cos: float, sin: float) -> Tensor:
    return rotate(numbers(x), numbers([[cos, sin]]), "interleaved")


@operation("rope_both")
def rope_both(x: Any, position: int, base: float) -> dict[str, Tensor]:
    config = ModelConfig(8, n_head=1, d_model=len(x), pos="rope", pos_base=float(base))
    table = rotary_table(config, position + 1)[position]
    layouts = {"interleaved": "interleaved", "half_split": "half"}
    return {name: rotate(numbers([x]), table, layout)[0] for name, layout in layouts.items()}


@by_hand("cos_sin")
def cos_sin(angles: Any) -> Tensor:
    return torch.stack((numbers(angles).cos(), numbers(angles).sin()), dim=-1)


# ---- norms


def norm_layer(width: int, eps: float, kind: str = "layernorm") -> nn.Module:
    return build_norm(small_config(d_model=width, norm=kind, norm_eps=eps)).double()


@operation("layernorm")
def layernorm(x: Any, gamma: Any, beta: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps)
    layer.load_state_dict({"weight": numbers(gamma), "bias": numbers(beta)})
    return Found(layer(numbers(x)).detach())


@operation("ln_element")
def ln_element(x: float, mean: float, var: float, eps: float) -> list[Tensor]:
    """The element stands in a row of three whose other two give the stated mean and variance."""
    distance = x - mean
    spread = math.sqrt((3 * var - 1.5 * distance**2) / 2)
    row = [x, mean - distance / 2 + spread, mean - distance / 2 - spread]
    return [norm_layer(3, eps)(numbers(row))[0].detach()]


@by_hand("mean_var_std")
def mean_var_std(x: Any) -> list[Tensor]:
    row = numbers(x)
    return [row.mean(), row.var(correction=0), row.std(correction=0)]


@operation("rmsnorm")
def rmsnorm(x: Any, weight: Any, eps: float) -> Found:
    layer = norm_layer(len(x), eps, "rmsnorm")
    layer.load_state_dict({"weight": numbers(weight)})
    return Found(layer(numbers(x)).detach(), extras={"correct_reciprocal_rms": reciprocal_rms(x, eps)})


def reciprocal_rms(x: Any, eps: float) -> Tensor:
    """The factor that RMSNorm puts on every element."""
    row = numbers(x)
    return rms_norm(row, torch.ones_like(row), eps)[0] / row[0]


@operation("rms_stats")
def rms_stats(x: Any, eps: float) -> list[Tensor]:
    squares = numbers(x).square()
    return [*squares, squares.mean(), reciprocal_rms(x, eps)]


@operation("mean_square_rsqrt")
def mean_square_rsqrt(x: Any, eps: float) -> list[Tensor]:
    return [numbers(x).square().mean(), reciprocal_rms(x, eps)]


# ---- feed-forward


@operation("gelu_exact")
def gelu_exact(x: Any) -> Tensor:
    return activate(numbers(x), "gelu")


@operation("gelu_tanh")
def gelu_tanh(x: Any) -> Found:
    line = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    largest = (activate(line, "gelu") - activate(line, "gelu_tanh")).abs().max()
    return Found(activate(numbers(x), "gelu_tanh"), extras={"max_abs_diff_exact_vs_tanh": largest})


@operation("normal_cdf")
def normal_cdf(x: Any) -> Tensor:
    return activate(numbers(x), "gelu") / numbers(x)  # exact GELU is x times the normal distribution function


@operation("erf_of_x_over_sqrt2")
def erf_of_x_over_sqrt2(x: float) -> Tensor:
    return 2 * normal_cdf([x]) - 1


@operation("gelu_min")
def gelu_min(interval: list[float]) -> dict[str, float]:
    low, high = (float(end) for end in interval)
    for _ in range(100):  # ternary search
        thirds = numbers([low + (high - low) / 3, high - (high - low) / 3])
        left, right = activate(thirds, "gelu")
        low, high = (low, float(thirds[1])) if left < right else (float(thirds[0]), high)
    return {"argmin": low, "min": float(activate(numbers(low), "gelu"))}


def gated_layer(gate: Tensor, up: Tensor, down: Tensor, up_bias: float = 0.0) -> FeedForward:
    """A SwiGLU layer with matrices (in, out)."""
    config = small_config(d_model=len(gate), d_ff=gate.shape[1], act="swiglu")
    layer = FeedForward(config).double()
    for part in (layer.gate, layer.up, layer.down):
        nn.init.zeros_(part.bias)
    nn.init.constant_(layer.up.bias, up_bias)
    layer.gate.weight.data, layer.up.weight.data, layer.down.weight.data = gate.T, up.T, down.T
    return layer


@operation("silu")
def silu(x: Any) -> Tensor:
    eye = torch.eye(len(x), dtype=torch.float64)
    return gated_layer(eye, 0 * eye, eye, up_bias=1.0)(numbers(x)).detach()


@operation("swiglu")
def swiglu(h: Any, W1: Any, W3: Any, W2: Any) -> Tensor:
    return gated_layer(numbers(W1), numbers(W3), numbers(W2))(numbers(h)).detach()


# ---- whole networks


def toy_network(inputs: Entry) -> Transformer:
    """The llama_toy preset with the stated weights, in float64; what is not stated stays random."""
    width, vocab_size = len(inputs["embedding"][0]), len(inputs["embedding"])
    config = preset("llama_toy", vocab_size, d_model=width, n_head=inputs["n_heads"], norm_eps=inputs["eps"])
    with float64(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(config).eval()
    fused = torch.cat([numbers(inputs[name]).T for name in ("W_q", "W_k", "W_v")])
    gate = numbers(inputs["W_gate_4cols"]).T
    with torch.no_grad():
        block = model.blocks[0]
        model.token_embedding.weight.copy_(numbers(inputs["embedding"]))
        block.norm_attention.weight.copy_(numbers(inputs["attn_norm_weight"]))
        block.norm_mlp.weight.copy_(numbers(inputs["ffn_norm_weight"]))
        block.attention.qkv.weight.copy_(fused)
        block.attention.proj.weight.copy_(numbers(inputs["W_o"]).T)
        block.mlp.gate.weight[: len(gate)] = gate
    if inputs["rope"] == "none":
        model.rotation_table = None
    elif inputs["rope"] == "printed":  # the document's own cosine and sine at position 1
        model.rotation_table = numbers([[[1.0, 0.0]], [[0.9995, 0.0314]]])
    else:
        model.rotation_table = rotary_table(config, config.max_seq_len)
    return model


Calls = dict[nn.Module, list[tuple[tuple[Any, ...], Any]]]


@contextmanager
def watched(*modules: nn.Module) -> Iterator[Calls]:
    """(arguments, output) of each call of these modules, in order."""
    calls: Calls = {module: [] for module in modules}
    hooks = [
        module.register_forward_hook(lambda module, given, out: calls[module].append((given, out)))
        for module in modules
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@operation("toy_layer")
def toy_layer(**inputs: Any) -> dict[str, Tensor]:
    """The whole network is run; the intermediates are what its modules were given and gave."""
    model = toy_network(inputs)
    block, n_gate = model.blocks[0], len(inputs["W_gate_4cols"][0])
    attention, mlp = block.attention, block.mlp
    modules = (attention, attention.proj, block.norm_mlp, mlp.gate, mlp.up, mlp.down)
    with torch.no_grad(), watched(*modules) as calls:
        model(torch.tensor([inputs["ids"]]))
    (normed, _, reading), _ = calls[attention][0]
    ((context,), attended), ((residual,), post_norm) = calls[attention.proj][0], calls[block.norm_mlp][0]
    gate, up, (hidden,) = calls[mlp.gate][0][1], calls[mlp.up][0][1], calls[mlp.down][0][0]
    with torch.no_grad():
        q, k, v = attention.project(normed, reading.rotation)
    return {
        **{"q_rope": q[0], "k_rope": k[0], "v": v[0]},
        "scaled_scores": q[0] @ k[0].transpose(-2, -1) / math.sqrt(q.shape[-1]),
        **{"weights": attention_weights(q, k)[0], "context": context[0], "attn_out": attended[0]},
        **{"residual": residual[0], "post_norm": post_norm[0], "gate_proj_4cols": gate[0, :, :n_gate]},
        "silu_gate_4cols": (hidden / up)[0, :, :n_gate],  # what the layer multiplies its up projection with
    }


def network_shapes(config: ModelConfig, n_rows: int, n_tokens: int) -> dict[str, list[int]]:
    """Shapes that the network's own forward pass meets, on the meta device: real code, no memory."""
    with torch.device("meta"):
        model = Transformer(config).eval()
        ids = torch.zeros(n_rows, n_tokens, dtype=torch.int64)
        attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
        with watched(attention, attention.qkv, attention.proj, mlp.up, mlp) as calls:
            logits = model(ids)
        (normed, _, reading), _ = calls[attention][0]
        q, k, v = attention.project(normed, reading.rotation)
        weights = attention_weights(q, k)
        found = {"X": model.embed(ids, slice(n_tokens)), "Q_heads": q, "q_heads": q, "att": weights, "logits": logits}
        found |= {"S0": weights[:, 0], "O0": (weights @ v)[:, 0], "O": calls[attention.proj][0][1]}
        fused = calls[attention.qkv][0][1]
        found |= {"qkv": fused, "Q": fused.split(config.n_head * config.head_dim, dim=-1)[0]}
        found |= {"H": calls[mlp.up][0][1], "ffn_out": calls[mlp][0][1]}
    matrices = {"W_Q": attention.qkv.weight[: config.n_head * config.head_dim].T, "W1": mlp.up.weight.T}
    matrices |= {"W2": mlp.down.weight.T, "E": model.token_embedding.weight}
    return {name: list(value.shape) for name, value in {**found, **matrices}.items()}


@operation("shapes")
def shapes(entry: Entry, **inputs: Any) -> dict[str, Any]:
    if "prompt" in inputs:
        return growing_shapes(**inputs)
    if "C" in inputs:
        config = preset("light_llm", inputs["V"], d_model=inputs["C"], n_head=inputs["n_head"])
    else:
        sizes = {"d_model": inputs["d"], "n_head": inputs["h"], "d_ff": inputs["d_ff"]}
        config = preset("sheepop", inputs["V"], **sizes)
    found = network_shapes(config, inputs.get("B", 1), inputs.get("T") or inputs["n"])
    matrices = ("W_Q", "W1", "W2", "E")
    return {
        name: found[name] if "B" in inputs or name in matrices else found[name][1:]  # one text without a batch
        for name in entry["expected"]
    }


def growing_shapes(prompt: str, sampled: int, V: int) -> dict[str, Any]:
    """Ids and logits of two steps of generation with a character network."""
    ids = AsciiTokenizer().encode([prompt])[0].tolist()
    model = Transformer(preset("sheepop", V, n_layer=1)).eval()
    steps = [ids, [*ids, sampled]]
    logits = [list(model(torch.tensor([step])).shape) for step in steps]
    return {"ids0": steps[0], "logits1": logits[0], "ids1": steps[1], "logits2": logits[1]}


@operation("shape")
def shape(entry: Entry, rows: Any = None, d: int = 0, d_ff: int = 0) -> list[int]:
    if rows is not None:
        return list(numbers(rows).shape)
    # torch's layer multiplies a column vector from the left, so its matrix is (d_ff, d)
    with torch.device("meta"):
        return list(FeedForward(small_config(d_model=d, d_ff=d_ff)).up.weight.shape)


@operation("final_state_index")
def final_state_index(L: int) -> int:
    """The embedding is X_1, with positions X_2, and each block makes the next; the final norm must read the last."""
    model = Transformer(preset("sheepop", 16, d_model=16, n_head=2, n_layer=L)).eval()
    with watched(*model.blocks, model.norm) as calls:
        model(torch.tensor([[1, 2, 3]]))
    assert torch.equal(calls[model.norm][0][0][0], calls[model.blocks[-1]][0][1])
    return 2 + sum(len(calls[block]) for block in model.blocks)


@operation("lookup")
def lookup(table: Any, ids: list[int]) -> Tensor:
    model = Transformer(small_config(vocab_size=len(table), d_model=len(table[0]))).double()
    model.token_embedding.weight.data = numbers(table)
    return model.embed(torch.tensor([ids]), slice(len(ids)))[0].detach()


def head_of(matrix: Any) -> Transformer:
    """A network whose output head has these rows, one per token."""
    config = small_config(vocab_size=len(matrix), d_model=len(matrix[0]), tie_weights=False)
    model = Transformer(config).double()
    model.untied_head.weight.data = numbers(matrix)
    return model


@operation("matvec")
def matvec(W: Any, x: Any) -> Found:
    return Found(head_of(W).head(numbers(x)).detach())


@operation("row")
def row(index: int, table: Any) -> Tensor:
    return head_of(table).head(torch.eye(len(table[0]), dtype=torch.float64))[:, index].detach()


@by_hand("matmul")
def matmul(A: Any, B: Any) -> Tensor:
    return numbers(A) @ numbers(B)


@by_hand("matmul_T")
def matmul_transposed(A: Any, B: Any) -> Tensor:
    return numbers(A) @ numbers(B).T


# ---- loss


@operation("cross_entropy_grad")
def cross_entropy_grad(logits: Any, labels: list[int]) -> dict[str, Tensor]:
    scores = numbers(logits).requires_grad_()
    loss = linear_nll(scores, torch.eye(scores.shape[1], dtype=torch.float64), torch.tensor(labels)) / len(labels)
    loss.backward()
    return {"loss": loss.detach(), "grad": scores.grad}


@operation("uniform_ppl")
def uniform_ppl(V: int) -> dict[str, Any]:
    nll = linear_nll(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(V, 2, dtype=torch.float64), torch.arange(3))
    found = NllSum(float(nll), 3)
    return {"loss": found.loss, "perplexity": found.perplexity}


@operation("chain_rule")
def chain_rule(conditionals: Any) -> dict[str, Any]:
    p = numbers(conditionals)
    logits = torch.stack((p.log(), (1 - p).log()), dim=-1)
    total = NllSum()
    for step in logits:
        total += NllSum(float(linear_nll(step[None], torch.eye(2, dtype=torch.float64), torch.tensor([0]))), 1)
    return {"p": math.exp(-total.nll_nats), "nll": total.nll_nats, "ppl": total.perplexity}


@operation("loss_mean")
def loss_mean(token_nll: Any) -> Found:
    sums = [NllSum(sum(row), len(row)) for row in token_nll]
    total = sums[0]
    for other in sums[1:]:
        total += other
    return Found({"per_token": total.loss}, printed={"per_sequence": total.loss})


@operation("valid_targets")
def valid_targets(labels: Any, ignore_index: int) -> dict[str, Any]:
    assert ignore_index == IGNORE
    wanted = torch.tensor(labels)
    model = Transformer(preset("sheepop", n_layer=1)).eval()
    logits = model(wanted.clamp(min=0)).detach()
    features, weight = (torch.zeros(*shape, 1, dtype=torch.float64) for shape in (wanted.shape, logits.shape[-1:]))
    nll = linear_nll(features, weight, wanted)
    return {
        "flat": wanted.flatten(),
        "n_valid": round(float(nll) / math.log(logits.shape[-1]), 9),  # each one costs the log of the vocabulary
        "logits_shape": list(logits.shape),
        "flat_shape": list(logits.flatten(0, 1).shape),
    }


@operation("exp")
def exp(x: Any) -> list[float]:
    return [perplexity(value, 1) for value in x]


# ---- optimisers and schedules


def optimizer_steps(
    kind: str, theta0: float, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, grads: list[float]
) -> list[dict[str, float]]:
    """What each step of the project's optimiser leaves in its state and in a single weight."""
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(layer.weight, theta0)
    settings = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
    optimizer = build_optimizer(layer, TrainConfig(len(grads), optimizer=kind, **settings))
    steps = []
    for t, gradient in enumerate(grads, start=1):
        before = layer.weight.item()
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        m, v = (optimizer.state[layer.weight][name].item() for name in ("exp_avg", "exp_avg_sq"))
        update = (before - layer.weight.item()) / lr
        corrected = {"mhat": m / (1 - beta1**t), "vhat": v / (1 - beta2**t), "ratio": update - weight_decay * before}
        steps.append({"m": m, "v": v, **corrected, "update": update, "theta": layer.weight.item()})
    return steps


@operation("adamw_steps")
def adamw_steps(fields: list[str], **settings: Any) -> list[float]:
    return [optimizer_steps("adamw", **settings)[-1][name] for name in fields]


@operation("adam_l2_steps")
def adam_l2_steps(**settings: Any) -> list[float]:
    return [step["theta"] for step in optimizer_steps("adam_l2", **settings)]


@by_hand("bias_denoms")
def bias_denoms(beta1: float, beta2: float, t: int) -> list[float]:
    return [1 - beta1**t, 1 - beta2**t]


def clipped(g: Any, max_norm: float) -> tuple[Tensor, float]:
    """Gradient and norm from the function that training clips with."""
    parameter = nn.Parameter(torch.zeros(len(g), dtype=torch.float64))
    parameter.grad = numbers(g)
    norm = float(nn.utils.clip_grad_norm_([parameter], max_norm))
    return parameter.grad, norm


@operation("clip_by_norm")
def clip_by_norm(g: Any, max_norm: float) -> Tensor:
    gradient, norm = clipped(g, max_norm)
    # torch divides by the norm plus 1e-6, which moves the result by less than 1e-6; taken out to compare all digits
    return gradient * (norm + 1e-6) / norm if norm > max_norm else gradient


@operation("l2norm")
def l2norm(g: Any) -> list[float]:
    return [clipped(g, math.inf)[1]]


@operation("sumsq")
def sumsq(g: Any) -> list[float]:
    return [clipped(g, math.inf)[1] ** 2]


@operation("cosine_lr")
def cosine_lr(eta_max: float, eta_min: float, T_max: int, t: list[int]) -> list[float]:
    return [schedule.cosine(step, eta_max, eta_min, T_max) for step in t]


@operation("cos_pi_ratio")
def cos_pi_ratio(t: list[int], T: int) -> list[float]:
    return [schedule.cosine(step, 1.0, -1.0, T) for step in t]


@operation("warmup_cosine")
def warmup_cosine(warmup: int, max_steps: int, t: list[int]) -> list[float]:
    return [schedule.warmup_cosine(step, 1.0, 0.0, warmup, max_steps) for step in t]


@operation("noam")
def noam(d_model: int, warmup: int, t: list[int]) -> list[float]:
    return [schedule.noam(step, d_model, warmup) for step in t]


@operation("xavier_std")
def xavier_std(fan_in: int, fan_out: int) -> Found:
    """From two networks with the same noise: their weights differ by the standard deviation only."""

    def matrix(**fields: Any) -> Tensor:
        config = small_config(d_model=fan_in, d_ff=fan_out, init_residual_scaling=False, **fields)
        with float64(), torch.random.fork_rng():
            torch.manual_seed(0)
            return Transformer(config).blocks[0].mlp.up.weight.detach()

    ratio = matrix(init="xavier", init_std=1.0) / matrix(init="normal", init_std=1.0)
    std = ratio.mean()
    assert torch.allclose(ratio, std, rtol=1e-9)
    value = {"xavier_std": std, "default_std": preset("light_llm").init_std}
    return Found(value, printed={"xavier_var": std**2, "used_std": std})


# ---- sampling


def kept(logits: Tensor) -> list[int]:
    """Ids that a filter leaves, the likeliest first."""
    n_kept = int((logits > -torch.inf).sum())
    return logits.sort(descending=True, stable=True).indices[:n_kept].tolist()


@operation("softmax_temperature")
def softmax_temperature(logits: Any, T: list[float]) -> list[Tensor]:
    return [token_probabilities(numbers(logits), temperature) for temperature in T]


@operation("softmax_vec")
def softmax_vec(logits: Any) -> Found:
    probabilities = token_probabilities(numbers(logits), 1.0)
    return Found(probabilities, printed=probabilities.sum())


@operation("softmax_ratios")
def softmax_ratios(logits: Any, T: float) -> dict[str, Tensor]:
    p = token_probabilities(numbers(logits), T)
    return {"p0_over_p1": p[0] / p[1], "p2_over_p0": p[2] / p[0]}


@operation("softmax_upper_bound")
def softmax_upper_bound(visible_logits: Any, V: int) -> Tensor:
    assert len(visible_logits) <= V  # every further logit lowers it
    return token_probabilities(numbers(visible_logits), 1.0).max()


@operation("prob_by_ratio")
def prob_by_ratio(p_ref: float, logit_ref: float, logits: Any) -> Tensor:
    p = token_probabilities(numbers([logit_ref, *logits]), 1.0)
    return p[1:] / p[0] * p_ref


@operation("stable_softmax")
def stable_softmax(z: Any) -> dict[str, Any]:
    logits = numbers(z)
    eye = torch.eye(len(logits), dtype=torch.float64)
    log_softmax = [-linear_nll(logits[None], eye, torch.tensor([label])) for label in range(len(logits))]
    return {"softmax": token_probabilities(logits, 1.0), "log_softmax": log_softmax}


@operation("topk_indices")
def topk_indices(x: Any, k: int) -> list[int]:
    return kept(filter_top_k(numbers(x), k))


@operation("topk_probs")
def topk_probs(p: Any, k: int) -> Tensor:
    return token_probabilities(numbers(p).log(), 1.0, top_k=k)


@operation("topk_mass")
def topk_mass(logits: Any, k: int) -> Found:
    return Found(token_probabilities(numbers(logits), 1.0, top_k=k).sum())


@operation("topk_filter_logits")
def topk_filter_logits(logits: Any, k: int) -> Found:
    filtered = filter_top_k(numbers(logits), k)
    removed = filtered == -torch.inf
    zeroed = token_probabilities(filtered.masked_fill(removed, 0.0), 1.0)
    return Found(filtered, extras={"leaked_mass": zeroed[removed].sum()})


@operation("nucleus_sizes")
def nucleus_sizes(p_sorted: Any, thresholds: list[float]) -> list[int]:
    """The printed probabilities are a prefix; less likely tokens make up the rest."""
    p = numbers(p_sorted)
    n_rest = math.ceil(float((1 - p.sum()) / p.min())) + 1
    logits = torch.cat((p, ((1 - p.sum()) / n_rest).expand(n_rest))).log()
    return [len(kept(filter_top_p(logits, threshold))) for threshold in thresholds]


@operation("nucleus_ids")
def nucleus_ids(p: float, probs: Any) -> list[int]:
    return kept(filter_top_p(numbers(probs).log(), p))


@operation("nucleus_tie")
def nucleus_tie(entry: Entry, p: float, probs: Any) -> Found:
    ids = kept(filter_top_p(numbers(probs).log(), p))
    value = ids if isinstance(entry["corrected"], list) else len(ids)
    return Found(value, printed=dict.fromkeys(entry["expected"], value))  # two rules that should be one


@operation("inverse_cdf")
def inverse_cdf(logits: Any, T: float, r: Any) -> Tensor:
    p = token_probabilities(numbers(logits), T)
    return draw(p.expand(len(r), -1), numbers(r))


def greedy(logits: Tensor) -> int:
    """What generation at temperature 0 answers if the network's logits are these."""
    config = preset("llama_toy", len(logits), head_bias=True)
    model = Transformer(config).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.head_bias.data = logits
    return generate(model, [[0]], GenerationConfig(1, temperature=0.0))[0].ids[0]


@operation("argmax")
def argmax(x: Any) -> list[int]:
    return [greedy(numbers(x))]


@operation("argmax_index")
def argmax_index(n_rows: int) -> int:
    return greedy(torch.arange(n_rows, dtype=torch.float64))


@operation("last_row_index")
def last_row_index(n: int) -> int:
    """The row of the logits that the next token comes from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(preset("tiny", 97, init_std=0.5)).eval()
    ids = list(range(n))
    answer = generate(model, [ids], GenerationConfig(1, temperature=0.0))[0]
    candidates = model(torch.tensor([ids]))[0].log_softmax(dim=-1)[:, answer.ids[0]]
    (place,) = ((candidates - answer.logprobs[0]).abs() < 1e-4).nonzero()[:, 0].tolist()
    return place


# ---- text and chunks


@operation("encode_ascii")
def encode_ascii(text: str) -> np.ndarray:
    return AsciiTokenizer().encode([text])[0]


@operation("lengths")
def lengths(texts: list[str]) -> list[int]:
    return [len(ids) for ids in AsciiTokenizer().encode(texts)]


def printable() -> CharTokenizer:
    return CharTokenizer("".join(map(chr, range(32, 127))))


@operation("encode_offset")
def encode_offset(text: str) -> Found:
    found = {"ascii_scheme": AsciiTokenizer().encode([text])[0], "offset_scheme": printable().encode([text])[0]}
    return Found(found, printed=found["offset_scheme"])


@operation("ascii_offset")
def ascii_offset(char: str, space_id: int) -> Found:
    tokenizer = printable()
    assert tokenizer.encode([" "])[0].tolist() == [space_id]
    return Found(tokenizer.encode([char])[0], extras={"printable_plus_specials": tokenizer.vocab_size})


@operation("next_token_target")
def next_token_target(text: str, row: int) -> int:
    ids = AsciiTokenizer().encode([text])[0].astype(np.uint8)
    source = SpanSource([ids], np.zeros(1), np.zeros(1), np.array([len(ids)]), len(ids), pad_id=0)
    return int(source.batch(np.arange(1))[1][0, row])


@operation("chunk")
def chunk(tokens: list[int], M: int, S: int, pad_id: int) -> np.ndarray:
    start, length = np.array(chunk_spans(len(tokens), M, S)).T
    source = SpanSource([np.array(tokens, dtype=np.uint8)], np.zeros(len(start)), start, length, M, pad_id)
    return source.batch(np.arange(len(start)))[0]


@operation("chunk_count")
def chunk_count(L: int, M: int, S: int) -> dict[str, int]:
    spans = chunk_spans(L, M, S)
    source = SpanSource([np.zeros(L, dtype=np.uint8)], np.zeros(len(spans)), *np.array(spans).T, M, 0)
    return {"n_chunks": len(spans), "chunk_len": source.batch(np.arange(1))[0].shape[1]}


@by_hand("split_lines")
def split_lines(text: str) -> list[str]:
    return text.splitlines()


# ---- sizes


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


# ---- arithmetic of the documents

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"2*x": lambda x: 2 * x, "x*x": lambda x: x * x}


@by_hand("residual_compose")
def residual_compose(x: float, d1: str, d2: str) -> list[Tensor]:
    middle = numbers(x) + FUNCTIONS[d1](numbers(x))
    return [middle + FUNCTIONS[d2](middle)]


@by_hand("residual_grad_sq")
def residual_grad_sq(f: str, x: float, grad_out: float) -> Tensor:
    point = numbers(x).requires_grad_()
    (point + FUNCTIONS[f](point)).backward(numbers(grad_out))
    return point.grad


@by_hand("residual_grad")
def residual_grad(dF: float, grad_out: float) -> Tensor:
    point = numbers(1.0).requires_grad_()
    (point + dF * point).backward(numbers(grad_out))
    return point.grad


@by_hand("normal_ppf_scaled")
def normal_ppf_scaled(u: Any, sigma: float) -> Tensor:
    return sigma * torch.special.ndtri(numbers(u))


@by_hand("exp_over")
def exp_over(logit: float, denominator: float) -> list[float]:
    return [math.exp(logit) / denominator]


@by_hand("sumexp")
def sumexp(x: Any) -> list[Tensor]:
    return [numbers(x).exp().sum()]


@by_hand("scaled")
def scaled(x: float, factor: float) -> list[float]:
    return [x * factor]


@by_hand("scale")
def scale(x: Any, factor: float) -> Found:
    return Found(numbers(x) * factor, extras={"with_exact_factor": numbers(x) / math.sqrt(3)})


@by_hand("percent")
def percent(parts: Any) -> Tensor:
    return 100 * numbers(parts) / numbers(parts).sum()


OPERATIONS.update(
    {
        "add": Operation(lambda a, b: numbers(a) + numbers(b), own=False),
        "mul": Operation(lambda a, b: numbers(a) * numbers(b), own=False),
        "dot": Operation(lambda x, w: [numbers(x) @ numbers(w)], own=False),
        "sqdiff": Operation(lambda a, b: (numbers(a) - numbers(b)).square(), own=False),
        "square": Operation(lambda x: numbers(x).square(), own=False),
        "sqrt": Operation(lambda x: [math.sqrt(x)], own=False),
        "div_sqrt2": Operation(lambda x: [x / math.sqrt(2)], own=False),
        "log": Operation(lambda x: numbers(x).log(), own=False),
        "cumsum": Operation(lambda p: numbers(p).cumsum(0), own=False),
    }
)
