"""The same weights give the same logits and gradients here and in `transformers`, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hf_parity import (
    LIMIT,
    Difference,
    compare,
    load_theirs,
    perturb,
    random_network,
    random_shape,
    random_theirs,
    write_original,
)

from model import ModelConfig, from_hf, to_hf
from model.hf_config import GEMMA3

ATTENTION = ("sdpa", "eager")
N_SHAPES = 12  # of each layout and direction
# rotary layouts: no scaling, linear, yarn
QUICK = {
    ("gpt2", 0),
    ("llama", 1),
    ("mistral", 3),
    ("qwen2", 0),
    ("qwen3", 0),
    ("smollm3", 0),
    ("gemma", 0),
    (GEMMA3, 0),
}
CASES = [
    pytest.param(layout, number, id=f"{layout}-{number}", marks=() if (layout, number) in QUICK else pytest.mark.full)
    for layout in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", GEMMA3)
    for number in range(N_SHAPES)
]


def tell(name: str, attention: str, found: Difference, config: ModelConfig) -> None:
    """A row of the table: pytest -s shows it."""
    fields = ("vocab_size", "max_seq_len", "n_layer", "n_head", "n_kv_head", "head_dim", "d_model", "d_ff", "act")
    fields += ("rope_scaling", "pos_base", "attn_bias", "qkv_bias", "ffn_bias", "window", "tie_weights", "norm_eps")
    shape = " ".join(str(getattr(config, name)) for name in fields)
    print(f"\nPARITY {name:18} {attention:5} {found.logits:.1e} {found.gradients:.1e} {shape}")


@pytest.mark.parametrize(("layout", "number"), CASES)
def test_a_network_of_ours_computes_the_same_in_transformers(layout: str, number: int, tmp_path: Path) -> None:
    ours = random_network(random_shape(layout, number), seed=number)
    to_hf(ours, tmp_path / "exported", layout)
    for attention in ATTENTION:
        found = compare(ours, load_theirs(tmp_path / "exported", attention))
        tell(f"ours to {layout} {number}", attention, found, ours.config)
        assert found.logits <= LIMIT
        assert found.gradients <= LIMIT, found.worst


@pytest.mark.parametrize(("layout", "number"), CASES)
def test_a_network_of_transformers_computes_the_same_here(layout: str, number: int, tmp_path: Path) -> None:
    random_theirs(layout, number).save_pretrained(tmp_path)
    ours = from_hf(tmp_path)
    for attention in ATTENTION:
        theirs = load_theirs(tmp_path, attention)
        found = compare(ours, theirs)
        tell(f"{layout} {number} to ours", attention, found, ours.config)
        assert found.logits <= LIMIT
        assert found.gradients <= LIMIT, found.worst


@pytest.mark.parametrize("number", range(3))
def test_a_llama_in_its_own_names_computes_the_same_here(number: int, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, heads, shared = ((32, 4, 2), (24, 3, 3), (40, 2, 1))[number]
    torch.manual_seed(number)
    shape = {"vocab_size": 50, "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": heads}
    # the width that multiple_of and ffn_dim_multiplier of its params.json stand for
    shape |= {"num_key_value_heads": shared, "intermediate_size": {32: 112, 24: 88, 40: 144}[width]}
    theirs = LlamaForCausalLM(LlamaConfig(**shape, initializer_range=width**-0.5)).eval()
    perturb(theirs)
    write_original(theirs, tmp_path)
    ours = from_hf(tmp_path)
    assert (ours.config.rope_layout, ours.config.max_seq_len) == ("interleaved", 2048)
    found = compare(ours, theirs, n_tokens=64)
    assert found.logits <= LIMIT
    assert found.gradients <= LIMIT, found.worst
