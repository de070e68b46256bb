"""Faults of widely copied training and sampling code that this network must not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from model import Transformer

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


@pytest.mark.parametrize("pos", ["learned", "sinusoidal", "rope", "none"])
def test_a_sequence_beyond_the_context_is_refused_in_words(build_model: Build, pos: str) -> None:
    model = build_model(pos=pos)
    with pytest.raises(ValueError, match="17 tokens is longer than max_seq_len=16"):
        model(ids_of(1, 17))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pos", ["learned", "rope"])
def test_a_forward_pass_makes_nothing_on_the_default_device(build_model: Build, window: int | None, pos: str) -> None:
    model, ids = build_model(window=window, pos=pos), ids_of(2, 8)
    before = model(ids)
    with default_device("meta"):  # a mask made without a device would lie there, without values
        assert torch.equal(model(ids), before)
        assert model.loss(ids, ids).isfinite()
