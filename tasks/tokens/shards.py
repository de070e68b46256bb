"""Token shards: the ids of every document of a segment, as a table for people and as a flat array for training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.manifest import ArtifactRef
from storage.schemas import TOKENS
from storage.tables import read_rows, union_digest, write_table
from tasks.stage import Work, stage
from tasks.tokens.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

SHARD_FILE = "tokens.npy"
BATCH_DOCUMENTS = 64


@dataclass(frozen=True)
class TokeniseSettings:
    """Settings of the stage; every document is bos, its ids, eos."""


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Smallest unsigned type that holds every id."""
    for kind in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise ValueError(f"a vocabulary of {vocab_size} ids does not fit 32 bits")


def encode_document(tokenizer: Tokenizer, text: str, ids: np.ndarray) -> tuple[np.ndarray, int]:
    """A document's sequence (bos, ids, eos, as far as the tokeniser has them) and the bytes that became unk."""
    start, end = ([] if special is None else [special] for special in (tokenizer.start_id, tokenizer.eos_id))
    return np.concatenate([start, ids, end]).astype(np.int64), tokenizer.lost_bytes(text, ids)


@stage("tokenise", version=1, unit="document")
def tokenise(work: Work, settings: TokeniseSettings, *, documents: ArtifactRef, tokenizer: ArtifactRef) -> str:
    """Encode the documents of one segment."""
    engine = load_tokenizer(work.folder(tokenizer) / TOKENIZER_FILE)
    texts = read_rows(work.folder(documents) / "documents.parquet", ["doc_id", "text"])
    dtype = smallest_dtype(engine.vocab_size)
    pieces: list[np.ndarray] = []
    offset = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal offset
        for start in range(0, len(texts), BATCH_DOCUMENTS):
            batch = texts[start : start + BATCH_DOCUMENTS]
            for row, ids in zip(batch, engine.encode([row["text"] for row in batch]), strict=True):
                sequence, lost = encode_document(engine, row["text"], ids)
                if sequence.max() >= engine.vocab_size:
                    raise ValueError(f"document {row['doc_id']}: id {sequence.max()} is outside the vocabulary")
                pieces.append(sequence.astype(dtype))
                digest = hashlib.sha256(sequence.astype("<u4").tobytes()).hexdigest()
                yield {
                    "doc_id": row["doc_id"],
                    "ids": sequence,
                    "offset": offset,
                    "length": len(sequence),
                    "lost_bytes": lost,
                    "digest": digest,
                }
                offset += len(sequence)
            work.progress.update(start + len(batch), len(texts), "documents")

    table = work.out / "tokens.parquet"
    work.counts["rows"] = work.counts["units"] = write_table(table, TOKENS, rows())
    work.counts["tokens"] = offset
    np.save(work.out / SHARD_FILE, np.concatenate(pieces) if pieces else np.zeros(0, dtype), allow_pickle=False)
    return union_digest([table])
