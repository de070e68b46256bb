"""The network: causality, positions, cached against uncached, parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_variants import VARIANTS, ids_of

from model import ModelConfig, Transformer, count_parameters
from model.kv_cache import KVCache


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_token_changes_no_logits_before_it(build_model: Callable[..., Transformer], settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(1, 12)
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 31
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


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
        first = model(prompts, cache=cache)
        cache.lengths = torch.tensor(prompt_lengths)  # without the padding
        for row, length in enumerate(prompt_lengths):
            torch.testing.assert_close(first[row, :length], whole[row, :length], atol=1e-5, rtol=0)
        for step in range(n_new):
            at = [length + step for length in prompt_lengths]
            logits = model(ids[range(3), at][:, None], cache=cache)[:, 0]
            torch.testing.assert_close(logits, whole[range(3), at], atol=1e-5, rtol=0)


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
