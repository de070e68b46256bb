"""The few tokens that filters leave of a vocabulary, found without sorting it.

A filter of the likeliest tokens needs their order, and to sort all logits costs more than the network's step. So what
can be dropped for certain is dropped first, by one comparison; the filters then see the rest, and leave what they would
have left of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import draw, running_sum

_BISECTIONS = 8  # the bound is then within a few per cent of the right one
_MARGIN = 0.999  # for what float32 rounds
_LANES = 64  # a multiple of every vector width, so that an element's place decides nothing


@dataclass(frozen=True)
class Shortlist:
    """Tokens that a filter may keep.

    Attributes:
        logits: (B, N), -inf behind the last one of a row.
        ids: (B, N), ascending in each row; 0 behind the last.
        mass: (B, 1) float64, share of the row's probability that is here; None if what is left out counts nothing.
    """

    logits: Tensor
    ids: Tensor
    mass: Tensor | None = None


def likeliest(logits: Tensor, k: int) -> Shortlist | None:
    """At least the k largest logits of each row, and all that equal the k-th.

    The k-th largest of the maxima of blocks is no larger than the k-th largest of all.

    Args:
        logits: (B, V) on a CPU.
        k: how many.

    Returns:
        None where k is so large that nothing would be won.
    """
    vocab_size = logits.shape[1]
    width = vocab_size // (2 * k)
    if width < 4:
        return None
    n_blocks = vocab_size // width
    maxima = logits[:, : n_blocks * width].unflatten(1, (n_blocks, width)).amax(-1)
    return _listed(logits, maxima.topk(k, dim=1).values[:, -1:])


def nucleus(logits: Tensor, temperature: float, top_p: float) -> Shortlist:
    """At least the smallest set of tokens of each row whose probabilities reach top_p, and hardly more.

    What is less likely than a bound, together, must hold less than 1 - top_p; the bound is narrowed down by bisection.

    Args:
        logits: (B, V) on a CPU.
        temperature: above 0.
        top_p: below 1.
    """
    weights = _weights(logits, temperature)
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)
    spare = (1 - top_p) * _MARGIN * total
    low, high = (spare / logits.shape[1]).to(logits.dtype), torch.ones_like(weights[:, :1])
    for _ in range(_BISECTIONS):
        middle = (low * high).sqrt()
        fits = (weights * (weights < middle)).sum(-1, keepdim=True, dtype=torch.float64) <= spare
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    found = _listed(logits, low, weights)
    kept = _weights(found.logits, temperature)
    return Shortlist(found.logits, found.ids, kept.sum(-1, keepdim=True, dtype=torch.float64) / total)


def near_likeliest(logits: Tensor, least: float) -> Shortlist:
    """Tokens whose logits lie no further than `least` (a negative number) from the largest of their row."""
    return _listed(logits, logits.amax(-1, keepdim=True) + least)


def _weights(logits: Tensor, temperature: float) -> Tensor:
    """exp(logits / temperature), the largest of each row 1."""
    # float32 has no smaller temperatures, and at this one the likeliest tokens are alone already
    return ((logits - logits.amax(-1, keepdim=True)) / max(temperature, 1e-30)).exp_()


def _listed(logits: Tensor, least: Tensor, measure: Tensor | None = None) -> Shortlist:
    """Tokens whose measure (the logits themselves by default) is at least (B, 1) `least`."""
    kept = (logits if measure is None else measure) >= least
    n_rows, vocab_size = logits.shape
    flat = np.flatnonzero(kept.contiguous().numpy())  # many times faster than torch's search where little is kept
    rows, columns = np.divmod(flat, vocab_size)
    counts = np.bincount(rows, minlength=n_rows)
    width = -(-int(counts.max()) // _LANES) * _LANES
    places = np.arange(len(flat)) - (counts.cumsum() - counts)[rows]
    ids = np.zeros((n_rows, width), dtype=np.int64)
    numbers = logits.numpy()
    values = np.full((n_rows, width), -np.inf, dtype=numbers.dtype)
    ids[rows, places], values[rows, places] = columns, numbers[rows, columns]
    return Shortlist(torch.from_numpy(values), torch.from_numpy(ids))


def draw_from_all(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """One token of each row with no filter: `sampling.draw`, in float32 but for the sums, block by block.

    Args:
        logits: (B, V).
        temperature: above 0.
        uniform: (B,) numbers in [0, 1).

    Returns:
        (B,) int64 tokens.
    """
    weights = _weights(logits, temperature)
    missing = -weights.shape[1] % _LANES
    blocks = (F.pad(weights, (0, missing)) if missing else weights).unflatten(1, (-1, _LANES))
    sums = blocks.sum(-1, dtype=torch.float64)
    block = draw(sums, uniform)
    cumulative = running_sum(sums)
    before = (cumulative - sums).gather(1, block[:, None])[:, 0]
    inside = blocks[torch.arange(len(block)), block].double()  # (B, lanes)
    left = (uniform * cumulative[:, -1] - before) / inside.sum(-1)
    return block * _LANES + draw(inside, left.clamp_(0.0, 1.0))
