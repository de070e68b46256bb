"""Whether two models differ, and by how much: the paired bootstrap over documents.

After Efron and Tibshirani (1993), and Koehn (2004) for models of language. Both models were measured on the same
documents. Documents are drawn anew, with replacement, as many as there are, and the difference of the two models' bits
per byte is taken on each draw; where 95 % of these differences lie is the interval. Tokens of a document depend on each
other, so documents are what is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1_000
LEVEL = 0.95
DRAWN_AT_ONCE = 2**21


@dataclass(frozen=True)
class Difference:
    """Bits per byte of one model less those of another.

    Attributes:
        value: on the documents as they are; below 0 the first model is the better one.
        low, high: the interval that holds 95 % of the resampled differences; endless below two documents, on which it
            cannot be said.
        documents: number of documents.
    """

    value: float
    low: float
    high: float
    documents: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0: the models differ by more than the choice of documents explains."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a_nll: np.ndarray, b_nll: np.ndarray, n_bytes: np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Difference of two models' bits per byte, a less b, with its interval.

    Args:
        a_nll, b_nll: (n,) nats that each document costs under each model, with all that is charged for.
        n_bytes: (n,) bytes of each document.
        seed: of the draws; the same seed gives the same interval.
        resamples: number of draws.

    Raises:
        ValueError: the arrays do not belong together, or there is no byte of text.
    """
    change = (np.asarray(a_nll, dtype=np.float64) - np.asarray(b_nll, dtype=np.float64)) / math.log(2)
    weight = np.asarray(n_bytes, dtype=np.float64)
    if change.shape != weight.shape or change.ndim != 1 or not weight.sum() > 0:
        raise ValueError(
            f"{change.shape} differences of nll and {weight.shape} sizes of {weight.sum():g} bytes in all; expected as "
            "many of each, and a text"
        )
    n = len(change)
    value = float(change.sum() / weight.sum())
    if n < 2:
        return Difference(value, -math.inf, math.inf, n)
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = np.empty(resamples)
    at_once = max(1, DRAWN_AT_ONCE // n)
    for first in range(0, resamples, at_once):
        rows = generator.integers(0, n, size=(min(at_once, resamples - first), n))
        sizes = weight[rows].sum(axis=1)
        # a draw of nothing but empty documents says nothing of either model
        drawn[first : first + at_once] = np.divide(
            change[rows].sum(axis=1), sizes, out=np.zeros(len(rows)), where=sizes > 0
        )
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(value, float(low), float(high), n)
