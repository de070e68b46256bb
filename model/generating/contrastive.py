"""Contrastive search: of the likeliest tokens the one whose state is least like those before it (Su et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..transformer import Transformer
from .reading import checked_prompt, evaluating, read_prompt
from .rows import Completion


def contrastive_search(
    model: Transformer,
    prompt: Sequence[int],
    *,
    top_k: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int = 64,
    eos_id: int | None = None,
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

    Raises:
        ValueError: top_k or alpha is out of range, or the prompt cannot be continued so far.
    """
    if top_k < 1 or not 0 <= alpha <= 1:
        raise ValueError(f"top_k={top_k}, alpha={alpha}; expected a top_k of at least 1 and an alpha from 0 to 1")
    checked_prompt(prompt, max_new_tokens, model.config)
    completion = Completion(finish_reason="length")
    with evaluating(model), torch.inference_mode():
        cache, features = read_prompt(model, prompt, max_new_tokens)
        states = F.normalize(features[0], dim=-1)  # (T, D)
        last = features[0, -1]
        while len(completion.ids) < max_new_tokens:
            probabilities = model.head(last[None])[0, : model.config.vocab_size].softmax(-1)
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
