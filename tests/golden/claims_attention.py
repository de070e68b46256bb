"""Claims on attention, its cache and the rotation."""

from __future__ import annotations

import math

import pytest
import torch

from golden.networks import toy_network
from golden.registry import Entry, behaviour
from golden.shared import built, example, noise, numbers, same, watched
from model import ModelConfig, preset
from model.attention import attention_mask, attention_weights
from model.kv_cache import KVCache
from model.positions import rotary_table, rotate, wavelength_frequencies


@behaviour("s000-attn-transfer")
def values_pass_attention_then_the_output_projection(entry: Entry) -> None:
    n, d = entry["inputs"]["n"], entry["inputs"]["d"]
    model = built(preset("sheepop", n_layer=1, d_model=d))
    attention, x = model.blocks[0].attention, noise(1, n, d)
    _, reading = model.plan(torch.zeros(1, n, dtype=torch.int64))
    q, k, v = attention.project(x)
    weights = attention_weights(q, k)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    assert same(attention(x, 0, reading), mixed @ attention.proj.weight.T)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = (x[0] @ attention.proj.weight.T) @ weights[0, 0]  # as printed: n x d times n x n


@behaviour("s001-dK")
def key_gradient_transposes_the_scores(entry: Entry) -> None:
    n, d_k = entry["inputs"]["n"], entry["inputs"]["d_k"]
    q, k, v, outer = (noise(1, n, d_k, seed=seed) for seed in range(4))
    k.requires_grad_()
    weights = attention_weights(q, k)
    (weights @ v).backward(outer)
    weights, d_weights = weights.detach()[0], (outer @ v.transpose(-2, -1))[0]
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
    assert same(k.grad[0], d_scores.T @ q[0] / math.sqrt(d_k))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = d_scores @ q[0].T.contiguous()[: n - 1]


@behaviour("s002-mask-formula")
def masked_scores_give_no_nan(entry: Entry) -> None:
    keep = numbers(entry["inputs"]["M"])
    n = len(keep)
    assert torch.equal(attention_mask(torch.arange(n), torch.arange(n)), keep.bool())
    weights = attention_weights(noise(1, n, 4), noise(1, n, 4, seed=2))[0]
    assert same(weights.sum(-1), torch.ones(n, dtype=torch.float64))
    assert not weights[~keep.bool()].any()
    assert (weights * keep + (1 - keep) * -math.inf).isnan().any()  # as printed


@behaviour("s003-proj-cut")
def last_key_and_value_of_the_second_token(entry: Entry) -> None:
    """Neither of the two printed versions is what the stated weights give."""
    model = toy_network(example("s003-chain-none")["inputs"])
    block = model.blocks[0]
    x = model.embed(torch.tensor([[4, 8]]), slice(2))
    _, k, v = block.attention.project(block.norm_attention(x))
    assert k[0, 1, 1, 2].item() == pytest.approx(example("s003-proj-k")["corrected_from_true_norm"][1][5], abs=1e-9)
    assert not any(abs(k[0, 1, 1, 2].item() - value) < 1 for value in entry["expected"]["key8_5"])
    assert not any(abs(v[0, 1, 1, 2].item() - value) < 1 for value in entry["expected"]["value8_5"])


@behaviour("s003-kv-order")
def a_cached_token_costs_one_row(entry: Entry) -> None:
    model = built(preset("llama", 32, n_layer=2, max_seq_len=16))
    ids = torch.arange(8)[None]
    cache = KVCache(model.config, 1, dtype=torch.float64)
    with torch.no_grad(), watched(model.blocks[0].attention.qkv) as calls:
        model(ids[:, :7], cache=cache)
        cached = model(ids[:, 7:], cache=cache)
        whole = model(ids)
    assert [given[0].shape[1] for given, _ in calls[model.blocks[0].attention.qkv]] == [7, 1, 8]
    assert same(cached[0, 0], whole[0, 7])


@behaviour("s003-rope-odd")
def an_odd_head_leaves_its_last_column(entry: Entry) -> None:
    width = entry["inputs"]["head_dim"]
    with pytest.raises(ValueError, match=f"head_dim={width} is odd"):
        ModelConfig(8, d_model=width, n_head=1, pos="rope")
    config = ModelConfig(8, d_model=width, n_head=1, pos="rope", rope_dim=width - 1)
    x = noise(4, 1, width)
    turned = rotate(x, rotary_table(config, 4), config.rope_layout)
    assert torch.equal(turned[..., -1], x[..., -1])
    assert same(turned.norm(dim=-1), x.norm(dim=-1))
    assert not same(turned[1:, :, :-1], x[1:, :, :-1])


@behaviour("s003-rope-order")
def rotation_slows_down_with_the_pair(entry: Entry) -> None:
    found = wavelength_frequencies(entry["inputs"]["dim"], entry["inputs"]["base"])
    assert entry["expected"] == "increasing"
    assert (found.diff() < 0).all()
    corrected = entry["corrected"]
    assert [found[0].item(), found[-1].item()] == pytest.approx([corrected["first"], corrected["last"]], abs=1e-9)
