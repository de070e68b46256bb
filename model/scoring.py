"""Negative log-likelihood of every token of a text, and of continuations.

Windows are batched by length with a bounded number of tokens, so that little padding is computed; logits are computed
in blocks. The scores of a token depend on its window only, not on the rest of the batch.
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
_BLOCK_ELEMENTS = 2**20  # logits per block on a CPU: 4 MB, and 4 MB to compare them
_BLOCK_ELEMENTS_GPU = 2**27


@dataclass(frozen=True)
class TokenScores:
    """Scores of each token of a text.

    Attributes:
        nll: (N,) float32, negative log-likelihood in nats; 0 where the token was not predicted.
        rivals: (N,) int32, number of other tokens that are at least as likely: 0 for the likeliest token, below 5 for
            the top five. Ties count, so that constant logits have no accuracy.
        context: (N,) int32, number of tokens before it in its window; 0 if it was not predicted.
    """

    nll: np.ndarray
    rivals: np.ndarray
    context: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """(N,) bool, True for predicted tokens."""
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
    """Score the tokens of a text in windows.

    Args:
        model: the network, on `device`; its mode is restored.
        ids: (N,) token ids.
        start: (n,) first token of each window.
        length: (n,) number of tokens of each window, the last label included; at most max_seq_len + 1.
        first: (n,) index in the window from which tokens are scored, at least 1.
        tokens_at_once: inputs of a batch; a longer window is a batch of its own.
        device: device of the model.
        on_batch: called with (windows done, all windows).
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
    """Return indices of rows, the longest first, in batches of at most tokens_at_once padded tokens or one row."""
    order = np.argsort(-lengths, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        rows = max(1, tokens_at_once // max(1, int(lengths[order[begin]])))
        batches.append(order[begin : begin + rows])
        begin += rows
    return batches


def token_scores(model: Transformer, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return nll and rivals (see `TokenScores`) of each label that is not -100, in row-major order.

    Args:
        model: the network.
        features: (B, T, D) inputs of the head.
        labels: (B, T) token ids; no logits are computed for -100.

    Returns:
        (n,) float32 and int32.
    """
    vocab_size = model.config.vocab_size  # without the rows of padding
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
        # float, because sums of bool are slow
        above = torch.ge(logits, wanted, out=torch.empty_like(logits))
        rivals[rows] = above.sum(dim=1).to(torch.int32) - 1
        highest = logits.amax(dim=1, keepdim=True)
        nll[rows] = logits.sub_(highest).exp_().sum(dim=1).log() - (wanted - highest)[:, 0]
    return nll, rivals


@torch.inference_mode()  # not no_grad: model/kernels.py needs it for its fast products
def evaluate_source(
    model: Transformer, source: SequenceSource, batch_size: int, device: torch.device | str = "cpu"
) -> NllSum:
    """Return the summed negative log-likelihood of all labels in the source, without dropout.

    Args:
        model: the network, on `device`; its mode is restored.
        source: sequences to evaluate.
        batch_size: sequences per batch.
        device: device of the model.
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
    """Token ids whose last ones are scored.

    Attributes:
        ids: the context followed by the continuation.
        n_scored: number of ids of the continuation; at least one id is before it.
    """

    ids: Sequence[int]
    n_scored: int


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihood of a continuation.

    Attributes:
        logprob: sum of the log-probabilities of its ids, in nats; 0 without ids.
        greedy: True if each id is the likeliest one after those before it.
        top1: number of ids that are.
    """

    logprob: float
    greedy: bool
    top1: int = 0


def continuation_likelihoods(
    model: Transformer, continuations: Sequence[Continuation], *, batch_tokens: int = TOKENS_AT_ONCE
) -> list[Likelihood]:
    """Return the log-likelihood of each continuation, independent of the others up to rounding.

    A sequence longer than the context is read in windows; each id is scored once.

    Args:
        model: the network; its mode is restored.
        continuations: the continuations to score.
        batch_tokens: tokens per batch; bounds memory.

    Returns:
        One Likelihood per continuation, in their order.

    Raises:
        ValueError: no id is before a continuation, or an id is outside the vocabulary.
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
    likeliest = found.rivals == 0
    return [
        Likelihood(-float(found.nll[one].sum(dtype=np.float64)), bool(likeliest[one].all()), int(likeliest[one].sum()))
        for one in scored
    ]


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
