"""Engines: the same ids as the tokeniser's own `encode` gives, sooner and in arrays.

In goes a column of text as Arrow has it, out come flat ids with offsets; there is no Python list per document. The
tokeniser itself is the reference. A faster engine is taken when it gives identical ids on a sample of the very
documents that are to be encoded and on texts that are hard to get right, else the reference, with the reason.

    tables      characters, ASCII codes and bytes: NumPy on the bytes of the column
    gigatoken   byte-pair encoding, some forty times as fast as the reference
    tiktoken    byte-pair encoding where gigatoken is missing or differs; an optional package

This module does not travel inside served models.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.tokens.subword import spelled_bytes
from tasks.tokens.tables import code_points
from tasks.tokens.texts import Texts, batches, character_start, text_array, whole_characters
from tasks.tokens.tokenizer import (
    N_SPECIAL,
    SPECIAL_TOKENS,
    UNK,
    ByteTokenizer,
    EngineTokenizer,
    TableTokenizer,
    Tokenizer,
)

# Less text is encoded by the reference before another engine is imported, set up and compared with it.
WORTH_AN_ENGINE = 2**20
SAMPLE_DOCUMENTS = 12
SAMPLE_BYTES = 2**12  # of each document; the reference is slow
BATCH_BYTES = 2**20  # that the reference is given at once
BLOCK_BYTES = 2**15  # small, so that one character beyond ASCII slows down little text
# gigatoken remembers every word it met, for ever: a text of random words would fill the memory.
CACHE_BYTES = 2**28
CACHE_CHECK_BYTES = 2**23
CACHE_PER_BYTE = 10  # that it grows by a byte of text, at most
# GPT-2's rule for cutting text into words, in the form that does not run back.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

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
        lost: (n,) int64, bytes of each text that became unk.
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
    """Lost bytes of each text; only those with an unk are looked at."""
    lost = np.zeros(len(texts), dtype=np.int64)
    if tokenizer.may_lose:
        places = np.flatnonzero(ids == tokenizer.unk_id)
        for row in np.unique(np.searchsorted(offsets, places, side="right") - 1).tolist():
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
        offsets = np.append(0, np.cumsum(texts.n_characters))
        ids = np.empty(offsets[-1], dtype=self._table.dtype)
        lost = np.zeros(len(texts), dtype=np.int64)
        place, begin, end = 0, int(texts.offsets[0]), int(texts.offsets[-1])
        while begin < end:
            block = whole_characters(texts.data, begin, min(begin + BLOCK_BYTES, end))
            found, sizes_at = self._encode_block(block)
            ids[place : place + len(found)] = found
            unknown = np.flatnonzero(found == UNK)
            if len(unknown):
                rows = np.searchsorted(offsets, unknown + place, side="right") - 1
                np.add.at(lost, rows, sizes_at(unknown))
            begin += len(block)
            place += len(found)
        return Encoded(ids, offsets, lost)

    def _encode_block(self, block: bytes) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Ids of a block, and a function from places in it to the bytes of their characters."""
        if self._translation is not None and block.isascii():
            return np.frombuffer(block.translate(self._translation), np.uint8), np.ones_like
        codes = code_points(block.decode())
        return np.take(self._table, codes), lambda places: _utf8_sizes(codes[places])


def _utf8_sizes(codes: np.ndarray) -> np.ndarray:
    """Bytes of characters in UTF-8."""
    return 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)


class GigatokenEngine(Engine):
    """gigatoken, without threads: it holds the interpreter's lock, and other segments are encoded beside this one."""

    def __init__(self, tokenizer: EngineTokenizer) -> None:
        super().__init__(tokenizer)
        self._spec = plain_spec(tokenizer)
        self._renew()
        self.name = _named("gigatoken")

    def _renew(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

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
            "sheepfold", pat_str=GPT2_PATTERN, mergeable_ranks=_ranks(tokenizer), special_tokens={}
        )
        self.name = _named("tiktoken")

    def encode(self, texts: Texts) -> Encoded:
        return _one_by_one(self.tokenizer, texts, self._encode)

    def _encode(self, data: bytes) -> np.ndarray:
        ids: np.ndarray = self._encoding.encode_to_numpy(data.decode(), disallowed_special=())
        return ids


def _ranks(tokenizer: EngineTokenizer) -> dict[bytes, int]:
    """The id of every token by its bytes."""
    model = json.loads(tokenizer.spec)["model"]
    if not tokenizer.cuts_before_spaces or model.get("type") != "BPE" or model.get("ignore_merges"):
        raise EngineError("it is not byte-level byte-pair encoding with GPT-2's words")
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    made = [model["vocab"][one + two] for one, two in merges]
    if any(later <= earlier for earlier, later in pairwise(made)):
        raise EngineError("its merges do not stand in the order of their ids")
    special = set(tokenizer.special_ids)
    return {spelled_bytes(token): index for token, index in model["vocab"].items() if index not in special}


def plain_spec(tokenizer: EngineTokenizer) -> str:
    """What `tokenizers` reads, with nothing in it that makes a special token of text or adds one to it."""
    spec = json.loads(tokenizer.spec)
    added = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
    plain = {**spec, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    return json.dumps(plain, ensure_ascii=False)


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
        return [("gigatoken", GigatokenEngine), ("tiktoken", TiktokenEngine)]
    return []


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


def texts_of(items: Sequence[bytes]) -> Texts:
    """Texts from bytes."""
    return Texts.of(text_array(items, pa.large_string()))


def _probes(tokenizer: Tokenizer) -> list[bytes]:
    probes = [*PROBES]
    if isinstance(tokenizer, EngineTokenizer):
        added = json.loads(tokenizer.spec).get("added_tokens") or []
        probes.append(" ".join(str(token["content"]) for token in added))
    return [probe.encode() for probe in probes]


def _named(package: str) -> str:
    return f"{package} {version(package)}"
