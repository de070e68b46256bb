"""One call seeds every generator and chooses the kernels."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from model import ModelConfig, Transformer, seed_everything


@pytest.fixture(autouse=True)
def keep_global_state() -> Iterator[None]:
    """Other tests find generators and kernels as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def draws() -> list[float]:
    """One number of each library's global generator."""
    return [random.random(), float(np.random.random()), torch.rand(1).item()]


@pytest.mark.parametrize("library", range(3), ids=["python", "numpy", "torch"])
def test_every_generator_repeats_with_the_seed(library: int) -> None:
    seed_everything(5)
    first = draws()[library]
    seed_everything(6)
    other = draws()[library]
    seed_everything(5)
    assert draws()[library] == first != other


def one_update(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients and weights after one step from a fresh network with dropout."""
    seed_everything(seed, deterministic=True)
    model = Transformer(ModelConfig(31, max_seq_len=16, n_layer=2, n_head=2, d_model=16, drop_resid=0.2)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(32).reshape(2, 16) % 31
    model.loss(ids, ids.roll(-1, dims=1)).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    optimizer.step()
    return gradients, [parameter.detach() for parameter in model.parameters()]


def test_same_seed_and_data_give_the_same_weights_gradients_and_updates() -> None:
    (gradients, weights), (gradients_again, weights_again), (other, _) = one_update(42), one_update(42), one_update(43)
    assert all(map(torch.equal, gradients, gradients_again))
    assert all(map(torch.equal, weights, weights_again))
    assert not all(map(torch.equal, gradients, other))


@pytest.mark.parametrize("deterministic", [True, False])
def test_kernels_are_those_asked_for(deterministic: bool) -> None:
    modes = seed_everything(0, deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.backends.cudnn.deterministic is deterministic
    assert modes["kernels"] == ("deterministic" if deterministic else "fastest")


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed=-1"):
        seed_everything(-1)
