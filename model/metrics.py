"""Evaluation metrics: loss, perplexity, bits per byte, and the unigram baseline.

Losses are kept as (sum of negative log-likelihoods, number of tokens) and divided once at the end, because a mean of
means would give tokens of short batches more weight. The module needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NllSum:
    """Summed negative log-likelihood of some tokens; sums are added with `+`.

    Attributes:
        nll_nats: sum over the tokens, in nats.
        tokens: number of tokens that were predicted.
    """

    nll_nats: float = 0.0
    tokens: int = 0

    def __add__(self, other: NllSum) -> NllSum:
        return NllSum(self.nll_nats + other.nll_nats, self.tokens + other.tokens)

    @property
    def loss(self) -> float:
        """Mean over tokens, in nats; NaN if there are none."""
        return self.nll_nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss); NaN without tokens, infinity on overflow."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def bits_per_byte(nll_nats: float, n_bytes: int, lost_bytes: int = 0) -> float:
    """Return bits per byte of UTF-8 text, which is comparable across tokenisers.

    Args:
        nll_nats: summed negative log-likelihood of the text's tokens.
        n_bytes: bytes of the text, the lost ones included.
        lost_bytes: bytes that became an unknown token. Each counts 8 bits, because the network does not predict it.

    Raises:
        ValueError: n_bytes is below 1, or lost_bytes is not between 0 and n_bytes.
    """
    if n_bytes < 1 or not 0 <= lost_bytes <= n_bytes:
        raise ValueError(f"{lost_bytes} of {n_bytes} bytes lost; expected n_bytes >= 1 and 0 <= lost_bytes <= n_bytes")
    return (nll_nats / math.log(2) + 8 * lost_bytes) / n_bytes


def unigram_log_probabilities(counts: np.ndarray) -> np.ndarray:
    """Return the log-probabilities (V,) of the unigram baseline.

    Args:
        counts: (V,) occurrences of each token in the training text; 1 is added to each (Laplace smoothing).
    """
    smoothed = np.asarray(counts, dtype=np.float64) + 1.0
    return np.asarray(np.log(smoothed / smoothed.sum()))
