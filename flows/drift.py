"""Drift: how a model does on documents that came after it, beside the evaluation set that it was chosen by.

Fresh are the kept documents of the corpus as it is now that the selection behind the model did not hold, so the model
saw none of them. The figures are those of every evaluation under names of their own: `fresh/...`, and
`drift/bits_per_byte`, by how much worse the model is on what came than on what it was chosen by.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows import pipeline
from storage.catalog import read_state
from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef
from storage.store import StoreError
from tasks.evaluation.inputs import FreshSettings, copy_fresh, split_inputs
from tasks.session import Session, artifact

DECIDING = "bits_per_byte"


@dataclass(frozen=True)
class Drift:
    """What was measured on fresh documents.

    Attributes:
        texts: the documents.
        metrics: figures, `fresh/...` and `drift/...`.
    """

    texts: ArtifactRef
    metrics: dict[str, float]


def measure_drift(session: Session, corpus: str, checkpoint: ArtifactRef, metrics: dict[str, float]) -> Drift | None:
    """Measure a model on what came after it.

    Args:
        metrics: of the model on the evaluation set.

    Returns:
        None where nothing came, or the model comes from no selection that the store still holds.
    """
    try:
        seen = ancestor(session.store, checkpoint, "curate").ref
    except StoreError:
        return None
    if session.store.find(seen.stage, seen.key) is None:
        return None
    texts = artifact(
        session.run(copy_fresh, FreshSettings(), **split_inputs(read_state(session.store, corpus)), seen=seen)
    )
    counts = manifest_of(session.store, texts).counts
    if not counts["bytes"]:
        return None
    _, found = pipeline.evaluate_model(session, checkpoint, texts)
    fresh = {f"fresh/{name.removeprefix('val/')}": value for name, value in found.items()}
    fresh["fresh/documents"] = float(counts["rows"])
    drift = found[f"val/{DECIDING}"] - metrics[f"val/{DECIDING}"]
    return Drift(texts, {**fresh, f"drift/{DECIDING}": drift})
