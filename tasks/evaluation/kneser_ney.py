"""An n-gram model with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999): a baseline of counts alone.

Fitted and asked by whole arrays. An n-gram is named by its place in a sorted table: the name of its first n - 1 tokens
times the size of the vocabulary, plus its last token, is one integer, so one sort per order finds and counts them all.

The first token of a document is never predicted; it and what follows are context for the rest of the document, and
nothing reaches over its beginning. An n-gram that stands at the beginning has no token before it: where lower orders
count the different tokens before an n-gram, each such occurrence counts as one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

NO_NAME = -1  # of an n-gram that was never seen, or that would reach over a document's beginning
PREDICTED_AT_ONCE = 2**20


@dataclass(frozen=True)
class Order:
    """The n-grams of one order.

    Attributes:
        keys: (u,) int64, rising: name of the first n - 1 tokens times `vocab_size`, plus the last token.
        counts: (u,) int64, how often each occurs; in all orders but the highest, after how many different tokens.
        contexts: n-grams of the order below, 1 below the lowest.
        vocab_size: number of tokens.
    """

    keys: np.ndarray
    counts: np.ndarray
    contexts: int
    vocab_size: int

    @cached_property
    def discounts(self) -> np.ndarray:
        """(4,) what is taken from counts of 0, 1, 2, and 3 or more (Chen and Goodman 1999, equation 26)."""
        n1, n2, n3, n4 = (int((self.counts == times).sum()) for times in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) > 0:
            y = n1 / (n1 + 2 * n2)
            found = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
            if (found >= 0).all() and (found[1:] <= np.arange(1, 4)).all():
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

    def names(self, context: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Names of n-grams, by those of their first n - 1 tokens (`NO_NAME` gives the same) and their last tokens."""
        wanted = context.astype(np.int64) * self.vocab_size + ids
        place = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        known = (context >= 0) & (self.keys[place] == wanted) if len(self.keys) else np.zeros(len(ids), dtype=bool)
        return np.where(known, place, NO_NAME)


@dataclass(frozen=True)
class KneserNey:
    """A fitted model.

    Attributes:
        orders: the n-grams of orders 1, 2, and so on.
        vocab_size: number of tokens; those that were never seen are as likely as each other.
        tokens: predicted tokens that it was fitted on.
    """

    orders: tuple[Order, ...]
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

        Raises:
            ValueError: an order below 1, or lengths or tokens that do not fit.
        """
        _check(ids, lengths, vocab_size, order)
        place = places_in_documents(lengths)
        predicted = np.flatnonzero(place > 0)
        names = ids.astype(np.int64)  # of the n-gram that ends with each token
        keys = [np.arange(vocab_size)]
        counts = [np.bincount(ids[predicted], minlength=vocab_size)]
        for n in range(2, order + 1):
            ends = np.flatnonzero(place >= n - 1)
            found, first, inverse, times = np.unique(
                names[ends - 1] * vocab_size + ids[ends], return_index=True, return_inverse=True, return_counts=True
            )
            # each different n-gram is one token before the n-1-gram that it ends with
            behind = np.bincount(names[ends[first]], minlength=len(keys[-1]))
            if n > 2:  # that of order 1 at the beginning is the token that is never predicted
                behind += np.bincount(names[np.flatnonzero(place == n - 2)], minlength=len(keys[-1]))
            counts[-1] = behind
            names = np.full(len(ids), NO_NAME, dtype=np.int64)
            names[ends] = inverse
            keys.append(found)
            counts.append(times)
        contexts = [1, *(len(item) for item in keys[:-1])]
        orders = (
            Order(key, count.astype(np.int64), below, vocab_size)
            for key, count, below in zip(keys, counts, contexts, strict=True)
        )
        return cls(tuple(orders), vocab_size, len(predicted))

    def nll(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Negative log-likelihood of every token but each document's first, for which it is 0.

        Args:
            ids: (N,) tokens, one document after the other.
            lengths: (n,) tokens of each document.

        Returns:
            (N,) float64 nats.
        """
        _check(ids, lengths, self.vocab_size, len(self.orders))
        place = places_in_documents(lengths)
        found = np.empty(len(ids))
        reach = len(self.orders) - 1
        for begin in range(0, len(ids), PREDICTED_AT_ONCE):
            before = max(0, begin - reach)  # the context of the first ones
            part = slice(before, begin + PREDICTED_AT_ONCE)
            found[begin : begin + PREDICTED_AT_ONCE] = self._nll(ids[part], place[part])[begin - before :]
        return found

    def _nll(self, ids: np.ndarray, place: np.ndarray) -> np.ndarray:
        lowest = self.orders[0]
        names = ids.astype(np.int64)
        probability = lowest.discounted[names] + lowest.left_over[0] / self.vocab_size
        for n, order in enumerate(self.orders[1:], 2):
            context = np.full(len(ids), NO_NAME, dtype=np.int64)
            ends = np.flatnonzero(place >= n - 1)
            ends = ends[ends > 0]
            context[ends] = names[ends - 1]
            names = order.names(context, ids)
            known = context >= 0
            probability[known] *= order.left_over[context[known]]
            seen = names >= 0
            probability[seen] += order.discounted[names[seen]]
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
        """Read what `save` wrote."""
        vocab_size, tokens, highest = np.load(folder / "sizes.npy", allow_pickle=False).tolist()
        orders = []
        for n in range(1, highest + 1):
            last, ends, counts = (
                np.load(folder / f"{name}-{n}.npy", allow_pickle=False).astype(np.int64)
                for name in ("tokens", "ends", "counts")
            )
            context = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
            orders.append(Order(context * vocab_size + last, counts, len(ends), vocab_size))
        return cls(tuple(orders), vocab_size, tokens)


def places_in_documents(lengths: np.ndarray) -> np.ndarray:
    """(N,) place of each token in its document, from 0."""
    lengths = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(begins, lengths)


def _check(ids: np.ndarray, lengths: np.ndarray, vocab_size: int, order: int) -> None:
    if order < 1:
        raise ValueError(f"order is {order}; expected 1 or more")
    if int(np.sum(lengths)) != len(ids):
        raise ValueError(f"the documents have {int(np.sum(lengths))} tokens, and there are {len(ids)}")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(f"tokens are from {ids.min()} to {ids.max()}; expected 0 to {vocab_size - 1}")
