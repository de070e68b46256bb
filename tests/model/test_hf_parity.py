"""The same weights give the same logits and gradients here and in `transformers`, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_parity import LIMIT, Difference, compare, load_theirs, random_network, random_shape, random_theirs

from model import ModelConfig, from_hf, to_hf

ATTENTION = ("sdpa", "eager")
N_SHAPES = 12  # of each layout and direction
QUICK = (0, 1, 3)  # llama and qwen3: no scaling, linear, yarn
CASES = [
    pytest.param(layout, number, id=f"{layout}-{number}", marks=() if number in QUICK else pytest.mark.full)
    for layout in ("gpt2", "llama", "qwen3")
    for number in range(N_SHAPES)
]


def tell(name: str, attention: str, found: Difference, config: ModelConfig) -> None:
    """A row of the table: pytest -s shows it."""
    fields = ("vocab_size", "max_seq_len", "n_layer", "n_head", "n_kv_head", "head_dim", "d_model", "d_ff", "act")
    fields += ("rope_scaling", "pos_base", "attn_bias", "ffn_bias", "tie_weights", "norm_eps")
    shape = " ".join(str(getattr(config, name)) for name in fields)
    print(f"\nPARITY {name:18} {attention:5} {found.logits:.1e} {found.gradients:.1e} {shape}")


@pytest.mark.parametrize(("layout", "number"), CASES)
def test_a_network_of_ours_computes_the_same_in_transformers(layout: str, number: int, tmp_path: Path) -> None:
    ours = random_network(random_shape(layout, number), seed=number)
    to_hf(ours, tmp_path / "exported")
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
