"""The stage `ngram`: a baseline of counts alone, fitted once on the tokens that the models of a dataset train on.

The model is interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999), fitted and evaluated by whole arrays.
An n-gram is named by its place in a sorted table: the name of its first n - 1 tokens times the size of the vocabulary,
plus its last token, is one integer, so one sort per order finds and counts them all.

The first token of a document is never predicted; it and what follows are context for the rest of the document, and
nothing reaches over its beginning. An n-gram that stands at the beginning has no token before it: where lower orders
count the different tokens before an n-gram, each such occurrence counts as one of its own. Where there are more tokens
than memory may hold, a fixed sample of whole documents is used; how many tokens that were stands beside its figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
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

BYTES_PER_TOKEN = 8  # of the shards and tables that fitting reads, about
NO_NAME = -1  # of an n-gram that was never seen, or that would reach over a document's beginning
PREDICTED_AT_ONCE = 2**20


@dataclass(frozen=True)
class NgramSettings:
    """Order and training tokens of the baseline.

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
    """Return the dataset that a model was trained on; None if it or its tokens are not in the store."""
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
    """Write the model of a dataset's training documents; returns counts and a digest."""
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
    """Return the tokens of the training documents that sequences are made of, each document once.

    Args:
        dataset: folder of the dataset.
        shards: where each token shard lies, by key.
        max_tokens: documents are taken in the order of their ids, which are as good as random, up to so many tokens.

    Returns:
        (N,) tokens, one document after the other, and (n,) the length of each.
    """
    opened = {key: np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False) for key, folder in shards.items()}
    parts, left = [], max_tokens
    with Corpus() as corpus:
        # the pieces of a document lie one behind the other, or overlap: together they are one span
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


@dataclass(frozen=True)
class Order:
    """The n-grams of one order."""

    keys: np.ndarray  # (u,) int64, rising: name of the first n - 1 tokens times `vocab_size`, plus the last token
    counts: np.ndarray  # (u,) how often each occurs; in all orders but the highest, after how many different tokens
    contexts: int  # n-grams of the order below, 1 below the lowest
    vocab_size: int

    @cached_property
    def discounts(self) -> np.ndarray:
        """(4,) what is taken from counts of 0, 1, 2, and 3 or more (Chen and Goodman 1999, equation 26)."""
        n1, n2, n3, n4 = (int((self.counts == times).sum()) for times in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) > 0:
            y = n1 / (n1 + 2 * n2)
            found = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
            # a discount of 0 would leave nothing for what was never seen behind a context
            if (found[1:] > 0).all() and (found[1:] <= np.arange(1, 4)).all():
                return found
        return np.array([0.0, 0.5, 1.0, 1.5])  # so few n-grams say nothing of how to discount them

    @cached_property
    def context(self) -> np.ndarray:
        """(u,) name of the first n - 1 tokens of each."""
        return self.keys // self.vocab_size

    @cached_property
    def discounted(self) -> np.ndarray:
        """(u,) share of each among the n-grams of its context, less the discount."""
        taken = self.discounts[np.minimum(self.counts, 3)]
        return np.asarray((self.counts - taken) / np.maximum(self.totals, 1)[self.context])

    @cached_property
    def totals(self) -> np.ndarray:
        """(contexts,) sum of the counts behind each context."""
        return np.bincount(self.context, weights=self.counts, minlength=self.contexts)

    @cached_property
    def left_over(self) -> np.ndarray:
        """(contexts,) share that discounting leaves to the order below; all of it where nothing was ever seen."""
        taken = np.bincount(self.context, weights=self.discounts[np.minimum(self.counts, 3)], minlength=self.contexts)
        return np.divide(taken, self.totals, out=np.ones(self.contexts), where=self.totals > 0)

    def refine(self, context: np.ndarray, ids: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Make of the probabilities of the order below those of this one, in place.

        Args:
            context: (N,) name of the n - 1 tokens before each token; `NO_NAME` leaves its probability as it is.
            ids: (N,) tokens.
            probability: (N,) of each by the order below.

        Returns:
            (N,) name of the n-gram that ends with each token.
        """
        known = context >= 0
        probability[known] *= self.left_over[context[known]]
        if not len(self.keys):
            return np.full(len(ids), NO_NAME)
        wanted = context * self.vocab_size + ids
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        seen = known & (self.keys[place] == wanted)
        probability[seen] += self.discounted[place[seen]]
        return np.where(seen, place, NO_NAME)


@dataclass(frozen=True)
class KneserNey:
    """A fitted model.

    Attributes:
        orders: the n-grams of orders 1, 2, and so on; a saved model's are read when they are asked for.
        vocab_size: number of tokens; those that were never seen are as likely as each other.
        tokens: predicted tokens that it was fitted on.
    """

    orders: Sequence[Order]
    vocab_size: int
    tokens: int

    @classmethod
    def fit(cls, ids: np.ndarray, lengths: np.ndarray, vocab_size: int, order: int = 5) -> KneserNey:
        """Count the n-grams of some documents.

        Args:
            ids: (N,) tokens, one document after the other.
            lengths: (n,) tokens of each document.
            vocab_size: number of tokens there are.
            order: the longest n-grams.
        """
        place = places_in_documents(lengths)
        predicted = np.flatnonzero(place > 0)
        names = ids.astype(np.int32)  # of the n-gram that ends with each token
        keys = [np.arange(vocab_size)]
        counts = [np.bincount(ids[predicted], minlength=vocab_size)]
        for n in range(2, order + 1):
            ends = np.flatnonzero(place >= n - 1)
            found, one, inverse, times = _named(names[ends - 1].astype(np.int64) * vocab_size + ids[ends])
            # each different n-gram is one token before the n-1-gram that it ends with
            behind = np.bincount(names[ends[one]], minlength=len(keys[-1]))
            if n > 2:  # that of order 1 at the beginning is the token that is never predicted
                behind += np.bincount(names[np.flatnonzero(place == n - 2)], minlength=len(keys[-1]))
            counts[-1] = behind.astype(np.int32)
            names = np.full(len(ids), NO_NAME, dtype=np.int32)
            names[ends] = inverse
            keys.append(found)
            counts.append(times)
        contexts = [1, *(len(item) for item in keys[:-1])]
        orders = (
            Order(key, count, below, vocab_size) for key, count, below in zip(keys, counts, contexts, strict=True)
        )
        return cls(tuple(orders), vocab_size, len(predicted))

    def nll(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the negative log-likelihood of every token but each document's first, for which it is 0.

        Args:
            ids: (N,) tokens, one document after the other.
            lengths: (n,) tokens of each document.

        Returns:
            (N,) float64 nats.
        """
        place = places_in_documents(lengths)
        probability = np.full(len(ids), 1 / self.vocab_size)
        # of the n-1-gram before each token; those of order 0 have one name
        context = np.zeros(len(ids), dtype=np.int64)
        for n, order in enumerate(self.orders, 1):
            names = np.empty(len(ids), dtype=np.int64)
            for begin in range(0, len(ids), PREDICTED_AT_ONCE):
                part = slice(begin, begin + PREDICTED_AT_ONCE)
                names[part] = order.refine(context[part], ids[part], probability[part])
            # the context of the next order ends before each token, in the same document
            context[1:] = np.where(place[1:] >= n, names[:-1], NO_NAME)
            context[:1] = NO_NAME
        return np.where(place > 0, -np.log(probability), 0.0)

    def save(self, folder: Path) -> None:
        """Write it into a folder, in the smallest types that hold it: see `load`."""
        np.save(folder / "sizes.npy", np.array([self.vocab_size, self.tokens, len(self.orders)]), allow_pickle=False)
        for n, order in enumerate(self.orders, 1):
            ends = np.cumsum(np.bincount(order.context, minlength=order.contexts))
            tokens = order.keys - order.context * self.vocab_size
            for name, values in (("tokens", tokens), ("ends", ends), ("counts", order.counts)):
                kind = np.min_scalar_type(int(values.max(initial=0)))
                np.save(folder / f"{name}-{n}.npy", values.astype(kind), allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> KneserNey:
        """Read the model that `save` wrote."""
        vocab_size, tokens, highest = np.load(folder / "sizes.npy", allow_pickle=False).tolist()
        return cls(SavedOrders(folder, highest, vocab_size), vocab_size, tokens)


@dataclass(frozen=True)
class SavedOrders(Sequence[Order]):
    """The orders of a saved model, each read when it is asked for: together they may be larger than memory likes."""

    folder: Path
    highest: int
    vocab_size: int

    def __len__(self) -> int:
        return self.highest

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self.highest:
            raise IndexError(f"order {place + 1} of {self.highest}")
        tokens, ends, counts = (
            np.load(self.folder / f"{name}-{place + 1}.npy", allow_pickle=False)
            for name in ("tokens", "ends", "counts")
        )
        keys = np.repeat(np.arange(len(ends)), np.diff(ends.astype(np.int64), prepend=0)) * self.vocab_size + tokens
        return Order(keys, counts, len(ends), self.vocab_size)


def _named(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what `np.unique` returns with index, inverse and counts, in half the memory.

    Returns:
        The different keys, rising; a place of each; the number of each key among them; and how often each is there.
    """
    order = np.argsort(keys)
    rising = keys[order]
    opens = np.append(True, rising[1:] != rising[:-1])[: len(keys)]
    number = np.cumsum(opens, dtype=np.int32)
    number -= 1
    inverse = np.empty(len(keys), dtype=np.int32)
    inverse[order] = number
    begins = np.flatnonzero(opens)
    return rising[begins], order[begins], inverse, np.diff(begins, append=len(keys)).astype(np.int32)


def places_in_documents(lengths: np.ndarray) -> np.ndarray:
    """Return (N,) int32 place of each token in its document, from 0."""
    lengths = np.asarray(lengths, dtype=np.int64)
    total = int(lengths.sum())
    kind = np.int32 if total < 2**31 else np.int64
    return np.arange(total, dtype=kind) - np.repeat((np.cumsum(lengths) - lengths).astype(kind), lengths)
