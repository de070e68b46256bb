"""Generation: prompts of different length in, continuations out.

A batch of slots grows by one token per step, each row at its own position. Prompts are read in groups of like length
into the slots of a static key-value cache; a row that ends gives its slot to a waiting prompt (a few slots are filled
at once, because reading one short prompt costs almost as much as reading four), and when nothing waits and half of the
slots are idle, the batch shrinks. What a prompt gets depends on its own key, never on its neighbours.

The context rolls: a prompt longer than the context keeps its last max_seq_len tokens, and a row that has filled the
context starts again from the last half of its window, so a continuation may be of any length. (Cached keys and values
were computed from a text that is gone then, so the cache cannot simply be shifted.)

On a GPU the next step is started before the host has seen the tokens of the last one, so that ends are noticed one
step late and the device never waits for the host.

With config.deterministic everything that a row's bits depend on has a fixed shape or one of its own: prompts are read
alone, products are computed in blocks of a fixed number of rows, every row attends over all slots, and draws by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .config import GenerationConfig
from .kernels import Packed
from .kv_cache import GraphedStep, KVCache
from .sampling import Choice, Sampler, ranked, uniform_noise
from .transformer import Transformer, evaluating

PREFILL_TOKENS = 4096  # prompt tokens, with padding, that are read at once
LEAST_FILLED = 0.8  # the shortest prompt of a group, as a share of the longest
REFILL_SHARE = 8  # slots are refilled when one in so many is idle
BLOCK = 8  # rows of a deterministic step
WIDE_BLOCK = 32  # the same where rows are of uneven width: no vector of the processor may end within a block
_NOISE_AHEAD = 256  # numbers that are drawn at once
_CONTEXT = 8  # tokens before the part that is decoded: some tokenisers write a token otherwise at the start of a text
_TOKENS_PER_CHAR = 4  # at most, where a token is a byte

Decode = Callable[[Sequence[int], Sequence[int]], str]  # the text that new ids add to the text of the ids before them


@dataclass
class Completion:
    """One continuation of one prompt.

    Attributes:
        prompt: place of its prompt in the list.
        sample: which of the prompt's samples it is, from 0.
        ids: new tokens, without the one that ended them. A stop string's last token is among them.
        finish_reason: "stop" (a token or a string ended it), "length" (max_new_tokens were made), "context" (the
            context is full, with overflow="stop") or "exhausted" (every token was forbidden); "" while it grows.
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


def stream(
    model: Transformer,
    prompt: Sequence[int],
    config: GenerationConfig,
    *,
    key: int = 0,
    decode: Decode | None = None,
) -> Iterator[Completion]:
    """Continue one prompt (its first sample), token by token; not by a search, which knows it at the end only.

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
    row = Row(prompt, key, Completion(), config.room(len(prompt)))
    with evaluating(model):
        for _ in Engine(model, [row], config, 1, decode).run():
            yield row.completion


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
    """Continue each prompt.

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
        raise ValueError(f"limits={limits!r}; expected numbers from 1 to {longest}, one for each prompt")
    if config.is_search:
        from .search import search  # which stands on top of this module

        with evaluating(model):
            return search(model, prompts, limits, config, on_step, on_finished)
    rows = [
        Row(prompt, key, Completion(place, sample), limits[place])
        for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
        for sample in range(config.n_samples)
    ]
    n_finished = 0
    with evaluating(model):
        for finished in Engine(model, rows, config, batch_size, decode).run():
            n_finished += len(finished)
            if on_finished:
                for row in finished:
                    on_finished(row.completion)
            if on_step:
                on_step(n_finished, len(rows))
    return [row.completion for row in rows]


def prompt_problem(prompt: Sequence[int], config: GenerationConfig, network: ModelConfig) -> str:
    """Why a prompt cannot be continued, as the end of a sentence that begins with its name; empty if it can."""
    if len(prompt) == 0:
        return "is empty; begin it with a token such as BOS"
    if not 0 <= min(prompt) <= max(prompt) < network.vocab_size:
        return (
            f"holds ids from {min(prompt)} to {max(prompt)}, expected 0 to {network.vocab_size - 1}; it was encoded "
            f"with another tokeniser"
        )
    room = config.room(len(prompt))
    if room < 1:
        return f"has {len(prompt)} tokens, and max_length={config.max_length} leaves none to continue it; raise that"
    if config.overflow == "refuse" and len(prompt) + room > network.max_seq_len:
        return (
            f"has {len(prompt)} tokens, {len(prompt) + room} with max_new_tokens={room}, and the context holds "
            f"{network.max_seq_len}; shorten it or ask for fewer tokens"
        )
    return ""


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


def nan_logits(prompt: int) -> ValueError:
    """The error of a network that gives no numbers."""
    return ValueError(
        f"the network's logits are NaN behind prompt {prompt}: its weights are broken, or its numbers too large for "
        "their type"
    )


@dataclass
class Row:
    """A continuation on its way.

    Attributes:
        prompt: all of its tokens.
        key: names its noise.
        completion: what came out so far.
        limit: its longest continuation.
        dropped: tokens of prompt and continuation that lie before the window which the cache holds.
        noise: numbers drawn ahead.
    """

    prompt: Sequence[int]
    key: int
    completion: Completion
    limit: int
    dropped: int = 0
    noise: np.ndarray = field(default_factory=lambda: np.empty(0))

    def uniform(self, seed: int) -> float:
        """The number that the next token is drawn with."""
        place = len(self.completion.ids) % _NOISE_AHEAD
        if place == 0:
            first = len(self.completion.ids)
            n = min(_NOISE_AHEAD, self.limit - first)
            self.noise = uniform_noise(seed, self.key, n, sample=self.completion.sample, first=first)
        return float(self.noise[place])

    def window(self) -> list[int]:
        """The tokens that the next one follows from."""
        n_prompt = len(self.prompt)
        if self.dropped < n_prompt:
            return [*self.prompt[self.dropped :], *self.completion.ids]
        return self.completion.ids[self.dropped - n_prompt :]


def completed_stop(stops: Sequence[str], decode: Decode, prompt: Sequence[int], ids: Sequence[int]) -> str | None:
    """The string that the newest token completed, in it or at its end; of several the one that begins first.

    Args:
        stops: strings that end a continuation, wherever the borders of tokens lie.
        decode: gives their text to tokens.
        prompt: tokens before the continuation.
        ids: the continuation. Its last few tokens alone are decoded.
    """
    first = max(0, len(ids) - _TOKENS_PER_CHAR * max(map(len, stops)) - 1)
    tail = ids[first:]
    before = ids[first - _CONTEXT : first] if first >= _CONTEXT else [*prompt[-_CONTEXT:], *ids[:first]]
    text, older = decode(before, tail), decode(before, tail[:-1])
    # every place is tried, because a string may occur over itself
    hits = ((at, stop) for stop in stops if stop in text for at in range(len(text)) if text.startswith(stop, at))
    fresh = [(at, stop) for at, stop in hits if not older.startswith(stop, at)]
    return min(fresh)[1] if fresh else None


class Engine:
    """Continues rows until all have ended.

    Args:
        model: the network, in evaluation mode.
        rows: what to continue.
        config: how.
        batch_size: slots.
        decode: turns ids into text, where there are stop strings.
    """

    def __init__(
        self,
        model: Transformer,
        rows: Sequence[Row],
        config: GenerationConfig,
        batch_size: int,
        decode: Decode | None = None,
    ) -> None:
        self.model, self.config, self.decode = model, config, decode
        self.context = model.config.max_seq_len
        weight = model.token_embedding.weight
        self.device, self.late = weight.device, weight.device.type != "cpu"
        for row in rows:
            row.dropped = max(0, len(row.prompt) - self.context)
        # longest first: what ends the run is then short; and neighbours are of like length
        self.waiting = deque(sorted(rows, key=lambda row: -len(row.prompt)))
        even = model.config.d_model % 4 == 0 and model.config.d_ff % 4 == 0
        self.block = (BLOCK if even else WIDE_BLOCK) if config.deterministic else 0
        n_slots = self._rounded(min(batch_size, len(rows)))
        # what is cropped away is not remembered either: a prompt may be a thousand times as long as the context
        longest = max((len(row.prompt) - row.dropped + row.limit for row in rows), default=1)
        capacity = self.context if self.block else min(self.context, longest)
        self.cache = KVCache(model.config, n_slots, capacity, device=weight.device, dtype=weight.dtype)
        self.sampler = Sampler(config, model.config.vocab_size, n_slots, longest, weight.device)
        self.logits = torch.zeros(n_slots, model.config.vocab_size, device=weight.device, dtype=weight.dtype)
        self.n_slots = n_slots
        self.live: dict[int, Row] = {}  # rows by their slots
        self.ending = frozenset(config.ending_ids)
        self.packed = Packed(model.products(), self.block or n_slots)
        self.graphed = GraphedStep(model, self.cache) if weight.device.type == "cuda" and not self.block else None

    def _rounded(self, n_slots: int) -> int:
        """Slots that a step can take."""
        return -(-max(1, n_slots) // (self.block or 1)) * (self.block or 1)

    def run(self) -> Iterator[list[Row]]:
        """Step until all rows have ended; after each step, the rows that ended in it."""
        with torch.inference_mode(), self.packed:
            self._refill()
        while self.live:
            with torch.inference_mode(), self.packed:
                finished = self._turn()
            yield finished

    def _turn(self) -> list[Row]:
        """Choose a token for each row; on an accelerator the next pass begins before the tokens are read back."""
        choice = self.sampler.choose(self.logits, self._uniform())
        early = self.late and not self._must_wait()
        if early:
            self._advance(choice.tokens)
        finished = self._record(choice)
        if not early:
            finished += self._make_room()
            self._advance(choice.tokens)
        self._refill()
        if not self.late:
            self._shrink()
        return finished

    def _uniform(self) -> Tensor | None:
        """A number for each slot, 0 for idle ones; None if nothing is drawn."""
        if self.config.temperature == 0:
            return None
        seed, live = self.config.seed, self.live
        numbers = [live[slot].uniform(seed) if slot in live else 0.0 for slot in range(self.n_slots)]
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _must_wait(self) -> bool:
        """Whether the next step depends on the last one's tokens in more than their vectors, or is not needed."""
        return int(self.cache.lengths.max()) >= self.context or all(
            len(row.completion.ids) + 1 >= row.limit for row in self.live.values()
        )

    def _record(self, choice: Choice) -> list[Row]:
        """Give each row its token; the rows that end with it."""
        tokens, logprobs = choice.tokens.tolist(), choice.logprobs.tolist()
        exhausted = None if choice.exhausted is None else choice.exhausted.tolist()
        tops = None if choice.top is None else ranked(choice.top)
        finished = []
        for slot, row in sorted(self.live.items()):
            completion = row.completion
            if math.isnan(logprobs[slot]):
                raise nan_logits(completion.prompt)
            if exhausted is not None and exhausted[slot]:
                completion.finish_reason = "exhausted"
            elif tokens[slot] in self.ending:
                completion.finish_reason, completion.stopped_by = "stop", tokens[slot]
            else:
                completion.ids.append(tokens[slot])
                completion.logprobs.append(logprobs[slot])
                if tops is not None:
                    completion.top_logprobs.append(tops[slot])
                self._look_for_end(row)
            if completion.finish_reason:
                finished.append(row)
                self._release(slot)
        return finished

    def _look_for_end(self, row: Row) -> None:
        completion, n_made = row.completion, len(row.completion.ids)
        if self.config.stop and self.decode is not None and n_made >= self.config.min_new_tokens:
            completion.stopped_by = completed_stop(self.config.stop, self.decode, row.prompt, completion.ids)
        if completion.stopped_by is not None:
            completion.finish_reason = "stop"
        elif n_made >= row.limit:
            completion.finish_reason = "length"

    def _release(self, slot: int) -> None:
        del self.live[slot]
        self.cache.lengths[slot] = 0

    def _make_room(self) -> list[Row]:
        """Rows whose context is full end, or start again from the last half of it; those that end."""
        full = [slot for slot, length in enumerate(self.cache.lengths.tolist()) if length >= self.context]
        if not full:
            return []
        rows = [self.live[slot] for slot in full]
        if self.config.overflow != "roll":
            for slot, row in zip(full, rows, strict=True):
                row.completion.finish_reason = "context"
                self._release(slot)
            return rows
        half = self.context // 2
        for row in rows:
            row.dropped = len(row.prompt) + len(row.completion.ids) - half - 1
        # all are of one length; the newest token is left to the step
        for first in range(0, len(full), 1 if self.block else len(full)):
            part = slice(first, first + 1 if self.block else None)
            self._read(full[part], [row.window()[:-1] for row in rows[part]])
        return []

    def _advance(self, tokens: Tensor) -> None:
        """Read the newest token of every slot, for the logits of the next; only the live ones grow."""
        if not self.live:
            return
        if self.graphed is not None:
            self.logits = self.graphed(tokens)
        elif self.block:
            parts = []
            for first in range(0, self.n_slots, self.block):
                rows = range(first, first + self.block)
                slots = self.cache.slots(self.block, 1, rows, reach=self.cache.capacity)
                parts.append(self.model.next_logits(tokens[first : rows.stop], slots))
            self.logits = torch.cat(parts)
        else:
            self.logits = self.model.next_logits(tokens, self.cache.slots(len(tokens), 1))
        self.cache.lengths[list(self.live)] += 1

    def _refill(self) -> None:
        """Read waiting prompts into idle slots."""
        idle = [slot for slot in range(self.n_slots) if slot not in self.live]
        enough = min(len(self.waiting), max(1, self.n_slots // REFILL_SHARE))
        if not self.waiting or len(idle) < enough:
            return
        while idle and self.waiting:
            group = self._next_group(len(idle))
            slots, idle = idle[: len(group)], idle[len(group) :]
            windows = [row.window() for row in group]
            features = self._read(slots, windows)
            last = torch.tensor([len(window) - 1 for window in windows], device=self.device)
            # only the last position of each row goes through the head, which is the widest layer of a small model
            logits = self.model.head(features[torch.arange(len(group), device=self.device), last])
            self.logits[slots] = logits[:, : self.model.config.vocab_size]
            for slot, row, window in zip(slots, group, windows, strict=True):
                self.live[slot] = row
                self.sampler.begin(slot, window)

    def _next_group(self, n_idle: int) -> list[Row]:
        """Waiting rows of like length that are read together."""
        group = [self.waiting.popleft()]
        longest = len(group[0].window())
        limit = 1 if self.block else min(n_idle, max(1, PREFILL_TOKENS // longest))
        while len(group) < limit and self.waiting and len(self.waiting[0].window()) >= LEAST_FILLED * longest:
            group.append(self.waiting.popleft())
        return group

    def _read(self, slots: list[int], windows: list[list[int]]) -> Tensor:
        """Read windows into slots from position 0; the features (rows, T, D) of all their tokens."""
        lengths = torch.tensor([len(window) for window in windows])
        ids = torch.zeros(len(windows), int(lengths.max()), dtype=torch.int64)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = torch.tensor(window)
        self.cache.lengths[slots] = 0
        places = self.cache.slots(len(windows), ids.shape[1], slots)
        features = self.model.read(ids.to(self.device), self.model.continued(places))
        self.cache.lengths[slots] = lengths
        return features

    def _shrink(self) -> None:
        """Leave idle slots out of the step when nothing waits for them."""
        n_slots = self._rounded(len(self.live))
        if self.waiting or not self.live or 2 * n_slots > self.n_slots:
            return
        live = sorted(self.live)
        kept = [*live, *(slot for slot in range(self.n_slots) if slot not in self.live)][:n_slots]
        index = torch.tensor(kept)
        self.cache.select(kept)
        self.sampler.select(index)
        self.logits = self.logits[index]
        self.n_slots, self.live = n_slots, {place: self.live[slot] for place, slot in enumerate(live)}
        if not self.block:
            self.packed = Packed(self.model.products(), n_slots)
