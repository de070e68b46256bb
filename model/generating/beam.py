"""Beam search: the likeliest continuations that can be found while a few are followed at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..transformer import Transformer
from .reading import checked_prompt, evaluating, read_prompt


@dataclass(frozen=True)
class Beam:
    """One continuation.

    Attributes:
        ids: new tokens, without eos.
        logprob: sum of the log-probabilities of its tokens, eos included, in nats.
        score: logprob / length^length_penalty, the length counting eos.
        finish_reason: "stop" if it ended with eos, "length" if it was cut.
    """

    ids: list[int]
    logprob: float
    score: float
    finish_reason: str


@dataclass(frozen=True)
class _Open:
    """Continuations that may still grow: their tokens, their log-probabilities and the logits that follow them."""

    ids: list[list[int]]
    logprobs: Tensor  # (B,) float64
    logits: Tensor  # (B, V)


def beam_search(
    model: Transformer,
    prompt: Sequence[int],
    *,
    n_beams: int = 4,
    max_new_tokens: int = 64,
    length_penalty: float = 1.0,
    eos_id: int | None = None,
) -> list[Beam]:
    """The best continuations of a prompt, as far as they can be found with so many beams.

    At each step every beam is continued by every token and the best are kept; those that end with eos are set aside.
    It ends when no open beam can still become better than the worst of n_beams that have ended.

    Args:
        model: the network; it is put into evaluation mode and back.
        prompt: token ids, at least one.
        n_beams: continuations that are followed at once.
        max_new_tokens: their greatest length; prompt and continuation together must fit the context.
        length_penalty: exponent of the length that log-probabilities are divided by: 0 prefers short continuations, 1
            compares the mean per token, more prefers long ones.
        eos_id: token that ends a continuation; None lets all grow to max_new_tokens.

    Returns:
        Up to n_beams continuations, the highest score first.

    Raises:
        ValueError: n_beams is below 1, or the prompt cannot be continued so far.
    """
    if n_beams < 1:
        raise ValueError(f"n_beams={n_beams}; expected a whole number of at least 1")
    checked_prompt(prompt, max_new_tokens, model.config)
    ended: list[Beam] = []
    with evaluating(model), torch.inference_mode():
        cache, features = read_prompt(model, prompt, max_new_tokens)
        first = torch.zeros(1, dtype=torch.float64)
        opened = _Open([[]], first, _logits(model, features[:, -1]))
        for length in range(1, max_new_tokens + 1):
            ids, logprobs, parents = _grown(opened, n_beams, eos_id, length, length_penalty, ended)
            ended = sorted(ended, key=lambda beam: -beam.score)[:n_beams]
            if not ids or _is_settled(ended, n_beams, logprobs, max_new_tokens, length, length_penalty):
                return ended
            if length == max_new_tokens:
                break
            cache.select(parents)
            last = torch.tensor([[beam[-1]] for beam in ids], device=features.device)
            opened = _Open(ids, logprobs, _logits(model, model.features(last, cache=cache)[:, -1]))
    cut = [
        Beam(beam, logprob, logprob / max_new_tokens**length_penalty, "length")
        for beam, logprob in zip(ids, logprobs.tolist(), strict=True)
    ]
    return sorted([*ended, *cut], key=lambda beam: -beam.score)[:n_beams]


def _grown(
    opened: _Open, n_beams: int, eos_id: int | None, length: int, length_penalty: float, ended: list[Beam]
) -> tuple[list[list[int]], Tensor, list[int]]:
    """The best open beams one token further on: tokens, log-probabilities, and which beam each grew from.

    Those that end are added to `ended`.
    """
    vocab_size = opened.logits.shape[1]
    total = opened.logprobs[:, None] + opened.logits.double().log_softmax(-1).cpu()
    # every beam may end, so that twice as many leave enough that do not
    best = total.flatten().topk(min(2 * n_beams, total.numel()))
    ids: list[list[int]] = []
    logprobs: list[float] = []
    parents: list[int] = []
    for rank, (logprob, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        parent, token = divmod(place, vocab_size)
        if logprob == -math.inf or len(ids) == n_beams:
            break
        if token == eos_id:
            # behind the first n_beams an end would not have been followed either
            if rank < n_beams:
                ended.append(Beam(opened.ids[parent], logprob, logprob / length**length_penalty, "stop"))
            continue
        ids.append([*opened.ids[parent], token])
        logprobs.append(logprob)
        parents.append(parent)
    return ids, torch.tensor(logprobs, dtype=torch.float64), parents


def _is_settled(
    ended: list[Beam], n_beams: int, logprobs: Tensor, max_new_tokens: int, length: int, length_penalty: float
) -> bool:
    """Whether no open beam can still become better than the worst one that has ended."""
    if len(ended) < n_beams:
        return False
    # log-probabilities only fall; the length that divides them best is the longest, or with a penalty below 0 the next,
    # and that of what is cut is the longest anyway
    best = max_new_tokens if length_penalty > 0 else min(length + 1, max_new_tokens)
    return float(logprobs.max()) / best**length_penalty <= ended[-1].score


def _logits(model: Transformer, features: Tensor) -> Tensor:
    logits: Tensor = model.head(features)[:, : model.config.vocab_size]
    return logits
