"""Sums over tokens, perplexity, bits per byte, and the unigram floor."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from model import ModelConfig, SpanSource, Transformer, evaluate_source
from model.data import Batch
from model.metrics import NllSum, bits_per_byte


def test_evaluation_is_the_mean_over_tokens(
    build_model: Callable[..., Transformer], build_source: Callable[..., SpanSource]
) -> None:
    model, source = build_model(), build_source(n=7)
    nll, tokens = 0.0, 0
    for index in range(7):
        length = source.length[index]
        ids = torch.tensor(source.shards[0][source.start[index] :][:length].astype(np.int64))[None]
        with torch.no_grad():
            log_probability = model(ids[:, : min(length, 16)]).log_softmax(-1)
        for position in range(length - 1):
            nll -= log_probability[0, position, ids[0, position + 1]].item()
            tokens += 1
    found = evaluate_source(model, source, batch_size=3)
    assert found.tokens == tokens
    assert found.nll_nats == pytest.approx(nll, rel=1e-6)


@pytest.mark.parametrize("ignored", [-100, -1])
def test_losses_of_tokens_and_of_sequences_add_up_to_the_sum(
    build_model: Callable[..., Transformer], ignored: int
) -> None:
    model = build_model()
    ids = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1:].clone()
    labels[0, 2:], labels[1, 5] = ignored, ignored
    with torch.no_grad():
        expected = -model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0] * (labels != ignored)
        found = {
            name: model.nll(ids[:, :-1], labels, reduction=name, ignore_index=ignored)
            for name in ("token", "sequence", "sum")
        }
        mean = model.loss(ids[:, :-1], labels, ignore_index=ignored)
    torch.testing.assert_close(found["token"], expected)
    torch.testing.assert_close(found["sequence"], expected.sum(1))
    assert float(found["sum"]) == pytest.approx(float(expected.sum()), rel=1e-6)
    assert float(mean) == pytest.approx(float(expected.sum() / (labels != ignored).sum()), rel=1e-6)
    with pytest.raises(ValueError, match="reduction='mean'; expected 'sum', 'sequence' or 'token'"):
        model.nll(ids[:, :-1], labels, reduction="mean")


def test_perplexity_beyond_floats_is_infinite() -> None:
    assert NllSum(1e6, 1).perplexity == math.inf


def test_lost_bytes_are_charged_eight_bits() -> None:
    assert bits_per_byte(10 * math.log(2), 20) == pytest.approx(0.5)
    assert bits_per_byte(10 * math.log(2), 20, lost_bytes=5) == pytest.approx(2.5)


def test_bits_per_byte_needs_a_text() -> None:
    with pytest.raises(ValueError, match="0 of 0 bytes"):
        bits_per_byte(1.0, 0)


class BrokenSource:
    """A source whose disk is gone."""

    def __len__(self) -> int:
        return 1

    def batch(self, indices: np.ndarray) -> Batch:
        raise OSError("the disk is gone")


@pytest.mark.parametrize("training", [True, False])
def test_a_fault_in_the_source_leaves_the_model_in_its_mode(training: bool, model_config: ModelConfig) -> None:
    model = Transformer(model_config).train(training)
    with pytest.raises(OSError, match="disk is gone"):
        evaluate_source(model, BrokenSource(), batch_size=1)
    assert model.training == training
