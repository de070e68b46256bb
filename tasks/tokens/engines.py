"""Engines: the ids that a tokeniser's own `encode` gives, sooner.

The tokeniser itself is the reference. gigatoken encodes byte-pair encoding some forty times as fast; it is taken where
there is enough text, and while its ids are the reference's on samples of the very documents. Where it cannot run a
tokeniser, fails or differs, the reference encodes, and the reason is recorded.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from tasks.tokens.tokenizer_kinds import SPECIAL_TOKENS, LibraryTokenizer, Tokenizer

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


class Engine:
    """The tokeniser's own `encode`: the reference.

    Attributes:
        name: with the version, for manifests.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.name = f"tokenizers {version('tokenizers')}" if isinstance(tokenizer, LibraryTokenizer) else "reference"

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray]:
        """Return the ids of each piece of UTF-8, as `Tokenizer.pieces` cuts long texts, without bos and eos."""
        return self.tokenizer.encode([piece.decode() for piece in pieces])

    def check(self, texts: Sequence[bytes]) -> None:
        """Raise EngineError if it fails, or gives other ids than the reference; the reference is not run for it."""


class GigatokenEngine(Engine):
    """gigatoken, without threads: it holds the interpreter's lock, and other segments are encoded beside this one."""

    def __init__(self, tokenizer: LibraryTokenizer) -> None:
        self.tokenizer = tokenizer
        self.name = f"gigatoken {version('gigatoken')}"
        self._spec = plain_spec(tokenizer)
        self._backend: Any = None
        self._renew()

    def _renew(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        if self._backend is not None:
            self._backend = None  # before there is another one, which would stand beside it
            _return_freed_memory()
        self._backend = load_hf_json(self._spec)
        self._resident = _resident_bytes()
        self._since_check = 0

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray]:
        return [self._encode(piece) for piece in pieces]

    def check(self, texts: Sequence[bytes]) -> None:
        with engine_errors("it failed"):
            found = self.encode(texts)
        with engine_errors("the reference failed"):
            expected = super().encode(texts)
        for text, some, others in zip(texts, found, expected, strict=True):
            if not np.array_equal(some, others):
                begin = text[:40].decode(errors="replace")
                raise EngineError(f"other ids than the reference's for a text that begins {begin!r}")

    def _encode(self, data: bytes) -> np.ndarray:
        self._since_check += len(data)
        if self._since_check >= CACHE_CHECK_BYTES:
            self._since_check = 0
            if _resident_bytes() - self._resident > CACHE_BYTES:  # nothing tells how large the cache is
                self._renew()
        ids: np.ndarray = self._backend.encode(data)
        return ids


def _return_freed_memory() -> None:
    """Return freed memory to the system where its C library can; else it would still count as resident."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def plain_spec(tokenizer: LibraryTokenizer) -> str:
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


def choose_engine(tokenizer: Tokenizer, texts: Sequence[bytes], size: int, wanted: str = "auto") -> tuple[Engine, str]:
    """Return the engine to take, and the reason in one sentence.

    Args:
        texts: the first of all, on a sample of which the engine has to give the ids of the reference.
        size: bytes of all text that is to be encoded.
        wanted: `auto`, or `reference` for no other than that.
    """
    reference = Engine(tokenizer)
    if wanted == "reference":
        return reference, "asked for"
    if not isinstance(tokenizer, LibraryTokenizer):
        return reference, "there is no other for this kind of tokeniser"
    if size < WORTH_AN_ENGINE:
        return reference, f"{size:,} bytes are too few for another engine to pay"
    added = json.loads(tokenizer.spec).get("added_tokens") or []
    probes = [*PROBES, " ".join(str(token["content"]) for token in added)]
    try:
        engine = _gigatoken(tokenizer)
        engine.check([*sample_of(texts), *(probe.encode() for probe in probes)])
    except EngineError as error:
        return reference, f"gigatoken: {error}"
    return engine, "gives the reference's ids on a sample of these documents"


@lru_cache(maxsize=1)  # a process that encodes many segments sets it up once
def _gigatoken(tokenizer: LibraryTokenizer) -> GigatokenEngine:
    with engine_errors("it cannot be set up"):
        return GigatokenEngine(tokenizer)


def sample_of(texts: Sequence[bytes]) -> list[bytes]:
    """Return stretches of the first, the last, the longest and some texts between, from the beginning or the middle."""
    if not texts:
        return []
    rows = np.linspace(0, len(texts) - 1, SAMPLE_DOCUMENTS).astype(np.int64).tolist()
    longest = max(range(len(texts)), key=lambda row: len(texts[row]))
    stretches = []
    for number, row in enumerate(dict.fromkeys([*rows, longest])):
        first = len(texts[row]) // 2 if number % 2 and len(texts[row]) > SAMPLE_BYTES else 0
        # without the characters that the ends cut
        stretches.append(texts[row][first : first + SAMPLE_BYTES].decode(errors="ignore").encode())
    return stretches
