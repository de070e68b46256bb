"""Keys and values of the tokens that were already read, so that each new token costs one row of work.

The room for them is allocated once (static shapes); each row of the batch has its own length, so prompts of
different length share a batch without left padding. A prompt batch is right-padded: the padding's keys land
beyond their row's length, are masked there, and are overwritten when the row grows into them. Lengths live on
the host, because the loop that decodes needs them at every step and must not wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .architecture import ModelConfig


@dataclass(frozen=True)
class CacheStep:
    """Where the tokens of one forward pass go.

    Attributes:
        positions: (B, T) position of each new token in its own row.
        start: slots filled in the longest row before; 0 if the cache is empty.
        end: number of cache slots that are read.
    """

    positions: Tensor
    start: int
    end: int


class KVCache:
    """A preallocated cache for a batch of rows.

    Args:
        config: the network's configuration.
        batch_size: number of rows B.
        capacity: slots per row S, at most config.max_seq_len (the default).
        device: where keys and values rest.
        dtype: of keys and values.

    Attributes:
        keys, values: (n_layer, B, n_kv_head, S, head_dim).
        lengths: (B,) int64 on the host, number of valid slots in each row.
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

    def plan(self, n_rows: int, n_new: int) -> CacheStep:
        """Places of n_new tokens appended to each row.

        Raises:
            ValueError: the batch has another number of rows, or a row would grow beyond the capacity.
        """
        if n_rows != len(self.lengths):
            raise ValueError(f"{n_rows} rows of ids for a cache of {len(self.lengths)} rows; make them equal")
        longest = int(self.lengths.max())
        end = longest + n_new
        if end > self.capacity:
            raise ValueError(
                f"a row of {longest} tokens cannot take {n_new} more: the cache holds {self.capacity}; "
                f"rebuild it from the last part of the row"
            )
        positions = (self.lengths[:, None] + torch.arange(n_new)).to(self.keys.device, non_blocking=True)
        return CacheStep(positions, longest, end)

    def write(self, layer: int, step: CacheStep, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new keys and values (B, n_kv_head, T, head_dim) and returns all that attention reads.

        Returns:
            Keys and values (B, n_kv_head, step.end, head_dim).
        """
        if step.start == 0:
            self.keys[layer, :, :, : step.end] = keys
            self.values[layer, :, :, : step.end] = values
            return keys, values
        rows = torch.arange(len(self.lengths), device=self.keys.device)[:, None]
        self.keys[layer][rows, :, step.positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[layer][rows, :, step.positions] = values.transpose(1, 2).to(self.values.dtype)
        return self.keys[layer, :, :, : step.end], self.values[layer, :, :, : step.end]

    def advance(self, n_new: int, lengths: Tensor | None) -> None:
        """Counts the tokens of a finished pass: n_new in each row, or lengths (B,) if rows were padded."""
        self.lengths = self.lengths + (n_new if lengths is None else lengths.cpu())

    def select(self, rows: list[int]) -> None:
        """Keeps only these rows, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        on_device = index.to(self.keys.device)
        self.keys = self.keys.index_select(1, on_device)
        self.values = self.values.index_select(1, on_device)
        self.lengths = self.lengths[index]

    def replace(self, rows: list[int], other: KVCache) -> None:
        """Overwrites these rows with the rows of another, not larger cache."""
        index = torch.tensor(rows, dtype=torch.int64)
        on_device = index.to(self.keys.device)
        self.keys[:, on_device, :, : other.capacity] = other.keys
        self.values[:, on_device, :, : other.capacity] = other.values
        self.lengths[index] = other.lengths
