"""The network: causality, positions, cached against uncached, parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from model import ModelConfig, Transformer, count_parameters
from model.cache import KVCache
from model.positions import sinusoidal_table

LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
VARIANTS: list[dict] = [
    {},
    {"pos": "sinusoidal"},
    {"pos": "none"},
    {"pos": "rope"},
    {"pos": "rope", "rope_layout": "interleaved"},
    {"pos": "rope", "rope_dim": 4},
    {"pos": "rope", "rope_layout": "interleaved", "rope_dim": 2, "head_dim": 3},
    {"pos": "rope", "rope_scaling": "linear", "rope_factor": 4.0},
    {"pos": "rope", "rope_scaling": "ntk", "rope_factor": 4.0},
    {"pos": "rope", "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 4},
    {"pos": "rope", "rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 4},
    {"norm": "rmsnorm"},
    {"norm_order": "post"},
    {"norm_order": "post", "final_norm": False},
    {"final_norm": False},
    {"norm_bias": False},
    {"norm_eps": 0.3},
    {"n_head": 4, "n_kv_head": 2},
    {"n_head": 4, "n_kv_head": 1},
    {"head_dim": 5},
    {"qk_norm": True},
    {"qk_norm": True, "pos": "rope"},
    {"window": 3},
    {"window": 1},
    {"act": "gelu_tanh"},
    {"act": "relu"},
    {"act": "relu2"},
    {"act": "swiglu"},
    {"act": "swiglu", "ffn_bias": False},
    {"d_ff": 24},
    {"attn_bias": False},
    {"ffn_bias": False},
    {"head_bias": True},
    {"tie_weights": False},
    {"vocab_multiple": 64},
    {"vocab_multiple": 64, "tie_weights": False, "head_bias": True},
    {"init": "xavier"},
    {"init_residual_scaling": False},
    {"pos": "sinusoidal", "tie_weights": False, "attn_bias": False},
    {**LLAMA, "n_head": 4, "n_kv_head": 2, "qk_norm": True, "window": 5, "vocab_multiple": 64},
]


def ids_of(n_rows: int, n_tokens: int, vocab_size: int = 31) -> torch.Tensor:
    return torch.randint(vocab_size, (n_rows, n_tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_token_changes_no_logits_before_it(build_model: Callable[..., Transformer], settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(1, 12)
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 31
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_a_token_changes_logits_of_all_later_positions(build_model: Callable[..., Transformer]) -> None:
    model, ids = build_model(), ids_of(1, 12)
    changed = ids.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 31
    with torch.no_grad():
        difference = (model(ids) - model(changed)).abs().amax(dim=-1)[0]
    assert (difference > 1e-5).all()


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_sinusoidal_table_is_the_formula(base: float) -> None:
    n, d = 64, 10
    expected = np.empty((n, d))
    for position in range(n):
        for pair in range(d // 2):
            angle = position / base ** (2 * pair / d)
            expected[position, 2 * pair : 2 * pair + 2] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(sinusoidal_table(n, d, base).numpy(), expected, atol=1e-12, rtol=0)


def test_pos_base_changes_the_network(build_model: Callable[..., Transformer]) -> None:
    ids = ids_of(1, 8)
    near, far = (build_model(pos="sinusoidal", pos_base=base) for base in (100.0, 10000.0))
    assert not torch.allclose(near(ids), far(ids), atol=1e-3)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_cached_logits_of_ragged_prompts_equal_uncached(
    build_model: Callable[..., Transformer], settings: dict
) -> None:
    model, ids = build_model(**settings), ids_of(3, 16)
    prompt_lengths, n_new = [1, 9, 5], 6
    prompts = torch.zeros(3, 9, dtype=torch.int64)
    for row, length in enumerate(prompt_lengths):
        prompts[row, :length] = ids[row, :length]
    cache = KVCache(model.config, 3)
    with torch.no_grad():
        whole = model(ids)
        first = model(prompts, cache=cache, lengths=torch.tensor(prompt_lengths))
        for row, length in enumerate(prompt_lengths):
            torch.testing.assert_close(first[row, :length], whole[row, :length], atol=1e-5, rtol=0)
        for step in range(n_new):
            at = [length + step for length in prompt_lengths]
            logits = model(ids[range(3), at][:, None], cache=cache)[:, 0]
            torch.testing.assert_close(logits, whole[range(3), at], atol=1e-5, rtol=0)


def test_cached_logits_equal_uncached_when_several_tokens_follow(
    build_model: Callable[..., Transformer],
) -> None:
    model, ids = build_model(), ids_of(2, 12)
    cache = KVCache(model.config, 2)
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 5), (5, 9), (9, 12))]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=0)


def test_too_long_sequence_is_refused(build_model: Callable[..., Transformer]) -> None:
    with pytest.raises(ValueError, match=r"17 tokens is longer than max_seq_len=16"):
        build_model()(ids_of(1, 17))


def test_full_cache_is_refused(build_model: Callable[..., Transformer]) -> None:
    model = build_model()
    cache = KVCache(model.config, 1, 4)
    model(ids_of(1, 4), cache=cache)
    with pytest.raises(ValueError, match="cannot take 1 more"):
        model(ids_of(1, 1), cache=cache)


def test_cache_beyond_the_context_is_refused(model_config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="expected 1 to max_seq_len=16"):
        KVCache(model_config, 1, 17)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_parameters_are_counted_without_the_network(settings: dict) -> None:
    config = ModelConfig(**{"vocab_size": 31, "d_model": 16, "n_layer": 3, **settings})
    model = Transformer(config)
    assert count_parameters(config) == count_parameters(model)
    assert count_parameters(config)["total"] == sum(parameter.numel() for parameter in model.parameters())


def test_published_gpt2_count_is_reproduced() -> None:
    config = ModelConfig(50257, max_seq_len=1024, n_layer=36, n_head=20, d_model=1280)
    assert count_parameters(config)["total"] == 774_030_080


def test_initial_loss_is_that_of_a_uniform_guess() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(1000, n_layer=2, d_model=64))
    ids = ids_of(4, 65, 1000)
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - np.log(1000)) < 0.1


def test_residual_projections_start_smaller_by_the_depth() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(10, n_layer=8, d_model=128, init_std=0.02))
    weights = dict(model.named_parameters())
    for name in ("blocks.3.attention.proj.weight", "blocks.3.mlp.down.weight"):
        assert weights[name].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert weights["blocks.3.mlp.up.weight"].std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_acts_in_training_only(build_model: Callable[..., Transformer], training: bool) -> None:
    model, ids = build_model(drop_resid=0.5).train(training), ids_of(1, 8)
    assert torch.equal(model(ids), model(ids)) is not training
