"""Claims on norms and blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from golden.layers import norm_layer
from golden.registry import Entry, behaviour
from golden.shared import built, float64, noise, numbers, same, small_config, watched
from model import Transformer, count_parameters, preset
from model.transformer import Block, activate


@behaviour("s001-ln-eps")
def eps_stands_inside_the_root(entry: Entry) -> None:
    eps = entry["inputs"]["eps"]
    assert preset("sheepop").norm_eps == eps
    row = numbers([1.0, 2.0, 3.0, 4.0])
    found = norm_layer(4, eps)(row)
    centred, variance = row - row.mean(), row.var(correction=0)
    assert same(found, centred / (variance + eps).sqrt())
    assert not same(found, centred / (variance.sqrt() + eps))


@behaviour("s002-ln-noeps")
def a_constant_row_is_normalised_to_zero(entry: Entry) -> None:
    config = preset("light_llm")
    assert config.norm_eps == 1e-5
    assert norm_layer(4, config.norm_eps)(numbers([3.0] * 4)).tolist() == [0.0] * 4


@behaviour("s000-final-norm", "s002-final-norm")
def the_head_reads_normalised_states(entry: Entry) -> None:
    name = "sheepop" if entry["id"].startswith("s000") else "light_llm"
    shape = {"n_layer": 2, "d_model": 48, "vocab_size": 32, "n_head": 6}
    model = built(preset(name, **shape))
    ids = torch.arange(5)[None]
    with watched(model.blocks[-1]) as calls:
        logits = model(ids)
    last = calls[model.blocks[-1]][0][1]
    assert same(logits, model.norm(last) @ model.head_weight.T)
    bare = preset(name, **{**shape, "final_norm": False})
    assert count_parameters(model.config)["total"] - count_parameters(bare)["total"] == 2 * bare.d_model


def block_of(**fields: Any) -> Block:
    with float64():
        return Block(small_config(d_model=16, n_head=2, **fields))


@behaviour("s000-block-13.1")
def a_block_adds_both_branches(entry: Entry) -> None:
    block, x = block_of().eval(), noise(1, 4, 16)
    _, reading = Transformer(small_config()).plan(torch.zeros(1, 4, dtype=torch.int64))
    middle = x + block.attention(block.norm_attention(x), 0, reading)
    assert same(block(x, 0, reading), middle + block.mlp(block.norm_mlp(middle)))
    assert not same(block(x, 0, reading), x + block.mlp(block.norm_mlp(middle)))  # as printed


@behaviour("s000-block-10.2")
def a_block_drops_each_branch_once(entry: Entry) -> None:
    block, x = block_of(drop_resid=0.5).train(), noise(1, 4, 16)
    _, reading = Transformer(small_config()).plan(torch.zeros(1, 4, dtype=torch.int64))
    with torch.random.fork_rng(), watched(block.dropout, block.norm_mlp) as calls:
        torch.manual_seed(0)
        out = block(x, 0, reading)
    (_, attended), (_, fed) = calls[block.dropout]
    assert (attended == 0).any()
    ((middle,), _) = calls[block.norm_mlp][0]
    assert same(middle, x + attended)
    assert same(out, middle + fed)


@behaviour("s000-feedback")
def the_network_is_no_linear_loop(entry: Entry) -> None:
    """G / (1 + G H) holds for numbers; with H = 0 it is G, and the network is not linear enough for more."""
    gain, back = entry["inputs"]["G"], entry["inputs"]["H1"]
    assert gain / (1 + gain * back) == pytest.approx(entry["expected"], abs=1e-12)
    assert gain / (1 + gain * 0.0) == gain
    block, x = block_of().eval(), noise(1, 4, 16)
    _, reading = Transformer(small_config()).plan(torch.zeros(1, 4, dtype=torch.int64))
    assert same(block(x, 0, reading), block(x, 0, reading))  # nothing comes back from one pass to the next
    assert not same(block(2 * x, 0, reading), 2 * block(x, 0, reading))
    assert not same(activate(2 * x, "gelu"), 2 * activate(x, "gelu"))
