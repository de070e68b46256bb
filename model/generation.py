"""Batch generation: prompts of different length in, one continuation each out.

Prompts are read once into a key-value cache, then every row grows by one token per step at its own position.
A row that stops leaves the batch. What a prompt gets depends on its own key, never on its neighbours.

The context rolls: a prompt longer than the context keeps its last max_seq_len tokens, and a row that has
filled the context starts again from the last half of its window, so a continuation may be of any length.
(Positions are absolute, so the cache cannot simply be shifted.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .cache import KVCache
from .config import GenerationConfig
from .sampling import draw, token_probabilities, uniform_noise
from .transformer import Transformer


@dataclass
class Completion:
    """The continuation of one prompt.

    Attributes:
        ids: new tokens, without the one that ended them.
        finish_reason: "stop" if eos_id came, "length" if max_new_tokens were made.
        logprobs: the model's own log-probability of each of ids, in nats, before temperature and filters.
    """

    ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    logprobs: list[float] = field(default_factory=list)


@dataclass
class _Row:
    """A prompt on its way: the window the cache stands for, the noise left to use, what came out so far."""

    window: list[int]
    noise: np.ndarray
    completion: Completion


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    keys: Sequence[int] | None = None,
    batch_size: int = 32,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Completion]:
    """Continues each prompt.

    Args:
        model: the network; it is put into evaluation mode and back.
        prompts: token ids, at least one in each.
        config: how to draw.
        keys: one number per prompt that, with the seed, names its noise; the prompts' places by default. A
            prompt with the same key gets the same noise in any batch.
        batch_size: prompts that are continued at once; it bounds the memory of the cache.
        on_step: called with (prompts finished, prompts in all) after each step.

    Returns:
        One completion per prompt, in the prompts' order.

    Raises:
        ValueError: a prompt is empty or holds an id outside the vocabulary, or keys do not match prompts.
    """
    keys = range(len(prompts)) if keys is None else keys
    _check(prompts, keys, model.config.vocab_size)
    context = model.config.max_seq_len
    rows = [
        _Row(
            list(prompt[-context:]),
            uniform_noise(config.seed, key, config.max_new_tokens if config.temperature > 0 else 0),
            Completion(),
        )
        for prompt, key in zip(prompts, keys, strict=True)
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


def _check(prompts: Sequence[Sequence[int]], keys: Sequence[int], vocab_size: int) -> None:
    if len(keys) != len(prompts):
        raise ValueError(f"{len(keys)} keys for {len(prompts)} prompts; give one key per prompt")
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {index} is empty; begin it with a token such as BOS")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise ValueError(
                f"prompt {index} holds ids from {min(prompt)} to {max(prompt)}, expected 0 to "
                f"{vocab_size - 1}; it was encoded with another tokeniser"
            )
