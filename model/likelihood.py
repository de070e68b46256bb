"""How likely given continuations are: the sums that multiple choice, perplexities and comparisons rest on.

Goes in: sequences of ids, and how many at the end of each are to be scored. Comes out: for each its log-likelihood and
whether greedy decoding would have written it. Rows of similar length share a batch, padding stands behind what is read
(attention is causal, so it changes nothing), and only positions that are scored go through the head. A sequence longer
than the context is read in windows; each id is scored once, from as many ids before it as its window holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .transformer import Transformer

BATCH_TOKENS = 2**13  # ids of a batch, padding included
_BLOCK_ELEMENTS = 2**22  # logits that are computed at once


@dataclass(frozen=True)
class Continuation:
    """Ids, the last of which are to be scored.

    Attributes:
        ids: what was there before and, behind it, the continuation.
        n_scored: how many ids the continuation has; at least one id stands before it.
    """

    ids: Sequence[int]
    n_scored: int


@dataclass(frozen=True)
class Likelihood:
    """What a model makes of a continuation.

    Attributes:
        logprob: natural logarithm of its probability, the sum over its ids; 0 if it has none.
        greedy: whether each of its ids is the likeliest one after those before it.
    """

    logprob: float
    greedy: bool


@dataclass(frozen=True)
class _Window:
    """A stretch of a sequence that is read at once: `ids[begin:end]`, of which those from `first` on are scored."""

    row: int
    begin: int
    end: int
    first: int

    @property
    def width(self) -> int:
        """Ids that go into the network; the last one is only predicted."""
        return self.end - 1 - self.begin


def continuation_likelihoods(
    model: Transformer,
    continuations: Sequence[Continuation],
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Likelihood]:
    """Log-likelihood of each continuation under a model, the same in any company but for the rounding of sums.

    Args:
        model: the network; it is put into evaluation mode and back.
        continuations: what is to be scored.
        batch_tokens: ids that are read at once; it bounds memory.

    Returns:
        One for each, in their order.

    Raises:
        ValueError: nothing stands before a continuation, or an id is outside the vocabulary.
    """
    context, vocab_size = model.config.max_seq_len, model.config.vocab_size
    for number, item in enumerate(continuations):
        _check(number, item, vocab_size)
    windows = [window for row, item in enumerate(continuations) for window in _windows(row, item, context)]
    windows.sort(key=lambda window: (window.width, window.row, window.begin))
    logprobs, greedy = [0.0] * len(continuations), [True] * len(continuations)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for batch in _batches(windows, batch_tokens):
                for window, (logprob, likeliest) in zip(batch, _score(model, continuations, batch), strict=True):
                    logprobs[window.row] += logprob
                    greedy[window.row] &= likeliest
    finally:
        model.train(was_training)
    return [Likelihood(*both) for both in zip(logprobs, greedy, strict=True)]


def _check(number: int, item: Continuation, vocab_size: int) -> None:
    if not 0 <= item.n_scored < max(1, len(item.ids)):
        raise ValueError(
            f"continuation {number}: {item.n_scored} of {len(item.ids)} ids are to be scored; expected at least one id "
            "before them, such as BOS"
        )
    if len(item.ids) and not 0 <= min(item.ids) <= max(item.ids) < vocab_size:
        raise ValueError(
            f"continuation {number} holds ids from {min(item.ids)} to {max(item.ids)}, expected 0 to {vocab_size - 1}; "
            "it was encoded with another tokeniser"
        )


def _windows(row: int, item: Continuation, context: int) -> Iterator[_Window]:
    """Stretches of at most `context` inputs that score each id once, each from as much before it as there is room."""
    n_ids = len(item.ids)
    for first in range(n_ids - item.n_scored, n_ids, context):
        end = min(first + context, n_ids)
        yield _Window(row, max(0, end - 1 - context), end, first)


def _batches(windows: Sequence[_Window], batch_tokens: int) -> Iterator[Sequence[_Window]]:
    """Windows, which are sorted by width, in runs that fit when all are padded to the widest."""
    first = 0
    for behind in range(1, len(windows) + 1):
        if behind == len(windows) or (behind - first + 1) * windows[behind].width > batch_tokens:
            yield windows[first:behind]
            first = behind


def _score(
    model: Transformer, continuations: Sequence[Continuation], batch: Sequence[_Window]
) -> list[tuple[float, bool]]:
    """Log-probability of what each window scores, and whether all of it is likeliest."""
    device = model.token_embedding.weight.device
    inputs = torch.zeros(len(batch), max(window.width for window in batch), dtype=torch.int64)
    places, ends, labels = [], [0], list[int]()
    for row, window in enumerate(batch):
        ids = continuations[window.row].ids
        inputs[row, : window.width] = torch.tensor(ids[window.begin : window.end - 1])
        offset = row * inputs.shape[1] - window.begin - 1
        places.append(torch.arange(window.first, window.end) + offset)
        labels += ids[window.first : window.end]
        ends.append(len(labels))
    features = model.features(inputs.to(device)).flatten(0, 1)[torch.cat(places).to(device)]
    logprobs, likeliest = _judge(model, features, torch.tensor(labels, device=device))
    return [(float(logprobs[a:b].sum()), bool(likeliest[a:b].all())) for a, b in pairwise(ends)]


def _judge(model: Transformer, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability (N,) float64 of each label after its features (N, D), and whether none is likelier."""
    logprobs, likeliest = [], []
    step = max(1, _BLOCK_ELEMENTS // model.config.padded_vocab_size)
    for x, y in zip(features.split(step), labels.split(step), strict=True):
        logits = model.head(x).float()
        chosen = logits.gather(1, y[:, None])[:, 0].double()
        logprobs.append(chosen - logits.double().logsumexp(dim=1))
        likeliest.append(logits.argmax(dim=1) == y)
    return torch.cat(logprobs).cpu(), torch.cat(likeliest).cpu()
