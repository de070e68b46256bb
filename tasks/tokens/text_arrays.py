"""A column of text as Arrow has it: bytes and offsets, without a copy, and stretches of them that cut no character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Texts:
    """A column of text.

    Attributes:
        data: (b,) uint8, UTF-8; all texts lie in it, one after the other.
        offsets: (n + 1,) int64, where each text begins in it, and where the last one ends.
        column: the same as Arrow has it.
    """

    data: np.ndarray
    offsets: np.ndarray
    column: pa.LargeStringArray

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray) -> Texts:
        """The texts of a string column.

        Raises:
            ValueError: if a row is null.
        """
        if column.null_count:
            raise ValueError(f"{column.null_count} of {len(column)} texts are null, expected text in every row")
        if column.type != pa.large_string():  # a cast imports Arrow's functions, which takes longer than 10 MB of text
            column = column.cast(pa.large_string())
        if isinstance(column, pa.ChunkedArray):
            chunks = column.chunks or [text_array([], pa.large_string())]
            column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        _, offsets, data = column.buffers()
        if not len(column) or data is None:
            return cls(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64), column)
        places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        return cls(np.frombuffer(data, np.uint8), places, column)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_bytes(self) -> np.ndarray:
        """(n,) int64 bytes of each text."""
        return np.diff(self.offsets)

    def part(self, first: int, last: int) -> Texts:
        """The texts from row `first` on and before row `last`, not copied."""
        return Texts(self.data, self.offsets[first : last + 1], self.column[first:last])

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def text_array(items: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """A column of text from UTF-8; `pyarrow.array` would import pandas, which takes half a second.

    Args:
        kind: `string` or `large_string`.
    """
    offsets = np.zeros(len(items) + 1, dtype=np.int64 if pa.types.is_large_string(kind) else np.int32)
    np.cumsum([len(item) for item in items], out=offsets[1:])
    return pa.Array.from_buffers(kind, len(items), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(items))])


def number_array(values: np.ndarray) -> pa.Array:
    """A column of 64-bit numbers, without pandas too."""
    values = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def character_start(data: np.ndarray, place: int) -> int:
    """The place, or if it lies within a character of UTF-8 the one where that begins."""
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place -= 1
    return place


def whole_characters(data: np.ndarray, begin: int, end: int) -> bytes:
    """The bytes of a stretch of UTF-8, without a character that its end cuts."""
    return data[begin : character_start(data, end)].tobytes()


def batches(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows whose sizes add up to at most so much, as first row and end; larger rows are alone."""
    first, size = 0, 0
    for row, more in enumerate(sizes.tolist()):
        if row > first and size + more > most:
            yield first, row
            first, size = row, 0
        size += more
    if len(sizes):
        yield first, len(sizes)


def texts_of(items: Sequence[bytes]) -> Texts:
    """Texts from bytes."""
    return Texts.of(text_array(items, pa.large_string()))
