"""Chunking: every document's ids cut into sequences of length M every S ids, as spans over token shards.

A sequence holds M ids and, where the document goes on, one more as the label of the last position. The last chunk of a
document is padded when it is read; its labels are -100 where it is padded. Nothing large is written: a dataset is an
index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import rows_digest, sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import SEQUENCES, TOKEN_COUNTS
from storage.tables import read_columns, write_table
from tasks.curate.kept import kept_documents, kept_rows
from tasks.stage import Work, stage
from tasks.tokens.shards import SHARD_FILE
from tasks.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer

DATASET_FILE = "sequences.parquet"
COUNTS_FILE = "token_counts.parquet"


@dataclass(frozen=True)
class ChunkSettings:
    """Length and stride of chunks.

    Attributes:
        seq_len: M, ids per sequence.
        stride: S, ids from one chunk's start to the next; 0 means M.
    """

    seq_len: int
    stride: int = 0

    def __post_init__(self) -> None:
        if self.seq_len < 1 or not 0 <= self.stride <= self.seq_len:
            raise ValueError(
                f"chunks of length {self.seq_len} with stride {self.stride}: the length must be 1 or more, the stride "
                "from 1 to the length (0 means the length), or ids would be skipped"
            )


def chunk_spans(n_ids: int, seq_len: int, stride: int = 0) -> list[tuple[int, int]]:
    """Chunks of a document of `n_ids` ids as (start, length).

    One chunk if n_ids <= M, else ceil((n_ids - M) / S) + 1. The length counts the look-ahead id, so it is M + 1 where
    the document goes on after the chunk.
    """
    stride = stride or seq_len
    count = 1 if n_ids <= seq_len else -(-(n_ids - seq_len) // stride) + 1
    return [(index * stride, min(seq_len + 1, n_ids - index * stride)) for index in range(count)]


def load_shards(
    dataset_folder: Path, tokens: dict[str, Path], split: str
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Map the shards of one split.

    Args:
        dataset_folder: folder of the dataset artefact.
        tokens: folder of each token shard by its key.
        split: `train` or `validation`.

    Returns:
        The shards, and per sequence `shard` (index into them), `start` and `length`.
    """
    columns = read_columns(dataset_folder / DATASET_FILE, ["split", "shard", "start", "length"])
    names = sorted(set(columns["shard"]))
    index = {name: place for place, name in enumerate(names)}
    chosen = [place for place, value in enumerate(columns["split"]) if value == split]
    spans = {
        "shard": np.array([index[columns["shard"][place]] for place in chosen], dtype=np.int64),
        "start": np.array([columns["start"][place] for place in chosen], dtype=np.int64),
        "length": np.array([columns["length"][place] for place in chosen], dtype=np.int64),
    }
    return [np.load(tokens[name] / SHARD_FILE, mmap_mode="r", allow_pickle=False) for name in names], spans


def label_counts(dataset_folder: Path) -> np.ndarray:
    """(n,) labels of each training sequence: every id but its first is predicted."""
    columns = read_columns(dataset_folder / DATASET_FILE, ["split", "length"])
    lengths = [length for split, length in zip(columns["split"], columns["length"], strict=True) if split == "train"]
    return np.array(lengths, dtype=np.int64) - 1


@stage("dataset", version=2)
def dataset(
    work: Work, settings: ChunkSettings, *, curated: ArtifactRef, tokens: RefSet, tokenizer: ArtifactRef
) -> str:
    """Cut the kept documents into sequences; count the training split's tokens that are predicted."""
    kept = kept_documents(work.store, curated)
    found: dict[str, tuple[str, int, int]] = {}
    vocab_size = load_tokenizer(work.folder(tokenizer) / TOKENIZER_FILE).vocab_size
    counts = np.zeros(vocab_size, dtype=np.int64)
    shards: dict[str, np.ndarray] = {}
    trained: list[tuple[str, str]] = []
    for ref, row in kept_rows(work.store, kept, tokens, "tokens.parquet", ["doc_id", "offset", "length", "digest"]):
        found[row["doc_id"]] = (ref.key, row["offset"], row["length"])
        if ref.key not in shards:
            shards[ref.key] = np.load(work.folder(ref) / SHARD_FILE, mmap_mode="r", allow_pickle=False)
        if kept[row["doc_id"]].split == "train":
            ids = shards[ref.key][row["offset"] : row["offset"] + row["length"]]
            trained.append((row["doc_id"], row["digest"]))
            counts += np.bincount(ids[1:], minlength=vocab_size)  # nothing predicts a document's first id
    relative: list[tuple[str, str]] = []

    def rows() -> Iterator[dict[str, Any]]:
        sequence = 0
        for doc_id in sorted(kept):
            split = kept[doc_id].split
            shard_key, offset, n_ids = found[doc_id]
            for chunk, (start, length) in enumerate(chunk_spans(n_ids, settings.seq_len, settings.stride)):
                relative.append((f"{doc_id}:{chunk}", f"{split}:{start}:{length}"))
                yield {
                    "sequence": sequence,
                    "split": split,
                    "doc_id": doc_id,
                    "chunk": chunk,
                    "shard": shard_key,
                    "start": offset + start,
                    "length": length,
                }
                sequence += 1

    work.counts["rows"] = write_table(work.out / DATASET_FILE, SEQUENCES, rows())
    work.counts["train_sequences"] = sum(content.startswith("train:") for _, content in relative)
    work.counts["train_tokens"] = int(counts.sum())
    write_table(
        work.out / COUNTS_FILE,
        TOKEN_COUNTS,
        ({"token": token, "count": int(count)} for token, count in enumerate(counts)),
    )
    # The training side alone makes a model; the validation side is a sample for its curve. So a new document that falls
    # into validation gives the same digest, and trains nothing anew.
    spans = rows_digest(pair for pair in relative if pair[1].startswith("train:"))
    return sha256_json({"spans": spans, "tokens": rows_digest(trained), "tokenizer": tokenizer.digest})
