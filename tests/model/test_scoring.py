"""Scores of single tokens against the network's probabilities, independent of the other rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from model import Transformer
from model.scoring import batches_by_length, score_windows

Build = Callable[..., Transformer]
IDS = np.random.default_rng(0).integers(0, 30, 120)
WINDOWS = (np.array([0, 17, 60, 80]), np.array([17, 1, 9, 14]), np.array([1, 1, 4, 1]))


@pytest.mark.parametrize("switches", [{}, {"tie_weights": False, "head_bias": True}, {"pos": "rope", "act": "swiglu"}])
def test_scores_follow_from_the_probabilities(build_model: Build, switches: dict[str, Any]) -> None:
    model = build_model(**switches)
    found = score_windows(model, IDS, *WINDOWS)
    seen = np.zeros(len(IDS), dtype=bool)
    for start, length, first in zip(*WINDOWS, strict=True):
        if length == 1:
            continue  # there is nothing behind its id
        with torch.no_grad():
            shares = model(torch.from_numpy(IDS[start : start + length - 1])[None]).double().softmax(-1)[0]
        for place in range(first, length):
            here, label = shares[place - 1], IDS[start + place]
            seen[start + place] = True
            assert found.nll[start + place] == pytest.approx(-float(here[label].log()), rel=1e-5)
            assert found.rivals[start + place] == int((here >= here[label]).sum()) - 1
            assert found.context[start + place] == place
    assert (found.predicted == seen).all()


def test_scores_do_not_depend_on_the_batch(build_model: Build) -> None:
    model = build_model()
    alone, together = (score_windows(model, IDS, *WINDOWS, tokens_at_once=size) for size in (1, 10_000))
    assert together.nll.tolist() == pytest.approx(alone.nll.tolist(), rel=1e-5)
    assert together.nll.sum(dtype=np.float64) == pytest.approx(alone.nll.sum(dtype=np.float64), rel=1e-6)
    assert (together.rivals == alone.rivals).all()


@pytest.mark.parametrize("training", [True, False])
def test_scoring_leaves_mode_and_random_state_alone(build_model: Build, training: bool) -> None:
    model, before = build_model(drop_resid=0.5).train(training), torch.get_rng_state()
    score_windows(model, IDS, *WINDOWS)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_hold_no_more_tokens_than_allowed_when_padded() -> None:
    lengths = np.array([3, 9, 1, 9, 2, 40, 8])
    found = batches_by_length(lengths, 18)
    assert [rows.tolist() for rows in found] == [[5], [1, 3], [6, 0], [4, 2]]
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= 18 for rows in found)
