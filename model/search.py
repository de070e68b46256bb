"""Beam search and contrastive search, for one prompt at a time.

Beam search keeps the likeliest continuations at each step. Contrastive search selects among the likeliest tokens the
one whose hidden state is least similar to those before it (Su et al. 2022).
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

USUAL_TOP_K = 4  # default top_k of contrastive search


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
        prompts: token ids; each fits the context together with its continuation.
        limits: maximum length of the continuation of each prompt.
        config: generation settings; beam search returns the best config.n_samples continuations.
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
    """Add the log-probabilities of a continuation to it, from one forward pass."""
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
    """Return the best continuations of a prompt by beam search.

    At each step the best n_beams of all one-token extensions are kept, and those that end with eos are set aside. The
    search ends when no open beam can exceed the worst of n_beams finished ones.

    Args:
        model: the network, in evaluation mode.
        prompt: token ids, at least one; they and the continuation fit the context.
        limit: maximum length of the continuation, in tokens.
        config: gives n_beams, length_penalty, eos_id and suppress.
        place: index of the prompt, for the completions.

    Returns:
        Up to n_beams continuations, the best first, with their scores: the sum of the log-probabilities of their
        tokens divided by length^length_penalty, both counting eos.
    """
    n_beams, penalty = config.n_beams, config.length_penalty
    ended: list[tuple[float, Completion]] = []
    ids: list[list[int]] = [[]]
    logprobs = torch.zeros(1, dtype=torch.float64)  # (beams,)
    cache, features = _prefill(model, prompt, limit)
    for length in range(1, limit + 1):
        logits = _logits(model, features[:, -1], config, place)
        total = logprobs[:, None] + logits.double().log_softmax(-1).cpu()
        # twice as many, because up to n_beams of them end with eos
        best = total.flatten().topk(min(2 * n_beams, total.numel()))
        grown: list[tuple[float, int, int]] = []  # (log-probability, parent beam, new token)
        for rank, (logprob, at) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token = divmod(at, logits.shape[1])
            if logprob == -math.inf or len(grown) == n_beams:
                break
            if token != config.eos_id:
                grown.append((logprob, parent, token))
            elif rank < n_beams:  # a lower rank would not have been kept
                ended.append((logprob / length**penalty, Completion(place, 0, ids[parent], "stop", stopped_by=token)))
        ended = _best(ended, n_beams)
        # upper bound of the scores of open beams: log-probabilities only fall, and the best divisor is that of the
        # maximum length, or of the next length with a penalty below 0
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
    """Continue a prompt with the token of the highest (1 - alpha) p - alpha s among the top_k likeliest.

    p is the token's probability, s the largest cosine similarity of its final hidden state to those of all tokens
    before it (Su et al. 2022).

    Args:
        model, prompt, limit, place: as for beam_search.
        config: gives top_k, alpha, eos_id and suppress.
    """
    completion = Completion(place, finish_reason="length")
    cache, features = _prefill(model, prompt, limit)
    states = F.normalize(features[0], dim=-1)  # (T, D)
    last = features[0, -1]
    while len(completion.ids) < limit:
        probabilities = _logits(model, last[None], config, place)[0].softmax(-1)
        best = probabilities.topk(min(config.top_k or USUAL_TOP_K, len(probabilities)))
        cache.select([0] * len(best.indices))  # one row per candidate
        read = model.features(best.indices[:, None], cache=cache)[:, 0]  # (k, D)
        similarity = (F.normalize(read, dim=-1) @ states.T).amax(-1)
        chosen = int(((1 - config.alpha) * best.values - config.alpha * similarity).argmax())
        token = int(best.indices[chosen])
        if token == config.eos_id:
            completion.finish_reason, completion.stopped_by = "stop", token
            break
        completion.ids.append(token)
        cache.select([chosen])
        last = read[chosen]
        states = torch.cat((states, F.normalize(last[None], dim=-1)))
    return completion


def _prefill(model: Transformer, prompt: Sequence[int], limit: int) -> tuple[KVCache, Tensor]:
    """Prefill a cache of one row with room for the continuation. Returns it and the features (1, T, D)."""
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
