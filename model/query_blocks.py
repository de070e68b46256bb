"""How attention over short sequences is cut into blocks; without torch, so that its memory can be counted alone."""

from __future__ import annotations

from itertools import pairwise

MAX_TOKENS = 512  # above, the kept weights would take more memory than all else a layer keeps


def query_block(n_tokens: int) -> int:
    """Queries at once: few, so that little of what the mask hides is computed, but enough for a matrix product."""
    return 32 if n_tokens <= 128 else 64


def block_bounds(n_tokens: int) -> list[tuple[int, int]]:
    """First query of each block, and the first one behind it."""
    return list(pairwise([*range(0, n_tokens, query_block(n_tokens)), n_tokens]))


def kept_weights(n_tokens: int) -> int:
    """Attention weights of one head that are kept for the backward pass: each block's, for the keys up to its end."""
    return sum((last - first) * last for first, last in block_bounds(n_tokens))
