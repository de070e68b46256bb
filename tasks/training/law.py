"""What a network reaches beside an n-gram model of the same text, as a law of parameters and tokens.

The law has the form of Hoffmann et al. 2022, in bits per byte relative to those of the first three orders of the n-gram
model: of all orders, with these the law differs least between texts. Tokens that are read again count less and less
(Muennighoff et al. 2023). Its constants are fitted by `python -m benchmarks.forecast` to trainings of the suggested
kind, on texts of several kinds.
"""

from __future__ import annotations

import math

# ratio = E + A / parameters^alpha + B / tokens^beta, with the exponents of Hoffmann et al. 2022, table A3
E, A, ALPHA, B, BETA = 0.5, 10.0, 0.34, 20.0, 0.28
ORDERS = 3  # of the n-gram model, by whose bits per byte the law multiplies
_HALF_LIFE = 15.4  # passes after which reading again is worth little (Muennighoff et al. 2023, R* of data)
SPREAD = 0.03  # standard deviation of the logarithm of the ratio about the law, on texts it was not fitted to
MEASURED = {"parameters": (2e5, 6e6), "tokens": (3e5, 4e6), "read": (1e5, 2e7)}  # ranges of the trainings


def worth(read: float, tokens: float) -> float:
    """Return how many tokens that are read once teach as much.

    Args:
        read: tokens of all passes.
        tokens: tokens of the training text.
    """
    again = read / max(tokens, 1.0) - 1.0
    return read if again <= 0 else tokens * (1 + _HALF_LIFE * (1 - math.exp(-again / _HALF_LIFE)))


def expected_ratio(parameters: float, read: float, tokens: float) -> float:
    """Return bits per byte of a network divided by those of `ORDERS` orders of the n-gram model; lower is better."""
    return E + A / parameters**ALPHA + B / max(worth(read, tokens), 1.0) ** BETA


def is_measured(parameters: float, read: float, tokens: float) -> bool:
    """Return True within the ranges of the trainings that the law was fitted to, up to a factor of two."""
    given = {"parameters": parameters, "read": read, "tokens": tokens}
    return all(low / 2 <= given[name] <= 2 * high for name, (low, high) in MEASURED.items())
