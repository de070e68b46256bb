"""From logits to the next token: penalties, temperature, the filters top-k, top-p, min-p and typical, then one draw.

All functions work on a batch and on the device of the logits. The draw inverts the cumulative distribution
with one uniform number per row, so a row's noise is a number that can be keyed, not a place in a shared
stream.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def filter_top_k(logits: Tensor, k: int) -> Tensor:
    """Sets all but the k largest logits of each row to -inf.

    Args:
        logits: (..., V).
        k: how many to keep, capped at V. Logits equal to the k-th are kept too: nothing tells them apart.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def filter_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keeps the smallest set of likeliest tokens whose probabilities reach p (Holtzman et al. 2020).

    At least one token is kept. Of equally likely tokens the one with the lower id goes first.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything. A tensor (..., 1) gives each row its own.
    """
    if not isinstance(p, Tensor) and p >= 1.0:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.double().softmax(dim=-1)
    before = running_sum(probability) - probability  # what the likelier tokens hold already
    drop = before >= p
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def filter_min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps tokens whose probability is at least p times that of the likeliest (Nguyen et al. 2024).

    Args:
        logits: (..., V).
        p: 0 to 1; 0 keeps everything, 1 the likeliest tokens alone.
    """
    if p <= 0.0:
        return logits
    least = logits.max(dim=-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < least, -torch.inf)


def filter_typical(logits: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of tokens of the most typical surprise whose probabilities reach p (Meister et al. 2023).

    Tokens are taken in the order of |-log probability - entropy|. At least one is kept; of equally typical tokens the
    one with the lower id goes first.

    Args:
        logits: (..., V).
        p: 0 to 1; 1 keeps everything.
    """
    if p >= 1.0:
        return logits
    surprise = -logits.double().log_softmax(dim=-1)
    probability = surprise.neg().exp()
    # what has no probability adds nothing to the entropy, though its surprise is infinite
    entropy = (probability * surprise.masked_fill(probability == 0, 0.0)).sum(dim=-1, keepdim=True)
    order = (surprise - entropy).abs().sort(dim=-1, stable=True).indices
    ordered = probability.gather(-1, order)
    drop = running_sum(ordered) - ordered >= p
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def penalised(logits: Tensor, counts: Tensor, repetition: float, frequency: float, presence: float) -> Tensor:
    """Logits of tokens that occurred before, made less likely (or with opposite settings more).

    Args:
        logits: (...), of tokens that occurred in the prompt or in the continuation.
        counts: (...), how often each occurred in the continuation.
        repetition: divides positive and multiplies negative logits (Keskar et al. 2019); 1 changes nothing.
        frequency: taken away for each time.
        presence: taken away once from what occurred in the continuation.
    """
    if repetition != 1.0:
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    if frequency or presence:
        logits = logits - (frequency * counts + presence * (counts > 0))
    return logits


def token_probabilities(
    logits: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> Tensor:
    """The distribution that a token is drawn from.

    Args:
        logits: (..., V), after penalties.
        temperature: above 0.
        top_k: as for filter_top_k; None keeps all.
        top_p: as for filter_top_p; None keeps all.
        min_p: as for filter_min_p; None keeps all.
        typical_p: as for filter_typical; None keeps all.

    Returns:
        (..., V) float64 probabilities.
    """
    # Shifted before the division: a tiny temperature may send the others to -inf, never the largest to +inf.
    logits = (logits.double() - logits.max(dim=-1, keepdim=True).values.double()) / temperature
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    if min_p is not None:
        logits = filter_min_p(logits, min_p)
    if typical_p is not None:
        logits = filter_typical(logits, typical_p)
    return logits.softmax(dim=-1)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token at which each row's cumulative probability passes its uniform number.

    Args:
        probabilities: (B, V), none negative.
        uniform: (B,) numbers in [0, 1).

    Returns:
        (B,) int64 tokens, never one of probability 0; of a row of NaN the last.
    """
    cumulative = running_sum(probabilities.double())
    total = cumulative[:, -1:]
    # Rounding must not carry the target up to the total, where no token would be left.
    target = torch.minimum(uniform[:, None].double() * total, torch.nextafter(total, torch.zeros_like(total)))
    # a NaN is passed nowhere, and a place behind the last would be fatal on a GPU
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)


def uniform_noise(seed: int, key: int, n: int, *, sample: int = 0, first: int = 0) -> np.ndarray:
    """Numbers in [0, 1) of the counter-based stream that belongs to (seed, key, sample).

    Args:
        seed: of all noise.
        key: names the prompt.
        n: how many numbers.
        sample: which of the prompt's samples, from 0.
        first: number of the first one, a multiple of 4.
    """
    counter = [first // 4, 0, 0, sample % 2**64]  # each count makes four numbers
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, key % 2**64], counter=counter)).random(n)


def running_sum(values: Tensor) -> Tensor:
    """Cumulative sum over the last axis; a GPU's kernel gives no fixed bits, and raises where those are asked for."""
    if values.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim=-1).to(values.device)
    return values.cumsum(dim=-1)
