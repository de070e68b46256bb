"""Faults of widely copied training and sampling code that this network must not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from model import GenerationConfig, Transformer, generate, preset
from model.sampling import filter_top_k, token_probabilities

Build = Callable[..., Transformer]


def ids_of(n_rows: int, n_tokens: int, vocab_size: int = 31) -> torch.Tensor:
    return torch.randint(0, vocab_size, (n_rows, n_tokens), generator=torch.Generator().manual_seed(0))


@contextmanager
def default_device(name: str) -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(before)


def test_the_loss_of_a_shifted_slice_is_that_of_its_copy(build_model: Build) -> None:
    model, ids = build_model(), ids_of(3, 9)
    inputs, labels = ids[:, :-1], ids[:, 1:]
    assert not labels.is_contiguous()
    loss = model.loss(inputs, labels)
    loss.backward()
    assert loss.item() == model.loss(inputs.contiguous(), labels.contiguous()).item()


@pytest.mark.parametrize("pos", ["learned", "sinusoidal", "rope", "none"])
def test_a_sequence_beyond_the_context_is_refused_in_words(build_model: Build, pos: str) -> None:
    model = build_model(pos=pos)
    with pytest.raises(ValueError, match="17 tokens is longer than max_seq_len=16"):
        model(ids_of(1, 17))


def test_generation_rolls_on_beyond_the_context(build_model: Build) -> None:
    answers = generate(build_model(), [list(range(14)), list(range(30))], GenerationConfig(40, seed=3))
    assert [(len(answer.ids), answer.finish_reason) for answer in answers] == [(40, "length")] * 2
    assert all(math.isfinite(value) for answer in answers for value in answer.logprobs)


def test_temperature_zero_is_the_likeliest_token_each_time(build_model: Build) -> None:
    model, ids = build_model(), [3, 1, 4]
    for token in generate(model, [ids], GenerationConfig(6, temperature=0.0, seed=5))[0].ids:
        assert token == int(model(torch.tensor([ids]))[0, -1].argmax())
        ids = [*ids, token]


def test_a_tiny_temperature_is_greedy_and_no_nan() -> None:
    logits = torch.tensor([1.0, 300.0, -200.0])
    assert token_probabilities(logits, 1e-300).tolist() == [0.0, 1.0, 0.0]


def test_top_k_beyond_the_vocabulary_changes_nothing(build_model: Build) -> None:
    logits = torch.linspace(-1, 1, 31)
    assert torch.equal(filter_top_k(logits, 1000), logits)
    found = [generate(build_model(), [[1]], GenerationConfig(5, seed=2, top_k=k))[0].ids for k in (None, 1000)]
    assert found[0] == found[1]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pos", ["learned", "rope"])
def test_a_forward_pass_makes_nothing_on_the_default_device(build_model: Build, window: int | None, pos: str) -> None:
    model, ids = build_model(window=window, pos=pos), ids_of(2, 8)
    before = model(ids)
    with default_device("meta"):  # a mask made without a device would lie there, without values
        assert torch.equal(model(ids), before)
        assert model.loss(ids, ids).isfinite()


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("name", ["fundamentals", "fundamentals-pre", "gpt2", "llama"])
def test_an_untrained_network_starts_at_the_log_of_its_vocabulary(name: str, tie_weights: bool) -> None:
    shape = {"d_model": 32, "n_head": 4, "n_layer": 2, "max_seq_len": 16, "d_ff": 128, "tie_weights": tie_weights}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(preset(name, 100, **shape)).eval()
    ids = ids_of(8, 17, 100)
    assert model.loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(math.log(100), abs=0.1)
