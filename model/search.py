"""Searches: continuations of one prompt that are looked for, not drawn.

Beam search finds the likeliest continuations that can be found while a few are followed at once. Contrastive search
takes, of the likeliest tokens, the one whose state is least like those before it (Su et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import GenerationConfig
from .generation import Completion, evaluating, prompt_problem
from .kv_cache import KVCache
from .transformer import Transformer


def read_prompt(model: Transformer, prompt: Sequence[int], max_new_tokens: int) -> tuple[KVCache, Tensor]:
    """A cache of one row that holds the prompt, with room for what follows, and the prompt's features (1, T, D).

    Raises:
        ValueError: the prompt is empty, or holds other tokens than the network's, or leaves too little of the context.
    """
    config = GenerationConfig(max_new_tokens=max_new_tokens, overflow="refuse")
    if problem := prompt_problem(prompt, config, model.config):
        raise ValueError(f"the prompt {problem}")
    weight = model.token_embedding.weight
    cache = KVCache(model.config, 1, len(prompt) + max_new_tokens, device=weight.device, dtype=weight.dtype)
    return cache, model.features(torch.tensor([list(prompt)], device=weight.device), cache=cache)


USUAL_TOP_K = 4  # tokens that contrastive search compares where top_k does not say


def search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    config: GenerationConfig,
    on_step: Callable[[int, int], None] | None = None,
    on_finished: Callable[[Completion], None] | None = None,
) -> list[Completion]:
    """Continue each prompt by config.strategy, "beam" or "contrastive".

    Args:
        model: the network, in evaluation mode.
        prompts: token ids, which fit the context together with their continuations.
        limits: the longest continuation of each prompt.
        config: of beam search the best config.n_samples continuations are returned.
        on_step, on_finished: as for generate.
    """
    found: list[Completion] = []
    for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        for completion in _searched(model, prompt, limit, config):
            completion.prompt = place
            _record(model, prompt, completion, config.top_logprobs)
            found.append(completion)
            if on_finished:
                on_finished(completion)
        if on_step:
            on_step(len(found), len(prompts) * config.n_samples)
    return found


def _searched(model: Transformer, prompt: Sequence[int], limit: int, config: GenerationConfig) -> list[Completion]:
    if config.strategy == "contrastive":
        top_k = config.top_k or USUAL_TOP_K
        return [
            contrastive_search(
                model,
                prompt,
                top_k=top_k,
                alpha=config.alpha,
                max_new_tokens=limit,
                eos_id=config.eos_id,
                suppress=config.suppress,
            )
        ]
    beams = beam_search(
        model,
        prompt,
        n_beams=config.n_beams,
        max_new_tokens=limit,
        length_penalty=config.length_penalty,
        eos_id=config.eos_id,
        suppress=config.suppress,
    )
    return [
        Completion(
            sample=sample,
            ids=beam.ids,
            finish_reason=beam.finish_reason,
            stopped_by=config.eos_id if beam.finish_reason == "stop" else None,
        )
        for sample, beam in enumerate(beams[: config.n_samples])
    ]


def _record(model: Transformer, prompt: Sequence[int], completion: Completion, n_best: int) -> None:
    """Write the network's own log-probabilities of a continuation, read at once, into it."""
    if not completion.ids:
        return
    n, device = len(completion.ids), model.token_embedding.weight.device
    with torch.inference_mode():
        features = model.features(torch.tensor([[*prompt, *completion.ids[:-1]]], device=device))
        logprobs = model.head(features[0, -n:])[:, : model.config.vocab_size].double().log_softmax(-1).cpu()
    completion.logprobs = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
    if n_best:
        values, ids = logprobs.topk(min(n_best, logprobs.shape[1]), dim=1)
        best = zip(ids.tolist(), values.tolist(), strict=True)
        completion.top_logprobs = [list(zip(*pair, strict=True)) for pair in best]


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
    suppress: Sequence[int] = (),
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
        suppress: ids of tokens that are never chosen.

    Returns:
        Up to n_beams continuations, the highest score first.

    Raises:
        ValueError: n_beams is below 1, or the prompt cannot be continued so far.
    """
    if n_beams < 1:
        raise ValueError(f"n_beams={n_beams}; expected a whole number of at least 1")
    ended: list[Beam] = []
    with evaluating(model), torch.inference_mode():
        cache, features = read_prompt(model, prompt, max_new_tokens)
        first = torch.zeros(1, dtype=torch.float64)
        opened = _Open([[]], first, _logits(model, features[:, -1], suppress))
        for length in range(1, max_new_tokens + 1):
            ids, logprobs, parents = _grown(opened, n_beams, eos_id, length, length_penalty, ended)
            ended = sorted(ended, key=lambda beam: -beam.score)[:n_beams]
            if not ids or _is_settled(ended, n_beams, logprobs, max_new_tokens, length, length_penalty):
                return ended
            if length == max_new_tokens:
                break
            cache.select(parents)
            last = torch.tensor([[beam[-1]] for beam in ids], device=features.device)
            opened = _Open(ids, logprobs, _logits(model, model.features(last, cache=cache)[:, -1], suppress))
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


def _logits(model: Transformer, features: Tensor, suppress: Sequence[int]) -> Tensor:
    logits = model.head(features)[:, : model.config.vocab_size]
    if logits.isnan().any():
        raise ValueError(
            "the network's logits are NaN: its weights are broken, or its numbers too large for their type"
        )
    return logits.index_fill(1, torch.tensor(suppress, device=logits.device), -torch.inf) if suppress else logits


def contrastive_search(
    model: Transformer,
    prompt: Sequence[int],
    *,
    top_k: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int = 64,
    eos_id: int | None = None,
    suppress: Sequence[int] = (),
) -> Completion:
    """Continues a prompt by the token with the highest (1 - alpha) p - alpha s, of the top_k likeliest.

    p is the token's probability, s the largest cosine between the state that it would have (behind the last norm) and
    the states of all tokens before it.

    Args:
        model: the network; it is put into evaluation mode and back.
        prompt: token ids, at least one.
        top_k: tokens that are weighed, capped at the vocabulary.
        alpha: 0 (greedy) to 1.
        max_new_tokens: prompt and continuation together must fit the context.
        eos_id: token that ends the continuation.
        suppress: ids of tokens that are never chosen.

    Raises:
        ValueError: top_k or alpha is out of range, or the prompt cannot be continued so far.
    """
    if top_k < 1 or not 0 <= alpha <= 1:
        raise ValueError(f"top_k={top_k}, alpha={alpha}; expected a top_k of at least 1 and an alpha from 0 to 1")
    completion = Completion(finish_reason="length")
    with evaluating(model), torch.inference_mode():
        cache, features = read_prompt(model, prompt, max_new_tokens)
        states = F.normalize(features[0], dim=-1)  # (T, D)
        last = features[0, -1]
        while len(completion.ids) < max_new_tokens:
            probabilities = _logits(model, last[None], suppress)[0].softmax(-1)
            best = probabilities.topk(min(top_k, len(probabilities)))
            cache.select([0] * len(best.indices))  # each candidate is read behind the same text
            read = model.features(best.indices[:, None], cache=cache)[:, 0]  # (k, D)
            place = int(contrast(best.values, F.normalize(read, dim=-1), states, alpha).argmax())
            token = int(best.indices[place])
            if token == eos_id:
                completion.finish_reason, completion.stopped_by = "stop", token
                break
            completion.ids.append(token)
            completion.logprobs.append(float(best.values[place].log()))
            cache.select([place])
            last = read[place]
            states = torch.cat((states, F.normalize(last[None], dim=-1)))
    return completion


def contrast(probabilities: Tensor, candidates: Tensor, states: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) p - alpha max cosine, for each candidate.

    Args:
        probabilities: (k,).
        candidates: (k, D) of length 1.
        states: (T, D) of length 1, of the tokens before.
        alpha: 0 to 1.
    """
    return (1 - alpha) * probabilities - alpha * (candidates @ states.T).amax(-1)
