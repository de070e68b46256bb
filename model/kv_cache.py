"""Keys and values of the tokens that were already read, so that each new token costs one row of work.

The room for them is allocated once (static shapes); each row of the batch has its own length, so prompts of
different length share a batch without left padding. A prompt batch is right-padded: the padding's keys land
beyond their row's length, are masked there, and are overwritten when the row grows into them. Lengths live on
the host, because the loop that decodes needs them at every step and must not wait for the device.

On a GPU the decoding step over a cache is a CUDA graph: hundreds of small kernels, started by one call. A graph has
fixed addresses and shapes. So tokens and positions are copied to where it expects them, and the number of cache slots
that it reads is rounded up: each multiple gets a graph of its own when it is first needed. Where a graph cannot be
captured the step is computed as it is, and a warning says why.

Shapes in comments: R rows, B of them in a pass, T new tokens, K key-value heads, S slots per row, E head_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .architecture import ModelConfig

if TYPE_CHECKING:
    from .transformer import Transformer

SLOTS = 128  # graphs are made for multiples of so many cache slots
_WARM_UP = 2  # libraries allocate and choose their kernels in the first calls, which a graph must not record


@dataclass(frozen=True)
class CacheSlots:
    """Where the tokens of one forward pass go, and what they look at.

    Attributes:
        cache: their cache.
        rows: (B,) numbers of the rows they continue.
        span: the same rows as a slice, where they are neighbours; only a prompt's need not be.
        positions: (B, T) position of each new token in its row, which is the slot it gets.
        end: number of slots that are read.
        is_prompt: nothing was there before, so that the new keys are all that is looked at.
        is_even: one new token for each of all rows, in order, which are of one length, and nothing beyond them is read.
        start: length of the longest row; only used where they are even.
    """

    cache: KVCache
    rows: Tensor
    span: slice | None
    positions: Tensor
    end: int
    is_prompt: bool = False
    is_even: bool = False
    start: int = 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, E) and return those that attention reads, (B, K, S, E)."""
        found = []
        for store, new in ((self.cache.keys[layer], keys), (self.cache.values[layer], values)):
            if self.is_even:
                store[:, :, self.start : self.end] = new
            else:
                store[self.rows[:, None], :, self.positions] = new.transpose(1, 2).to(store.dtype)
            found.append(new if self.is_prompt else store[self.span, :, : self.end])
        return found[0], found[1]


class KVCache:
    """A preallocated cache for a batch of rows.

    Args:
        config: the network's configuration.
        batch_size: number of rows R.
        capacity: slots per row S, at most config.max_seq_len (the default).
        device: where keys and values rest.
        dtype: of keys and values.

    Attributes:
        keys, values: (n_layer, R, K, S, E).
        lengths: (R,) int64 on the host, number of valid slots in each row.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        capacity = config.max_seq_len if capacity is None else capacity
        if not 1 <= capacity <= config.max_seq_len:
            raise ValueError(
                f"cache capacity is {capacity}, expected 1 to max_seq_len={config.max_seq_len}; "
                f"no position exists beyond it"
            )
        shape = (config.n_layer, batch_size, config.n_kv_head, capacity, config.head_dim)
        # zeros, not empty: a NaN in a masked slot would survive the multiplication by weight 0
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self.keys.shape[3]

    def slots(self, n_rows: int, n_new: int, rows: Sequence[int] | None = None, reach: int = 0) -> CacheSlots:
        """Places of n_new tokens appended to each row.

        Args:
            n_rows: rows of ids.
            n_new: ids in each.
            rows: the rows they continue, which are neighbours (a range) unless nothing was read before; None means
                all, in order.
            reach: slots to read at least, so that no row's work depends on the lengths of the others.

        Raises:
            ValueError: there is another number of rows, or a row would grow beyond the capacity.
        """
        lengths = self.lengths if rows is None else self.lengths[list(rows)]
        if n_rows != len(lengths):
            raise ValueError(f"{n_rows} rows of ids for a cache of {len(lengths)} rows; make them equal")
        shortest, longest = int(lengths.min()), int(lengths.max())
        end = longest + n_new
        if end > self.capacity:
            raise ValueError(
                f"a row of {longest} tokens cannot take {n_new} more: the cache holds {self.capacity}; "
                f"rebuild it from the last part of the row"
            )
        device = self.keys.device
        chosen = torch.arange(len(lengths)) if rows is None else torch.tensor(rows)
        positions = lengths[:, None] + torch.arange(n_new)
        return CacheSlots(
            self,
            chosen.to(device, non_blocking=True),
            slice(rows.start, rows.stop) if isinstance(rows, range) else slice(None) if rows is None else None,
            positions.to(device, non_blocking=True),
            max(end, reach),
            is_prompt=longest == 0,
            is_even=rows is None and shortest == longest and reach <= end and n_new == 1,
            start=longest,
        )

    def select(self, rows: list[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        on_device = index.to(self.keys.device)
        self.keys = self.keys.index_select(1, on_device)
        self.values = self.values.index_select(1, on_device)
        self.lengths = self.lengths[index]


class GraphedStep:
    """`Transformer.next_logits` over all rows of one cache.

    Args:
        model: computes it.
        cache: whose tensors stay where they are.
    """

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        n_rows, device = len(cache.lengths), cache.keys.device
        self.ids = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(n_rows, 1, dtype=torch.int64, device=device)
        self.rows = torch.arange(n_rows, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.works = True

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits (R, vocab_size) behind one more token (R,) of each row; they are overwritten by the next call."""
        now = self.cache.slots(len(tokens), 1)
        if not self.works:
            return self.model.next_logits(tokens, now)
        self.ids.copy_(tokens)
        self.positions.copy_(now.positions)
        end = min(-(-now.end // SLOTS) * SLOTS, self.cache.capacity)
        if end not in self.graphs:
            try:
                self.graphs[end] = self._captured(end)
            except RuntimeError as error:  # memory for graphs, or an operation that cannot be recorded
                self.works = False
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    "the decoding step cannot be captured as a CUDA graph and is computed without one, which is "
                    f"slower: {reason}",
                    stacklevel=2,
                )
                return self.model.next_logits(tokens, now)
        graph, logits = self.graphs[end]
        graph.replay()
        return logits

    def _captured(self, end: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        slots = CacheSlots(self.cache, self.rows, slice(None), self.positions, end)

        def step() -> Tensor:
            return self.model.next_logits(self.ids, slots)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a step repeated writes the same keys and values to the same slots
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        return graph, logits
