"""How good a network is, as sums that add up.

Losses are kept as (sum of negative log-likelihoods, number of tokens) and divided once at the end: a mean of
means would weigh a short batch like a long one. NumPy only: who reads figures needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NllSum:
    """Summed negative log-likelihood of some tokens; two of them add.

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
        """Exponential of the loss: among how many equally likely tokens the network hesitates; NaN without any."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def bits_per_byte(nll_nats: float, n_bytes: int, lost_bytes: int = 0) -> float:
    """Bits the network needs per byte of text, which compares across tokenisers.

    Args:
        nll_nats: summed negative log-likelihood of the text's tokens.
        n_bytes: bytes of the text, the lost ones included.
        lost_bytes: bytes that became an unknown token. The network does not predict what they were, so each
            is charged the 8 bits that it costs to spell out.

    Raises:
        ValueError: there are no bytes, or more are lost than there are.
    """
    if n_bytes < 1 or not 0 <= lost_bytes <= n_bytes:
        raise ValueError(f"{lost_bytes} of {n_bytes} bytes lost; expected 0 <= lost_bytes <= n_bytes and a text")
    return (nll_nats / math.log(2) + 8 * lost_bytes) / n_bytes


def unigram_log_probabilities(counts: np.ndarray) -> np.ndarray:
    """(V,) log-probabilities of a model that knows nothing but token frequencies: the floor a network must beat.

    Args:
        counts: (V,) how often each token occurs in the training text; one is added to each (Laplace).
    """
    smoothed = np.asarray(counts, dtype=np.float64) + 1.0
    return np.asarray(np.log(smoothed / smoothed.sum()))
