"""N-gram models with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999), vectorised.

The index of an n-gram is its row in a sorted table of keys, and its key is the index of its first n - 1 tokens times
the vocabulary size, plus its last token. So one sort per order counts all n-grams.

The first token of a document is not predicted, and n-grams do not cross documents. Lower orders count the different
tokens before an n-gram; each occurrence at the beginning of a document counts as a different one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

NO_INDEX = -1  # of an n-gram that is unseen, or would cross the beginning of a document
PREDICTED_AT_ONCE = 2**20


@dataclass(frozen=True)
class Order:
    """The n-grams of one order."""

    keys: np.ndarray  # (u,) int64, ascending: index of the first n - 1 tokens * `vocab_size` + last token
    counts: np.ndarray  # (u,) occurrences; below the highest order, number of different preceding tokens
    contexts: int  # number of n-grams of the order below; 1 for order 1
    vocab_size: int

    @cached_property
    def discounts(self) -> np.ndarray:
        """(4,) discounts of counts 0, 1, 2, and 3 or more (Chen and Goodman 1999, equation 26)."""
        n1, n2, n3, n4 = (int((self.counts == times).sum()) for times in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) > 0:
            y = n1 / (n1 + 2 * n2)
            found = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
            # a discount of 0 would leave no probability for unseen tokens
            if (found[1:] > 0).all() and (found[1:] <= np.arange(1, 4)).all():
                return found
        return np.array([0.0, 0.5, 1.0, 1.5])  # too few n-grams to estimate discounts

    @cached_property
    def context(self) -> np.ndarray:
        """(u,) index of the first n - 1 tokens of each n-gram."""
        return self.keys // self.vocab_size

    @cached_property
    def discounted(self) -> np.ndarray:
        """(u,) discounted relative frequency of each n-gram in its context."""
        taken = self.discounts[np.minimum(self.counts, 3)]
        return np.asarray((self.counts - taken) / np.maximum(self.totals, 1)[self.context])

    @cached_property
    def totals(self) -> np.ndarray:
        """(contexts,) sum of the counts of each context."""
        return np.bincount(self.context, weights=self.counts, minlength=self.contexts)

    @cached_property
    def left_over(self) -> np.ndarray:
        """(contexts,) interpolation weight of the order below; 1 for contexts without counts."""
        taken = np.bincount(self.context, weights=self.discounts[np.minimum(self.counts, 3)], minlength=self.contexts)
        return np.divide(taken, self.totals, out=np.ones(self.contexts), where=self.totals > 0)

    def refine(self, context: np.ndarray, ids: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Update the probabilities of the order below to those of this order, in place.

        Args:
            context: (N,) index of the n - 1 tokens before each token; `NO_INDEX` keeps its probability.
            ids: (N,) tokens.
            probability: (N,) probability of each token by the order below.

        Returns:
            (N,) index of the n-gram that ends with each token.
        """
        known = context >= 0
        probability[known] *= self.left_over[context[known]]
        if not len(self.keys):
            return np.full(len(ids), NO_INDEX)
        wanted = context * self.vocab_size + ids
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        seen = known & (self.keys[place] == wanted)
        probability[seen] += self.discounted[place[seen]]
        return np.where(seen, place, NO_INDEX)


@dataclass(frozen=True)
class KneserNey:
    """A fitted model.

    Attributes:
        orders: n-grams of orders 1, 2, and so on; those of a saved model are loaded on access.
        vocab_size: number of different tokens; unseen ones are equally likely.
        tokens: predicted tokens of the training documents.
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
            vocab_size: number of different tokens.
            order: highest order.
        """
        place = places_in_documents(lengths)
        predicted = np.flatnonzero(place > 0)
        index = ids.astype(np.int32)  # index of the n-gram that ends with each token
        keys = [np.arange(vocab_size)]
        counts = [np.bincount(ids[predicted], minlength=vocab_size)]
        for n in range(2, order + 1):
            ends = np.flatnonzero(place >= n - 1)
            found, one, inverse, times = _unique(index[ends - 1].astype(np.int64) * vocab_size + ids[ends])
            # each different n-gram gives its last n - 1 tokens one more preceding token
            behind = np.bincount(index[ends[one]], minlength=len(keys[-1]))
            if n > 2:  # the first token of a document is not predicted
                behind += np.bincount(index[np.flatnonzero(place == n - 2)], minlength=len(keys[-1]))
            counts[-1] = behind.astype(np.int32)
            index = np.full(len(ids), NO_INDEX, dtype=np.int32)
            index[ends] = inverse
            keys.append(found)
            counts.append(times)
        contexts = [1, *(len(item) for item in keys[:-1])]
        orders = (
            Order(key, count, below, vocab_size) for key, count, below in zip(keys, counts, contexts, strict=True)
        )
        return cls(tuple(orders), vocab_size, len(predicted))

    def nll(self, ids: np.ndarray, lengths: np.ndarray, orders: int | None = None) -> np.ndarray:
        """Return the negative log-likelihood of every token but each document's first, for which it is 0.

        Args:
            ids: (N,) tokens, one document after the other.
            lengths: (n,) tokens of each document.
            orders: use the first orders only; None means all.

        Returns:
            (N,) float64 nats.
        """
        place = places_in_documents(lengths)
        probability = np.full(len(ids), 1 / self.vocab_size)
        # index of the n-1-gram before each token; order 0 has a single one
        context = np.zeros(len(ids), dtype=np.int64)
        for n, order in enumerate(islice(self.orders, orders), 1):
            index = np.empty(len(ids), dtype=np.int64)
            for begin in range(0, len(ids), PREDICTED_AT_ONCE):
                part = slice(begin, begin + PREDICTED_AT_ONCE)
                index[part] = order.refine(context[part], ids[part], probability[part])
            # context of the next order: the n-gram before each token, in the same document
            context[1:] = np.where(place[1:] >= n, index[:-1], NO_INDEX)
            context[:1] = NO_INDEX
        return np.where(place > 0, -np.log(probability), 0.0)

    def save(self, folder: Path) -> None:
        """Write the model into a folder, in the smallest integer types; see `load`."""
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
    """The orders of a saved model, each loaded on access, because together they may exceed the memory."""

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


def _unique(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return unique keys, index, inverse and counts like `np.unique`, in half the memory."""
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
    """Return (N,) position of each token in its document, int32 if that is enough."""
    lengths = np.asarray(lengths, dtype=np.int64)
    total = int(lengths.sum())
    kind = np.int32 if total < 2**31 else np.int64
    return np.arange(total, dtype=kind) - np.repeat((np.cumsum(lengths) - lengths).astype(kind), lengths)
