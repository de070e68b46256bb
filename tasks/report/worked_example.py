"""Vocabulary and weights of the network in the LLaMA walk-through (preset "llama_toy").

The walk-through gives all weights but those of the feed-forward layer: four of 24 columns of the gate, and nothing of
the up and down matrices, which keep their random initial weights. So values up to these columns of the gate are
reproduced.
"""

from __future__ import annotations

import torch

from model.transformer import Block, Transformer
from tasks.tokens.tokenizer_kinds import WordTokenizer

WORDS = {"Hi": 4, "Thomas": 8, "Nguyen": 9}
_NORM = [1.05, 0.95, 1.02, 0.98, 1.03, 0.97]
_FINAL_NORM = [1.02, 0.98, 1.03, 0.97, 1.01, 0.99]
_GATE = [
    [0.1, 0.2, 0.3, 0.4],
    [0.5, 0.6, 0.7, 0.8],
    [0.9, 1.0, 1.1, 1.2],
    [0.2, 0.3, 0.4, 0.5],
    [0.6, 0.7, 0.8, 0.9],
    [0.3, 0.4, 0.5, 0.6],
]
_HEAD = [0.03, 0.02, 0.05, -0.01, -0.04, 0.01]  # row of id 0; each next row adds 0.01 * _HEAD_SIGNS
_HEAD_SIGNS = [1.0, 1.0, -1.0, -1.0, 1.0, 1.0]


def words() -> WordTokenizer:
    """Return the tokeniser of the three words."""
    return WordTokenizer(WORDS)


@torch.no_grad()
def state_weights(network: Transformer) -> None:
    """Write the given weights into a network of the preset "llama_toy"."""
    (block,) = network.blocks
    assert isinstance(block, Block) and network.untied_head is not None
    row, column = torch.arange(6.0)[:, None], torch.arange(6.0)
    ids, signs = torch.arange(10.0)[:, None], torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    network.token_embedding.weight.copy_((ids + 1 + column % 3) / 10 * signs)
    # the walk-through multiplies row vectors from the left; attention matrices are symmetric, so none is transposed
    block.attention.q.weight.copy_((row + column + 1) / 10)
    block.attention.k.weight.copy_((row + column + 1.5) / 10)
    block.attention.v.weight.copy_((row + column + 0.5) / 10)
    block.attention.proj.weight.copy_((row + column + 2) / 20)
    assert block.mlp.gate is not None
    block.mlp.gate.weight[:4] = torch.tensor(_GATE).T
    for norm, gains in ((block.norm_attention, _NORM), (block.norm_mlp, _NORM), (network.norm, _FINAL_NORM)):
        norm.get_parameter("weight").copy_(torch.tensor(gains))
    network.untied_head.weight.copy_(torch.tensor(_HEAD) + ids / 100 * torch.tensor(_HEAD_SIGNS))
