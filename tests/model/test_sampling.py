"""Filters and the draw: properties that hold for any logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.sampling import draw, filter_top_k, filter_top_p, token_probabilities, uniform_noise


def logits_of(seed: int, n_rows: int = 8, vocab_size: int = 40) -> torch.Tensor:
    return 3 * torch.randn(n_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [1, 5, 39, 40, 1000])
def test_top_k_keeps_the_k_largest(k: int) -> None:
    logits = logits_of(0)
    kept = filter_top_k(logits, k).isfinite()
    assert (kept.sum(dim=1) == min(k, 40)).all()
    for row, keep in zip(logits, kept, strict=True):
        assert keep.all() or row[keep].min() > row[~keep].max()


def test_top_k_keeps_ties() -> None:
    assert filter_top_k(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), 2).isfinite().tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_top_p_is_the_smallest_set_that_reaches_p(p: float) -> None:
    logits = logits_of(1)
    for row, keep in zip(logits.double().softmax(-1), filter_top_p(logits, p).isfinite(), strict=True):
        kept = row[keep]
        assert kept.sum() >= p - 1e-12
        assert kept.sum() - kept.min() < p
        assert keep.all() or kept.min() >= row[~keep].max()


@pytest.mark.parametrize(
    ("probabilities", "p", "kept"),
    [
        ([0.5, 0.3, 0.2], 0.6, [0, 1]),
        ([0.5, 0.25, 0.25], 0.5, [0]),
        ([0.3, 0.2, 0.15, 0.1, 0.05, 0.03, 0.17], 0.25, [0]),
        ([0.5, 0.3, 0.2], 0.0, [0]),
        ([0.5, 0.3, 0.2], 1.0, [0, 1, 2]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
    ],
)
def test_top_p_on_known_distributions(probabilities: list[float], p: float, kept: list[int]) -> None:
    found = filter_top_p(torch.tensor([probabilities]).double().log(), p)
    assert found.isfinite()[0].nonzero()[:, 0].tolist() == kept


def test_filters_act_after_the_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])  # at temperature 1 the first holds 0.67, at 0.2 it holds 0.99
    assert (token_probabilities(logits, 1.0, top_p=0.9) > 0).sum() == 2
    assert (token_probabilities(logits, 0.2, top_p=0.9) > 0).sum() == 1


def test_top_p_counts_within_top_k() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert (token_probabilities(logits, 1.0, top_k=2, top_p=0.55)[0] > 0).tolist() == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1.0, 1e9])
def test_probabilities_sum_to_one_at_any_temperature(temperature: float) -> None:
    sums = token_probabilities(logits_of(2), temperature).sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones(8, dtype=torch.float64))


def test_draw_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    n = 4000
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    counts = draw(probabilities.expand(n, 4), uniform).bincount(minlength=4)
    assert counts.tolist() == [400, 0, 2400, 1200]


def test_draw_never_takes_an_impossible_token() -> None:
    probabilities = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.1, 0.0]], dtype=torch.float64)
    for uniform in (0.0, 1.0 - 2.0**-53):
        assert draw(probabilities, torch.full((2,), uniform, dtype=torch.float64)).tolist() == [1, 1]


def test_noise_belongs_to_seed_and_key() -> None:
    assert np.array_equal(uniform_noise(1, 2, 5), uniform_noise(1, 2, 9)[:5])
    assert not np.array_equal(uniform_noise(1, 2, 5), uniform_noise(1, 3, 5))
    assert not np.array_equal(uniform_noise(1, 2, 5), uniform_noise(2, 2, 5))
