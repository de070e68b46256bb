"""Batched generation with continuous batching.

Each step appends one token to every row of a batch, each at its own position. Prompts of similar length are prefilled
together into the slots of a static key-value cache. A finished row frees its slot for a waiting prompt; several slots
are refilled together, because a prefill of one short prompt takes almost as long as one of four. Without waiting
prompts the batch shrinks when half of the slots are idle. The sampling noise of a prompt depends on its key only.

The context rolls: a prompt longer than the context keeps its last max_seq_len tokens, and a row that fills the context
is prefilled again with the last half of its window. (The cache cannot be shifted, because its keys and values depend on
the dropped tokens.)

On a GPU the next forward pass starts before the host reads the sampled tokens, so that the device does not wait for the
host; the end of a row is detected one step later.

With config.deterministic all shapes on which the bits of a row depend are fixed: prompts are prefilled alone, steps are
computed in blocks of a fixed number of rows, each row attends over all slots and is sampled separately.
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

PREFILL_TOKENS = 4096  # prompt tokens, with padding, of one prefill
LEAST_FILLED = 0.8  # shortest prompt of a prefill, as a share of the longest
REFILL_SHARE = 8  # slots are refilled when 1 / REFILL_SHARE of them are idle
BLOCK = 8  # rows of a deterministic step
WIDE_BLOCK = 32  # the same for widths that are no multiple of 4: SIMD vectors must not cross the end of a block
_NOISE_AHEAD = 256  # random numbers drawn at once
_CONTEXT = 8  # tokens decoded before new ones, because some tokenisers decode the first token of a text differently
_TOKENS_PER_CHAR = 4  # upper bound, for tokens of single bytes

Decode = Callable[[Sequence[int], Sequence[int]], str]  # (ids before, new ids) -> text of the new ids


@dataclass
class Completion:
    """One continuation of one prompt.

    Attributes:
        prompt: index of its prompt.
        sample: number of the sample of the prompt, from 0.
        ids: new tokens, without the ending token but with the tokens of a stop string.
        finish_reason: "stop" (an ending token or stop string), "length" (the maximum length), "context" (the context
            is full, with overflow="stop") or "exhausted" (every token was ruled out); "" while unfinished.
        logprobs: log-probability of each id in nats, before penalties, temperature and filters.
        top_logprobs: likeliest tokens and their log-probabilities for each id, the best first.
        stopped_by: the stop string or ending token; None without one. The text ends where the stop string begins, which
            may be within a token.
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
    """Continue one prompt (its first sample) token by token, by any strategy except a search.

    Args:
        model, config, decode: as for generate.
        prompt: token ids, at least one.
        key: key of its noise.

    Yields:
        The same Completion object after each token; the last one has its finish_reason.

    Raises:
        ValueError: the strategy is a search, or as for generate.
    """
    if config.is_search:
        raise ValueError(f"strategy={config.strategy!r} does not generate token by token; use generate")
    _check([prompt], [key], config, model.config, decode)
    row = Row(prompt, key, Completion(), config.room(len(prompt)), config.seed, config.stop)
    with evaluating(model):
        for _ in Engine(model, config, 1, decode, [row]).run():
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
        model: the network; evaluation mode is set, and the mode restored afterwards.
        prompts: token ids, at least one in each.
        config: sampling parameters.
        keys: one number per prompt, by default its index. Key, seed and sample number determine the noise in any batch.
        limits: maximum length of each continuation, at most the one that config gives.
        batch_size: rows per step; bounds the memory of the cache.
        decode: called with some ids and the ids after them, returns the text of the latter; required with config.stop.
        on_step: called with (finished completions, all completions) after each step.
        on_finished: called with each finished completion, in order of their ends.

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
        from .search import search  # not at the top: it imports this module

        with evaluating(model):
            return search(model, prompts, limits, config, on_step, on_finished)
    rows = [
        Row(prompt, key, Completion(place, sample), limits[place], config.seed, config.stop)
        for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
        for sample in range(config.n_samples)
    ]
    n_finished = 0
    with evaluating(model):
        for finished in Engine(model, config, batch_size, decode, rows).run():
            n_finished += len(finished)
            if on_finished:
                for row in finished:
                    on_finished(row.completion)
            if on_step:
                on_step(n_finished, len(rows))
    return [row.completion for row in rows]


def prompt_problem(prompt: Sequence[int], config: GenerationConfig, network: ModelConfig) -> str:
    """Return the problem of a prompt as the predicate of a sentence ("is empty; ..."); empty if there is none."""
    if len(prompt) == 0:
        return "is empty; begin it with a token such as BOS"
    if not 0 <= min(prompt) <= max(prompt) < network.vocab_size:
        return (
            f"holds ids from {min(prompt)} to {max(prompt)}, expected 0 to {network.vocab_size - 1}; it was encoded "
            f"with another tokeniser"
        )
    room = config.room(len(prompt))
    if room < 1:
        return f"has {len(prompt)} tokens, and max_length={config.max_length} leaves none for a continuation; raise it"
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
        raise ValueError(f"stop={config.stop!r} needs decode, which converts tokens to text; give it")
    biased = [token for token, _ in config.logit_bias]
    ending = () if config.eos_id is None else (config.eos_id,)
    named = {"suppress": config.suppress, "logit_bias": biased, "stop_ids": config.stop_ids, "eos_id": ending}
    for name, tokens in named.items():
        beyond = [token for token in tokens if token >= network.vocab_size]
        if beyond:
            raise ValueError(f"{name} names token {beyond[0]}; the model's tokens are 0 to {network.vocab_size - 1}")
    n_allowed = network.vocab_size - len(set(config.suppress))
    if config.strategy == "beam" and config.n_beams >= n_allowed:
        raise ValueError(f"n_beams={config.n_beams}; expected less than the {n_allowed} tokens that are not suppressed")
    if n_allowed == 0:
        raise ValueError(f"suppress has all {network.vocab_size} tokens; leave some out")


def nan_logits(prompt: int) -> ValueError:
    """Return the error for NaN logits."""
    return ValueError(
        f"the network's logits are NaN after prompt {prompt}: its weights are not finite, or its activations overflow"
    )


@dataclass(eq=False)
class Row:
    """An unfinished continuation.

    Attributes:
        prompt: all tokens of the prompt.
        key: key of the noise.
        completion: the result so far.
        limit: maximum length of the continuation.
        seed: seed of the noise.
        stop: strings that end the continuation.
        dropped: tokens of prompt and continuation before the window in the cache.
        noise: random numbers drawn ahead.
    """

    prompt: Sequence[int]
    key: int
    completion: Completion
    limit: int
    seed: int = 0
    stop: Sequence[str] = ()
    dropped: int = 0
    noise: np.ndarray = field(default_factory=lambda: np.empty(0))

    def uniform(self) -> float:
        """Return the random number in [0, 1) for the next token."""
        place = len(self.completion.ids) % _NOISE_AHEAD
        if place == 0:
            first = len(self.completion.ids)
            n = min(_NOISE_AHEAD, self.limit - first)
            self.noise = uniform_noise(self.seed, self.key, n, sample=self.completion.sample, first=first)
        return float(self.noise[place])

    def window(self) -> list[int]:
        """Return the tokens that the next one is predicted from."""
        n_prompt = len(self.prompt)
        if self.dropped < n_prompt:
            return [*self.prompt[self.dropped :], *self.completion.ids]
        return self.completion.ids[self.dropped - n_prompt :]


def completed_stop(stops: Sequence[str], decode: Decode, prompt: Sequence[int], ids: Sequence[int]) -> str | None:
    """Return the stop string that the newest token completed, of several the one that begins first, or None.

    Args:
        stops: strings that end a continuation; they may begin and end within tokens.
        decode: as for generate.
        prompt: tokens before the continuation.
        ids: the continuation; only its last tokens are decoded.
    """
    first = max(0, len(ids) - _TOKENS_PER_CHAR * max(map(len, stops)) - 1)
    tail = ids[first:]
    before = ids[first - _CONTEXT : first] if first >= _CONTEXT else [*prompt[-_CONTEXT:], *ids[:first]]
    text, older = decode(before, tail), decode(before, tail[:-1])
    # every position is tried, because occurrences may overlap
    hits = ((at, stop) for stop in stops if stop in text for at in range(len(text)) if text.startswith(stop, at))
    fresh = [(at, stop) for at, stop in hits if not older.startswith(stop, at)]
    return min(fresh)[1] if fresh else None


class Engine:
    """Generation loop over a batch of slots.

    Args:
        model: the network, in evaluation mode.
        config: sampling parameters of all rows, apart from the seed and the stop strings, which each row has.
        batch_size: maximum number of slots.
        decode: as for generate.
        rows: continuations to generate; without any, rows of any length are added later.
    """

    def __init__(
        self,
        model: Transformer,
        config: GenerationConfig,
        batch_size: int,
        decode: Decode | None = None,
        rows: Sequence[Row] = (),
    ) -> None:
        self.model, self.config, self.decode, self.batch_size = model, config, decode, batch_size
        self.context = model.config.max_seq_len
        weight = model.token_embedding.weight
        self.device, self.overlap = weight.device, weight.device.type != "cpu"
        for row in rows:
            row.dropped = max(0, len(row.prompt) - self.context)
        # longest first: the last rows are short, and neighbours have similar lengths
        self.waiting = deque(sorted(rows, key=lambda row: -len(row.prompt)))
        even = model.config.d_model % 4 == 0 and model.config.d_ff % 4 == 0
        self.block = (BLOCK if even else WIDE_BLOCK) if config.deterministic else 0
        # the addresses in a CUDA graph are fixed
        n_slots = self._rounded(min(batch_size, len(rows) or (batch_size if self.overlap else 1)))
        # without dropped tokens, because a prompt may be much longer than the context
        longest = max((len(row.prompt) - row.dropped + row.limit for row in rows), default=self.context)
        capacity = self.context if self.block else min(self.context, longest)
        most = 0 if rows else self._rounded(batch_size)
        self.cache = KVCache(model.config, n_slots, capacity, device=weight.device, dtype=weight.dtype, most=most)
        self.sampler = Sampler(config, model.config.vocab_size, n_slots, longest, weight.device)
        self.logits = torch.zeros(n_slots, model.config.vocab_size, device=weight.device, dtype=weight.dtype)
        self.tokens = torch.zeros(n_slots, dtype=torch.int64, device=weight.device)  # the newest, not yet read
        self.n_slots = n_slots
        self.active: dict[int, Row] = {}  # rows by their slots
        self.ending = frozenset(config.ending_ids)
        self.packed = Packed(model.products(), self.block or n_slots)
        self.graphed = GraphedStep(model, self.cache) if weight.device.type == "cuda" and not self.block else None

    def _rounded(self, n_slots: int) -> int:
        return -(-max(1, n_slots) // (self.block or 1)) * (self.block or 1)

    def run(self) -> Iterator[list[Row]]:
        """Generate until all rows have ended. Yields after each step the rows that ended in it."""
        while self.active or self.waiting:
            yield self.step()

    def step(self) -> list[Row]:
        """Append a token to each active row, and begin waiting ones. Returns the rows that ended."""
        with torch.inference_mode(), self.packed:
            return self._overlapped_step() if self.overlap else self._step()

    def add(self, row: Row) -> None:
        """Generate one more continuation, in this batch; slots are added up to the batch size."""
        row.dropped = max(0, len(row.prompt) - self.context)
        self.waiting.append(row)
        wanted = min(self.batch_size, len(self.active) + len(self.waiting))
        if wanted > self.n_slots:
            with torch.inference_mode():
                self._resize(self._rounded(min(self.batch_size, 2 * self.n_slots)))

    def drop(self, row: Row) -> None:
        """Generate no more of a row."""
        if row in self.waiting:
            self.waiting.remove(row)
        with torch.inference_mode():
            for slot in [slot for slot, active in self.active.items() if active is row]:
                self._release(slot)

    def _step(self) -> list[Row]:
        """Read the newest tokens and new prompts, and sample a token per row, which is known before it is read."""
        finished = self._roll_context()
        self._forward(self.tokens)
        self._refill()
        if self.active:
            choice = self.sampler.choose(self.logits, self._uniform())
            finished += self._record(choice)
            self.tokens = choice.tokens
        self._shrink()
        return finished

    def _overlapped_step(self) -> list[Row]:
        """Sample a token per row; the next forward pass starts before an accelerator's tokens are read back."""
        if not self.active:
            self._refill()
        choice = self.sampler.choose(self.logits, self._uniform())
        is_ahead = not self._must_sync()
        if is_ahead:
            self._forward(choice.tokens)
        finished = self._record(choice)
        if not is_ahead:
            finished += self._roll_context()
            self._forward(choice.tokens)
        self._refill()
        return finished

    def _uniform(self) -> Tensor | None:
        """Return a random number per slot, 0 for idle ones; None at temperature 0."""
        if self.config.temperature == 0:
            return None
        active = self.active
        numbers = [active[slot].uniform() if slot in active else 0.0 for slot in range(self.n_slots)]
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _must_sync(self) -> bool:
        """Return True if the next pass must wait for the tokens: the context is full or no pass is needed."""
        return int(self.cache.lengths.max()) >= self.context or all(
            len(row.completion.ids) + 1 >= row.limit for row in self.active.values()
        )

    def _record(self, choice: Choice) -> list[Row]:
        """Append the tokens to their rows. Returns the rows that ended."""
        tokens, logprobs = choice.tokens.tolist(), choice.logprobs.tolist()
        exhausted = None if choice.exhausted is None else choice.exhausted.tolist()
        tops = None if choice.top is None else ranked(choice.top)
        finished = []
        for slot, row in sorted(self.active.items()):
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
                self._check_end(row)
            if completion.finish_reason:
                finished.append(row)
                self._release(slot)
        return finished

    def _check_end(self, row: Row) -> None:
        completion, n_made = row.completion, len(row.completion.ids)
        if row.stop and self.decode is not None and n_made >= self.config.min_new_tokens:
            completion.stopped_by = completed_stop(row.stop, self.decode, row.prompt, completion.ids)
        if completion.stopped_by is not None:
            completion.finish_reason = "stop"
        elif n_made >= row.limit:
            completion.finish_reason = "length"

    def _release(self, slot: int) -> None:
        del self.active[slot]
        self.cache.lengths[slot] = 0

    def _roll_context(self) -> list[Row]:
        """End rows whose context is full, or prefill their last half again. Returns the rows that ended."""
        full = [slot for slot, length in enumerate(self.cache.lengths.tolist()) if length >= self.context]
        if not full:
            return []
        rows = [self.active[slot] for slot in full]
        if self.config.overflow != "roll":
            for slot, row in zip(full, rows, strict=True):
                row.completion.finish_reason = "context"
                self._release(slot)
            return rows
        half = self.context // 2
        for row in rows:
            row.dropped = len(row.prompt) + len(row.completion.ids) - half - 1
        # all have the same length; the step reads the newest token
        for first in range(0, len(full), 1 if self.block else len(full)):
            part = slice(first, first + 1 if self.block else None)
            self._prefill(full[part], [row.window()[:-1] for row in rows[part]])
        return []

    def _forward(self, tokens: Tensor) -> None:
        """Compute the next logits of every slot from its newest token; only active slots grow."""
        if not self.active:
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
        self.cache.lengths[list(self.active)] += 1

    def _refill(self) -> None:
        """Prefill idle slots with waiting prompts."""
        idle = [slot for slot in range(self.n_slots) if slot not in self.active]
        enough = min(len(self.waiting), max(1, self.n_slots // REFILL_SHARE))
        if not self.waiting or len(idle) < enough:
            return
        while idle and self.waiting:
            group = self._next_group(len(idle))
            slots, idle = idle[: len(group)], idle[len(group) :]
            windows = [row.window() for row in group]
            features = self._prefill(slots, windows)
            last = torch.tensor([len(window) - 1 for window in windows], device=self.device)
            # logits of the last position only, because the head is the widest layer of a small model
            logits = self.model.head(features[torch.arange(len(group), device=self.device), last])
            self.logits[slots] = logits[:, : self.model.config.vocab_size]
            for slot, row, window in zip(slots, group, windows, strict=True):
                self.active[slot] = row
                self.sampler.begin(slot, window)

    def _next_group(self, n_idle: int) -> list[Row]:
        """Take waiting rows of similar length, for one prefill."""
        group = [self.waiting.popleft()]
        longest = len(group[0].window())
        limit = 1 if self.block else min(n_idle, max(1, PREFILL_TOKENS // longest))
        while len(group) < limit and self.waiting and len(self.waiting[0].window()) >= LEAST_FILLED * longest:
            group.append(self.waiting.popleft())
        return group

    def _prefill(self, slots: list[int], windows: list[list[int]]) -> Tensor:
        """Prefill slots with windows. Returns the features (rows, T, D) of all their tokens."""
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
        """Remove idle slots if no prompts wait and at least half of the slots are idle."""
        n_slots = self._rounded(len(self.active))
        if not self.waiting and self.active and 2 * n_slots <= self.n_slots:
            self._resize(n_slots)

    def _resize(self, n_slots: int) -> None:
        """Use another number of slots, at least that of active rows."""
        idle = (slot for slot in range(n_slots) if slot not in self.active)
        moved = {next(idle): slot for slot in self.active if slot >= n_slots}
        self.cache.resize(n_slots, moved)
        kept = [moved.get(slot, slot) for slot in range(n_slots)]
        index = torch.tensor([slot if slot < self.n_slots else 0 for slot in kept])  # a new slot begins as a copy
        self.sampler.select(index)
        self.logits, self.tokens = self.logits[index], self.tokens[index]
        places = {slot: place for place, slot in moved.items()}
        self.n_slots, self.active = n_slots, {places.get(slot, slot): row for slot, row in self.active.items()}
        if not self.block:
            self.packed = Packed(self.model.products(), n_slots)
