"""Engines: the same ids as the tokeniser's own `encode` gives, sooner and in arrays.

In goes a column of text as Arrow has it, out come flat ids with offsets; there is no Python list per document. The
tokeniser itself is the reference; `tasks.tokens.engine_choice` says which engine is taken.

    tables      characters, ASCII codes and bytes: NumPy on the bytes of the column
    gigatoken   byte-pair encoding, some forty times as fast as the reference
    tiktoken    byte-pair encoding where gigatoken is missing or differs; an optional package

This module does not travel inside served models.
"""

from __future__ import annotations

import ctypes
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tasks.tokens.subword import spelled_bytes
from tasks.tokens.tables import code_points
from tasks.tokens.text_arrays import Texts, batches, whole_characters
from tasks.tokens.tokenizers import (
    N_SPECIAL,
    UNK,
    ByteTokenizer,
    EngineTokenizer,
    TableTokenizer,
    Tokenizer,
)

BATCH_BYTES = 2**20  # that the reference is given at once
BLOCK_BYTES = 2**15  # small, so that one character beyond ASCII slows down little text
# gigatoken remembers every word it met, for ever: a text of random words would fill the memory.
CACHE_BYTES = 2**28
CACHE_CHECK_BYTES = 2**23
CACHE_PER_BYTE = 10  # that it grows by a byte of text, at most
# What is done with an added token takes gigatoken the square of its length.
ADDED_CHARS = 2**10
ALL_ADDED_CHARS = 2**18
# GPT-2's rule for cutting text into words, in the form that does not run back.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


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
    """How many characters of these sizes, or of one byte each, lie before the bytes at some places."""
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
        self._since = self._since_check = 0

    def encode(self, texts: Texts) -> Encoded:
        return _one_by_one(self.tokenizer, texts, self._encode)

    def _encode(self, data: bytes) -> np.ndarray:
        self._since_check += len(data)
        if self._since_check >= CACHE_CHECK_BYTES:
            self._since += self._since_check
            self._since_check = 0
            self._forget_if_full()
        ids: np.ndarray = self._backend.encode(data)
        return ids

    def _forget_if_full(self) -> None:
        """Begin with an empty cache where it may have grown too large; nothing tells how large it is."""
        resident = _resident_bytes()
        grown = self._since * CACHE_PER_BYTE if resident is None else resident - (self._resident or 0)
        if grown > CACHE_BYTES:
            self._renew()


def _return_freed_memory() -> None:
    """Give what was freed back to the system, where its C library can: else it would not be seen to be free."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int | None:
    """Memory that this process takes up; None where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class TiktokenEngine(Engine):
    """tiktoken, for GPT-2's kind of byte-pair encoding with merges in the order of their ids.

    Raises:
        EngineError: for others.
    """

    def __init__(self, tokenizer: EngineTokenizer) -> None:
        import tiktoken

        super().__init__(tokenizer)
        self._encoding = tiktoken.Encoding(
            "sheepfold", pat_str=GPT2_PATTERN, mergeable_ranks=merge_ranks(tokenizer), special_tokens={}
        )
        self.name = _named("tiktoken")

    def encode(self, texts: Texts) -> Encoded:
        return _one_by_one(self.tokenizer, texts, self._encode)

    def _encode(self, data: bytes) -> np.ndarray:
        ids: np.ndarray = self._encoding.encode_to_numpy(data.decode(), disallowed_special=())
        return ids


def merge_ranks(tokenizer: EngineTokenizer) -> dict[bytes, int]:
    """The id of every token by its bytes."""
    model = json.loads(tokenizer.encoding_spec)["model"]
    if not tokenizer.has_gpt2_words or model.get("type") != "BPE" or model.get("ignore_merges"):
        raise EngineError("it is not byte-level byte-pair encoding with GPT-2's words")
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    made = [model["vocab"][one + two] for one, two in merges]
    if any(later <= earlier for earlier, later in pairwise(made)):
        raise EngineError("its merges do not stand in the order of their ids")
    special = set(tokenizer.special_ids)
    return {spelled_bytes(token): index for token, index in model["vocab"].items() if index not in special}


def plain_spec(tokenizer: EngineTokenizer) -> str:
    """What `tokenizers` reads, with nothing in it that makes a special token of text or adds one to it.

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
    """Whatever an engine fails with becomes one error: there is another engine."""
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
