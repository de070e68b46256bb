"""The stage `classifier`: learns good from bad texts by the user's examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.digest import sha256_file
from storage.manifest import ArtifactRef
from tasks.core.stage import Work, stage
from tasks.curate.classifier.examples import example_files, file_identities, read_examples, refuse_shared
from tasks.curate.classifier.training import train

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.curate.classifier.settings import ClassifierSettings

WEIGHTS_FILE = "weights.npy"
METRICS_FILE = "metrics.json"

logger = logging.getLogger("sheepfold")


@dataclass(frozen=True)
class ClassifierStageSettings:
    """Identity of the examples.

    Attributes:
        good, bad: how each file is read, and its digest; sorted.
    """

    good: tuple[str, ...]
    bad: tuple[str, ...]

    @classmethod
    def of(cls, good: Sequence[Path], bad: Sequence[Path]) -> ClassifierStageSettings:
        """What of the examples goes into the stage's key.

        Raises:
            ExamplesError: if one is not there, or is nothing that can be read.
        """
        return cls(file_identities("good", good), file_identities("bad", bad))


@stage("classifier", version=1, unkeyed=("good_files", "bad_files"))
def classifier(
    work: Work, settings: ClassifierStageSettings, *, good_files: ArtifactRef, bad_files: ArtifactRef
) -> str:
    """Learn good from bad texts by the user's examples, and measure how well that went."""
    good_paths, bad_paths = (work.files(ref) for ref in (good_files, bad_files))
    good, bad = read_examples("good", good_paths), read_examples("bad", bad_paths)
    refuse_shared(good, bad)
    trained = train(good.texts, bad.texts, lambda done, total: work.progress.update(done, total, "fits"))
    counts = {
        f"{side}_{name}": value
        for side, found in (("good", good), ("bad", bad))
        for name, value in (
            ("examples", len(found.texts)),
            ("repeated", found.repeated),
            ("empty", found.empty),
            ("left_out", found.left_out),
        )
    }
    metrics = {**trained.metrics, **counts}
    np.save(work.out / WEIGHTS_FILE, trained.weights, allow_pickle=False)
    text = json.dumps(metrics, indent=1, sort_keys=True, allow_nan=False)
    (work.out / METRICS_FILE).write_text(text + "\n", encoding="utf-8")
    if metrics["note"]:
        logger.warning("%s", metrics["note"])
    work.counts.update(counts)
    work.counts["rows"] = len(good.texts) + len(bad.texts)
    work.counts["weak"] = int(bool(metrics["note"]))
    # of the weights alone: an example given twice alters a count, but no score
    return sha256_file(work.out / WEIGHTS_FILE)


def trained_classifier(run: Run, examples: ClassifierSettings) -> ArtifactRef | None:
    """Return the classifier that a user's own examples train; None without examples.

    Raises:
        ExamplesError: if one is not there, or is nothing that can be read.
    """
    if not examples.wanted:
        return None
    sides = {"good": examples.good_paths, "bad": examples.bad_paths}
    ClassifierStageSettings.of(**sides)  # names a path that is not there
    added = {
        side: run.add(
            "classifier_examples",
            {f"{number:04}/{file.name}": file for number, file in enumerate(example_files(side, paths))},
        )
        for side, paths in sides.items()
    }
    asked = ClassifierStageSettings.of(**{side: copies for side, (_, copies) in added.items()})
    return classifier(run, asked, good_files=added["good"][0], bad_files=added["bad"][0])
