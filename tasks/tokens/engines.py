"""Engines: the same ids as the tokeniser's own `encode` gives, sooner and in arrays.

An engine takes a column of text as Arrow has it and returns flat ids with offsets, without a Python list per document.
The tokeniser itself is the reference; the fastest engine that gives its ids on the very documents is taken.

    tables      characters, ASCII codes and bytes: NumPy on the bytes of the column
    gigatoken   byte-pair encoding, some forty times as fast as the reference

This module does not travel inside served models.
"""

from __future__ import annotations

import ctypes
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.tokens.interface import code_points
from tasks.tokens.tokenizers import (
    N_SPECIAL,
    SPECIAL_TOKENS,
    UNK,
    ByteTokenizer,
    EngineTokenizer,
    TableTokenizer,
    Tokenizer,
)


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


BATCH_BYTES = 2**20  # that the reference is given at once
BLOCK_BYTES = 2**15  # small, so that one character beyond ASCII slows down little text
# gigatoken remembers every word it met, for ever: a text of random words would fill the memory.
CACHE_BYTES = 2**28
CACHE_CHECK_BYTES = 2**23
# What is done with an added token takes gigatoken the square of its length.
ADDED_CHARS = 2**10
ALL_ADDED_CHARS = 2**18


# Less text is encoded by the reference before another engine is imported, set up and compared with it.
WORTH_AN_ENGINE = 2**20
SAMPLE_DOCUMENTS = 12
SAMPLE_BYTES = 2**12  # of each document; the reference is slow
PROBES = (
    "".join(SPECIAL_TOKENS) + " <|endoftext|> <s></s> [CLS] <|im_start|>",
    "it's we'll they've I'd I'M don't 'tis '' ''s 3.14 1,000,000 x2y",
    " \t  \n\n   \r\n\u00a0\u2028\u3000 \x1c\x85 a  b   c \n d\t",
    "e\u0301\u0302 n\u0303o \u200d\u200b\ufeff \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f \U0010ffff",
    "\u6771\u4eac\u90fd\u306f\u300c\u65e5\u672c\u300d\u3002 \u0395\u03bb\u03bb \u05e2\u05d1\u05e8 \u0e44\u0e17\u0e22 "
    "\u00bd\u00b2\u2163\u0661",
    "".join(map(chr, range(128))),
    "a" * 300 + " " * 70 + "=" * 80 + "0" * 50 + "\n" * 40,
    "x = {'a': [1, 2]}  # f(x)\n\tif (a&&b) { return -1; }\n    </div>",
    "",
)


class EngineError(ValueError):
    """An engine that cannot run a tokeniser, fails, or gives other ids than the reference."""


@dataclass(frozen=True)
class Encoded:
    """Ids of several texts.

    Attributes:
        ids: (m,) unsigned, one text after the other.
        offsets: (n + 1,) int64, where each text begins in them, and where the last one ends.
        lost: (n,) int64, bytes of each text that became unk or were left out.
    """

    ids: np.ndarray
    offsets: np.ndarray
    lost: np.ndarray

    def of_text(self, row: int) -> np.ndarray:
        """Ids of one text."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]


class Engine(ABC):
    """Encodes texts for one tokeniser.

    Attributes:
        name: with the version, for manifests.
    """

    name: str

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def encode(self, texts: Texts) -> Encoded:
        """Ids of the texts, without bos and eos."""


class _Ids:
    """An array that is filled; memory is taken up only as far as it is."""

    def __init__(self, room: int) -> None:
        self._ids = np.empty(room, dtype=np.uint32)
        self._length = 0

    def add(self, ids: np.ndarray) -> int:
        """Append ids; returns how many there are now."""
        end = self._length + len(ids)
        if end > len(self._ids):  # only where a normaliser makes text longer
            larger = np.empty(2 * end, dtype=np.uint32)
            larger[: self._length] = self.all()
            self._ids = larger
        self._ids[self._length : end] = ids
        self._length = end
        return end

    def all(self) -> np.ndarray:
        return self._ids[: self._length]


def _one_by_one(tokenizer: Tokenizer, texts: Texts, encode: Callable[[bytes], np.ndarray]) -> Encoded:
    """Texts encoded each by itself, long ones in pieces."""
    ids = _Ids(int(texts.n_bytes.sum()))
    ends = [0]
    for row in range(len(texts)):
        for piece in tokenizer.pieces(texts[row]):
            ids.add(encode(piece))
        ends.append(len(ids.all()))
    return _encoded(tokenizer, texts, ids, ends)


def _encoded(tokenizer: Tokenizer, texts: Texts, ids: _Ids, ends: Sequence[int]) -> Encoded:
    offsets = np.array(ends, dtype=np.int64)
    return Encoded(ids.all(), offsets, _lost(tokenizer, texts, ids.all(), offsets))


def _lost(tokenizer: Tokenizer, texts: Texts, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Lost bytes of each text; only those with an unk are looked at where nothing is lost without one."""
    lost = np.zeros(len(texts), dtype=np.int64)
    if tokenizer.may_lose:
        rows = np.arange(len(texts))
        if not tokenizer.drops_text:
            places = np.flatnonzero(ids == tokenizer.unk_id)
            rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
        for row in rows.tolist():
            lost[row] = tokenizer.lost_bytes(texts[row].decode(), ids[offsets[row] : offsets[row + 1]])
    return lost


class ReferenceEngine(Engine):
    """The tokeniser's own `encode`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.name = _named("tokenizers") if isinstance(tokenizer, EngineTokenizer) else "reference"

    def encode(self, texts: Texts) -> Encoded:
        ids = _Ids(int(texts.n_bytes.sum()))
        ends = [0]
        for first, last in batches(texts.n_bytes, BATCH_BYTES):
            if last - first > 1:
                found = self.tokenizer.encode(texts.column[first:last].to_pylist())
                ends += [ids.add(of_text) for of_text in found]
            else:  # perhaps a long one
                for piece in self.tokenizer.pieces(texts[first]):
                    ids.add(self.tokenizer.encode([piece.decode()])[0])
                ends.append(len(ids.all()))
        return _encoded(self.tokenizer, texts, ids, ends)


class BytesEngine(Engine):
    """Bytes and four."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        super().__init__(tokenizer)
        self.name = _named("numpy")

    def encode(self, texts: Texts) -> Encoded:
        first, last = texts.offsets[0], texts.offsets[-1]
        ids = np.add(texts.data[first:last], N_SPECIAL, dtype=np.uint16)
        return Encoded(ids, texts.offsets - first, np.zeros(len(texts), dtype=np.int64))


class TableEngine(Engine):
    """A look-up table over code points; where a block of text is ASCII its bytes are translated as they are."""

    def __init__(self, tokenizer: TableTokenizer) -> None:
        super().__init__(tokenizer)
        self.name = _named("numpy")
        self._table = tokenizer.table
        of_ascii = self._table[:128]
        self._translation = of_ascii.astype(np.uint8).tobytes() + bytes(128) if of_ascii.max() < 256 else None

    def encode(self, texts: Texts) -> Encoded:
        begin, end = int(texts.offsets[0]), int(texts.offsets[-1])
        ids = np.empty(end - begin, dtype=self._table.dtype)  # a character is a byte or more
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        lost = np.zeros(len(texts), dtype=np.int64)
        place = row = 0
        while begin < end:
            block = whole_characters(texts.data, begin, min(begin + BLOCK_BYTES, end))
            found, sizes = self._encode_block(block)
            ids[place : place + len(found)] = found
            next_row = int(np.searchsorted(texts.offsets, begin + len(block)))  # texts before it begin here, or before
            offsets[row:next_row] = place + _characters_before(texts.offsets[row:next_row] - begin, sizes)
            unknown = np.flatnonzero(found == UNK)
            if len(unknown):
                rows = np.searchsorted(offsets[:next_row], unknown + place, side="right") - 1
                np.add.at(lost, rows, 1 if sizes is None else sizes[unknown])
            begin += len(block)
            place += len(found)
            row = next_row
        offsets[row:] = place
        return Encoded(ids[:place], offsets, lost)

    def _encode_block(self, block: bytes) -> tuple[np.ndarray, np.ndarray | None]:
        """Ids of a block, and the bytes of each of its characters; None where they are ASCII."""
        if self._translation is not None and block.isascii():
            return np.frombuffer(block.translate(self._translation), np.uint8), None
        codes = code_points(block.decode())
        return np.take(self._table, codes), _utf8_sizes(codes)


def _utf8_sizes(codes: np.ndarray) -> np.ndarray:
    """(n,) uint8 bytes of characters in UTF-8."""
    sizes = np.ones(len(codes), dtype=np.uint8)
    for least in (0x80, 0x800, 0x10000):
        sizes += codes >= least
    return sizes


def _characters_before(places: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
    """Count the characters, of these sizes or of one byte each, before the bytes at some places."""
    if sizes is None or not len(places):
        return places
    return np.searchsorted(np.cumsum(sizes, dtype=np.int64), places, side="right")


class GigatokenEngine(Engine):
    """gigatoken, without threads: it holds the interpreter's lock, and other segments are encoded beside this one."""

    def __init__(self, tokenizer: EngineTokenizer) -> None:
        super().__init__(tokenizer)
        self._spec = plain_spec(tokenizer)
        self._backend: Any = None
        self._renew()
        self.name = _named("gigatoken")

    def _renew(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        if self._backend is not None:
            self._backend = None  # before there is another one, which would stand beside it
            _return_freed_memory()
        self._backend = load_hf_json(self._spec)
        self._resident = _resident_bytes()
        self._since_check = 0

    def encode(self, texts: Texts) -> Encoded:
        return _one_by_one(self.tokenizer, texts, self._encode)

    def _encode(self, data: bytes) -> np.ndarray:
        self._since_check += len(data)
        if self._since_check >= CACHE_CHECK_BYTES:
            self._since_check = 0
            self._forget_if_full()
        ids: np.ndarray = self._backend.encode(data)
        return ids

    def _forget_if_full(self) -> None:
        """Begin with an empty cache where it may have grown too large; nothing tells how large it is."""
        if _resident_bytes() - self._resident > CACHE_BYTES:
            self._renew()


def _return_freed_memory() -> None:
    """Give what was freed back to the system, where its C library can: else it would not be seen to be free."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def plain_spec(tokenizer: EngineTokenizer) -> str:
    """Return the JSON for `tokenizers` without anything that makes a special token of text or adds one to it.

    Raises:
        EngineError: it has added tokens of such length that setting them up may take hours.
    """
    spec = json.loads(tokenizer.encoding_spec)
    added = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
    lengths = [len(token["content"]) for token in added]
    if max(lengths, default=0) > ADDED_CHARS or sum(lengths) > ALL_ADDED_CHARS:
        raise EngineError(
            f"its added tokens are of up to {max(lengths):,} characters, {sum(lengths):,} in all; {ADDED_CHARS:,} and "
            f"{ALL_ADDED_CHARS:,} can be set up in no time"
        )
    plain = {**spec, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    return json.dumps(plain, ensure_ascii=False)


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Raise every failure of an engine as EngineError: there is another engine."""
    try:
        yield
    except (EngineError, MemoryError):
        raise
    except BaseException as error:
        # a panic in Rust is no Exception; a Ctrl-C is none either, and is no fault of the engine
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise EngineError(f"{what} ({type(error).__name__}: {error})") from error


def _named(package: str) -> str:
    return f"{package} {version(package)}"


@dataclass(frozen=True)
class Choice:
    """The engine to take.

    Attributes:
        reason: in one sentence.
    """

    engine: Engine
    reason: str


class Engines:
    """The engines of one tokeniser, each made once.

    Args:
        tokenizer: whose ids they give.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.reference = ReferenceEngine(tokenizer)
        self._made: dict[str, Engine | EngineError] = {}

    def choose(self, texts: Texts, size: int, wanted: str = "auto") -> Choice:
        """The fastest engine whose ids are the reference's on a sample of these texts.

        Args:
            size: bytes of all text that is to be encoded, of which these texts are the first.
            wanted: `auto`, or `reference` for no other than that.
        """
        if wanted == "reference":
            return Choice(self.reference, "asked for")
        if isinstance(self.tokenizer, EngineTokenizer) and size < WORTH_AN_ENGINE:
            return Choice(self.reference, f"{size:,} bytes are too few for another engine to pay")
        refused: list[str] = []
        for name, make in _candidates(self.tokenizer):
            try:
                engine = self._make(name, make)
                self.compare(engine, texts_of([*sample_of(texts), *_probes(self.tokenizer)]))
            except EngineError as error:
                refused.append(f"{name}: {error}")
            else:
                return Choice(engine, "; ".join([*refused, "gives the reference's ids on a sample of these documents"]))
        return Choice(self.reference, "; ".join(refused) or "there is no other for this kind of tokeniser")

    def _make(self, name: str, make: Callable[[Any], Engine]) -> Engine:
        """An engine, made once; so is the failure to make it."""
        if name not in self._made:
            try:
                with engine_errors("it cannot be set up"):
                    self._made[name] = make(self.tokenizer)
            except EngineError as error:
                self._made[name] = error
        made = self._made[name]
        if isinstance(made, EngineError):
            raise made
        return made

    def compare(self, engine: Engine, texts: Texts) -> None:
        """Check an engine against the reference.

        Raises:
            EngineError: if it fails, or gives other ids.
        """
        if engine is self.reference:
            return
        with engine_errors("it failed"):
            found = engine.encode(texts)
        with engine_errors("the reference failed"):
            expected = self.reference.encode(texts)
        for row in range(len(texts)):
            same = np.array_equal(found.of_text(row), expected.of_text(row)) and found.lost[row] == expected.lost[row]
            if not same:
                begin = texts[row][:40].decode(errors="replace")
                raise EngineError(f"other ids than the reference's for a text that begins {begin!r}")


def _candidates(tokenizer: Tokenizer) -> list[tuple[str, Callable[[Any], Engine]]]:
    """Engines for a tokeniser, the fastest first."""
    if isinstance(tokenizer, ByteTokenizer):
        return [("numpy", BytesEngine)]
    if isinstance(tokenizer, TableTokenizer):
        return [("numpy", TableEngine)]
    if isinstance(tokenizer, EngineTokenizer):
        return [("gigatoken", GigatokenEngine)]
    return []


def sample_of(texts: Texts) -> list[bytes]:
    """Stretches of the first, the last, the longest and some texts between: from the beginning, or from the middle."""
    if not len(texts):
        return []
    spread = np.linspace(0, len(texts) - 1, SAMPLE_DOCUMENTS).astype(np.int64).tolist()
    stretches = []
    for number, row in enumerate(dict.fromkeys([*spread, int(np.argmax(texts.n_bytes))])):
        first, last = (int(place) for place in texts.offsets[row : row + 2])
        if number % 2 and last - first > SAMPLE_BYTES:
            first = character_start(texts.data, (first + last) // 2)
        stretches.append(whole_characters(texts.data, first, min(first + SAMPLE_BYTES, last)))
    return stretches


def _probes(tokenizer: Tokenizer) -> list[bytes]:
    probes = [*PROBES]
    if isinstance(tokenizer, EngineTokenizer):
        added = json.loads(tokenizer.spec).get("added_tokens") or []
        probes.append(" ".join(str(token["content"]) for token in added))
    return [probe.encode() for probe in probes]
