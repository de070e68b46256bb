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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SHARD_COUNTS_FILE, TOKENS, TOKENS_FILE
from storage.schemas import SHARD_FILE as SHARD_FILE
from storage.tables import ZSTD_LEVEL, unpacked_size
from tasks.core.stage import Work, stage
from tasks.tokens.engines import (
    Choice,
    Encoded,
    Engine,
    EngineError,
    Engines,
    Texts,
    batches,
    engine_errors,
    number_array,
    sample_of,
    text_array,
    texts_of,
)
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, TokenizerError, load_tokenizer, smallest_dtype

STRETCH_BYTES = 2**20  # of texts that are encoded and written before the next ones
BLOCK_IDS = 2**18
ROW_GROUP_ROWS = 2**14  # of short values
ID_PAIRS = 2**16  # pairs of bytes that there are
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
        """Ids before and behind every document."""
        before = [] if tokenizer.start_id is None or not self.bos else [tokenizer.start_id]
        behind = [] if tokenizer.eos_id is None or not self.eos else [tokenizer.eos_id]
        return before, behind


def encode_document(
    tokenizer: Tokenizer, text: str, ids: np.ndarray, settings: TokeniseSettings | None = None
) -> tuple[np.ndarray, int]:
    """A document's sequence (bos, ids, eos, as far as the tokeniser has them) and the bytes that became unk."""
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
        source=str(source),
        tokenizer=str(work.folder(tokenizer) / TOKENIZER_FILE),
        fingerprint=tokenizer.digest,
        out=str(work.out),
        bos=settings.bos,
        eos=settings.eos,
        engine=engine,
    )
    work.counts["rows"] = work.counts["units"] = made["rows"]
    work.counts.update(tokens=made["tokens"], lost_bytes=made["lost_bytes"])
    work.tools.update(engine=made["engine"], engine_reason=made["engine_reason"])
    return str(made["digest"])


def tokenise_segment(
    source: str,
    tokenizer: str,
    fingerprint: str,
    out: str,
    bos: bool,
    eos: bool,
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
    folder, settings = Path(out), TokeniseSettings(bos, eos)
    try:
        return _encode_segment(engines, engine, settings, Path(source), folder, progress)
    except EngineError as error:
        reason = str(error)
    try:
        made = _encode_segment(engines, "reference", settings, Path(source), folder, progress)
    except EngineError as error:
        raise UserError(
            f"the tokeniser in {tokenizer} ({engines.tokenizer.described}) cannot encode the documents: {error}; give "
            "it an id for what it does not know, or take another one (tokenizer.kind, tokenizer.file)"
        ) from error
    return {**made, "engine_reason": reason}


@lru_cache(maxsize=1)
def _engines(path: str, fingerprint: str) -> Engines:
    """The engines of a saved tokeniser; a process that encodes many segments sets them up once."""
    try:
        return Engines(load_tokenizer(Path(path), fingerprint))
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
    choice: Choice | None = None
    named: list[tuple[str, str]] = []
    placements = [TOKENS.empty_table()]
    lost_bytes = compared = done = 0
    with (
        pq.ParquetFile(source) as file,
        ShardWriter(out / SHARD_FILE, engines.tokenizer, settings) as shard,
    ):
        size = _text_size(file)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=["doc_id", "text"])
            texts = Texts.of(rows["text"])
            compared += int(texts.n_bytes.sum())
            if choice is None:
                choice, compared = engines.choose(texts, size, wanted), 0
            elif compared >= COMPARE_BYTES:
                engines.compare(choice.engine, texts_of(sample_of(texts)))
                compared = 0
            placed = _encode_texts(choice.engine, texts, shard)
            numbers = map(number_array, (placed.offsets, placed.lengths, texts.n_bytes, placed.lost))
            digests = text_array([digest.encode() for digest in placed.digests], pa.string())
            placements.append(pa.table([rows["doc_id"], *numbers, digests], schema=TOKENS))
            named += zip(rows["doc_id"].to_pylist(), placed.digests, strict=True)
            lost_bytes += int(placed.lost.sum())
            done += len(rows)
            progress(done, file.metadata.num_rows)
    write_placements(out / TOKENS_FILE, pa.concat_tables(placements))
    np.save(out / SHARD_COUNTS_FILE, shard.counts, allow_pickle=False)
    choice = choice or Choice(engines.reference, "there is no text")
    return {
        "rows": done,
        "tokens": shard.length,
        "lost_bytes": lost_bytes,
        "digest": rows_digest(named),
        "engine": choice.engine.name,
        "engine_reason": choice.reason,
    }


def write_placements(path: Path, table: pa.Table) -> None:
    """Write where documents lie so that it is soon read: all of it is, for a whole corpus, when one comes or goes.

    No name and no digest comes twice, so dictionaries would save nothing; large row groups are read sooner.
    """
    options = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": False}
    pq.write_table(table, path, ROW_GROUP_ROWS, **options)


def _encode_texts(engine: Engine, texts: Texts, shard: ShardWriter) -> Placed:
    """Write the ids of texts, of some texts at a time: what is written last is still near the processor."""
    placed = []
    for first, last in list(batches(texts.n_bytes, STRETCH_BYTES)) or [(0, 0)]:
        with engine_errors("it failed"):
            encoded = engine.encode(texts.part(first, last))
        placed.append(shard.write(encoded))
    return Placed.of(placed)


def add_occurrences(counts: np.ndarray, ids: np.ndarray) -> None:
    """Add how often each id occurs.

    Where most ids are below 256, as characters' are, two at a time are counted as one number: that halves what NumPy
    takes the longest for, which is making 64-bit numbers of them.

    Args:
        counts: (vocab_size,) int64, of which every id is a place.
        ids: (n,) unsigned.
    """
    large = np.count_nonzero(ids > 255)
    if len(ids) < ID_PAIRS or large > len(ids) // 8:
        counts += np.bincount(ids, minlength=len(counts))
        return
    pairs = ids[: len(ids) // 2 * 2].astype(np.uint8).view(np.uint16)  # of large ids the low bytes, for now
    of_pairs = np.bincount(pairs, minlength=ID_PAIRS).reshape(256, 256)
    of_bytes = of_pairs.sum(0) + of_pairs.sum(1)
    of_bytes += np.bincount(ids[2 * len(pairs) :].astype(np.uint8), minlength=256)
    if large:
        places = np.flatnonzero(ids > 255)
        of_bytes -= np.bincount(ids[places].astype(np.uint8), minlength=256)
        counts += np.bincount(ids[places], minlength=len(counts))
    counts[:256] += of_bytes[: len(counts)]


def _text_size(file: pq.ParquetFile) -> int:
    """About how many bytes the texts of a table have, by what it says of itself."""
    place = file.schema_arrow.names.index("text")
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    return sum(int(group.column(place).total_uncompressed_size) for group in groups)


@dataclass(frozen=True)
class Placed:
    """Documents in a shard.

    Attributes:
        offsets, lengths: (n,) int64, first id and number of ids of each.
        lost: (n,) int64, bytes of each that have no id.
        digests: sha256 of the ids of each, as they lie there.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    lost: np.ndarray
    digests: list[str]

    @classmethod
    def of(cls, parts: Sequence[Placed]) -> Placed:
        """Several as one; at least one."""
        return cls(
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.lost for part in parts]),
            [digest for part in parts for digest in part.digests],
        )


class ShardWriter:
    """Writes a flat array of ids as they come; how many there are is put into its head at the end.

    Attributes:
        length: ids written so far.
        counts: (vocab_size,) int64, how often each was.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, settings: TokeniseSettings) -> None:
        self.length = 0
        self.counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._before, self._behind = settings.frame(tokenizer)
        self._dtype = smallest_dtype(tokenizer.vocab_size).newbyteorder("<")
        self._file = path.open("wb")
        self._file.write(self._head())

    def _head(self) -> bytes:
        """NumPy's header, which is of one size whatever the length."""
        head = io.BytesIO()
        described = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(head, described)
        return head.getvalue()

    def write(self, encoded: Encoded) -> Placed:
        """Add documents.

        Raises:
            EngineError: for an id that the tokeniser does not have.
        """
        largest = int(encoded.ids.max(initial=0))
        if largest >= len(self.counts):
            raise EngineError(f"id {largest} is outside the vocabulary of {len(self.counts)}")
        lengths = np.diff(encoded.offsets) + len(self._before) + len(self._behind)
        offsets = self.length + np.cumsum(lengths) - lengths
        digests: list[str] = []
        for first, last in batches(lengths, BLOCK_IDS):
            if last - first == 1:
                digests.append(self._write_one(encoded.of_text(first)))
            else:
                digests += self._write_several(encoded, first, last)
        return Placed(offsets, lengths, encoded.lost, digests)

    def _write_one(self, ids: np.ndarray) -> str:
        """Write a document that may be long; returns the digest."""
        digest = hashlib.sha256()
        stretches = (ids[start : start + BLOCK_IDS] for start in range(0, len(ids), BLOCK_IDS))
        for stretch in (self._before, *stretches, self._behind):
            block = np.asarray(stretch).astype(self._dtype)
            digest.update(block.data)
            self._write_block(block)
        return digest.hexdigest()

    def _write_several(self, encoded: Encoded, first: int, last: int) -> list[str]:
        """Write documents that are a block together; returns their digests."""
        n_before, n_behind, n_bytes = len(self._before), len(self._behind), self._dtype.itemsize
        places = encoded.offsets[first : last + 1]
        ends = np.cumsum(np.diff(places) + n_before + n_behind)
        block = np.empty(ends[-1], dtype=self._dtype)
        for place, index in enumerate(self._before):
            block[np.append(0, ends[:-1]) + place] = index
        for place, index in enumerate(self._behind):
            block[ends - n_behind + place] = index
        data = block.data.cast("B")
        digests = []
        begin = 0
        for start, stop, end in zip(places[:-1].tolist(), places[1:].tolist(), ends.tolist(), strict=True):
            block[begin + n_before : end - n_behind] = encoded.ids[start:stop]
            digests.append(hashlib.sha256(data[n_bytes * begin : n_bytes * end]).hexdigest())
            begin = end
        self._write_block(block)
        return digests

    def _write_block(self, block: np.ndarray) -> None:
        add_occurrences(self.counts, block)
        self._file.write(block.data)
        self.length += len(block)

    def close(self) -> None:
        """Complete the file."""
        self._file.seek(0)
        self._file.write(self._head())
        self._file.close()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
