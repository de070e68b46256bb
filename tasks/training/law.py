"""Bits per byte of a network beside an n-gram model of the same text, as a law of parameters and tokens.

The law has the form of Hoffmann et al. 2022, in bits per byte relative to those of the first three orders of the n-gram
model: of all orders, with these the law differs least between texts. Tokens that are read again count less and less
(Muennighoff et al. 2023), and a larger vocabulary takes more tokens to learn. The constants are fitted by
`python -m benchmarks.forecast` to trainings of the suggested kind, on texts of several kinds; the vocabulary's share
and the half-life are those with which the law misses other texts least.
"""

from __future__ import annotations

import math

# ratio = E + A / body^alpha + B / (tokens / ids^share)^beta, with the exponents of Hoffmann et al. 2022, table A3
E, A, ALPHA, B, BETA = 0.15661, 14.134, 0.34, 15.783, 0.28
IDS_SHARE = 0.35  # the share
TOKENS_PER_STEP = 2_048  # of all trainings that the law was fitted to
ORDERS = 3  # of the n-gram model, by whose bits per byte the law multiplies
_HALF_LIFE = 5.0  # passes after which reading again is worth little; 15.4 with large networks (Muennighoff et al. 2023)
SPREAD = 0.043  # standard deviation of the logarithm of the ratio about the law, on texts it was not fitted to
BEYOND = 4  # times what was measured, as far as the law is trusted
MEASURED = {  # ranges of the trainings
    "body": (160_384, 4_017_536),
    "ids": (512, 8_192),
    "tokens": (699_795, 12_723_459),
    "read": (385_471, 9_812_165),
}


def worth(read: float, tokens: float, ids: float) -> float:
    """Return the tokens read, less where they were read before and where there are many different ones.

    Args:
        read: tokens of all passes.
        tokens: tokens of the training text.
        ids: size of the vocabulary.
    """
    again = read / max(tokens, 1.0) - 1.0
    once = read if again <= 0 else tokens * (1 + _HALF_LIFE * (1 - math.exp(-again / _HALF_LIFE)))
    return max(once, 1.0) / ids**IDS_SHARE


def expected_ratio(body: float, ids: float, tokens: float, read: float) -> float:
    """Return bits per byte of a network divided by those of `ORDERS` orders of the n-gram model; lower is better.

    Args:
        body: parameters of the blocks, without tables of ids and positions.
        ids, tokens, read: see `worth`.
    """
    return E + A / body**ALPHA + B / worth(read, tokens, ids) ** BETA


def is_measured(body: float, ids: float, tokens: float, read: float) -> bool:
    """Return True within the ranges of the trainings that the law was fitted to, up to a factor of `BEYOND`."""
    given = {"body": body, "ids": ids, "tokens": tokens, "read": read}
    return all(low / BEYOND <= given[name] <= BEYOND * high for name, (low, high) in MEASURED.items())
