"""Beam and contrastive search as strategies of `generate`: one prompt at a time, with the results that sampling has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from .config import GenerationConfig
from .generating.beam import beam_search
from .generating.contrastive import contrastive_search
from .generating.rows import Completion
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
    """
    restricted = _restricted(model, config.suppress)
    found: list[Completion] = []
    for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        for completion in _searched(restricted, prompt, limit, config):
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
                model, prompt, top_k=top_k, alpha=config.alpha, max_new_tokens=limit, eos_id=config.eos_id
            )
        ]
    beams = beam_search(
        model,
        prompt,
        n_beams=config.n_beams,
        max_new_tokens=limit,
        length_penalty=config.length_penalty,
        eos_id=config.eos_id,
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


def _restricted(model: Transformer, forbidden: Sequence[int]) -> Transformer:
    """The network with a head bias of -inf for these ids, so that no search follows them; its weights are shared."""
    if not forbidden:
        return model
    weight = model.head_weight
    bias = weight.new_zeros(len(weight)) if model.head_bias is None else model.head_bias.detach().clone()
    bias[list(forbidden)] = -torch.inf
    found = copy.copy(model)
    found._parameters = dict(model._parameters)  # the copy's own, in which only the bias is another
    found.head_bias = nn.Parameter(bias, requires_grad=False)
    return found
