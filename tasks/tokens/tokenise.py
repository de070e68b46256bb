"""Token shards: the ids of every document of a segment as one flat array that training maps, and a table of them.

    tokens.npy       the ids of all documents, one document after the other, in the smallest type that holds them
    tokens.parquet   where each document lies in it, what it lost, and a digest of its ids
    counts.npy       how often each id occurs

Documents that curation dropped are in it, too (the stage `dataset` takes those that are kept): another selection
encodes nothing again. Texts go through a row group at a time, so that a segment's size is no matter; a segment of
some size is encoded in a process of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
from tasks.tokens.engines import Engine, EngineError, choose_engine, engine_errors, sample_of
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, TokenizerError, load_tokenizer, smallest_dtype

BATCH_BYTES = 2**20  # of text that an engine is given at once
COUNTED_AT_ONCE = 2**18  # ids
ROW_GROUP_ROWS = 2**14  # of short values
COMPARE_BYTES = 2**25  # so much text further on the engine is held against the reference again


@dataclass(frozen=True)
class TokeniseSettings:
    """Special ids before and behind a document's ids, as far as the tokeniser has them."""

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
    """Write the shard of a table with columns `doc_id` and `text`; returns counts, a digest, the engine and its reason.

    Args:
        fingerprint: of the tokeniser that is expected in the file.
        engine: `auto` or `reference`.

    Raises:
        UserError: if the tokeniser's file is broken, or another one, or it cannot encode the documents.
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
            "it an id for what it does not know, or take another one (tokenizer.kind, tokenizer.file)"
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
    # All of it is read when one document of the corpus comes or goes: large row groups are read sooner. Dictionaries
    # would save nothing, as no name and no digest comes twice.
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
    """Write the head of a flat array, which is of one size whatever the length."""
    head = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, head)


def _encoded(engine: Engine, texts: Sequence[bytes]) -> Iterator[tuple[int, bytes, np.ndarray]]:
    """Yield the pieces of texts, each with the number of its text and its ids."""
    pieces = ((number, piece) for number, text in enumerate(texts) for piece in engine.tokenizer.pieces(text))
    for batch in bundles(pieces, lambda item: len(item[1]), BATCH_BYTES):
        with engine_errors("it failed"):
            found = engine.encode([piece for _, piece in batch])
        for (number, piece), ids in zip(batch, found, strict=True):
            yield number, piece, ids


def _write_document(
    file: BinaryIO, tokenizer: Tokenizer, dtype: np.dtype[Any], pieces: Iterable[tuple[bytes, np.ndarray]]
) -> dict[str, Any]:
    """Write the ids of a document as its pieces come, and return the rest of its row."""
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
