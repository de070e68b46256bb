"""Token shards: the ids of every document of a segment as one flat array that training maps, and a table of them.

    tokens.npy       the ids of all documents, one document after the other, in the smallest type that holds them
    tokens.parquet   where each document lies in it, what it lost, and a digest of its ids
    counts.npy       how often each id occurs

Texts go through a row group at a time, so that a segment's size is no matter; a segment of some size is encoded in a
process of its own.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SHARD_COUNTS_FILE, SHARD_FILE, TOKENS, TOKENS_FILE
from storage.tables import ZSTD_LEVEL, unpacked_size
from tasks.core.stage import Work, stage
from tasks.tokens.engines import Engine, EngineError, Engines, engine_errors, sample_of
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, TokenizerError, load_tokenizer, smallest_dtype

BATCH_BYTES = 2**20  # of text that an engine is given at once
COUNTED_AT_ONCE = 2**18  # ids
ROW_GROUP_ROWS = 2**14  # of short values
COMPARE_BYTES = 2**25  # so much text further on the engine is held against the reference again


@dataclass(frozen=True)
class TokeniseSettings:
    """Special ids around a document's ids, as far as the tokeniser has them.

    Attributes:
        bos: the id that begins a text before them.
        eos: the id that ends a text behind them.
    """

    bos: bool = True
    eos: bool = True

    def frame(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """Return the ids before and behind every document."""
        before = [] if tokenizer.start_id is None or not self.bos else [tokenizer.start_id]
        behind = [] if tokenizer.eos_id is None or not self.eos else [tokenizer.eos_id]
        return before, behind


def encode_document(
    tokenizer: Tokenizer, text: str, ids: np.ndarray, settings: TokeniseSettings | None = None
) -> tuple[np.ndarray, int]:
    """Return a document's sequence (bos, ids, eos, as far as the tokeniser has them) and the bytes that became unk."""
    before, behind = (settings or TokeniseSettings()).frame(tokenizer)
    return np.concatenate([before, ids, behind]).astype(np.int64), tokenizer.lost_bytes(text, ids)


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
    """Write the shard of a table of documents.

    Args:
        source: the table, with columns `doc_id` and `text`.
        tokenizer: a saved tokeniser.
        fingerprint: of the tokeniser that is expected there.
        engine: `auto` or `reference`.

    Returns:
        Counts, a digest, the engine and why it was taken.

    Raises:
        UserError: if the tokeniser's file is broken, or another one, or it cannot encode the documents.
    """
    engines = _engines(tokenizer, fingerprint)
    try:
        return _encode_segment(engines, engine, settings, source, out, progress)
    except EngineError as error:
        reason = str(error)
    try:
        made = _encode_segment(engines, "reference", settings, source, out, progress)
    except EngineError as error:
        raise UserError(
            f"the tokeniser in {tokenizer} ({engines.tokenizer.described}) cannot encode the documents: {error}; give "
            "it an id for what it does not know, or take another one (tokenizer.kind, tokenizer.file)"
        ) from error
    return {**made, "engine_reason": reason}


@lru_cache(maxsize=1)
def _engines(path: Path, fingerprint: str) -> Engines:
    """Return the engines of a saved tokeniser; a process that encodes many segments sets them up once."""
    try:
        return Engines(load_tokenizer(path, fingerprint))
    except TokenizerError as error:
        raise UserError(str(error)) from error


def _encode_segment(
    engines: Engines,
    wanted: str,
    settings: TokeniseSettings,
    source: Path,
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    engine: Engine | None = None
    reason = "there is no text"
    rows: list[dict[str, Any]] = []
    compared = 0
    shard = _ShardWriter(out / SHARD_FILE, engines.tokenizer, settings)
    with pq.ParquetFile(source) as file, closing(shard):
        size = _text_size(file)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=["doc_id", "text"])
            names = table["doc_id"].to_pylist()
            texts = [text.as_buffer().to_pybytes() for text in table["text"]]
            del table
            compared += sum(map(len, texts))
            if engine is None:
                (engine, reason), compared = engines.choose(texts, size, wanted), 0
            elif compared >= COMPARE_BYTES:
                engines.compare(engine, sample_of(texts))
                compared = 0
            documents = groupby(_encoded(engine, texts), key=itemgetter(0))
            for name, (_, pieces) in zip(names, documents, strict=True):
                rows.append({"doc_id": name, **shard.write((text, ids) for _, text, ids in pieces)})
            progress(len(rows), file.metadata.num_rows)
    # All of it is read when one document of the corpus comes or goes: large row groups are read sooner. Dictionaries
    # would save nothing, as no name and no digest comes twice.
    options = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows, schema=TOKENS), out / TOKENS_FILE, ROW_GROUP_ROWS, **options)
    np.save(out / SHARD_COUNTS_FILE, shard.counts, allow_pickle=False)
    return {
        "rows": len(rows),
        "tokens": shard.length,
        "lost_bytes": sum(row["lost_bytes"] for row in rows),
        "digest": rows_digest((row["doc_id"], row["digest"]) for row in rows),
        "engine": (engine or engines.reference).name,
        "engine_reason": reason,
    }


def _text_size(file: pq.ParquetFile) -> int:
    """Return about how many bytes the texts of a table have, by what it says of itself."""
    place = file.schema_arrow.names.index("text")
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    return sum(int(group.column(place).total_uncompressed_size) for group in groups)


def _encoded(engine: Engine, texts: Sequence[bytes]) -> Iterator[tuple[int, bytes, np.ndarray]]:
    """Yield the pieces of texts, each with the number of its text and its ids."""
    for batch in _batches(engine.tokenizer, texts):
        with engine_errors("it failed"):
            found = engine.encode([piece for _, piece in batch])
        for (number, piece), ids in zip(batch, found, strict=True):
            yield number, piece, ids


def _batches(tokenizer: Tokenizer, texts: Sequence[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in tokenizer.pieces(text):
            if batch and size + len(piece) > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((number, piece))
            size += len(piece)
    if batch:
        yield batch


class _ShardWriter:
    """Writes a flat array of ids as they come; how many there are is put into its head at the end.

    Attributes:
        length: ids written so far.
        counts: (vocab_size,) int64, how often each was; complete when the file is closed.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, settings: TokeniseSettings) -> None:
        self.length = 0
        self.counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._tokenizer = tokenizer
        self._before, self._behind = (np.array(ids, dtype=np.int64) for ids in settings.frame(tokenizer))
        self._dtype = smallest_dtype(tokenizer.vocab_size).newbyteorder("<")
        self._uncounted: list[np.ndarray] = []
        self._n_uncounted = 0
        self._file = path.open("wb")
        self._file.write(self._head())

    def _head(self) -> bytes:
        """Return NumPy's header, which is of one size whatever the length."""
        head = io.BytesIO()
        described = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(head, described)
        return head.getvalue()

    def write(self, pieces: Iterable[tuple[bytes, np.ndarray]]) -> dict[str, Any]:
        """Append a document of pieces of text with their ids; returns its row of `TOKENS`, without a name.

        Raises:
            EngineError: for an id that the tokeniser does not have.
        """
        offset, n_bytes, lost_bytes, digest = self.length, 0, 0, hashlib.sha256()
        digest.update(self._append(self._before))
        for text, ids in pieces:
            digest.update(self._append(ids))
            n_bytes += len(text)
            if self._tokenizer.may_lose:
                lost_bytes += self._tokenizer.lost_bytes(text.decode(), ids)
        digest.update(self._append(self._behind))
        return {
            "offset": offset,
            "length": self.length - offset,
            "n_bytes": n_bytes,
            "lost_bytes": lost_bytes,
            "digest": digest.hexdigest(),
        }

    def _append(self, ids: np.ndarray) -> memoryview:
        largest = int(ids.max(initial=0))
        if largest >= len(self.counts):
            raise EngineError(f"id {largest} is outside the vocabulary of {len(self.counts)}")
        block = ids.astype(self._dtype)
        self._file.write(block.data)
        self.length += len(block)
        self._uncounted.append(block)
        self._n_uncounted += len(block)
        if self._n_uncounted >= COUNTED_AT_ONCE:
            self._count()
        return block.data

    def _count(self) -> None:
        if self._uncounted:
            self.counts += np.bincount(np.concatenate(self._uncounted), minlength=len(self.counts))
        self._uncounted, self._n_uncounted = [], 0

    def close(self) -> None:
        """Complete the file."""
        self._count()
        self._file.seek(0)
        self._file.write(self._head())
        self._file.close()
