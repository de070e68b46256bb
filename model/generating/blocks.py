"""Attention of the newest token of each row on a CPU, read from the cache at the speed of memory.

Both halves of attention are weighted sums of the rows of a table: the values of all slots, weighted by how much a head
looks at each; and, where the keys of a block of slots lie transposed, the block's scores are its head_dim rows weighted
by the query. torch has one operation for such sums, made for embeddings: it fetches ahead what it will need, which the
products of a matrix and a vector do not, and each sum has an order of its own whatever else is computed beside it.

Slots that a row does not see get the score -inf, and in their place the row's newest slot is read, which is near at
hand: so a batch costs what its rows' own lengths cost, not the longest one's. The number of slots is a multiple of a
block, which is one of every vector width, so that not seen ones change no bit of the softmax either.

Shapes in comments: B rows, H query heads, K key-value heads, E head_dim, N blocks of a row, U of them that are read,
S = U * BLOCK slots.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..architecture import ModelConfig
from ..cache import KVCache

BLOCK = 64  # slots


class BlockCache:
    """Keys and values of a batch of rows, as two tables for each layer.

    Args:
        config: the network's configuration.
        batch_size: number of rows B.
        capacity: slots per row, at least.
        key_order: (E,) the order in which keys are kept, where that is not the network's.
        dtype: of keys and values.

    Attributes:
        keys: (n_layer, B, K, N, E, BLOCK).
        values: (n_layer, B, K, N * BLOCK, E).
        lengths: (B,) int64, number of valid slots in each row.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        *,
        key_order: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.key_order = config, key_order
        n_blocks = -(-capacity // BLOCK)
        shape = (config.n_layer, batch_size, config.n_kv_head)
        # zeros, not empty: a NaN in a slot that is not seen would survive the multiplication by weight 0
        self.keys = torch.zeros(*shape, n_blocks, config.head_dim, BLOCK, dtype=dtype)
        self.values = torch.zeros(*shape, n_blocks * BLOCK, config.head_dim, dtype=dtype)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self._tables: dict[tuple[int, int], _Tables] = {}

    def tables(self, first: int, n_rows: int, used: int) -> _Tables:
        """The tables of these rows, made anew when another number of blocks is read."""
        found = self._tables.get((first, n_rows))
        if found is None or len(found.scale) != used:
            found = self._tables[first, n_rows] = _Tables(self, first, n_rows, used)
        return found

    def replace(self, rows: list[int], other: KVCache) -> None:
        """Overwrites these rows with the rows of another, not larger cache."""
        index, n_slots = torch.tensor(rows, dtype=torch.int64), other.capacity
        keys = other.keys if self.key_order is None else other.keys[..., self.key_order]
        for first in range(0, n_slots, BLOCK):
            part = keys[..., first : first + BLOCK, :].transpose(-1, -2)
            self.keys[:, index, :, first // BLOCK, :, : part.shape[-1]] = part
        self.values[:, index, :, :n_slots] = other.values
        self.lengths[index] = other.lengths

    def select(self, rows: list[int]) -> None:
        """Keeps only these rows, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        self.keys, self.values = self.keys.index_select(1, index), self.values.index_select(1, index)
        self.lengths = self.lengths[index]
        self._tables.clear()


class _Tables:
    """What the steps of some rows have in common as long as they read the same number of blocks.

    Args:
        cache: the cache.
        first: the first of the rows.
        n_rows: how many.
        used: blocks that are read.
    """

    def __init__(self, cache: BlockCache, first: int, n_rows: int, used: int) -> None:
        config, n_blocks = cache.config, cache.keys.shape[3]
        n_head, n_kv, width = config.n_head, config.n_kv_head, config.head_dim
        self.rows, self.heads = torch.arange(first, first + n_rows)[:, None], torch.arange(n_kv)
        self.shape = (n_rows, n_head, used * BLOCK)
        self.slots = torch.arange(used * BLOCK, dtype=torch.int32)
        own = (self.rows * n_kv + self.heads).to(torch.int32) * n_blocks
        self.own = own.repeat_interleave(n_head // n_kv, dim=1)[:, :, None]  # (B, H, 1) a head's first block
        self.in_block = torch.arange(width, dtype=torch.int32)
        self.key_rows = self.rows_of_keys(self.slots[:used])
        self.value_rows = self.own * BLOCK + self.slots  # (B, H, S)
        n_sums = n_rows * n_head
        self.key_sums = torch.arange(n_sums * used, dtype=torch.int32) * width
        self.value_sums = torch.arange(n_sums, dtype=torch.int32) * (used * BLOCK)
        self.scale = torch.full((used, 1), 1 / math.sqrt(width), dtype=cache.keys.dtype)

    def rows_of_keys(self, blocks: Tensor) -> Tensor:
        """Rows of the table that make the scores of these blocks (U) or (B, 1, U) of each row's."""
        return ((self.own + blocks)[..., None] * len(self.in_block) + self.in_block).flatten()


class BlockStep:
    """What all layers of one step have in common.

    Args:
        cache: of at least as many rows.
        positions: (B,) slots that the new tokens get.
        first: the cache's row that the first of these is.
    """

    def __init__(self, cache: BlockCache, positions: Tensor, first: int = 0) -> None:
        places = positions.tolist()
        highest, window = max(places), cache.config.window
        used = highest // BLOCK + 1
        tables = self.tables = cache.tables(first, len(places), used)
        self.keys, self.values = cache.keys, cache.values
        if min(places) == highest:  # one place for all: nothing has to be looked up
            rows, newest = slice(first, first + len(places)), positions[:1].to(torch.int32)
            self.key_place: tuple[Any, ...] = rows, slice(None), highest // BLOCK, slice(None), highest % BLOCK
            self.value_place: tuple[Any, ...] = rows, slice(None), highest
        else:
            at, newest = positions[:, None], positions.to(torch.int32)[:, None]
            self.key_place = tables.rows, tables.heads, at // BLOCK, slice(None), at % BLOCK
            self.value_place = tables.rows, tables.heads, at
        seen = tables.slots <= newest  # (B, S), or (S) for all
        if window is not None:
            seen &= tables.slots > newest - window
        self.mask = torch.where(seen, 0.0, -torch.inf).to(cache.keys.dtype).unsqueeze(-2)
        self.key_rows = tables.key_rows
        if window is not None or min(places) // BLOCK + 1 < used:
            any_seen = seen.view(-1, used, BLOCK).any(-1)
            blocks = torch.where(any_seen, tables.slots[:used], newest.view(-1, 1) // BLOCK)
            self.key_rows = tables.rows_of_keys(blocks[:, None])
        own = tables.own * BLOCK + newest.view(-1, 1, 1)
        self.value_rows = torch.where(seen.unsqueeze(-2), tables.value_rows, own).flatten()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores keys and values (B, K, E); what the queries (B, H, E) gather, (B, H E)."""
        tables, keys, values = self.tables, self.keys[layer], self.values[layer]
        keys[self.key_place], values[self.value_place] = k, v
        weights = (q.unsqueeze(2) * tables.scale).view(-1)
        scores = _sums(keys.view(-1, BLOCK), self.key_rows, tables.key_sums, weights).view(tables.shape)
        weights = torch.softmax(scores.add_(self.mask), dim=-1).view(-1)
        return _sums(values.view(-1, q.shape[-1]), self.value_rows, tables.value_sums, weights).view(len(q), -1)


def _sums(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of the table's rows; `starts` are the places at which the next sum begins."""
    found: Tensor = torch.embedding_bag(table, rows, starts, False, 0, False, weights)[0]
    return found
