"""What is known of a finished training, and what follows from it: the report's data, apart from how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tasks.training.journal import Notes, Sample, Start

WORSE = 0.01  # by which share above its lowest value a loss counts as risen again


@dataclass(frozen=True)
class Curve:
    """Values of one metric, in the order of their steps."""

    steps: Sequence[int] = ()
    values: Sequence[float] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def last(self) -> float:
        """The last value; NaN where there is none."""
        return self.values[-1] if self.values else math.nan

    @property
    def lowest(self) -> tuple[int, float]:
        """Step and value of the lowest finite value; the first of several; step 0 and NaN where there is none."""
        finite = [(value, step) for step, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)]
        if not finite:
            return 0, math.nan
        value, step = min(finite)
        return step, value


@dataclass(frozen=True)
class Epoch:
    """What one epoch of a training reads.

    Attributes:
        sequences: that are read.
        tokens: labels in them.
        documents: on the training side; None where nobody says.
    """

    sequences: int
    tokens: float
    documents: int | None


@dataclass(frozen=True)
class Ancestor:
    """Something that a training was made from.

    Attributes:
        name: what it was to the stage that read it, such as `dataset`.
        digest: of its contents.
        keys: of the artefacts behind it.
        page: file of its report beside this one; empty where there is none.
    """

    name: str
    stage: str
    digest: str
    keys: Sequence[str]
    page: str = ""


@dataclass(frozen=True)
class Cost:
    """The size of the network.

    Attributes:
        parameters: trainable ones.
        flops_per_token: of training, by the rule 6 N + 12 L n_head head_dim T.
    """

    parameters: int
    flops_per_token: float


@dataclass(frozen=True)
class TrainingFigures:
    """All that the report shows.

    Attributes:
        key, digest: of the training's artefact.
        created: when it was finished, ISO 8601.
        model, train: complete configurations.
        curves: by metric; telemetry among them.
        notes: starts, events and samples.
        tools: versions and device.
        modes: how random numbers and kernels were chosen.
        evaluation: figures on the whole evaluation set; empty where it was not measured.
    """

    key: str
    digest: str
    created: str
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    curves: Mapping[str, Curve]
    cost: Cost
    notes: Notes = field(default_factory=Notes)
    epoch: Epoch | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    ancestors: Sequence[Ancestor] = ()

    def curve(self, name: str) -> Curve:
        """A metric's curve; an empty one where it was not measured."""
        return self.curves.get(name, Curve())

    @property
    def loss(self) -> Curve:
        return self.curve("train/loss")

    @property
    def validation(self) -> Curve:
        return self.curve("val_sample/loss")

    @property
    def steps(self) -> int:
        """Optimiser steps that were done."""
        return self.loss.steps[-1] if self.loss else 0

    @property
    def planned(self) -> int:
        """Optimiser steps that were asked for."""
        return int(self.train.get("max_steps", self.steps))

    @property
    def ended_early(self) -> bool:
        """Whether it ended before its last step because the validation loss fell no further."""
        return self.steps < self.planned

    @property
    def tokens(self) -> int:
        """Labels trained on."""
        tokens = self.curve("tokens").last
        return int(tokens) if math.isfinite(tokens) else 0

    @property
    def sequences_per_step(self) -> int:
        return int(self.train.get("batch_size", 1)) * int(self.train.get("grad_accum", 1))

    @property
    def epochs(self) -> float | None:
        """How often the training split was read."""
        if self.epoch is None or not self.epoch.sequences:
            return None
        return self.steps * self.sequences_per_step / self.epoch.sequences

    @property
    def step_seconds(self) -> float:
        """Time of all steps, without evaluations, checkpoints and what was computed again."""
        return math.fsum(self.curve("time/step_seconds").values)

    @property
    def tokens_per_second(self) -> float:
        """Labels by the time of the steps whose time is known; NaN where none is."""
        seconds = self.step_seconds
        if not seconds:
            return math.nan
        known = set(self.curve("time/step_seconds").steps)
        done = self.curve("tokens")
        counts = zip(done.steps, (after - before for before, after in pairwise((0.0, *done.values))), strict=True)
        return math.fsum(count for step, count in counts if step in known) / seconds

    @property
    def last_start(self) -> Start | None:
        return self.notes.starts[-1] if self.notes.starts else None

    @property
    def share(self) -> float | None:
        """Of the machine's limit, over all steps; None where the limit or the time is not known."""
        start, rate = self.last_start, self.tokens_per_second
        if start is None or math.isnan(rate) or not start.limit:
            return None
        return rate * start.flops_per_token / start.limit

    @property
    def rises(self) -> float:
        """By which share the last validation loss lies above the lowest; 0 where there is none."""
        _, lowest = self.validation.lowest
        last = self.validation.last
        if math.isnan(lowest) or math.isnan(last) or lowest <= 0:
            return 0.0
        return last / lowest - 1

    @property
    def samples_by_prompt(self) -> dict[str, list[Sample]]:
        """Samples of each prompt, in the order of steps."""
        found: dict[str, list[Sample]] = {}
        for sample in sorted(self.notes.samples, key=lambda sample: sample.step):
            found.setdefault(sample.prompt, []).append(sample)
        return found
