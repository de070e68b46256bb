"""Batch generation: prompts of different length in, one continuation each out.

Prompts are read once into a key-value cache, then every row grows by one token per step at its own position.
A row that stops leaves the batch. What a prompt gets depends on its own key, never on its neighbours.

The context rolls: a prompt longer than the context keeps its last max_seq_len tokens, and a row that has
filled the context starts again from the last half of its window, so a continuation may be of any length.
(Positions are absolute, so the cache cannot simply be shifted.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .cache import KVCache
from .config import GenerationConfig
from .sampling import draw, token_probabilities, uniform_noise
from .transformer import Transformer


@dataclass
class Completion:
    """One continuation of one prompt.

    Attributes:
        prompt: place of its prompt in the list.
        sample: which of the prompt's samples it is, from 0.
        ids: new tokens, without the one that ended them. A stop string's last token is among them.
        finish_reason: "stop" (a token or a string ended it), "length" (max_new_tokens were made), "context" (the
            context is full, with overflow="stop") or "exhausted" (every token was forbidden); empty as long as it grows.
        logprobs: the model's own log-probability of each of ids, in nats, before penalties, temperature and filters.
        top_logprobs: for each of ids the likeliest tokens and their log-probabilities, the best first.
        stopped_by: the stop string that ended it, or the token; None if neither did. The text goes up to where the
            string begins, which may be within a token.
    """

    prompt: int = 0
    sample: int = 0
    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    stopped_by: str | int | None = None


# The text that new ids add to the text of the ids before them
Decode = Callable[[Sequence[int], Sequence[int]], str]


@dataclass
class _Row:
    """A prompt on its way: the window the cache stands for, the noise left to use, what came out so far."""

    window: list[int]
    noise: np.ndarray
    completion: Completion


def stream(
    model: Transformer,
    prompt: Sequence[int],
    config: GenerationConfig,
    *,
    key: int = 0,
    decode: Decode | None = None,
) -> Iterator[Completion]:
    """Continues one prompt (its first sample), token by token.

    Args:
        model: as for generate, as are the others.
        prompt: token ids, at least one.
        config: how to draw.
        key: names its noise.
        decode: needed where config.stop is set.

    Yields:
        The same completion after each token, and at last with its finish_reason.
    """
    raise NotImplementedError


def prompt_problem(prompt: Sequence[int], config: GenerationConfig, network: ModelConfig) -> str:
    """Why a prompt cannot be continued, as the end of a sentence that begins with its name; empty if it can."""
    if len(prompt) == 0:
        return "is empty; begin it with a token such as BOS"
    if not 0 <= min(prompt) <= max(prompt) < network.vocab_size:
        return (
            f"holds ids from {min(prompt)} to {max(prompt)}, expected 0 to {network.vocab_size - 1}; it was encoded "
            f"with another tokeniser"
        )
    needed = len(prompt) + config.max_new_tokens
    if config.overflow == "refuse" and needed > network.max_seq_len:
        return (
            f"has {len(prompt)} tokens, {needed} with max_new_tokens={config.max_new_tokens}, and the context holds "
            f"{network.max_seq_len}; shorten it, or ask for fewer tokens, or let the context roll (overflow='roll')"
        )
    return ""


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    keys: Sequence[int] | None = None,
    batch_size: int = 32,
    decode: Decode | None = None,
    on_step: Callable[[int, int], None] | None = None,
    on_finished: Callable[[Completion], None] | None = None,
) -> list[Completion]:
    """Continues each prompt.

    Args:
        model: the network; it is put into evaluation mode and back.
        prompts: token ids, at least one in each.
        config: how to draw.
        keys: one number per prompt that, with the seed and the sample's number, names its noise; the prompts' places
            by default. A prompt with the same key gets the same noise in any batch.
        batch_size: rows that grow at once; it bounds the memory of the cache.
        decode: the text that new ids add to that of the ids before them, which may be the last few only; needed where
            config.stop is set.
        on_step: called with (completions finished, completions in all) after each step.
        on_finished: called with each completion as soon as it is finished, in no particular order.

    Returns:
        config.n_samples completions of each prompt, in the prompts' order.

    Raises:
        ValueError: a prompt cannot be continued (`prompt_problem`), keys do not match prompts, config.stop is set and
            decode is not, or config names tokens outside the vocabulary or forbids them all.
    """
    keys = range(len(prompts)) if keys is None else keys
    _check(prompts, keys, config, model.config)
    context = model.config.max_seq_len
    rows = [
        _Row(
            list(prompt[-context:]),
            uniform_noise(config.seed, key, config.max_new_tokens if config.temperature > 0 else 0),
            Completion(place),
        )
        for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
    ]
    by_length = sorted(rows, key=lambda row: len(row.window))  # similar lengths together waste little padding
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for first in range(0, len(rows), batch_size):
                report = _reporter(on_step, first, len(rows))
                _generate_batch(model, by_length[first : first + batch_size], config, report)
    finally:
        model.train(was_training)
    return [row.completion for row in rows]


def _generate_batch(
    model: Transformer, rows: list[_Row], config: GenerationConfig, report: Callable[[int], None]
) -> None:
    n_rows, live = len(rows), rows
    longest = max(len(row.window) for row in rows)
    capacity = min(model.config.max_seq_len, longest + config.max_new_tokens)
    cache, logits = _prefill(model, [row.window for row in rows], capacity)
    for step in range(config.max_new_tokens):
        tokens, logprobs = _choose(logits, live, step, config)
        staying = []
        for index, (row, token, logprob) in enumerate(zip(live, tokens, logprobs, strict=True)):
            if token == config.eos_id:
                row.completion.finish_reason = "stop"
                continue
            row.completion.ids.append(token)
            row.completion.logprobs.append(logprob)
            row.window.append(token)
            staying.append(index)
        if step + 1 == config.max_new_tokens:
            for index in staying:
                live[index].completion.finish_reason = "length"
            staying = []
        report(n_rows - len(staying))
        if not staying:
            return
        if len(staying) < len(live):
            live = [live[index] for index in staying]
            cache.select(staying)
        logits = _advance(model, cache, live)


def _advance(model: Transformer, cache: KVCache, rows: list[_Row]) -> Tensor:
    """Reads the last token of each row's window; logits (B, V) of the next."""
    full = [index for index, row in enumerate(rows) if len(row.window) > model.config.max_seq_len]
    if full:
        _roll(model, cache, rows, full)
    ids = torch.tensor([row.window[-1:] for row in rows], device=cache.keys.device)
    return model(ids, cache=cache)[:, -1]


def _roll(model: Transformer, cache: KVCache, rows: list[_Row], full: list[int]) -> None:
    """Makes room in full rows: reads half a window before the newest token again, from position 0."""
    half = model.config.max_seq_len // 2
    for index in full:
        rows[index].window = rows[index].window[-half - 1 :]
    fresh, _ = _prefill(model, [rows[index].window[:-1] for index in full], half)
    cache.replace(full, fresh)


def _prefill(model: Transformer, windows: list[list[int]], capacity: int) -> tuple[KVCache, Tensor]:
    """A cache that holds these windows, and the logits (B, V) after each one's last token."""
    weight = model.token_embedding.weight
    cache = KVCache(model.config, len(windows), capacity, device=weight.device, dtype=weight.dtype)
    lengths = torch.tensor([len(window) for window in windows])
    ids = torch.zeros(len(windows), int(lengths.max()), dtype=torch.int64)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(window)
    features = model.features(ids.to(weight.device), cache=cache, lengths=lengths)
    # Only the last position of each row goes through the head, which is the widest layer of a small model.
    last = (lengths - 1).to(weight.device)
    return cache, model.head(features[torch.arange(len(windows), device=weight.device), last])


def _choose(logits: Tensor, rows: list[_Row], step: int, config: GenerationConfig) -> tuple[list[int], list[float]]:
    """One token for each row, and the model's log-probability of it."""
    logits = logits.float()
    model_logprobs = logits.log_softmax(dim=-1)
    forbidden = list(config.suppress)
    if config.eos_id is not None and step < config.min_new_tokens:
        forbidden.append(config.eos_id)
    if forbidden:
        logits = logits.index_fill(1, torch.tensor(forbidden, device=logits.device), -torch.inf)
    if config.temperature == 0:
        tokens = logits.argmax(dim=-1)
    else:
        noise = torch.tensor([row.noise[step] for row in rows], dtype=torch.float64, device=logits.device)
        tokens = draw(token_probabilities(logits, config.temperature, config.top_k, config.top_p), noise)
    logprobs = model_logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), logprobs.tolist()


def _reporter(on_step: Callable[[int, int], None] | None, first: int, total: int) -> Callable[[int], None]:
    def report(done_in_batch: int) -> None:
        if on_step:
            on_step(first + done_in_batch, total)

    return report


def _check(
    prompts: Sequence[Sequence[int]], keys: Sequence[int], config: GenerationConfig, network: ModelConfig
) -> None:
    if len(keys) != len(prompts):
        raise ValueError(f"{len(keys)} keys for {len(prompts)} prompts; give one key per prompt")
    for index, prompt in enumerate(prompts):
        problem = prompt_problem(prompt, config, network)
        if problem:
            raise ValueError(f"prompt {index} {problem}")
