"""Best-fit decreasing for many items of few sizes, and the filling of what it leaves empty.

In go sizes and a capacity, out comes a bin for each item. The largest items are placed first, each where the least room
is left (D. S. Johnson, "Near-optimal bin packing algorithms", 1973). Items are sizes in ids and bins are sequences, so
there are far fewer sizes than items: all items of one size are placed in a few steps of NumPy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SMALLEST_SHARE = 64  # of the capacity, is what an item is cut for at least


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """(n,) int64 number of the bin of each item: the largest items first, each where the least room is left.

    Items of one size are placed together. The bin with the least room that takes one also takes the next of the same
    size while it fits, since then no other bin has less room that would do. So one step fills all bins of equal room
    alike, and there are at most a few steps for each different size: a bin whose room fell below a size is looked at
    again only when the sizes have come down to it.

    Args:
        sizes: (n,) 1 to `capacity` each.
    """
    by_size = np.argsort(_radix_key(capacity - sizes, capacity), kind="stable")
    falling = sizes[by_size]
    changes = np.flatnonzero(np.diff(falling, prepend=0)).tolist()
    bins = np.empty(len(sizes), dtype=np.int64)
    open_bins = _OpenBins(capacity)
    for begin, end in pairwise([*changes, len(sizes)]):
        size = int(falling[begin])
        while begin < end:
            taken, each = open_bins.take(size, end - begin)
            placed = min(end - begin, each * len(taken))
            bins[by_size[begin : begin + placed]] = np.repeat(taken, each)[:placed]
            open_bins.put_back(taken, size, each, placed)
            begin += placed
    return bins


def _radix_key(values: np.ndarray, most: int) -> np.ndarray:
    """The values in a type of 16 bits where it holds them: NumPy then sorts in linear time."""
    return values.astype(np.uint16) if most <= np.iinfo(np.uint16).max else values


@dataclass(frozen=True)
class Parts:
    """Items as they lie in bins, some of them in several parts.

    Attributes:
        item: (p,) int64, the item; parts of one are in their order.
        start, size: (p,) int64, which part of the item it is.
        bin: (p,) int64.
    """

    item: np.ndarray
    start: np.ndarray
    size: np.ndarray
    bin: np.ndarray


def spread(sizes: np.ndarray, bins: np.ndarray, divisible: np.ndarray, capacity: int) -> Parts:
    """Empty the bins that hold least by cutting what is in them to fill the room of others.

    Best fit leaves a little room in many bins, enough for the contents of some others, but in no bin enough for a whole
    item. A cut falls only where a bin is full, so each part but an item's last is the last in its bin.

    Args:
        sizes: (n,) of the items.
        bins: (n,) bin of each item.
        divisible: (n,) bool, whether it may be cut; bins that hold other items stay as they are.
        capacity: of a bin.
    """
    used = np.bincount(bins, weights=sizes).astype(np.int64)
    room = capacity - used
    room[room < capacity / SMALLEST_SHARE] = 0
    loose = np.flatnonzero((np.bincount(bins, weights=~divisible) == 0) & (used > 0))
    loose = loose[np.argsort(used[loose], kind="stable")]
    fits = np.cumsum(used[loose] + room[loose]) <= room.sum()
    emptied = np.zeros(len(used), dtype=bool)
    emptied[loose[: np.count_nonzero(fits)]] = True
    room[emptied] = 0
    open_bins = np.flatnonzero(room)
    open_bins = open_bins[np.argsort(-room[open_bins], kind="stable")]
    moved, kept = np.flatnonzero(emptied[bins]), np.flatnonzero(~emptied[bins])
    item_ends, room_ends = np.cumsum(sizes[moved]), np.cumsum(room[open_bins])
    total = int(item_ends[-1]) if len(moved) else 0
    ends = np.union1d(item_ends, room_ends[room_ends < total])
    begins = np.append(0, ends[:-1])[: len(ends)]
    item = np.searchsorted(item_ends, begins, side="right")
    return Parts(
        item=np.append(kept, moved[item]),
        start=np.append(np.zeros(len(kept), dtype=np.int64), begins - (item_ends - sizes[moved])[item]),
        size=np.append(sizes[kept], ends - begins),
        bin=np.append(bins[kept], open_bins[np.searchsorted(room_ends, begins, side="right")]),
    )


class _OpenBins:
    """Bins by the room that is left in them; of equal room, those that have had it longest come first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count = 0
        self._rooms: list[int] = []  # that some bin has, rising
        self._bins: dict[int, deque[np.ndarray]] = {}
        self._room = 0  # of the bins taken last

    def take(self, size: int, n_items: int) -> tuple[np.ndarray, int]:
        """Bins of the least room for items of a size, no more than they need, and how many go into each."""
        place = bisect_left(self._rooms, size)
        if place == len(self._rooms):
            return self._open(size, n_items)
        self._room = self._rooms[place]
        each = self._room // size
        needed = -(-n_items // each)
        waiting, found = self._bins[self._room], []
        while waiting and needed:
            some = waiting.popleft()
            if len(some) > needed:
                waiting.appendleft(some[needed:])
            found.append(some[:needed])
            needed -= len(found[-1])
        if not waiting:
            del self._rooms[place], self._bins[self._room]
        return np.concatenate(found), each

    def _open(self, size: int, n_items: int) -> tuple[np.ndarray, int]:
        self._room = self._capacity
        each = self._room // size
        first = self._count
        self._count += -(-n_items // each)
        return np.arange(first, self._count), each

    def put_back(self, taken: np.ndarray, size: int, each: int, placed: int) -> None:
        """Keep the bins taken last with the room that items of a size have left in them."""
        full = placed // each
        self._keep(taken[:full], self._room - each * size)
        self._keep(taken[full:], self._room - placed % each * size)

    def _keep(self, bins: np.ndarray, room: int) -> None:
        if not len(bins) or not room:
            return
        if room not in self._bins:
            insort(self._rooms, room)
            self._bins[room] = deque()
        self._bins[room].append(bins)
