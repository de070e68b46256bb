"""Searches: continuations of one prompt that are looked for, not drawn.

Beam search finds the likeliest continuations that can be found while a few are followed at once. Contrastive search
takes, of the likeliest tokens, the one whose state is least like those before it (Su et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import GenerationConfig
from .generation import Completion, nan_logits
from .kv_cache import KVCache
from .sampling import ranked
from .transformer import Transformer

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

    Raises:
        ValueError: the network's logits are NaN.
    """
    found: list[Completion] = []
    for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        if config.strategy == "contrastive":
            completions = [contrastive_search(model, prompt, limit, config, place)]
        else:
            beams = beam_search(model, prompt, limit, config, place)[: config.n_samples]
            completions = [completion for _, completion in beams]
        for sample, completion in enumerate(completions):
            completion.sample = sample
            _record(model, prompt, completion, config.top_logprobs)
            found.append(completion)
            if on_finished:
                on_finished(completion)
        if on_step:
            on_step(len(found), len(prompts) * config.n_samples)
    return found


@torch.inference_mode()
def _record(model: Transformer, prompt: Sequence[int], completion: Completion, n_best: int) -> None:
    """Write the network's own log-probabilities of a continuation, read at once, into it."""
    if not completion.ids:
        return
    n, device = len(completion.ids), model.token_embedding.weight.device
    features = model.features(torch.tensor([[*prompt, *completion.ids[:-1]]], device=device))
    logprobs = model.head(features[0, -n:])[:, : model.config.vocab_size].double().log_softmax(-1).cpu()
    completion.logprobs = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
    if n_best:
        completion.top_logprobs = ranked(logprobs.topk(min(n_best, logprobs.shape[1]), dim=1))


@torch.inference_mode()
def beam_search(
    model: Transformer, prompt: Sequence[int], limit: int, config: GenerationConfig, place: int = 0
) -> list[tuple[float, Completion]]:
    """The best continuations of a prompt, as far as they can be found with so many beams.

    At each step every beam is continued by every token and the best are kept; those that end with eos are set aside.
    It ends when no open beam can still become better than the worst of n_beams that have ended.

    Args:
        model: the network, in evaluation mode.
        prompt: token ids, at least one; they and the continuation fit the context.
        limit: the longest continuation, in tokens.
        config: its n_beams, length_penalty, eos_id and suppress.
        place: of the prompt in its list.

    Returns:
        Up to n_beams continuations, the best first, with their scores: the sum of the log-probabilities of their
        tokens divided by length^length_penalty, both counting eos.
    """
    n_beams, penalty = config.n_beams, config.length_penalty
    ended: list[tuple[float, Completion]] = []
    ids: list[list[int]] = [[]]
    logprobs = torch.zeros(1, dtype=torch.float64)  # (beams,)
    cache, features = _read(model, prompt, limit)
    for length in range(1, limit + 1):
        logits = _logits(model, features[:, -1], config, place)
        total = logprobs[:, None] + logits.double().log_softmax(-1).cpu()
        # every beam may end, so that twice as many leave enough that do not
        best = total.flatten().topk(min(2 * n_beams, total.numel()))
        grown: list[tuple[float, int, int]] = []  # log-probability, the beam it grew from, its new token
        for rank, (logprob, at) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token = divmod(at, logits.shape[1])
            if logprob == -math.inf or len(grown) == n_beams:
                break
            if token != config.eos_id:
                grown.append((logprob, parent, token))
            elif rank < n_beams:  # behind the first n_beams an end would not have been followed either
                ended.append((logprob / length**penalty, Completion(place, 0, ids[parent], "stop", stopped_by=token)))
        ended = _best(ended, n_beams)
        # log-probabilities only fall; the length that divides them best is the longest, or with a penalty below 0 the
        # next, and that of what is cut is the longest anyway
        divisor = (limit if penalty > 0 else min(length + 1, limit)) ** penalty
        if not grown or (len(ended) == n_beams and grown[0][0] / divisor <= ended[-1][0]):
            return ended
        ids = [[*ids[parent], token] for _, parent, token in grown]
        logprobs = torch.tensor([logprob for logprob, _, _ in grown], dtype=torch.float64)
        if length < limit:
            cache.select([parent for _, parent, _ in grown])
            last = torch.tensor([[token] for _, _, token in grown], device=features.device)
            features = model.features(last, cache=cache)
    scores = (logprob / limit**penalty for logprob in logprobs.tolist())
    cut = [(score, Completion(place, 0, beam, "length")) for score, beam in zip(scores, ids, strict=True)]
    return _best([*ended, *cut], n_beams)


def _best(beams: list[tuple[float, Completion]], n: int) -> list[tuple[float, Completion]]:
    return sorted(beams, key=lambda beam: -beam[0])[:n]


@torch.inference_mode()
def contrastive_search(
    model: Transformer, prompt: Sequence[int], limit: int, config: GenerationConfig, place: int = 0
) -> Completion:
    """Continues a prompt by the token with the highest (1 - alpha) p - alpha s, of the top_k likeliest.

    p is the token's probability, s the largest cosine between the state that it would have (behind the last norm) and
    the states of all tokens before it.

    Args:
        model, prompt, limit, place: as for beam_search.
        config: its top_k, alpha, eos_id and suppress.
    """
    completion = Completion(place, finish_reason="length")
    cache, features = _read(model, prompt, limit)
    states = F.normalize(features[0], dim=-1)  # (T, D)
    last = features[0, -1]
    while len(completion.ids) < limit:
        probabilities = _logits(model, last[None], config, place)[0].softmax(-1)
        best = probabilities.topk(min(config.top_k or USUAL_TOP_K, len(probabilities)))
        cache.select([0] * len(best.indices))  # each candidate is read behind the same text
        read = model.features(best.indices[:, None], cache=cache)[:, 0]  # (k, D)
        likeness = (F.normalize(read, dim=-1) @ states.T).amax(-1)
        chosen = int(((1 - config.alpha) * best.values - config.alpha * likeness).argmax())
        token = int(best.indices[chosen])
        if token == config.eos_id:
            completion.finish_reason, completion.stopped_by = "stop", token
            break
        completion.ids.append(token)
        cache.select([chosen])
        last = read[chosen]
        states = torch.cat((states, F.normalize(last[None], dim=-1)))
    return completion


def _read(model: Transformer, prompt: Sequence[int], limit: int) -> tuple[KVCache, Tensor]:
    """A cache of one row that holds the prompt, with room for what follows, and the prompt's features (1, T, D)."""
    weight = model.token_embedding.weight
    cache = KVCache(model.config, 1, len(prompt) + limit, device=weight.device, dtype=weight.dtype)
    return cache, model.features(torch.tensor([list(prompt)], device=weight.device), cache=cache)


def _logits(model: Transformer, features: Tensor, config: GenerationConfig, place: int) -> Tensor:
    logits = model.head(features)[:, : model.config.vocab_size]
    if logits.isnan().any():
        raise nan_logits(place)
    if not config.suppress:
        return logits
    return logits.index_fill(1, torch.tensor(config.suppress, device=logits.device), -torch.inf)
