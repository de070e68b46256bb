"""What is measured beside a model's figures: another champion, completions, what of them stands in training text."""

from __future__ import annotations

from dataclasses import replace

from flows import pipeline
from flows.actions import version_checkpoint
from flows.tracing import trace_model
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHAMPION, PREVIOUS, ModelVersion, Registry, read_models
from storage.store import Store
from tasks.evaluation.compare import champion_figures
from tasks.evaluation_report.collect import Measured
from tasks.registry.promote import trained_on
from tasks.session import Session, artifact
from tasks.settings import EvaluationSettings


def judged_by(store: Store, corpus: str, version: ModelVersion | None) -> EvaluationSettings:
    """How a model was measured when it was judged last: figures that are taken again compare with those.

    Args:
        version: of the model; one that is none, or that no figures are known of, is measured by the usual settings.
    """
    noted = None if version is None else read_models(store, corpus).models.get(version.checkpoint.digest)
    if noted is None:
        return EvaluationSettings()
    judged = manifest_of(store, noted.evaluation)
    found = EvaluationSettings(stride=judged.settings["stride"], ngram_order=0, trace=noted.traced)
    if "ngram" not in judged.inputs:
        return found
    (ngram,) = (manifest_of(store, ref).settings for ref in judged.input_refs("ngram"))
    return replace(found, ngram_order=ngram["order"], ngram_tokens=ngram["max_tokens"])


def measure_beside(
    session: Session,
    model: str,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    evaluation: ArtifactRef,
    completions: ArtifactRef,
    settings: EvaluationSettings | None = None,
) -> tuple[Measured, dict[str, float]]:
    """Measure what stands beside an evaluation.

    Args:
        model: what it is called.
        settings: by which it was measured.

    Returns:
        All of it, and the figures of the other champion under names of their own.
    """
    settings = settings or EvaluationSettings()
    rival, figures = _other_champion(session, checkpoint, evalset, settings)
    echoes, contamination = trace_model(session, settings, checkpoint, evalset, completions)
    measured = Measured(
        model,
        checkpoint,
        evalset,
        evaluation,
        rival,
        completions,
        None if echoes is None else artifact(echoes),
        None if contamination is None else artifact(contamination),
    )
    return measured, champion_figures(figures)


def _other_champion(
    session: Session, checkpoint: ArtifactRef, evalset: ArtifactRef, settings: EvaluationSettings
) -> tuple[tuple[str, ArtifactRef] | None, dict[str, float]]:
    """The champion, or of the champion itself the one before it, measured on the same documents."""
    if not session.home.has_tracking:
        return None, {}
    registry = Registry(session.resources.tracking, session.corpus)
    for alias, name in ((CHAMPION, "the champion"), (PREVIOUS, "the previous champion")):
        version = registry.by_alias(alias)
        if version is None or version.checkpoint.digest == checkpoint.digest:
            continue
        found = version_checkpoint(session, version)
        if trained_on(session.store, found, evalset):
            return None, {}
        evaluation, figures = pipeline.evaluate_model(session, found, evalset, settings)
        return (f"{name} (version {version.version})", artifact(evaluation)), figures
    return None, {}
