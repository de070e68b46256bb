"""Comparison of two models on the same documents, and drift of one model on fresh documents.

95 % intervals of differences in bits per byte come from the bootstrap (Efron and Tibshirani 1993; Koehn 2004 for
language models), paired if both evaluations have the same documents. Documents are resampled, not tokens, because
tokens of a document are dependent. Paired intervals are widened for few documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.store import Store
from tasks.evaluation.tables import DIMENSIONS, MIN_SLICE_BYTES, Evaluated, Sums, read_documents, read_metrics

RESAMPLES = 1_000
LEVEL = 0.95
DRAWN_AT_ONCE = 2**21
MOST_CHANGED = 20


@dataclass(frozen=True)
class Difference:
    """Bits per byte of one model minus those of another.

    Attributes:
        value: difference on all documents; negative if the first model is better.
        low, high: 95 % interval of the resampled differences; infinite below two documents.
        documents: number of documents.
    """

    value: float
    low: float
    high: float
    documents: int

    @property
    def is_bounded(self) -> bool:
        """False if there are too few documents for an interval."""
        return math.isfinite(self.high - self.low)

    @property
    def interval(self) -> str:
        """The interval in words."""
        return f"95 % interval of the difference {self.low:+.4f} to {self.high:+.4f}"

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0: the difference is significant over documents."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a_nll: np.ndarray, b_nll: np.ndarray, n_bytes: np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Return the difference of two models' bits per byte, a minus b, with its interval.

    Args:
        a_nll, b_nll: (n,) negative log-likelihood of each document in nats, including charges for lost bytes.
        n_bytes: (n,) UTF-8 bytes of each document.
        seed: seed of the resampling.
        resamples: number of resamples.

    Raises:
        ValueError: the arrays differ in shape, or the documents are empty.
    """
    change = (np.asarray(a_nll, dtype=np.float64) - np.asarray(b_nll, dtype=np.float64)) / math.log(2)
    weight = np.asarray(n_bytes, dtype=np.float64)
    if change.shape != weight.shape or change.ndim != 1 or not weight.sum() > 0:
        raise ValueError(
            f"{change.shape} differences of nll and {weight.shape} sizes of {weight.sum():g} bytes in all; expected "
            "equal 1-D shapes and some text"
        )
    n = len(change)
    value = float(change.sum() / weight.sum())
    if n < 2:
        return Difference(value, -math.inf, math.inf, n)
    # a resample of empty documents has difference 0
    drawn = _drawn(change, weight, np.random.Generator(np.random.PCG64(seed)), resamples, empty=0.0)
    low, high = (value + _widening(weight) * (end - value) for end in _interval(drawn))
    return Difference(value, low, high, n)


def _widening(weight: np.ndarray) -> float:
    """Return the quotient of the quantiles of Student's t and of the normal distribution.

    The bootstrap of few documents, or of a few long ones among short ones, is too narrow: on 10 documents, it finds a
    significant difference between two equal models in 9 to 15 % of the cases, and with the quotient in 2 to 7 %. The
    degrees of freedom are the effective number of documents (Kish 1965) less one.
    """
    from scipy.special import ndtri, stdtrit  # only here: slow to import

    effective = weight.sum() ** 2 / (weight**2).sum()
    quantile = (1 + LEVEL) / 2
    return float(stdtrit(max(effective - 1, 1), quantile) / ndtri(quantile))


def _drawn(
    values: np.ndarray, sizes: np.ndarray, generator: np.random.Generator, resamples: int, empty: float
) -> np.ndarray:
    """Return (resamples,) quotients of sums over documents drawn with replacement; `empty` for 0 / 0."""
    drawn, n = np.full(resamples, empty), len(values)
    at_once = max(1, DRAWN_AT_ONCE // n)
    for first in range(0, resamples, at_once):
        part = drawn[first : first + at_once]
        rows = generator.integers(0, n, size=(len(part), n))
        total = sizes[rows].sum(axis=1)
        np.divide(values[rows].sum(axis=1), total, out=part, where=total > 0)
    return drawn


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class SlicePair:
    """One slice under both models; `difference` is a minus b, in bits per byte."""

    dimension: str
    value: str
    a: Sums
    b: Sums
    difference: Difference


@dataclass(frozen=True)
class DocumentPair:
    """One document under both models; `bits` is the difference in bits, a minus b."""

    doc_id: str
    labels: dict[str, str]
    a: Sums
    b: Sums
    bits: float


@dataclass(frozen=True)
class Comparison:
    """Two models on the same documents."""

    metrics: dict[str, tuple[float | None, float | None]]  # of a and b; None if missing
    difference: Difference  # of bits per byte, a minus b
    slices: list[SlicePair]  # by dimension, largest first, without those of too little text
    documents: list[DocumentPair]  # with the largest differences in bits


def compare_evaluations(store: Store, a: ArtifactRef, b: ArtifactRef, most: int = MOST_CHANGED) -> Comparison:
    """Compare two evaluations of the same documents.

    Args:
        most: number of documents to list.

    Raises:
        UserError: documents or settings differ.
    """
    left, right, rows = _paired(store, a, b)
    a_nats, b_nats = all_nats(left), all_nats(right)[rows]
    n_bytes = left.sums["bytes"]

    def difference(chosen: np.ndarray) -> Difference:
        return paired_bootstrap(a_nats[chosen], b_nats[chosen], n_bytes[chosen])

    slices = []
    for dimension in DIMENSIONS:
        pairs = [
            SlicePair(dimension, value, left.total(chosen), right.total(rows[chosen]), difference(chosen))
            for value, chosen in left.groups(dimension)
            if n_bytes[chosen].sum() >= MIN_SLICE_BYTES
        ]
        slices += sorted(pairs, key=lambda item: (-item.a.bytes, item.value))
    bits = (a_nats - b_nats) / math.log(2)
    order = np.lexsort((np.arange(len(bits)), -np.abs(bits)))[:most]
    documents = [
        DocumentPair(
            left.doc_id[row],
            {name: left.labels[name][row] for name in DIMENSIONS},
            left.total(np.array([row])),
            right.total(rows[[row]]),
            float(bits[row]),
        )
        for row in order.tolist()
    ]
    one, other = read_metrics(store, a), read_metrics(store, b)
    metrics = {name: (one.get(name), other.get(name)) for name in sorted(one.keys() | other.keys())}
    return Comparison(metrics, difference(np.arange(len(left))), slices, documents)


def compare_source(store: Store, a: ArtifactRef, b: ArtifactRef, source: str) -> SlicePair | None:
    """Compare two evaluations on the documents of a source and the folders below it; None if there are none.

    Raises:
        UserError: documents or settings differ.
    """
    left, right, rows = _paired(store, a, b)
    chosen = np.flatnonzero([f"{label}/".startswith(f"{source}/") for label in left.labels["source"]])
    if not chosen.size:
        return None
    nats = all_nats(left)[chosen], all_nats(right)[rows[chosen]]
    difference = paired_bootstrap(*nats, left.sums["bytes"][chosen])
    return SlicePair("source", source, left.total(chosen), right.total(rows[chosen]), difference)


def _paired(store: Store, a: ArtifactRef, b: ArtifactRef) -> tuple[Evaluated, Evaluated, np.ndarray]:
    """Return two evaluations, and for each document of the first its row in the second."""
    _check_same(store, a, b)
    left, right = read_documents(store, a), read_documents(store, b)
    place = {doc_id: row for row, doc_id in enumerate(right.doc_id)}
    return left, right, np.array([place[doc_id] for doc_id in left.doc_id], dtype=np.int64)


def champion_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the champion's metrics under names to log with a challenger's."""
    chosen = ("loss", "perplexity", "bits_per_byte", "top1")
    return {f"val/champion_{name}": metrics[f"val/{name}"] for name in chosen if f"val/{name}" in metrics}


def other_figures(metrics: Mapping[str, float], stage: str, read: bool) -> dict[str, float]:
    """Rename metrics on other documents than the evaluation set.

    Args:
        stage: stage of the documents.
        read: True if the model was trained on some of the documents.
    """
    place = f"read-{stage}" if read else stage
    return {f"{place}/{name.partition('/')[2]}": value for name, value in metrics.items()}


def all_nats(documents: Evaluated) -> np.ndarray:
    """Return (n,) nats of each document with lost bytes at 8 bits each: the numerator of bits per byte."""
    lost = documents.sums["lost_bytes"] * (8 * math.log(2))
    return np.asarray(documents.sums["nll_nats"] + documents.sums["charged_nats"] + lost)


def _check_same(store: Store, a: ArtifactRef, b: ArtifactRef) -> None:
    one, other = manifest_of(store, a), manifest_of(store, b)
    sets = [found.inputs["evalset"]["digest"] for found in (one, other)]
    if sets[0] != sets[1]:
        raise UserError(
            f"the evaluations {a.key[:12]} and {b.key[:12]} have different documents (evaluation sets "
            f"{sets[0][:12]} and {sets[1][:12]}), so their figures cannot be compared: evaluate both models on one set"
        )
    if one.stage != other.stage:
        raise UserError(
            f"the evaluations {a.key[:12]} and {b.key[:12]} are of stages {one.stage} and {other.stage}, so their "
            "figures cannot be compared: measure both models on texts, or both on answers"
        )
    asked = [{name: found.settings.get(name) for name in ("kinds", "most")} for found in (one, other)]
    if asked[0] != asked[1]:
        raise UserError(
            f"the evaluations {a.key[:12]} and {b.key[:12]} asked different questions ({asked[0]} and {asked[1]}), so "
            "their figures cannot be compared: measure both models with equal settings"
        )
    strides = [found.settings.get("stride", 0) for found in (one, other)]
    if strides[0] != strides[1]:
        raise UserError(
            f"the evaluations {a.key[:12]} and {b.key[:12]} have different settings (stride {strides[0]} and "
            f"{strides[1]}), so their figures cannot be compared: evaluate both models with equal settings"
        )


@dataclass(frozen=True)
class Drift:
    """Bits per byte of a model on fresh documents and on its evaluation set, and their difference."""

    fresh: float
    own: float
    difference: Difference  # fresh minus own; `documents` counts the fresh ones

    def sentence(self) -> str:
        """Return a sentence on the drift."""
        found = self.difference
        n = f"{found.documents:,} fresh document{'' if found.documents == 1 else 's'}"
        size = f"{self.fresh:.4f} bits per byte on {n}, {self.own:.4f} on its own evaluation set"
        if not found.is_bounded:
            return f"{size}: too few documents to compare"
        if not found.is_clear:
            return f"{size}: no significant difference ({found.interval})"
        verdict = f"significantly {'worse' if found.value > 0 else 'better'} on fresh documents"
        return f"{size}: {verdict} ({found.interval})"

    def figures(self) -> dict[str, float]:
        """Return metrics by name, without non-finite ones."""
        named = {"low": self.difference.low, "high": self.difference.high, "difference": self.difference.value}
        found = {f"drift/{name}": value for name, value in named.items() if math.isfinite(value)}
        return {**found, "drift/bits_per_byte": self.fresh, "drift/documents": float(self.difference.documents)}


def drift_between(fresh: Evaluated, own: Evaluated, resamples: int = RESAMPLES) -> Drift:
    """Compare a model's bits per byte on fresh documents and on its evaluation set.

    The sets have no common document, so they are resampled independently (Efron and Tibshirani 1993, chapter 8).
    """
    generator = np.random.Generator(np.random.PCG64(0))
    both = []
    for documents in (fresh, own):
        bits, n_bytes = all_nats(documents) / math.log(2), documents.sums["bytes"].astype(np.float64)
        whole = float(bits.sum() / n_bytes.sum())
        both.append((whole, _drawn(bits, n_bytes, generator, resamples, empty=whole)))
    (fresh_bits, fresh_drawn), (own_bits, own_drawn) = both
    is_enough = min(len(fresh), len(own)) >= 2
    low, high = _interval(fresh_drawn - own_drawn) if is_enough else (-math.inf, math.inf)
    return Drift(fresh_bits, own_bits, Difference(fresh_bits - own_bits, low, high, len(fresh)))
