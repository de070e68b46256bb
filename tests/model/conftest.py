"""Small networks and sources that the tests of the network share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from model import ModelConfig, SpanSource, TrainConfig, Transformer

SMALL = {"vocab_size": 31, "max_seq_len": 16, "n_layer": 2, "n_head": 2, "d_model": 16}


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """More threads only wait for each other in networks this small, and worse where other processes run too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model_config() -> ModelConfig:
    return ModelConfig(**SMALL)


@pytest.fixture
def build_model() -> Callable[..., Transformer]:
    """A small network in evaluation mode whose weights are large enough for clear preferences."""

    def build(seed: int = 0, **settings: object) -> Transformer:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Transformer(ModelConfig(**{**SMALL, "init_std": 0.3, **settings})).eval()

    return build


@pytest.fixture
def build_source() -> Callable[..., SpanSource]:
    """Spans of different lengths over one shard of noisy periodic text."""

    def build(n: int = 20, seq_len: int = 16, vocab_size: int = 31, seed: int = 0) -> SpanSource:
        generator = np.random.default_rng(seed)
        shard = ((np.arange(4096) * 7 + generator.integers(0, 3, 4096)) % vocab_size).astype(np.uint16)
        length = generator.integers(2, seq_len + 2, n)
        start = generator.integers(0, len(shard) - seq_len - 1, n)
        return SpanSource([shard], np.zeros(n), start, length, seq_len, pad_id=0)

    return build


@pytest.fixture
def train_config() -> TrainConfig:
    return TrainConfig(max_steps=10, batch_size=4, grad_accum=2, eval_every=4, lr=3e-3)
