"""Trainings that are ended from inside, and the comparison with one that was left alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from model import TrainResult


class Interrupted(Exception):
    """Stands for a kill inside this process."""


def stop_at(step: int) -> Callable[[int, int, dict], None]:
    """Return a progress callback that ends the run after this step."""

    def on_progress(now: int, max_steps: int, metrics: dict) -> None:
        if now == step:
            raise Interrupted

    return on_progress


def assert_same_run(left: TrainResult, right: TrainResult) -> None:
    """Require equal histories and equal weights, to the bit."""
    assert left.history == right.history
    weights, others = left.model.state_dict(), right.model.state_dict()
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name
