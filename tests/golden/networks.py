"""Whole networks: the toy network with its stated weights, shapes, embedding and head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from golden.registry import Entry, Found, operation
from golden.shared import float64, numbers, small_config, watched
from model import ModelConfig, Transformer, preset
from model.attention import attention_weights
from model.positions import rotary_table
from model.transformer import FeedForward
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


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
