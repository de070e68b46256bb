"""Key-value cache with static shapes, and decoding steps as CUDA graphs.

The cache is allocated once. Each row of the batch has its own length, so that prompts of different length share a batch
without left padding. A prompt batch is right-padded: keys of padding are stored beyond the length of their row, where
they are masked and later overwritten. Lengths are on the host, because the decoding loop needs them at every step
without waiting for the device.

On a GPU a decoding step is a CUDA graph, which starts hundreds of small kernels by one call. A graph has fixed
addresses and shapes. So tokens and positions are copied into its inputs, and the number of slots that it reads is
rounded up; each multiple is captured when it is first needed. If capturing fails, steps run without a graph, with a
warning.

Shapes in comments: R rows, B of them in a pass, T new tokens, K key-value heads, S slots per row, E head_dim.
"""

from __future__ import annotations

import math
import mmap
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .architecture import ModelConfig

if TYPE_CHECKING:
    from .transformer import Transformer

SLOTS = 128  # graphs are captured for multiples of this number of slots
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux
_WARM_UP = 2  # calls before capturing, in which libraries allocate and select kernels


@dataclass(frozen=True)
class CacheSlots:
    """Cache slots that one forward pass writes and reads.

    Attributes:
        cache: the cache.
        rows: (B,) numbers of the rows that are written.
        span: the same rows as a slice; None if they are not consecutive, which is allowed in prefill only.
        positions: (B, T) position of each new token in its row, which is its slot.
        end: number of slots that are read.
        is_prompt: prefill: the rows were empty, so that attention reads the new keys only.
        is_even: decoding with one new token for every row, all of the same length, and no slots read beyond it.
        start: length of the longest row; used with is_even only.
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
        device, dtype: of keys and values.
        most: largest number of rows that `resize` may give it.

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
        most: int = 0,
    ) -> None:
        capacity = config.max_seq_len if capacity is None else capacity
        if not 1 <= capacity <= config.max_seq_len:
            raise ValueError(f"cache capacity is {capacity}, expected 1 to max_seq_len={config.max_seq_len}")
        shape = (config.n_layer, max(most, batch_size), config.n_kv_head, capacity, config.head_dim)
        self._stores = [_zeros(shape, torch.device(device), dtype) for _ in range(2)]
        self.keys, self.values = (store[:, :batch_size] for store in self._stores)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self.keys.shape[3]

    def slots(self, n_rows: int, n_new: int, rows: Sequence[int] | None = None, reach: int = 0) -> CacheSlots:
        """Return the slots of n_new tokens that are appended to each row.

        Args:
            n_rows: number of rows of ids, B.
            n_new: number of ids in each, T.
            rows: the rows of the cache: a range, or any rows in prefill; None means all, in order.
            reach: minimum number of slots to read, so that shapes do not depend on the lengths of other rows.

        Raises:
            ValueError: the numbers of rows differ, or a row would exceed the capacity.
        """
        lengths = self.lengths if rows is None else self.lengths[list(rows)]
        if n_rows != len(lengths):
            raise ValueError(f"{n_rows} rows of ids for a cache of {len(lengths)} rows; make them equal")
        shortest, longest = int(lengths.min()), int(lengths.max())
        end = longest + n_new
        if end > self.capacity:
            raise ValueError(
                f"a row of {longest} tokens cannot take {n_new} more: the cache holds {self.capacity}; "
                f"prefill it again with the end of the row"
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
        """Keep these rows only, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        on_device = index.to(self.keys.device)
        self._stores = [store.index_select(1, on_device) for store in (self.keys, self.values)]
        self.keys, self.values = self._stores
        self.lengths = self.lengths[index]

    def resize(self, n_rows: int, moved: Mapping[int, int]) -> None:
        """Use the first rows of the memory only, after rows were moved.

        Args:
            moved: new place of a row to its present one.
        """
        for store in self._stores:
            for to, row in moved.items():
                store[:, to] = store[:, row]
        self.keys, self.values = (store[:, :n_rows] for store in self._stores)
        kept = [moved.get(row, row) for row in range(n_rows)]
        self.lengths = torch.tensor([int(self.lengths[row]) if row < len(self.lengths) else 0 for row in kept])


def _zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return zeros; on a CPU memory is taken when it is first written."""
    # not empty: a NaN in a masked slot would survive the multiplication by weight 0
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    n_bytes = math.prod(shape) * dtype.itemsize
    # without the flag Linux refuses more than the memory of the machine, although most is never written
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVE if sys.platform == "linux" else 0)
    return torch.frombuffer(mmap.mmap(-1, n_bytes, flags), dtype=dtype).view(shape)


class GraphedStep:
    """`Transformer.next_logits` for all rows of one cache, as CUDA graphs.

    Args:
        model: the network.
        cache: the cache; its tensors must not be replaced.
    """

    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        n_rows, device = len(cache.lengths), cache.keys.device
        self.ids = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(n_rows, 1, dtype=torch.int64, device=device)
        self.rows = torch.arange(n_rows, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.can_capture = True

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return logits (R, vocab_size) after one more token (R,) per row; the next call overwrites them."""
        now = self.cache.slots(len(tokens), 1)
        if not self.can_capture:
            return self.model.next_logits(tokens, now)
        self.ids.copy_(tokens)
        self.positions.copy_(now.positions)
        end = min(-(-now.end // SLOTS) * SLOTS, self.cache.capacity)
        if end not in self.graphs:
            try:
                self.graphs[end] = self._capture(end)
            except RuntimeError as error:  # memory for graphs, or an operation that cannot be recorded
                self.can_capture = False
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

    def _capture(self, end: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        slots = CacheSlots(self.cache, self.rows, slice(None), self.positions, end)

        def step() -> Tensor:
            return self.model.next_logits(self.ids, slots)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # repeating a step writes the same values to the same slots
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        return graph, logits
