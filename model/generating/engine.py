"""The engine: a batch of slots that each grow by one token per step, refilled as rows end.

Prompts are read in groups of like length into the slots of a static cache; then one step after the other reads the
newest token of every slot and chooses the next. A row that ends gives its slot to a waiting prompt (a few slots are
filled at once, because reading one short prompt costs almost as much as reading four). When nothing waits and half of
the slots are idle, the batch shrinks.

On a GPU the next step is started before the host has seen the tokens of the last one, so that ends are noticed one
step late and the device never waits for the host.

With config.deterministic everything that a row's bits depend on has a shape of its own or a fixed one: prompts are read
alone, products are computed in blocks of a fixed number of rows, and each row attends and draws by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import GenerationConfig
from ..transformer import Transformer
from .chooser import Choice, Chooser
from .decoder import Reach, decoder_for
from .graphs import step_for
from .rows import Row
from .stops import StopStrings

PREFILL_TOKENS = 4096  # prompt tokens, with padding, that are read at once
LEAST_FILLED = 0.8  # the shortest prompt of a group, as a share of the longest
REFILL_SHARE = 8  # slots are refilled when one in so many is idle
BLOCK = 8  # rows of a deterministic step
WIDE_BLOCK = 32  # the same where rows are of uneven width: no vector of the processor may end within a block


class Engine:
    """Continues rows until all have ended.

    Args:
        model: the network, in evaluation mode.
        rows: what to continue.
        config: how.
        batch_size: slots.
        stops: the stop strings, if there are any.
        keep: hold on to packed weights for the next engine.
    """

    def __init__(
        self,
        model: Transformer,
        rows: Sequence[Row],
        config: GenerationConfig,
        batch_size: int,
        stops: StopStrings | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.model, self.config, self.stops = model, config, stops
        self.context = model.config.max_seq_len
        weight = model.token_embedding.weight
        self.device, self.late = weight.device, weight.device.type != "cpu"
        for row in rows:
            row.dropped = max(0, len(row.prompt) - self.context)
        # longest first: what ends the run is then short; and neighbours are of like length
        self.waiting = deque(sorted(rows, key=lambda row: -len(row.prompt)))
        n_slots = max(1, min(batch_size, len(rows)))
        even = model.config.d_model % 4 == 0 and model.config.d_ff % 4 == 0
        self.block = (BLOCK if even else WIDE_BLOCK) if config.deterministic else 0
        self.decoder = decoder_for(model, self.block or n_slots, keep=keep)
        n_slots = self._rounded(n_slots)
        # what is cropped away is not remembered either: a prompt may be a thousand times as long as the context
        longest = max((len(row.prompt) - row.dropped for row in rows), default=0) + config.max_new_tokens
        window = min(self.context, longest)
        self.cache = self.decoder.new_cache(n_slots, window)
        self.chooser = Chooser(config, model.config.vocab_size, n_slots, longest, weight.device)
        self.logits = torch.zeros(n_slots, model.config.vocab_size, device=weight.device, dtype=weight.dtype)
        self.slots: list[Row | None] = [None] * n_slots
        self.ending = frozenset(config.ending_ids)
        self.step = step_for(self.decoder, self.cache)

    def _rounded(self, n_slots: int) -> int:
        """Slots that a step can take."""
        least = max(n_slots, self.decoder.least_rows)
        return -(-least // self.block) * self.block if self.block else least

    @property
    def live(self) -> list[int]:
        """Slots that hold a row."""
        return [slot for slot, row in enumerate(self.slots) if row is not None]

    def run(self) -> Iterator[list[Row]]:
        """Steps until all rows have ended; after each, the rows that ended in it."""
        with torch.inference_mode():
            self._refill()
        while live := self.live:
            with torch.inference_mode():
                finished = self._turn(live)
            yield finished

    def _turn(self, live: list[int]) -> list[Row]:
        choice = self.chooser.choose(self.logits, self._uniform(), alone=self.config.deterministic)
        early = self.late and not self._must_wait(live)
        if early:
            self._advance(live, choice.tokens)
        finished = self._record(live, choice)
        if not early:
            finished += self._make_room()
            self._advance(self.live, choice.tokens)
        self._refill()
        if not self.late:
            self._shrink()
        return finished

    def _uniform(self) -> Tensor | None:
        """A number for each slot that holds a row; None if nothing is drawn."""
        if self.config.temperature == 0:
            return None
        numbers = [0.0 if row is None else row.uniform(self.config.seed) for row in self.slots]
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _row(self, slot: int) -> Row:
        row = self.slots[slot]
        assert row is not None
        return row

    def _must_wait(self, live: list[int]) -> bool:
        """Whether the next step depends on the last one's tokens in more than their vectors, or is not needed."""
        return int(self.cache.lengths.max()) >= self.context or all(
            len(self._row(slot).completion.ids) + 1 >= self._row(slot).limit for slot in live
        )

    def _record(self, live: list[int], choice: Choice) -> list[Row]:
        """Gives each row its token; the rows that end with it."""
        tokens, logprobs = choice.tokens.tolist(), choice.logprobs.tolist()
        exhausted = None if choice.exhausted is None else choice.exhausted.tolist()
        tops = choice.best()
        finished = []
        for slot in live:
            row = self._row(slot)
            completion = row.completion
            if math.isnan(logprobs[slot]):
                raise ValueError(
                    f"the network's logits are NaN behind prompt {completion.prompt}: its weights are broken, or its "
                    "numbers too large for their type"
                )
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
        if self.stops is not None and n_made >= self.config.min_new_tokens:
            completion.stopped_by = self.stops.found(row.prompt, completion.ids)
        if completion.stopped_by is not None:
            completion.finish_reason = "stop"
        elif n_made >= row.limit:
            completion.finish_reason = "length"

    def _release(self, slot: int) -> None:
        self.slots[slot] = None
        self.cache.lengths[slot] = 0

    def _make_room(self) -> list[Row]:
        """Rows whose context is full end, or start again from the last half of it; those that end."""
        full = [slot for slot, length in enumerate(self.cache.lengths.tolist()) if length >= self.context]
        if not full:
            return []
        rows = [self._row(slot) for slot in full]
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

    def _advance(self, live: list[int], tokens: Tensor) -> None:
        """Reads the newest token of each of these slots, for the logits of the next."""
        if not live:
            return
        lengths = self.cache.lengths
        positions = lengths.to(self.device, non_blocking=True)
        if self.block:
            logits = []
            for first in range(0, len(self.slots), self.block):
                rows = slice(first, first + self.block)
                reaches = [Reach(row, row + 1, end + 1, True) for row, end in enumerate(lengths[rows].tolist())]
                logits.append(self.step(tokens[rows], positions[rows], reaches, first))
            self.logits = torch.cat(logits)
        else:
            ends = lengths.tolist()
            longest = max(ends)  # idle slots have none
            equal = all(ends[slot] == longest for slot in live)
            self.logits = self.step(tokens, positions, [Reach(0, len(self.slots), longest + 1, equal)])
        lengths[live] += 1

    def _refill(self) -> None:
        """Reads waiting prompts into idle slots."""
        idle = [slot for slot, row in enumerate(self.slots) if row is None]
        enough = min(len(self.waiting), max(1, len(self.slots) // REFILL_SHARE))
        if not self.waiting or (len(idle) < enough and len(idle) < len(self.slots)):
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
                self.slots[slot] = row
                self.chooser.begin(slot, window)

    def _next_group(self, n_idle: int) -> list[Row]:
        """Waiting rows of like length that are read together."""
        group = [self.waiting.popleft()]
        longest = len(group[0].window())
        limit = 1 if self.block else min(n_idle, max(1, PREFILL_TOKENS // longest))
        while len(group) < limit and self.waiting and len(self.waiting[0].window()) >= LEAST_FILLED * longest:
            group.append(self.waiting.popleft())
        return group

    def _read(self, slots: list[int], windows: list[list[int]]) -> Tensor:
        """Reads windows into slots from position 0; the features (rows, T, D) of all their tokens."""
        lengths = torch.tensor([len(window) for window in windows])
        ids = torch.zeros(len(windows), int(lengths.max()), dtype=torch.int64)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = torch.tensor(window)
        fresh = KVCache(self.model.config, len(windows), ids.shape[1], device=self.device, dtype=self.cache.keys.dtype)
        features = self.model.features(ids.to(self.device), cache=fresh, lengths=lengths)
        self.cache.replace(slots, fresh)
        return features

    def _shrink(self) -> None:
        """Leaves idle slots out of the step when nothing waits for them."""
        live = self.live
        n_slots = self._rounded(len(live))
        if self.waiting or not live or 2 * n_slots > len(self.slots):
            return
        kept = [*live, *(slot for slot in range(len(self.slots)) if self.slots[slot] is None)][:n_slots]
        index = torch.tensor(kept)
        self.cache.select(kept)
        self.chooser.select(index)
        self.logits = self.logits[index]
        self.slots = [self.slots[slot] for slot in kept]
        self.step = step_for(self.decoder, self.cache)
