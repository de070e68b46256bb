"""The sequences of a dataset as training reads them, from folders alone: index in, mapped token shards out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.schemas import SHARD_FILE
from tasks.tokens.index import load_index
from tasks.tokens.tokenizers import PAD

if TYPE_CHECKING:
    from model.data import SpanSource


def open_sequences(
    dataset: Path, shard_folders: Mapping[str, Path], split: str, seq_len: int, limit: int | None = None
) -> SpanSource:
    """Sequences of one split, mapped from their shards; a fixed sample of them where there are more than `limit`.

    Args:
        dataset: folder of the dataset.
        shard_folders: where each token shard lies, by key.
        split: `train` or `validation`.
        seq_len: context of the network.
    """
    from model.data import SpanSource
    from model.order import order

    index = load_index(dataset, split)
    if limit is not None and len(index) > limit:
        index = index.take(np.sort(order(len(index), seed=0, epoch=0)[:limit]))
    shards = [np.load(shard_folders[key] / SHARD_FILE, mmap_mode="r", allow_pickle=False) for key in index.shards]
    spans = (index.shard, index.start, index.length)
    if len(index) == len(index.shard):  # a sequence of one piece sees nothing else, and takes no mask to say so
        return SpanSource(shards, *spans, seq_len=seq_len, pad_id=PAD, ahead=index.ahead)
    return SpanSource(
        shards,
        *spans,
        seq_len=seq_len,
        pad_id=PAD,
        offsets=index.offsets,
        ahead=index.ahead,
        isolated=index.isolated,
    )
