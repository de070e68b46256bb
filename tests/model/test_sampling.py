"""Filters and the draw: properties that hold for any logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.sampling import filter_top_k, filter_top_p, uniform_noise


def test_top_k_keeps_ties() -> None:
    assert filter_top_k(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), 2).isfinite().tolist() == [[True, True, True, False]]


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


def test_noise_belongs_to_seed_and_key() -> None:
    assert np.array_equal(uniform_noise(1, 2, 5), uniform_noise(1, 2, 9)[:5])
    assert not np.array_equal(uniform_noise(1, 2, 5), uniform_noise(1, 3, 5))
    assert not np.array_equal(uniform_noise(1, 2, 5), uniform_noise(2, 2, 5))
