"""Whether a model drifts: it is measured on the documents that came to a corpus after it was trained."""

from __future__ import annotations

from flows import pipeline
from storage.catalog import read_state, waits_for_run
from storage.manifest import ArtifactRef
from tasks.curate.curate import curate
from tasks.evaluation.fresh import Drift, FreshSettings, came_since, drift_between, fresh, known_selections
from tasks.evaluation.inputs import split_inputs
from tasks.evaluation.tables import read_documents
from tasks.session import Session, artifact
from tasks.settings import EvaluationSettings


def measure_drift(
    session: Session,
    corpus: str,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    settings: EvaluationSettings | None = None,
) -> tuple[Drift, ArtifactRef] | None:
    """Measure a model on the documents that came after it was trained.

    Args:
        evaluation: of the model on its own evaluation set.

    Returns:
        Its drift, and the set of fresh documents; None where no document came since, or where it is not known which
        came or what the model read.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(session.store, corpus):
        session.note(f"{waits}; nothing is known of this model's drift before it")
        return None
    state = read_state(session.store, corpus)
    inputs = split_inputs(state)
    known = known_selections(session.store, checkpoint)
    if not known.refs:
        session.note("it is not known which documents this model read, so nothing is known of its drift")
        return None
    if not came_since(session.store, state[curate.name][0], known):
        session.note("no document came to the corpus since this model was trained, so nothing is known of its drift")
        return None
    found = artifact(session.run(fresh, FreshSettings(), known=known, **inputs))
    measured, _ = pipeline.evaluate_model(session, checkpoint, found, settings)
    fresh_documents = read_documents(session.store, artifact(measured))
    drift = drift_between(fresh_documents, read_documents(session.store, evaluation))
    session.note(f"drift: {drift.sentence()}")
    return drift, found
