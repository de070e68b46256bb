"""Generation: prompts of different length in, continuations out.

Prompts are read once into a key-value cache, then every row grows by one token per step at its own position; a row that
ends makes room for a waiting prompt at once (`generating.engine`). What a prompt gets depends on its own key, never on
its neighbours.

The context rolls: a prompt longer than the context keeps its last max_seq_len tokens, and a row that has filled the
context starts again from the last half of its window, so a continuation may be of any length. (Cached keys and values
were computed from a text that is gone then, so the cache cannot simply be shifted.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from .architecture import ModelConfig
from .config import GenerationConfig
from .generating.engine import Engine
from .generating.reading import evaluating, prompt_fault, room_fault
from .generating.rows import Completion, Row
from .generating.stops import Decode, StopStrings
from .transformer import Transformer


def stream(
    model: Transformer,
    prompt: Sequence[int],
    config: GenerationConfig,
    *,
    key: int = 0,
    decode: Decode | None = None,
) -> Iterator[Completion]:
    """Continues one prompt (its first sample), token by token; not by a search, which knows it at the end only.

    Args:
        model: as for generate, as are the others.
        prompt: token ids, at least one.
        config: how to draw.
        key: names its noise.
        decode: needed where config.stop is set.

    Yields:
        The same completion after each token, and at last with its finish_reason.
    """
    if config.is_search:
        raise ValueError(f"strategy={config.strategy!r} has no continuation before its end; use generate")
    _check([prompt], [key], config, model.config, decode)
    config = _sized(config, [prompt])
    row = Row(prompt, key, Completion(), config.max_new_tokens)
    with evaluating(model) as trained:
        for _ in Engine(model, [row], config, 1, _stops(config, decode), keep=not trained).run():
            yield row.completion


def prompt_problem(prompt: Sequence[int], config: GenerationConfig, network: ModelConfig) -> str:
    """Why a prompt cannot be continued, as the end of a sentence that begins with its name; empty if it can."""
    fault = prompt_fault(prompt, network)
    room = config.room(len(prompt))
    if not fault and room < 1:
        fault = f"has {len(prompt)} tokens, and max_length={config.max_length} leaves none to continue it; raise that"
    if not fault and config.overflow == "refuse":
        fault = room_fault(prompt, room, network)
    return fault


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    keys: Sequence[int] | None = None,
    limits: Sequence[int] | None = None,
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
        limits: the longest continuation of each prompt, where it is below what config gives it.
        batch_size: rows that grow at once; it bounds the memory of the cache.
        decode: the text that new ids add to that of the ids before them, which may be the last few only; needed where
            config.stop is set.
        on_step: called with (completions finished, completions in all) after each step.
        on_finished: called with each completion as soon as it is finished, in no particular order.

    Returns:
        config.n_samples completions of each prompt, in the prompts' order.

    Raises:
        ValueError: a prompt cannot be continued (`prompt_problem`), keys or limits do not match prompts, config.stop is
            set and decode is not, or config names tokens outside the vocabulary or forbids them all; or the network's
            logits are NaN.
    """
    keys = range(len(prompts)) if keys is None else keys
    _check(prompts, keys, config, model.config, decode)
    longest = [config.room(len(prompt)) for prompt in prompts]
    if limits is None:
        limits = longest
    elif len(limits) != len(prompts) or not all(1 <= a <= b for a, b in zip(limits, longest, strict=True)):
        most = (
            f"what max_length={config.max_length} leaves"
            if config.max_length
            else f"max_new_tokens={config.max_new_tokens}"
        )
        raise ValueError(f"limits={limits!r}; expected a number from 1 to {most} for each prompt")
    if config.is_search:
        from .strategies import search  # which stands on top of this module

        with evaluating(model):
            return search(model, prompts, limits, config, on_step, on_finished)
    config = _sized(config, prompts)
    rows = [
        Row(prompt, key, Completion(place, sample), limits[place])
        for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
        for sample in range(config.n_samples)
    ]
    n_finished = 0
    with evaluating(model) as trained:
        engine = Engine(model, rows, config, batch_size, _stops(config, decode), keep=not trained)
        for finished in engine.run():
            n_finished += len(finished)
            if on_finished:
                for row in finished:
                    on_finished(row.completion)
            if on_step:
                on_step(n_finished, len(rows))
    return [row.completion for row in rows]


def _sized(config: GenerationConfig, prompts: Sequence[Sequence[int]]) -> GenerationConfig:
    """The same generation with max_new_tokens as its only bound, which sizes the cache."""
    if not config.max_length:
        return config
    longest = config.room(min(map(len, prompts), default=0))
    return dataclasses.replace(config, max_length=0, max_new_tokens=longest)


def _stops(config: GenerationConfig, decode: Decode | None) -> StopStrings | None:
    return StopStrings(config.stop, decode) if config.stop and decode is not None else None


def _check(
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    config: GenerationConfig,
    network: ModelConfig,
    decode: Decode | None,
) -> None:
    if len(keys) != len(prompts):
        raise ValueError(f"{len(keys)} keys for {len(prompts)} prompts; give one key per prompt")
    for index, prompt in enumerate(prompts):
        problem = prompt_problem(prompt, config, network)
        if problem:
            raise ValueError(f"prompt {index} {problem}")
    if config.stop and decode is None:
        raise ValueError(f"stop={config.stop!r} is text, and there is no decode to turn tokens into text; give it")
    biased = [token for token, _ in config.logit_bias]
    ending = () if config.eos_id is None else (config.eos_id,)
    named = {"suppress": config.suppress, "logit_bias": biased, "stop_ids": config.stop_ids, "eos_id": ending}
    for name, tokens in named.items():
        beyond = [token for token in tokens if token >= network.vocab_size]
        if beyond:
            raise ValueError(f"{name} names token {beyond[0]}; the model's tokens are 0 to {network.vocab_size - 1}")
    n_allowed = network.vocab_size - len(set(config.suppress))
    if config.strategy == "beam" and config.n_beams >= n_allowed:
        raise ValueError(f"n_beams={config.n_beams}; expected less than the {n_allowed} tokens that may be chosen")
    if n_allowed == 0:
        raise ValueError(f"suppress forbids all {network.vocab_size} tokens, so that none could be drawn; leave some")
