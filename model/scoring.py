"""How a network does on every single token: one forward pass, and what evaluation adds up.

Windows of a text are read in batches of like length and about as many tokens each, so that hardly any padding is
computed; of the logits no more than a block is ever held. A token's figures depend on its window alone, not on what it
was read beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .data import IGNORE, SequenceSource, SpanSource, trim
from .kernels import linear
from .metrics import NllSum
from .transformer import Transformer, evaluating

TOKENS_AT_ONCE = 8_192  # inputs of a batch
_BLOCK_ELEMENTS = 2**20  # logits at once on a CPU: 4 MB, and as much again to compare them
_BLOCK_ELEMENTS_GPU = 2**27


@dataclass(frozen=True)
class TokenScores:
    """What a network said of each token of a text.

    Attributes:
        nll: (N,) float32, negative log-likelihood in nats; 0 where the token was not predicted.
        rivals: (N,) int32, other tokens that were at least as likely: below 1 the token was the likeliest one, below 5
            among the five likeliest. Ties count against the network, or one that knows nothing would always be right.
        context: (N,) int32, tokens that the prediction was made from; 0 where there was none.
    """

    nll: np.ndarray
    rivals: np.ndarray
    context: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """(N,) bool, which tokens were predicted."""
        return self.context > 0


def score_windows(
    model: Transformer,
    ids: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    first: np.ndarray,
    *,
    tokens_at_once: int = TOKENS_AT_ONCE,
    device: torch.device | str = "cpu",
    on_batch: Callable[[int, int], None] | None = None,
) -> TokenScores:
    """Score tokens of a flat text, each from the window that it is predicted in.

    Leaves the model in the mode it was in.

    Args:
        model: the network, on `device`.
        ids: (N,) token ids.
        start: (n,) first token of each window.
        length: (n,) tokens of each, the one to look ahead among them; at most max_seq_len + 1.
        first: (n,) place in the window of the first token that is scored, 1 or more; all behind it are, too.
        tokens_at_once: inputs of a batch; a longer window is a batch by itself.
        device: where the model is.
        on_batch: told windows done and windows in all.
    """
    found = TokenScores(*(np.zeros(len(ids), dtype=kind) for kind in (np.float32, np.int32, np.int32)))
    used = np.flatnonzero(length > first)
    width = int(length[used].max(initial=2)) - 1
    source = SpanSource([ids], np.zeros_like(start[used]), start[used], length[used], seq_len=width, pad_id=0)
    done = 0
    with evaluating(model), torch.inference_mode():
        for chosen in batches_by_length(length[used] - 1, tokens_at_once):
            inputs, labels, _ = trim(source.batch(chosen))
            places = np.arange(1, labels.shape[1] + 1)
            labels[places < first[used][chosen, None]] = IGNORE
            row, column = np.nonzero(labels != IGNORE)
            where = start[used][chosen][row] + column + 1
            features = model.features(torch.from_numpy(inputs).to(device))
            nll, rivals = token_scores(model, features, torch.from_numpy(labels).to(device))
            found.nll[where], found.rivals[where] = nll.cpu().numpy(), rivals.cpu().numpy()
            found.context[where] = column + 1
            done += len(chosen)
            if on_batch is not None:
                on_batch(done, len(used))
    return found


def batches_by_length(lengths: np.ndarray, tokens_at_once: int) -> list[np.ndarray]:
    """Numbers of rows, the longest first, in batches that hold so many tokens at most when padded; one row at least."""
    order = np.argsort(-lengths, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        rows = max(1, tokens_at_once // max(1, int(lengths[order[begin]])))
        batches.append(order[begin : begin + rows])
        begin += rows
    return batches


def token_scores(model: Transformer, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Nll and rivals (see `TokenScores`) of each label that is not -100, row after row.

    Args:
        features: (B, T, D) what the head reads.
        labels: (B, T) token ids; -100 is left out, and no logits are computed for it.

    Returns:
        (n,) float32 and int32.
    """
    vocab_size = model.config.vocab_size  # the rows behind it are padding
    weight = model.head_weight[:vocab_size]
    bias = None if model.head_bias is None else model.head_bias[:vocab_size]
    valid = (labels.flatten() != IGNORE).nonzero()[:, 0]
    chosen, targets = features.flatten(0, -2)[valid], labels.flatten()[valid]
    n_block = max(1, (_BLOCK_ELEMENTS if features.device.type == "cpu" else _BLOCK_ELEMENTS_GPU) // vocab_size)
    nll = torch.empty(len(valid), device=features.device)
    rivals = torch.empty(len(valid), dtype=torch.int32, device=features.device)
    for begin in range(0, len(valid), n_block):
        rows = slice(begin, begin + n_block)
        logits = linear(chosen[rows], weight, bias).float()
        wanted = logits.gather(1, targets[rows, None])
        # counted in floats: sums of truth values are ten times as slow
        above = torch.ge(logits, wanted, out=torch.empty_like(logits))
        rivals[rows] = above.sum(dim=1).to(torch.int32) - 1
        highest = logits.amax(dim=1, keepdim=True)
        nll[rows] = logits.sub_(highest).exp_().sum(dim=1).log() - (wanted - highest)[:, 0]
    return nll, rivals


@torch.inference_mode()  # in which products are the fast ones; without gradients alone they are not
def evaluate_source(
    model: Transformer, source: SequenceSource, batch_size: int, device: torch.device | str = "cpu"
) -> NllSum:
    """Negative log-likelihood of every label in the source, in order, without dropout.

    Draws no random numbers and leaves the model in the mode it was in.

    Args:
        model: the network, on `device`.
        source: sequences to predict.
        batch_size: sequences at once.
        device: where the model is.
    """
    total = NllSum()
    with evaluating(model):
        for first in range(0, len(source), batch_size):
            indices = np.arange(first, min(first + batch_size, len(source)))
            inputs, labels, documents = trim(source.batch(indices))
            ids, targets = (torch.from_numpy(array).to(device) for array in (inputs, labels))
            nll = model.nll(ids, targets, documents=documents)
            total += NllSum(nll.item(), int((labels != IGNORE).sum()))
    return total


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


def continuation_likelihoods(
    model: Transformer, continuations: Sequence[Continuation], *, batch_tokens: int = TOKENS_AT_ONCE
) -> list[Likelihood]:
    """Log-likelihood of each continuation under a model, the same in any company but for the rounding of sums.

    A sequence longer than the context is read in windows; each id is scored once, from as many ids before it as its
    window holds.

    Args:
        model: the network; it is put into evaluation mode and back.
        continuations: what is to be scored.
        batch_tokens: ids that are read at once; it bounds memory.

    Returns:
        One for each, in their order.

    Raises:
        ValueError: nothing stands before a continuation, or an id is outside the vocabulary.
    """
    context, windows = model.config.max_seq_len, []
    begins = np.cumsum([0, *(len(item.ids) for item in continuations)])
    for number, item in enumerate(continuations):
        _check(number, item, model.config.vocab_size)
        n_ids = len(item.ids)
        for first in range(n_ids - item.n_scored, n_ids, context):
            end = min(first + context, n_ids)
            begin = max(0, end - 1 - context)
            windows.append((begins[number] + begin, end - begin, first - begin))
    ids = np.array([token for item in continuations for token in item.ids], dtype=np.int64)
    start, length, scored_from = np.array(windows, dtype=np.int64).reshape(-1, 3).T
    device = model.token_embedding.weight.device
    found = score_windows(model, ids, start, length, scored_from, tokens_at_once=batch_tokens, device=device)
    ends = zip(begins[1:], (item.n_scored for item in continuations), strict=True)
    scored = [slice(end - n, end) for end, n in ends]
    return [Likelihood(-float(found.nll[one].sum(dtype=np.float64)), not found.rivals[one].any()) for one in scored]


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
