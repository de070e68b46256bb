"""Whole networks and the layers that are taken out of one: the toy network, shapes, sums, heads, lookups.

What depends on the network's module names stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Shape
from golden.shared import built, float64, numbers, small_config, watched
from model import ModelConfig, Transformer, preset
from model.attention import attention_weights, rotary_table
from model.transformer import WHOLE, Attention, Block, Pass, build_norm
from tasks.report.inspection import Subject, inspect_prompt
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


def projections(attention: Attention) -> tuple[nn.Module, list[Tensor]]:
    """The layer that computes keys, and the matrices (out, in) of queries, keys and values, to be written into."""
    return attention.k, [layer.weight.data for layer in (attention.q, attention.k, attention.v)]


def linear(x: Tensor, matrix: Tensor) -> Tensor:
    """x (..., in) times a matrix (in, out), from a network's output layer."""
    model = built(small_config(vocab_size=matrix.shape[1], d_model=len(matrix), tie_weights=False))
    model.untied_head.weight.data = matrix.T
    return model.head(x).detach()


def embedded(model: Transformer, ids: Any) -> Tensor:
    """States (T, D) that enter the first block."""
    return placed(model, torch.tensor([ids]), slice(len(ids)))[0].detach()


def placed(model: Transformer, ids: Tensor, positions: Tensor | slice) -> Tensor:
    """Token vectors (B, T, D) with those of their positions."""
    return model.place(model.token_embedding(ids), Pass(positions))


def pass_over(n: int) -> Pass:
    """Return the `Pass` of a row of n tokens without a cache."""
    return Transformer(small_config(max_seq_len=max(2, n))).plan(torch.zeros(1, n, dtype=torch.int64))


def token_distances(vectors: Tensor) -> Tensor:
    """Distances between tokens of these vectors (n, D), as the inspection measures them."""
    model = built(small_config(vocab_size=128, d_model=vectors.shape[1], max_seq_len=max(2, len(vectors))))
    model.token_embedding.weight.data[64 : 64 + len(vectors)] = vectors
    text = "".join(chr(64 + place) for place in range(len(vectors)))
    return inspect_prompt(Subject("vectors", model, AsciiTokenizer(), bos=False), text).distances


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
    """Return the output of a pre-norm block without norms for x, with one or two branches."""
    block = block_of(d_model=1)
    block.norm_attention, block.norm_mlp = nn.Identity(), nn.Identity()
    block.attention, block.mlp = map(Branch, (*branches, torch.zeros_like)[:2])
    return block(x, 0, WHOLE)


def residual_gradient(branch: Callable[[Tensor], Tensor], x: float, grad_out: float) -> Tensor:
    point = numbers(x).requires_grad_()
    residual(point, branch).backward(numbers(grad_out))
    assert point.grad is not None
    return point.grad


TOY_INPUTS = (
    *("ids", "embedding", "n_heads", "eps", "rope", "convention", "attn_norm_weight", "ffn_norm_weight"),
    *("W_q", "W_k", "W_v", "W_o", "W_gate_4cols"),
)


def toy_network(inputs: Mapping[str, Any]) -> Transformer:
    """The llama_toy preset with the stated weights, in float64; what is not stated stays random."""
    embedding = numbers(inputs["embedding"])
    shape = {"d_model": embedding.shape[1], "n_head": inputs["n_heads"], "norm_eps": inputs["eps"]}
    config = preset("llama_toy", len(embedding), **shape)
    model = built(config)
    block, gate = model.blocks[0], numbers(inputs["W_gate_4cols"]).T
    with torch.no_grad():
        model.token_embedding.weight.copy_(embedding)
        block.norm_attention.weight.copy_(numbers(inputs["attn_norm_weight"]))
        block.norm_mlp.weight.copy_(numbers(inputs["ffn_norm_weight"]))
        for own, stated in zip(projections(block.attention)[1], ("W_q", "W_k", "W_v"), strict=True):
            own.copy_(numbers(inputs[stated]).T)
        block.attention.proj.weight.copy_(numbers(inputs["W_o"]).T)
        block.mlp.gate.weight[: len(gate)] = gate
    if inputs["rope"] == "none":
        model.rotation_table = None
    elif inputs["rope"] == "printed":  # the document's own cosine and sine at position 1
        model.rotation_table = numbers([[[1.0, 0.0]], [[0.9995, 0.0314]]])
    else:
        model.rotation_table = rotary_table(config, config.max_seq_len)
    return model


def network_shapes(config: ModelConfig, n_rows: int, n_tokens: int) -> dict[str, Shape]:
    """Shapes that the network's own forward pass meets, on the meta device: real code, no memory."""
    with torch.device("meta"):
        model = Transformer(config).eval()
        ids = torch.zeros(n_rows, n_tokens, dtype=torch.int64)
        attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
        with watched(attention, attention.proj, mlp.up, mlp) as calls:
            logits = model(ids)
        (normed, _, now), _ = calls[attention][0]
        heads = dict(zip("QKV", attention.project(normed, now.rotation), strict=True))
        weights = attention_weights(heads["Q"], heads["K"])
        joined = {name: part.transpose(1, 2).flatten(2) for name, part in heads.items()}
        found = {**joined, "qkv": torch.cat(list(joined.values()), dim=-1)}
        found |= {f"{name}_heads": part for name, part in heads.items()} | {"q_heads": heads["Q"]}
        found |= {"X": placed(model, ids, slice(n_tokens)), "att": weights, "logits": logits}
        found |= {"S0": weights[:, 0], "O0": (weights @ heads["V"])[:, 0], "O": calls[attention.proj][0][1]}
        found |= {"H": calls[mlp.up][0][1], "ffn_out": calls[mlp][0][1]}
    matrices = dict(zip(("W_Q", "W_K", "W_V"), projections(attention)[1], strict=True))
    matrices |= {"W_O": attention.proj.weight, "W1": mlp.up.weight, "W2": mlp.down.weight}
    found |= {name: matrix.T for name, matrix in matrices.items()} | {"E": model.token_embedding.weight}
    return {name: Shape(value.shape) for name, value in found.items()}


def norm_layer(width: int, eps: float, kind: str = "layernorm") -> nn.Module:
    return build_norm(small_config(d_model=width, norm=kind, norm_eps=eps)).double().requires_grad_(False)
