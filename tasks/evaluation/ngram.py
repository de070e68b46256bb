"""The n-gram baseline of a dataset, fitted once on the tokens that its models train on.

Where there are more tokens than it may hold in memory, it is fitted on a sample of whole documents, the same each time;
how many tokens that were stands beside its figures.
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
from storage.schemas import COUNTS_FILE, SHARD_FILE, TOKENS_FILE
from storage.store import Store
from tasks.core.stage import Work, stage
from tasks.evaluation.kneser_ney import KneserNey
from tasks.tokens.index import load_index

BYTES_PER_TOKEN = 8  # of the shards and tables that fitting reads, about


@dataclass(frozen=True)
class NgramSettings:
    """What is fitted.

    Attributes:
        order: the longest n-grams.
        max_tokens: training tokens that are read at most; 20 million take up to two gigabytes of memory.
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
    """The dataset that a model was trained on, if it and its tokens are still in the store."""
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
    """Write the model of a dataset's training documents.

    Args:
        dataset: its folder.
        shards: where each token shard lies, by key.

    Returns:
        Counts and a digest.
    """
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
    """Tokens of the training documents, as far as sequences are made of them; each document once, however often read.

    Args:
        dataset: folder of the dataset.
        shards: where each token shard lies, by key.
        max_tokens: documents are taken in the order of their ids, which are as good as random, up to so many tokens.

    Returns:
        (N,) tokens, one document after the other, and (n,) the length of each.
    """
    index = load_index(dataset, "train")
    names, spans = [], []
    for number, key in enumerate(index.shards):
        rows = np.flatnonzero(index.shard == number)
        table = pq.read_table(shards[key] / TOKENS_FILE, columns=["doc_id", "offset", "length"])
        offset, length = table["offset"].to_numpy(), table["length"].to_numpy()
        held = np.flatnonzero(length)
        held = held[np.argsort(offset[held], kind="stable")]
        owner = np.searchsorted(offset[held], index.start[rows], side="right") - 1
        # the pieces of a document lie one behind the other, or overlap: together they are one span
        begin, end = np.full(len(held), np.iinfo(np.int64).max), np.zeros(len(held), dtype=np.int64)
        np.minimum.at(begin, owner, index.start[rows])
        np.maximum.at(end, owner, index.start[rows] + index.length[rows])
        doc_ids = table["doc_id"].to_pylist()
        for row in np.unique(owner).tolist():
            names.append(doc_ids[held[row]])
            spans.append((number, int(begin[row]), int(end[row])))
    opened = [np.load(shards[key] / SHARD_FILE, mmap_mode="r", allow_pickle=False) for key in index.shards]
    parts, left = [], max_tokens
    for row in sorted(range(len(names)), key=names.__getitem__):
        number, first, last = spans[row]
        if left <= 0:
            break
        parts.append(np.asarray(opened[number][first : min(last, first + left)]))
        left -= len(parts[-1])
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)
    return ids, np.array([len(part) for part in parts], dtype=np.int64)
