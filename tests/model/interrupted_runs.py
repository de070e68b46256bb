"""Trainings that are ended from inside, and the comparison with one that was left alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from model import Callbacks, TrainResult
from model.config import Execution

EVERY_STEP = Execution(checkpoint_minutes=0)  # is saved
RARELY = Execution(checkpoint_minutes=1e9)


class Interrupted(Exception):
    """Stands for a kill inside this process."""


def calling(**functions: Callable[..., Any]) -> Callbacks:
    """Return callbacks of which these are replaced, by name."""
    found = Callbacks()
    vars(found).update(functions)
    return found


def stop_at(step: int) -> Callbacks:
    """Return callbacks that end the run after this step is saved, when the next one is reported."""

    def on_step(now: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        if now == step + 1:
            raise Interrupted

    return calling(step=on_step)


def assert_same_run(left: TrainResult, right: TrainResult) -> None:
    """Require equal histories and equal weights, to the bit."""
    assert left.history == right.history
    weights, others = left.model.state_dict(), right.model.state_dict()
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name
