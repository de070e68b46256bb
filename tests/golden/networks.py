"""Whole networks and the layers that are taken out of one: the toy network, shapes, sums, heads, lookups.

What depends on the network's module names stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Entry, Found, Shape, operation
from golden.shared import built, float64, numbers, small_config, watched
from model import ModelConfig, Transformer, preset
from model.attention import Attention, attention_weights, scaled_scores
from model.positions import rotary_table, sinusoidal_table
from model.transformer import Block, FeedForward
from tasks.report.inspection import Subject, inspect_prompt
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


def projections(attention: Attention) -> tuple[nn.Module, list[Tensor]]:
    """The layer that computes keys, and the matrices (out, in) of queries, keys and values, to be written into."""
    return attention.qkv, list(attention.qkv.weight.data.split([n * attention.head_dim for n in attention.heads]))


def linear(x: Tensor, matrix: Tensor) -> Tensor:
    """x (..., in) times a matrix (in, out), from a network's output layer."""
    model = built(small_config(vocab_size=matrix.shape[1], d_model=len(matrix), tie_weights=False))
    model.untied_head.weight.data = matrix.T
    return model.head(x).detach()


def embedded(model: Transformer, ids: Any) -> Tensor:
    """States (T, D) that enter the first block."""
    return model.embed(torch.tensor([ids]), slice(len(ids)))[0].detach()


def reading_of(n: int) -> Any:
    """What each layer is told of a row of n tokens without a cache."""
    return Transformer(small_config(max_seq_len=max(2, n))).plan(torch.zeros(1, n, dtype=torch.int64))[1]


def token_distances(vectors: Tensor) -> Tensor:
    """Distances between tokens of these vectors (n, D), as the inspection measures them."""
    model = built(small_config(vocab_size=128, d_model=vectors.shape[1], max_seq_len=max(2, len(vectors))))
    model.token_embedding.weight.data[64 : 64 + len(vectors)] = vectors
    text = "".join(chr(64 + place) for place in range(len(vectors)))
    return inspect_prompt(Subject("vectors", model, AsciiTokenizer(), bos=False), text).distances


@operation("sqdiff")
def sqdiff(a: Any, b: Any) -> list[Tensor]:
    pairs = zip(a, b, strict=True)
    return [token_distances(numbers([[one, 0.0], [other, 0.0]]))[0, 1] ** 2 for one, other in pairs]


class Branch(nn.Module):
    """A function of the residual stream in place of attention or of the feed-forward layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return self.function(x)


def block_of(**fields: Any) -> Block:
    with float64(), torch.random.fork_rng():
        torch.manual_seed(0)
        return Block(small_config(**fields))


def residual(x: Tensor, *branches: Callable[[Tensor], Tensor]) -> Tensor:
    """What a pre-norm block without norms makes of x with one or two branches."""
    block = block_of(d_model=1)
    block.norm_attention, block.norm_mlp = nn.Identity(), nn.Identity()
    block.attention, block.mlp = map(Branch, (*branches, torch.zeros_like)[:2])
    return block(x, 0, None)


@operation("matmul")
def matmul(A: Any, B: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    parts = {}
    if "corrected_from_true_norm" in entry:  # the printed rows of A are the toy network's first norm, rounded
        toy = toy_network(**others["s003-chain-none"]["inputs"])
        states = embedded(toy, others["s003-chain-none"]["inputs"]["ids"])
        parts["corrected_from_true_norm"] = linear(toy.blocks[0].norm_attention(states), numbers(B))
    return Found(linear(numbers(A), numbers(B)), parts=parts)


@operation("matmul_T")
def matmul_transposed(A: Any, B: Any) -> Tensor:
    return linear(numbers(A), numbers(B).T)


@operation("dot")
def dot(x: Any, w: Any) -> Tensor:
    return linear(numbers(x), numbers(w)[:, None])


@operation("add")
def add(a: Any, b: Any) -> Tensor:
    return residual(numbers(a), lambda _: numbers(b))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"2*x": lambda x: 2 * x, "x*x": lambda x: x * x}


@operation("residual_compose")
def residual_compose(x: float, d1: str, d2: str) -> list[Tensor]:
    return [residual(numbers(x), FUNCTIONS[d1], FUNCTIONS[d2])]


@operation("residual_grad_sq")
def residual_grad_sq(f: str, x: float, grad_out: float) -> Tensor:
    return residual_gradient(FUNCTIONS[f], x, grad_out)


@operation("residual_grad")
def residual_grad(dF: float, grad_out: float) -> Tensor:
    return residual_gradient(lambda x: dF * x, 1.0, grad_out)


def residual_gradient(branch: Callable[[Tensor], Tensor], x: float, grad_out: float) -> Tensor:
    point = numbers(x).requires_grad_()
    residual(point, branch).backward(numbers(grad_out))
    assert point.grad is not None
    return point.grad


def toy_network(
    *,
    ids: list[int],
    embedding: Any,
    n_heads: int,
    eps: float,
    rope: str,
    W_q: Any,
    W_k: Any,
    W_v: Any,
    W_o: Any,
    W_gate_4cols: Any,
    attn_norm_weight: Any,
    ffn_norm_weight: Any,
    convention: str = "",
) -> Transformer:
    """The llama_toy preset with the stated weights, in float64; what is not stated stays random."""
    shape = {"d_model": len(embedding[0]), "n_head": n_heads, "norm_eps": eps}
    config = preset("llama_toy", len(embedding), **shape)
    model = built(config)
    block, gate = model.blocks[0], numbers(W_gate_4cols).T
    with torch.no_grad():
        model.token_embedding.weight.copy_(numbers(embedding))
        block.norm_attention.weight.copy_(numbers(attn_norm_weight))
        block.norm_mlp.weight.copy_(numbers(ffn_norm_weight))
        for own, stated in zip(projections(block.attention)[1], (W_q, W_k, W_v), strict=True):
            own.copy_(numbers(stated).T)
        block.attention.proj.weight.copy_(numbers(W_o).T)
        block.mlp.gate.weight[: len(gate)] = gate
    if rope == "none":
        model.rotation_table = None
    elif rope == "printed":  # the document's own cosine and sine at position 1
        model.rotation_table = numbers([[[1.0, 0.0]], [[0.9995, 0.0314]]])
    else:
        model.rotation_table = rotary_table(config, config.max_seq_len)
    return model


@operation("toy_layer")
def toy_layer(**inputs: Any) -> dict[str, Tensor]:
    """The whole network is run; the intermediates are what its modules were given and gave."""
    model = toy_network(**inputs)
    block, n_gate = model.blocks[0], len(inputs["W_gate_4cols"][0])
    attention, mlp = block.attention, block.mlp
    with torch.no_grad(), watched(attention, attention.proj, block.norm_mlp, mlp.gate, mlp.up, mlp.down) as calls:
        model(torch.tensor([inputs["ids"]]))
    (normed, _, reading), _ = calls[attention][0]
    ((context,), attended), ((states,), post_norm) = calls[attention.proj][0], calls[block.norm_mlp][0]
    gate, up, (hidden,) = calls[mlp.gate][0][1], calls[mlp.up][0][1], calls[mlp.down][0][0]
    with torch.no_grad():
        (q, k, v), (q_raw, k_raw, _) = attention.project(normed, reading.rotation), attention.project(normed)
    return {
        **{"attn_norm": normed[0], "q": q_raw[0], "k": k_raw[0], "q_rope": q[0], "k_rope": k[0], "v": v[0]},
        **{"scaled_scores": scaled_scores(q, k)[0], "weights": attention_weights(q, k)[0]},
        **{"context": context[0], "attn_out": attended[0], "residual": states[0], "post_norm": post_norm[0]},
        "gate_proj_4cols": gate[0, :, :n_gate],
        "silu_gate_4cols": (hidden / up)[0, :, :n_gate],  # what the layer multiplies its up projection with
    }


def network_shapes(config: ModelConfig, n_rows: int, n_tokens: int) -> dict[str, Shape]:
    """Shapes that the network's own forward pass meets, on the meta device: real code, no memory."""
    with torch.device("meta"):
        model = Transformer(config).eval()
        ids = torch.zeros(n_rows, n_tokens, dtype=torch.int64)
        attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
        with watched(attention, attention.proj, mlp.up, mlp) as calls:
            logits = model(ids)
        (normed, _, reading), _ = calls[attention][0]
        heads = dict(zip("QKV", attention.project(normed, reading.rotation), strict=True))
        weights = attention_weights(heads["Q"], heads["K"])
        joined = {name: part.transpose(1, 2).flatten(2) for name, part in heads.items()}
        found = {**joined, "qkv": torch.cat(list(joined.values()), dim=-1)}
        found |= {f"{name}_heads": part for name, part in heads.items()} | {"q_heads": heads["Q"]}
        found |= {"X": model.embed(ids, slice(n_tokens)), "att": weights, "logits": logits}
        found |= {"S0": weights[:, 0], "O0": (weights @ heads["V"])[:, 0], "O": calls[attention.proj][0][1]}
        found |= {"H": calls[mlp.up][0][1], "ffn_out": calls[mlp][0][1]}
    matrices = dict(zip(("W_Q", "W_K", "W_V"), projections(attention)[1], strict=True))
    matrices |= {"W_O": attention.proj.weight, "W1": mlp.up.weight, "W2": mlp.down.weight}
    found |= {name: matrix.T for name, matrix in matrices.items()} | {"E": model.token_embedding.weight}
    return {name: Shape(value.shape) for name, value in found.items()}


@operation("shapes")
def shapes(
    V: int,
    B: int = 0,
    T: int = 0,
    n: int = 0,
    C: int = 0,
    d: int = 0,
    h: int = 0,
    n_head: int = 0,
    d_ff: int = 0,
    prompt: str = "",
    sampled: int = 0,
) -> dict[str, Any]:
    """Of a network, whose sizes two documents call by other letters, or of two steps of generation."""
    if prompt:
        ids = AsciiTokenizer().encode([prompt])[0].tolist()
        model = Transformer(preset("sheepop", V, n_layer=1)).eval()
        steps = [ids, [*ids, sampled]]
        first, second = (Shape(model(torch.tensor([step])).shape) for step in steps)
        return {"ids0": steps[0], "logits1": first, "ids1": steps[1], "logits2": second}
    if C:
        config = preset("light_llm", V, d_model=C, n_head=n_head)
    else:
        config = preset("sheepop", V, d_model=d, n_head=h, d_ff=d_ff)
    batched = network_shapes(config, B or 1, T or n)
    if B:
        return batched
    matrices = ("W_Q", "W_K", "W_V", "W_O", "W1", "W2", "E")  # one text stands in the documents without a batch
    return {name: one if name in matrices else Shape(one[1:]) for name, one in batched.items()}


@operation("shape")
def shape(
    others: Mapping[str, Entry], rows: Any = None, columns: int = 0, cells: Any = None, d: int = 0, d_ff: int = 0
) -> Found:
    """Of a stated matrix (in, out) as the network's layer takes it, or of its first feed-forward matrix (out, in)."""
    if rows is None:
        with torch.device("meta"):
            found = Shape(FeedForward(small_config(d_model=d, d_ff=d_ff)).up.weight.shape)
        return Found(found, parts=found.parts())
    if not isinstance(rows, list):
        rows = (numbers(cells) if isinstance(cells, list) else torch.zeros(rows * columns)).reshape(rows, columns).tolist()
    found = Shape([len(rows), linear(torch.eye(len(rows), dtype=torch.float64), numbers(rows)).shape[1]])
    x = numbers(others["s000-ffn-h00"]["inputs"]["x"])
    hidden = linear(x, numbers(rows)) if len(x) == len(rows) else []
    return Found(found, parts={**found.parts(), "second_unit": hidden[1] if len(hidden) > 1 else None})


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
    model = built(small_config(vocab_size=len(table), d_model=len(table[0]), max_seq_len=max(2, len(ids))))
    model.token_embedding.weight.data = numbers(table)
    return embedded(model, ids)


@operation("matvec")
def matvec(W: Any, x: Any, entry: Entry, others: Mapping[str, Entry]) -> Found:
    parts = {}
    if "corrected_from_true_final_norm" in entry:
        normed = numbers(others["s003-final8"]["corrected"])
        parts["corrected_from_true_final_norm"] = linear(normed, numbers(W).T)
    return Found(linear(numbers(x), numbers(W).T), parts=parts)


@operation("row")
def row(index: int, table: Any) -> Tensor:
    return linear(torch.eye(len(table[0]), dtype=torch.float64), numbers(table).T)[:, index]


@operation("split_heads")
def split_heads(x: Any, n_heads: int) -> Tensor:
    attention = block_of(d_model=len(x), n_head=n_heads, attn_bias=False).attention
    query, *rest = projections(attention)[1]
    nn.init.eye_(query)
    return attention.project(numbers([[x]]))[0][0, :, 0].detach()


@operation("embed_plus_pe")
def embed_plus_pe(x: Any, positions: list[int], dims: list[int], d: int, base: float) -> Tensor:
    """Through the network's own sum: the stated columns of the embedding are loaded, the table is its table."""
    config = small_config(vocab_size=len(x), max_seq_len=max(positions) + 2, d_model=d, pos="sinusoidal", pos_base=base)
    model = built(config)
    model.position_table = sinusoidal_table(config.max_seq_len, d, base)  # the buffer itself is rounded to float32
    model.token_embedding.weight.data[:, dims] = numbers(x)
    return model.embed(torch.arange(len(x))[None], torch.tensor(positions))[0][:, dims].detach()
