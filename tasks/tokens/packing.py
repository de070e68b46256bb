"""Packing of documents into training sequences: pure functions of document lengths, in token ids.

The result is a list of pieces: spans of documents, and the sequence of each. A sequence has T input positions; a piece
may have one more id, its look-ahead, which is only the label of the last position.

- `chunk_pieces`: each document is cut into chunks of T ids every S ids; the last chunk is padded.
- `concat_pieces`: documents are concatenated to one stream, which is cut every T ids.
- `packed_pieces`: documents are cut every T ids; the remainders and the short documents share sequences by best-fit
  decreasing, with hardly any padding. Attention stays within a piece.

All is vectorised: the Python loops depend on the number of different lengths, not of documents or ids.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PACKINGS = ("chunk", "concat", "pack")
SMALLEST_SHARE = 64  # a remainder is cut only to fill at least 1/64 of a sequence


@dataclass(frozen=True)
class Pieces:
    """Spans of documents, in order of their sequences.

    Attributes:
        document: (p,) int64, number of the document.
        start: (p,) int64, first id of the piece in its document.
        length: (p,) int32, number of ids, including the look-ahead.
        ahead: (p,) int8, 1 if the last id is only a label.
        sequence: (p,) int64, number of the sequence, from 0 without gaps.
    """

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray
    ahead: np.ndarray
    sequence: np.ndarray

    def __len__(self) -> int:
        return len(self.document)

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return int(self.sequence[-1]) + 1 if len(self) else 0

    @property
    def inputs(self) -> np.ndarray:
        """(p,) int64, number of ids of each piece at input positions."""
        return self.length.astype(np.int64) - self.ahead

    def take(self, rows: np.ndarray | slice) -> Pieces:
        """Return some of the pieces, in the order of `rows`; sequences keep their numbers."""
        return Pieces(*(values[rows] for values in vars(self).values()))


@dataclass(frozen=True)
class Account:
    """Numbers of input positions and ids of a set of documents.

    `sequences` * T = `kept` + `repeated` + `padded`, and the ids of the documents are `kept` + `cut`.

    Attributes:
        kept: ids at input positions, each counted once.
        repeated: repetitions of ids in overlapping chunks.
        padded: positions without an id.
        cut: ids in no sequence.
        labels: positions with a label.
    """

    sequences: int = 0
    kept: int = 0
    repeated: int = 0
    padded: int = 0
    cut: int = 0
    labels: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(one + more for one, more in zip(vars(self).values(), vars(other).values(), strict=True)))


def is_isolated(packing: str) -> bool:
    """Return True if attention and labels stay within a piece."""
    return packing != "concat"


def pieces_of(lengths: np.ndarray, seq_len: int, packing: str, stride: int = 0, drop_last: bool = False) -> Pieces:
    """Cut documents by one of `PACKINGS`.

    Args:
        lengths: (n,) ids of each document.
        stride: for `chunk`; 0 means `seq_len`.
        drop_last: for `concat`.
    """
    if packing == "chunk":
        return chunk_pieces(lengths, seq_len, stride)
    if packing == "concat":
        return concat_pieces(lengths, seq_len, drop_last)
    if packing == "pack":
        return packed_pieces(lengths, seq_len)
    raise ValueError(f"packing is {packing!r}, expected {', '.join(PACKINGS)}")


def chunk_pieces(lengths: np.ndarray, seq_len: int, stride: int = 0) -> Pieces:
    """Cut chunks of `seq_len` ids every `stride` ids (at most `seq_len`), each a sequence of its own."""
    lengths = np.asarray(lengths, dtype=np.int64)
    stride = stride or seq_len
    counts = np.where(lengths <= seq_len, np.minimum(lengths, 1), -((seq_len - lengths) // stride) + 1)
    document = np.repeat(np.arange(len(lengths)), counts)
    start = _within(counts) * stride
    left = lengths[document] - start
    length = np.minimum(left, seq_len + 1).astype(np.int32)
    return Pieces(document, start, length, (left > seq_len).astype(np.int8), np.arange(len(document)))


def concat_pieces(lengths: np.ndarray, seq_len: int, drop_last: bool = False) -> Pieces:
    """Cut the documents as one stream every `seq_len` ids; the look-ahead of a sequence is the stream's next id.

    If that id belongs to the next document, it is a piece of its own.

    Args:
        drop_last: drop the last sequence if it is short.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    held = np.flatnonzero(lengths)  # documents with ids
    first_ids = (ends - lengths)[held]
    cuts = np.arange(0, total, seq_len)
    begins = np.sort(np.concatenate([first_ids, cuts]), kind="stable")  # linear time: both parts are sorted
    begins = begins[np.diff(begins, prepend=-1) > 0]
    document = held[np.searchsorted(first_ids, begins, side="right") - 1]
    sequence = begins // seq_len
    length = np.diff(begins, append=total)
    ahead = np.zeros(len(begins), dtype=np.int8)
    # each sequence but the last has a look-ahead, the first id of the next: in the same document or in another
    opens = np.searchsorted(begins, cuts[1:])
    same = document[opens] == document[opens - 1]
    ahead[opens[same] - 1] = 1
    length[opens[same] - 1] += 1
    other = opens[~same]
    made = Pieces(
        document=np.insert(document, other, document[other]),
        start=np.insert(begins - (ends - lengths)[document], other, 0),
        length=np.insert(length, other, 1).astype(np.int32),
        ahead=np.insert(ahead, other, 1),
        sequence=np.insert(sequence, other, sequence[other] - 1),
    )
    return made.take(made.sequence < total // seq_len) if drop_last else made


def packed_pieces(lengths: np.ndarray, seq_len: int) -> Pieces:
    """Pack documents into sequences by best-fit decreasing; documents that fit one sequence are not cut.

    Longer ones are cut every `seq_len` ids; each piece but the last is a sequence of its own, with its look-ahead. Some
    of the last pieces are cut again to fill other sequences (see `_spread`), also with a look-ahead. Of equal lengths,
    the earlier document comes first. Sequences are in the order of their first documents.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    counts = -(-lengths // seq_len)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = _within(counts)
    last = number == counts[document] - 1
    tails = document[last]
    start, size = number[last] * seq_len, lengths[tails] - number[last] * seq_len
    bins = _best_fit(size, seq_len)
    item, place, part_size, part_bin = _spread(size, bins, start > 0, seq_len)
    n_full = len(document) - len(tails)
    full_bins = np.arange(n_full) + bins.max(initial=-1) + 1
    document = np.concatenate([document[~last], tails[item]])
    start = np.concatenate([number[~last] * seq_len, start[item] + place])
    inputs = np.concatenate([np.full(n_full, seq_len), part_size])
    ahead = (start + inputs < lengths[document]).astype(np.int8)
    rows = np.argsort((np.cumsum(lengths) - lengths)[document] + start, kind="stable")
    sequence = np.empty(len(rows), dtype=np.int64)
    sequence[rows] = _by_first_appearance(np.concatenate([full_bins, part_bin])[rows])
    rows = rows[np.argsort(sequence[rows] * 2 + ahead[rows], kind="stable")]  # pieces with a look-ahead last
    return Pieces(document, start, (inputs + ahead).astype(np.int32), ahead, sequence).take(rows)


def _best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Return the bin of each item of size 1 to `capacity`, (n,) int64, by best-fit decreasing.

    Largest items go first, each into the bin with the least sufficient room (D. S. Johnson, "Near-optimal bin packing
    algorithms", 1973). A bin chosen for one item also takes the following ones of equal size while they fit, as no
    other bin has less sufficient room. So one step fills all bins of equal room, and the number of steps depends on the
    number of different sizes, not of items.
    """
    # NumPy sorts 16-bit integers in linear time
    key = (capacity - sizes).astype(np.uint16) if capacity <= np.iinfo(np.uint16).max else capacity - sizes
    by_size = np.argsort(key, kind="stable")
    falling = sizes[by_size]
    changes = np.flatnonzero(np.diff(falling, prepend=0)).tolist()
    bins = np.empty(len(sizes), dtype=np.int64)
    n_bins = 0
    rooms: list[int] = []  # different rooms of bins, ascending
    bins_of: dict[int, np.ndarray] = {}  # bins by room, in the order in which they reached it

    def keep(some: np.ndarray, room: int) -> None:
        if len(some) and room:
            if room not in bins_of:
                insort(rooms, room)
                bins_of[room] = some[:0]
            bins_of[room] = np.append(bins_of[room], some)

    for begin, end in pairwise([*changes, len(sizes)]):
        size = int(falling[begin])
        while begin < end:
            place = bisect_left(rooms, size)
            room = rooms[place] if place < len(rooms) else capacity
            each = room // size
            needed = -(-(end - begin) // each)
            if place < len(rooms):
                taken, bins_of[room] = np.split(bins_of[room], [needed])
                if not len(bins_of[room]):
                    del rooms[place], bins_of[room]
            else:
                taken = np.arange(n_bins, n_bins + needed)
                n_bins += needed
            placed = min(end - begin, each * len(taken))
            bins[by_size[begin : begin + placed]] = np.repeat(taken, each)[:placed]
            full = placed // each
            keep(taken[:full], room - each * size)
            keep(taken[full:], room - placed % each * size)
            begin += placed
    return bins


def _spread(
    sizes: np.ndarray, bins: np.ndarray, divisible: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Empty the least filled bins by cutting their items to fill the room of others.

    Best fit leaves a little room in many bins, too little for a whole item. An item is cut only where a bin becomes
    full, so each part but an item's last is the last in its bin. Bins with an indivisible item are not emptied.

    Returns:
        Item, start in the item, size and bin of each part, (p,) int64 each; parts of an item are in order.
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
    return (
        np.append(kept, moved[item]),
        np.append(np.zeros(len(kept), dtype=np.int64), begins - (item_ends - sizes[moved])[item]),
        np.append(sizes[kept], ends - begins),
        np.append(bins[kept], open_bins[np.searchsorted(room_ends, begins, side="right")]),
    )


def account(pieces: Pieces, lengths: np.ndarray, seq_len: int, isolated: bool = True) -> Account:
    """Count positions and ids of documents of these lengths, from their pieces."""
    inputs = pieces.inputs
    begins = (np.cumsum(lengths) - lengths)[pieces.document] + pieces.start
    filled = np.flatnonzero(inputs)
    rows = filled[np.argsort(begins[filled], kind="stable")]
    ends = begins[rows] + inputs[rows]
    covered = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(rows) else ends
    kept = int(np.maximum(ends - np.maximum(begins[rows], covered), 0).sum())
    used = int(inputs.sum())
    return Account(
        sequences=pieces.sequences,
        kept=kept,
        repeated=used - kept,
        padded=pieces.sequences * seq_len - used,
        cut=int(np.sum(lengths)) - kept,
        labels=int(pieces.length.sum()) - (len(pieces) if isolated else pieces.sequences),
    )


def predicted_spans(pieces: Pieces, n_documents: int, isolated: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return `begin` and `end` of the ids of each document that are labels; 0 and 0 if there are none.

    It is one span with every packing: pieces have no gaps, and the first id of a sequence is the look-ahead of the one
    before.
    """
    opens = np.full(len(pieces), isolated)  # pieces whose first id is not predicted in their sequence
    opens[:1] = True
    begins, ends = pieces.start + opens, pieces.start + pieces.length
    predicts = begins < ends
    begin, end = np.full(n_documents, np.iinfo(np.int64).max), np.zeros(n_documents, dtype=np.int64)
    np.minimum.at(begin, pieces.document[predicts], begins[predicts])
    np.maximum.at(end, pieces.document[predicts], ends[predicts])
    return np.minimum(begin, end), end


def piece_numbers(pieces: Pieces, lengths: np.ndarray) -> np.ndarray:
    """Return the number of each piece in its document, (p,) int32, in order of starts."""
    place = (np.cumsum(lengths) - lengths)[pieces.document] + pieces.start
    rows = np.argsort(place, kind="stable")
    counts = np.bincount(pieces.document, minlength=len(lengths))
    numbers = np.empty(len(pieces), dtype=np.int32)
    numbers[rows] = _within(counts)
    return numbers


def _within(counts: np.ndarray) -> np.ndarray:
    """Return the concatenation of arange(n) for each n in counts."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _by_first_appearance(labels: np.ndarray) -> np.ndarray:
    """Renumber labels to 0, 1, 2, ... in order of first appearance."""
    _, first, number = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[number])
