"""Verdicts made by hand, with hostile words in every place."""

from __future__ import annotations

import math

from evaluation_report_samples import CHECKPOINT, HOSTILE, pair

from storage.registry import ModelVersion
from tasks.evaluation.gates import GATES, Verdict
from tasks.report.queries import Row


def version(number: str, tags: dict[str, str]) -> ModelVersion:
    return ModelVersion("sheepfold", number, "", CHECKPOINT, tags, ())


def rich() -> Row:
    """A version that two gates hold back, beside a champion, after others."""
    verdicts = [Verdict(gate.name, "passed", 0.25, 0.5, f"{gate.title} {HOSTILE}") for gate in GATES]
    verdicts[4] = Verdict("bits_per_byte", "failed", math.inf, 0.0, "2.1 bits per byte are not fewer than 2.0")
    verdicts[5] = Verdict("worst_slice", "failed", 0.1, 0.05, f"source {HOSTILE} is 10.0% worse")
    verdicts[6] = Verdict("size_mb", "skipped", 12.5, None, "the weights take 12.5 MB; no limit is set")
    tags = {"sheepfold.bits_per_byte": "2.100000", "sheepfold.gates": "failed: worst_slice"}
    versions = [
        version("1", {**tags, "sheepfold.withdrawn": f"it swears {HOSTILE}"}),
        version("2", {"sheepfold.gates": "passed"}),
        version("3", {**tags, "sheepfold.verdict": f"source {HOSTILE} is worse"}),
    ]
    names = {"champion": "2", "challenger": "3"}
    return Row(version="3", verdicts=verdicts, comparison=pair().comparison, versions=versions, names=names)


def bare() -> Row:
    """The first version, with no champion to compare with and no name."""
    verdicts = [Verdict(gate.name, "skipped", None, None, "nothing is known") for gate in GATES]
    return Row(version="1", verdicts=verdicts, comparison=None, versions=[version("1", {})], names={})
