"""The stage `ngram`: the n-gram baseline, fitted once per dataset on its training tokens.

At most `max_tokens` tokens of whole documents are used; their number is recorded with the metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import COUNTS_FILE, SEQUENCES_FILE, SHARD_FILE
from storage.store import Store
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, parquet
from tasks.text.kneser_ney import KneserNey

BYTES_PER_TOKEN = 8  # read from shards and tables while fitting, approximately


@dataclass(frozen=True)
class NgramSettings:
    """Settings of the baseline.

    Attributes:
        order: highest order.
        max_tokens: most training tokens; 20 million take up to two gigabytes of memory.
    """

    order: int = 5
    max_tokens: int = 20_000_000


@stage("ngram", version=1, keep_with=("dataset",))
def ngram(work: Work, settings: NgramSettings, *, dataset: ArtifactRef) -> str:
    """Fit the n-gram baseline on the training documents of a dataset."""
    folder = work.folder(dataset)
    tokens = manifest_of(work.store, dataset).input_refs("tokens")
    trained = manifest_of(work.store, dataset).counts["train_tokens"]
    made = work.in_subprocess(
        fit_ngrams,
        BYTES_PER_TOKEN * min(trained, settings.max_tokens),
        dataset=folder,
        shards={ref.key: work.folder(ref) for ref in tokens},
        out=work.out,
        settings=settings,
    )
    work.counts.update(rows=made["ngrams"], tokens=made["tokens"], documents=made["documents"])
    return str(made["digest"])


def dataset_of(store: Store, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the training dataset of a model; None if it or its tokens are not in the store."""
    if checkpoint.stage != "train":
        return None
    (dataset,) = manifest_of(store, checkpoint).input_refs("dataset")
    found = store.find(dataset.stage, dataset.key)
    if found is None or any(store.find(ref.stage, ref.key) is None for ref in found.input_refs("tokens")):
        return None
    return dataset


def fit_ngrams(
    dataset: Path, shards: dict[str, Path], out: Path, settings: NgramSettings, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Fit and write the model of a dataset's training documents; returns counts and a digest."""
    ids, lengths = training_documents(dataset, shards, settings.max_tokens)
    vocab_size = pq.read_metadata(dataset / COUNTS_FILE).num_rows
    model = KneserNey.fit(ids, lengths, vocab_size, settings.order)
    model.save(out)
    digest = hashlib.sha256(f"{vocab_size} {model.tokens}".encode())
    for item in model.orders:
        digest.update(np.ascontiguousarray(item.keys, dtype="<i8").data)
        digest.update(np.ascontiguousarray(item.counts, dtype="<i8").data)
    progress(1, 1)
    return {
        "ngrams": sum(len(item.keys) for item in model.orders),
        "tokens": model.tokens,
        "documents": len(lengths),
        "digest": digest.hexdigest(),
    }


def training_documents(dataset: Path, shards: dict[str, Path], max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the training documents in the sequences, each document once.

    Args:
        dataset: folder of the dataset.
        shards: folder of each token shard, by key.
        max_tokens: most tokens; documents are read in the order of their ids, which are hashes.

    Returns:
        (N,) concatenated tokens, and (n,) lengths of the documents.
    """
    opened = {key: np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False) for key, folder in shards.items()}
    parts, left = [], max_tokens
    with Corpus() as corpus:
        # the pieces of a document are adjacent or overlap: together they are one span
        spans = corpus.rows(
            "select shard, min(start), max(start + length) "
            f"from {parquet(dataset / SEQUENCES_FILE)} where split = 'train' group by doc_id, shard order by doc_id"
        )
        for shard, first, last in spans:
            if left <= 0:
                break
            parts.append(np.asarray(opened[shard][first : min(last, first + left)]))
            left -= len(parts[-1])
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)
    return ids, np.array([len(part) for part in parts], dtype=np.int64)
