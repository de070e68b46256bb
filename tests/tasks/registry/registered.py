"""Promotion and its result in a home of three models."""

from __future__ import annotations

from dataclasses import dataclass

from tiny_run import Ran, direct_run

from flows.promote import promote_model
from storage.home import Home
from storage.registry import Registry
from storage.tracking import Tracking
from tasks.registry.promote import Promotion

WORSE = ("train.max_steps=2",)
BETTER = ("train.max_steps=80", "train.lr=0.01")


@dataclass(frozen=True)
class Promoted:
    """A home in which three models were promoted: 3 is champion, 1 was, 2 did not win.

    Beside its registry lies `older.db`, which is the registry before the third.
    """

    home: Home
    better: Ran


def promote(home: Home, ran: Ran) -> Promotion:
    assert ran.checkpoint is not None
    with direct_run(home) as run:
        return promote_model(run, ran.checkpoint, ran.evaluation)[0]


def aliases(home: Home) -> dict[str, str]:
    """Version by alias in MLflow."""
    versions = Registry(Tracking(home), "default").versions()
    return {alias: item.version for item in versions for alias in item.aliases}
