"""Fresh documents: those of a corpus that came after a model was trained, and how it fares on them.

A model is measured on a set that was frozen when its corpus was; the world goes on. Documents that came since, and that
nothing it read resembles, say whether it still knows what it is asked about: its drift is its bits per byte on them,
less those on its own evaluation set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.catalog import read_state, waits_for_run
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import SELECTION_FILE
from storage.store import Store
from storage.tables import read_columns
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, kept_documents
from tasks.curate.evalset import copy_documents
from tasks.evaluation.compare import LEVEL, RESAMPLES, Difference, all_nats
from tasks.evaluation.split import split_inputs
from tasks.evaluation.tables import Evaluated

if TYPE_CHECKING:
    from tasks.core.run import Run


@dataclass(frozen=True)
class FreshSettings:
    """Settings of the stage; there are none yet."""


def known_selections(store: Store, checkpoint: ArtifactRef) -> RefSet:
    """The selections of documents that a model, and those that it continues, were trained with."""
    found: list[ArtifactRef] = []
    waiting = [checkpoint]
    while waiting:
        inputs = manifest_of(store, waiting.pop())
        if "dataset" not in inputs.inputs:
            continue  # trained elsewhere
        (cut,) = inputs.input_refs("dataset")
        found += manifest_of(store, cut).input_refs("curated")
        waiting += inputs.input_refs("base") if "base" in inputs.inputs else []
    return RefSet.of(sorted(set(found)))


def came_since(store: Store, curated: ArtifactRef, known: RefSet) -> dict[str, str]:
    """Documents in use that were in none of some earlier selections, and resemble none that was, by id."""
    before: set[str] = set()
    for ref in known.refs:
        before.update(read_columns(store.folder(ref) / SELECTION_FILE, ["doc_id"])["doc_id"])
    rows = read_columns(store.folder(curated) / SELECTION_FILE, ["doc_id", "cluster"])
    cluster_of = dict(zip(rows["doc_id"], rows["cluster"], strict=True))
    read = {cluster for doc_id, cluster in cluster_of.items() if doc_id in before}
    kept = kept_documents(store, curated)
    return {doc_id: place for doc_id, place in kept.items() if doc_id not in before and cluster_of[doc_id] not in read}


@stage("fresh", version=1)
def fresh(
    work: Work,
    settings: FreshSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    known: RefSet,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents that came since some earlier selections into a set to measure a model on."""
    wanted = came_since(work.store, curated, known)
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want(wanted)
        return copy_documents(work, corpus, snapshot, documents, measures)


@dataclass(frozen=True)
class Drift:
    """A model on fresh documents and on its own evaluation set.

    Attributes:
        fresh, own: bits per byte on either.
        difference: of the first less the second, with its interval; `documents` are the fresh ones.
    """

    fresh: float
    own: float
    difference: Difference

    def sentence(self) -> str:
        """Return the drift in a sentence."""
        found = self.difference
        n = f"{found.documents:,} fresh document{'' if found.documents == 1 else 's'}"
        size = f"{self.fresh:.4f} bits per byte on {n}, {self.own:.4f} on its own evaluation set"
        if not math.isfinite(found.high - found.low):
            return f"{size}: of so few documents, that says nothing of others"
        reach = f"95 % interval of the difference {found.low:+.4f} to {found.high:+.4f}"
        if not found.is_clear:
            return f"{size}: no more apart than two draws of documents may be ({reach})"
        verdict = "it has drifted" if found.value > 0 else "fresh documents are easier for it"
        return f"{size}: {verdict} ({reach})"

    def figures(self) -> dict[str, float]:
        """By the names under which they stand beside other figures; an endless interval is left out."""
        named = {"low": self.difference.low, "high": self.difference.high, "difference": self.difference.value}
        found = {f"drift/{name}": value for name, value in named.items() if math.isfinite(value)}
        return {**found, "drift/bits_per_byte": self.fresh, "drift/documents": float(self.difference.documents)}


def drift_between(fresh: Evaluated, own: Evaluated, seed: int = 0, resamples: int = RESAMPLES) -> Drift:
    """Return how a model's bits per byte on fresh documents differ from those on its evaluation set.

    The two sets have no document in common, so each is drawn anew by itself (Efron and Tibshirani 1993, chapter 8).

    Args:
        seed, resamples: of the bootstrap.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    (fresh_bits, fresh_drawn), (own_bits, own_drawn) = (_drawn(item, generator, resamples) for item in (fresh, own))
    value = fresh_bits - own_bits
    if min(len(fresh), len(own)) < 2:
        return Drift(fresh_bits, own_bits, Difference(value, -math.inf, math.inf, len(fresh)))
    low, high = np.quantile(fresh_drawn - own_drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Drift(fresh_bits, own_bits, Difference(value, float(low), float(high), len(fresh)))


def _drawn(found: Evaluated, generator: np.random.Generator, resamples: int) -> tuple[float, np.ndarray]:
    """Bits per byte of the documents, and (resamples,) of as many of them drawn with replacement."""
    bits, n_bytes = all_nats(found) / math.log(2), found.sums["bytes"].astype(np.float64)
    value = float(bits.sum() / n_bytes.sum())
    drawn = np.full(resamples, value)
    for place in range(resamples):  # one at a time: a set may have many documents
        rows = generator.integers(0, len(bits), len(bits))
        size = n_bytes[rows].sum()
        if size:
            drawn[place] = bits[rows].sum() / size
    return value, drawn


def fresh_documents(run: Run, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the documents that came after a model was trained; None, with a note, where none did or none are known.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(run.store, run.corpus):
        run.note(f"{waits}; nothing is known of this model's drift before it")
        return None
    inputs = split_inputs(read_state(run.store, run.corpus))
    known = known_selections(run.store, checkpoint)
    if not known.refs:
        run.note("it is not known which documents this model read, so nothing is known of its drift")
        return None
    curated = inputs["curated"]
    assert isinstance(curated, ArtifactRef)
    if not came_since(run.store, curated, known):
        run.note("no document came to the corpus since this model was trained, so nothing is known of its drift")
        return None
    return fresh(run, FreshSettings(), known=known, **inputs)
