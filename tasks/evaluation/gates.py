"""Judging as a stage: the verdicts of the gates on a model beside a champion, kept with what they were judged by."""

from __future__ import annotations

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from tasks.core.stage import Work, stage
from tasks.evaluation.gate_definitions import judge
from tasks.evaluation.gate_facts import collect_facts
from tasks.evaluation.gate_settings import GateSettings
from tasks.evaluation.gate_verdicts import failed, write_verdicts


@stage("gates", version=2, keep_with=("checkpoint", "evaluation"))
def gates(
    work: Work,
    settings: GateSettings,
    *,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    champion: ArtifactRef | None = None,
    leaks: ArtifactRef | None = None,
    champion_that_knew: ArtifactRef | None = None,
) -> str:
    """Judge a model by its evaluation, and by the champion's where there is one to compare with.

    Args:
        champion: its evaluation on the same documents.
        champion_that_knew: its checkpoint instead, where it was trained on documents of the evaluation set.
    """
    knew = champion_that_knew is not None
    verdicts = judge(collect_facts(work.store, checkpoint, evaluation, champion, leaks, knew), settings)
    work.counts["rows"] = write_verdicts(work.out, verdicts)
    work.counts["failed"] = len(failed(verdicts))
    return sha256_json([item.document() for item in verdicts])
