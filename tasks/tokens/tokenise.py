"""The stage `tokenise`: the token shard of a segment, which training memory-maps.

    tokens.npy       token ids of all documents, concatenated, in the smallest unsigned type
    tokens.parquet   offset, length, lost bytes and digest of ids of each document
    counts.npy       occurrences of each id

Dropped documents are included, so that another selection needs no new tokenising. Texts are read one row group at a
time. The tokeniser's own `encode` is the reference; gigatoken encodes BPE about forty times as fast and is used for
larger segments, as long as its ids equal the reference's on samples of the documents. Otherwise the reference encodes,
and the reason is recorded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SHARD_COUNTS_FILE, SHARD_FILE, TOKENS, TOKENS_FILE
from storage.tables import ZSTD_LEVEL, unpacked_size
from tasks.core.stage import Work, stage
from tasks.text.words import bundles
from tasks.tokens.tokenizer_kinds import (
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    LibraryTokenizer,
    Tokenizer,
    TokenizerError,
    load_tokenizer,
    smallest_dtype,
)

BATCH_BYTES = 2**20  # text per call of an engine
COUNTED_AT_ONCE = 2**18  # ids counted per read of the shard
ROW_GROUP_ROWS = 2**14  # rows are short, and read together
COMPARE_BYTES = 2**25  # text between two comparisons of the engine with the reference

# gigatoken caches every word without a limit: a text of random words would fill the memory
CACHE_BYTES = 2**28
CACHE_CHECK_BYTES = 2**23
# gigatoken's setup is quadratic in the length of added tokens
ADDED_CHARS = 2**10
ALL_ADDED_CHARS = 2**18

# smaller segments are encoded faster than gigatoken is set up and checked
WORTH_AN_ENGINE = 2**20
SAMPLE_DOCUMENTS = 12
SAMPLE_BYTES = 2**12  # per document
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


@dataclass(frozen=True)
class TokeniseSettings:
    """Special ids around a document: `bos` before and `eos` behind it, if the tokeniser has them."""

    bos: bool = True
    eos: bool = True

    def frame(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """Return the ids before and behind every document."""
        before = [] if tokenizer.start_id is None or not self.bos else [tokenizer.start_id]
        behind = [] if tokenizer.eos_id is None or not self.eos else [tokenizer.eos_id]
        return before, behind


@stage("tokenise", version=4, unit="document", tables={TOKENS_FILE: TOKENS}, unkeyed=("engine",))
def tokenise(
    work: Work, settings: TokeniseSettings, *, documents: ArtifactRef, tokenizer: ArtifactRef, engine: str = "auto"
) -> str:
    """Encode the documents of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(
        tokenise_segment,
        unpacked_size(source),
        source=source,
        tokenizer=work.folder(tokenizer) / TOKENIZER_FILE,
        fingerprint=tokenizer.digest,
        out=work.out,
        settings=settings,
        engine=engine,
    )
    work.counts["rows"] = work.counts["units"] = made["rows"]
    work.counts.update(tokens=made["tokens"], lost_bytes=made["lost_bytes"])
    work.tools.update(engine=made["engine"], engine_reason=made["engine_reason"])
    return str(made["digest"])


def tokenise_segment(
    source: Path,
    tokenizer: Path,
    fingerprint: str,
    out: Path,
    settings: TokeniseSettings,
    engine: str,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the shard of a table with columns `doc_id` and `text`; returns counts, a digest, the engine and its reason.

    Args:
        fingerprint: expected fingerprint of the tokeniser.
        engine: `auto` or `reference`.

    Raises:
        UserError: the tokeniser's file is invalid or has another fingerprint, or it cannot encode the documents.
    """
    known = _load_once(tokenizer, fingerprint)
    try:
        return _encode_segment(known, engine, settings, source, out, progress)
    except EngineError as error:
        reason = str(error)
    try:
        made = _encode_segment(known, "reference", settings, source, out, progress)
    except EngineError as error:
        raise UserError(
            f"the tokeniser in {tokenizer} ({known.described}) cannot encode the documents: {error}; give "
            "it an unknown token, or choose another one (tokenizer.kind, tokenizer.file)"
        ) from error
    return {**made, "engine_reason": reason}


@lru_cache(maxsize=1)
def _load_once(path: Path, fingerprint: str) -> Tokenizer:
    try:
        return load_tokenizer(path, fingerprint)
    except TokenizerError as error:
        raise UserError(str(error)) from error


def _encode_segment(
    tokenizer: Tokenizer,
    wanted: str,
    settings: TokeniseSettings,
    source: Path,
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    engine, reason = Engine(tokenizer), "there is no text"
    before, behind = (np.array(ids, dtype=np.int64) for ids in settings.frame(tokenizer))
    dtype = smallest_dtype(tokenizer.vocab_size).newbyteorder("<")
    rows: list[dict[str, Any]] = []
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    length = compared = 0
    with pq.ParquetFile(source) as file, (out / SHARD_FILE).open("w+b") as shard:
        _write_head(shard, dtype, 0)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=["doc_id", "text"])
            names = table["doc_id"].to_pylist()
            texts = [text.as_buffer().to_pybytes() for text in table["text"]]
            del table
            compared += sum(map(len, texts))
            if number == 0:
                engine, reason = choose_engine(tokenizer, texts, unpacked_size(source), wanted)
                compared = 0
            elif compared >= COMPARE_BYTES:
                engine.check(sample_of(texts))
                compared = 0
            documents = groupby(_encoded(engine, texts), key=itemgetter(0))
            for name, (_, own) in zip(names, documents, strict=True):
                pieces = chain([(b"", before)], ((text, ids) for _, text, ids in own), [(b"", behind)])
                row = _write_document(shard, tokenizer, dtype, pieces)
                rows.append({"doc_id": name, "offset": length, **row})
                length += row["length"]
            progress(len(rows), file.metadata.num_rows)
        shard.seek(0)
        _write_head(shard, dtype, length)
        shard.flush()
        while len(some := np.fromfile(shard, dtype, COUNTED_AT_ONCE)):
            counts += np.bincount(some, minlength=len(counts))
    # The whole table is read whenever the corpus changes, and large row groups are read faster. Dictionaries
    # would save nothing, as ids and digests are unique.
    options = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows, schema=TOKENS), out / TOKENS_FILE, ROW_GROUP_ROWS, **options)
    np.save(out / SHARD_COUNTS_FILE, counts, allow_pickle=False)
    return {
        "rows": len(rows),
        "tokens": length,
        "lost_bytes": sum(row["lost_bytes"] for row in rows),
        "digest": rows_digest((row["doc_id"], row["digest"]) for row in rows),
        "engine": engine.name,
        "engine_reason": reason,
    }


def _write_head(file: BinaryIO, dtype: np.dtype[Any], length: int) -> None:
    """Write the header of a flat array; its size does not depend on the length."""
    head = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, head)


def _encoded(engine: Engine, texts: Sequence[bytes]) -> Iterator[tuple[int, bytes, np.ndarray]]:
    """Yield number of the text, bytes and ids of each piece of the texts."""
    pieces = ((number, piece) for number, text in enumerate(texts) for piece in engine.tokenizer.pieces(text))
    for batch in bundles(pieces, lambda item: len(item[1]), BATCH_BYTES):
        with engine_errors("it failed"):
            found = engine.encode([piece for _, piece in batch])
        for (number, piece), ids in zip(batch, found, strict=True):
            yield number, piece, ids


def _write_document(
    file: BinaryIO, tokenizer: Tokenizer, dtype: np.dtype[Any], pieces: Iterable[tuple[bytes, np.ndarray]]
) -> dict[str, Any]:
    """Write the ids of a document, piece by piece, and return its row but for `doc_id` and `offset`."""
    length = n_bytes = lost_bytes = 0
    digest = hashlib.sha256()
    for text, ids in pieces:
        largest = int(ids.max(initial=0))
        if largest >= tokenizer.vocab_size:
            raise EngineError(f"id {largest} is outside the vocabulary of {tokenizer.vocab_size}")
        block = ids.astype(dtype)
        file.write(block.data)
        digest.update(block.data)
        length += len(block)
        n_bytes += len(text)
        if text and tokenizer.may_lose:
            lost_bytes += tokenizer.lost_bytes(text.decode(), ids)
    return {"length": length, "n_bytes": n_bytes, "lost_bytes": lost_bytes, "digest": digest.hexdigest()}


# engines


class EngineError(ValueError):
    """Failure of an engine, or ids that differ from the reference."""


class Engine:
    """The reference: the tokeniser's own `encode`.

    Attributes:
        name: name and version, for manifests.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.name = f"tokenizers {version('tokenizers')}" if isinstance(tokenizer, LibraryTokenizer) else "reference"

    def encode(self, pieces: Sequence[bytes]) -> list[np.ndarray]:
        """Return the ids of each UTF-8 piece (see `Tokenizer.pieces`), without bos and eos."""
        return self.tokenizer.encode([piece.decode() for piece in pieces])

    def check(self, texts: Sequence[bytes]) -> None:
        """Raise EngineError if the ids of texts differ from the reference; the reference itself checks nothing."""


class GigatokenEngine(Engine):
    """gigatoken, single-threaded: it holds the GIL, and segments are encoded in parallel processes."""

    def __init__(self, tokenizer: LibraryTokenizer) -> None:
        self.tokenizer = tokenizer
        self.name = f"gigatoken {version('gigatoken')}"
        self._spec = plain_spec(tokenizer)
        self._backend: Any = None
        self._renew()

    def _renew(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        if self._backend is not None:
            self._backend = None  # free it before making another
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
            if _resident_bytes() - self._resident > CACHE_BYTES:  # the size of its cache is not available
                self._renew()
        ids: np.ndarray = self._backend.encode(data)
        return ids


def _return_freed_memory() -> None:
    """Return freed memory to the operating system if the C library can (`malloc_trim`)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def plain_spec(tokenizer: LibraryTokenizer) -> str:
    """Return the JSON for `tokenizers` without special tokens in text and without post-processing.

    Raises:
        EngineError: the added tokens are so long that the setup may take hours.
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
    """Convert exceptions of an engine to EngineError, so that another one is used."""
    try:
        yield
    except (EngineError, MemoryError):
        raise
    except BaseException as error:
        # a Rust panic is a BaseException like KeyboardInterrupt, which must pass
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise EngineError(f"{what} ({type(error).__name__}: {error})") from error


def choose_engine(tokenizer: Tokenizer, texts: Sequence[bytes], size: int, wanted: str = "auto") -> tuple[Engine, str]:
    """Return the engine to use, and the reason.

    Args:
        texts: first texts, a sample of which is compared with the reference.
        size: bytes of all text.
        wanted: `auto` or `reference`.
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


@lru_cache(maxsize=1)  # one setup for all segments of a process
def _gigatoken(tokenizer: LibraryTokenizer) -> GigatokenEngine:
    with engine_errors("it cannot be set up"):
        return GigatokenEngine(tokenizer)


def sample_of(texts: Sequence[bytes]) -> list[bytes]:
    """Return excerpts of evenly spaced texts and the longest one, alternately from the beginning and the middle."""
    if not texts:
        return []
    rows = np.linspace(0, len(texts) - 1, SAMPLE_DOCUMENTS).astype(np.int64).tolist()
    longest = max(range(len(texts)), key=lambda row: len(texts[row]))
    stretches = []
    for number, row in enumerate(dict.fromkeys([*rows, longest])):
        first = len(texts[row]) // 2 if number % 2 and len(texts[row]) > SAMPLE_BYTES else 0
        # without characters that the ends cut
        stretches.append(texts[row][first : first + SAMPLE_BYTES].decode(errors="ignore").encode())
    return stretches
