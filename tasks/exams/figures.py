"""How good answers are: accuracies with bootstrap intervals, beside what guessing would reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
COVERAGE = 0.95


@dataclass(frozen=True)
class Accuracy:
    """The share of questions that were answered rightly.

    Attributes:
        low, high: bounds that 95 % of resamples of the questions lie within.
    """

    share: float
    low: float
    high: float


def accuracy(right: Sequence[bool], seed: int = 0) -> Accuracy:
    """Share of right answers, with the percentile interval of a bootstrap over the questions.

    A resample draws as many questions as there are with replacement, so the number of right ones among them is
    binomial; it is drawn as that. The interval says how much luck there is in the choice of questions. It has no width
    where all answers are right, or none: no resample has others.

    Raises:
        ValueError: there are no answers.
    """
    if not right:
        raise ValueError("an accuracy needs at least one answer")
    share = sum(right) / len(right)
    drawn = np.random.default_rng(seed).binomial(len(right), share, RESAMPLES) / len(right)
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Accuracy(share, float(low), float(high))


def accuracy_metrics(prefix: str, right: Sequence[bool]) -> dict[str, float]:
    """An accuracy and its bounds as metrics."""
    found = accuracy(right)
    return {prefix: found.share, f"{prefix}_low": found.low, f"{prefix}_high": found.high}
