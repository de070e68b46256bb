"""The page of a training: how the loss went, at what speed, what was written on the way, what it was made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from tasks.report.charts import Mark, Series, line_figure, smooth
from tasks.report.page import Notice, draw_page, notices_of
from tasks.report.queries import Row
from tasks.report.wording import cut, legible
from tasks.report.written import Outcome, Page
from tasks.tokens.index import read_record
from tasks.training.telemetry import TELEMETRY_FILE, Notes, Sample, Start, read_notes
from tasks.training.throughput import duration, flops_per_token

HISTORY_FILE = "history.parquet"
EVENTS = {  # what kinds of events are called; another kind is shown as it is
    "spike": "loss spike",
    "kernel": "attention kernel",
    "execution": "computed otherwise",
}
_SMOOTHED_FROM = 40  # values from which on a mean is drawn over them
_SAMPLES = 6  # of a prompt: the first and last, and others evenly between

Item = TypeVar("Item")


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
    def broken(self) -> bool:
        """True if a value is not finite."""
        return not all(map(math.isfinite, self.values))

    @property
    def lowest(self) -> tuple[int, float]:
        """Step and value of the lowest finite value; the first of several; step 0 and NaN where there is none."""
        finite = [(value, step) for step, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)]
        value, step = min(finite, default=(math.nan, 0))
        return step, value


@dataclass(frozen=True)
class TrainingFigures:
    """All that the page shows.

    Attributes:
        key, digest: of the training's artefact.
        model, train: complete configurations.
        curves: by metric; telemetry among them.
        parameters: trainable ones.
        flops_per_token: of training, by the rule 6 N + 12 L n_head head_dim T.
        notes: starts, events and samples.
        epoch: `sequences` that one epoch reads, `tokens` (labels) in them, and training `documents` (None where they
            are not recorded).
        tools: versions and device.
        modes: how random numbers and kernels were chosen.
        evaluation: figures on the whole evaluation set; empty where it was not measured.
    """

    key: str
    digest: str
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    parameters: int = 0
    flops_per_token: float = 0.0
    notes: Notes = field(default_factory=Notes)
    epoch: Row | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)

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
        """Optimiser steps that were asked for; fewer are done where the validation loss falls no further."""
        return int(self.train.get("max_steps", self.steps))

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
        """Passes over the training split; None if its length is unknown."""
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
        if not self.step_seconds:
            return math.nan
        known, done = set(self.curve("time/step_seconds").steps), self.curve("tokens")
        counts = zip(done.steps, (after - before for before, after in pairwise((0.0, *done.values))), strict=True)
        return math.fsum(count for step, count in counts if step in known) / self.step_seconds

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


# ---- reading


def collect_training(
    store: Store, training: ArtifactRef, evaluation: Mapping[str, float] | None = None
) -> TrainingFigures:
    """Read the figures of a training from its artefact and those it was made from.

    Args:
        training: the artefact.
        evaluation: figures on the whole evaluation set, where they are known.

    Raises:
        StoreError: if the training, or what it was made from, is gone.
    """
    from model.accounting import count_parameters
    from model.architecture import ModelConfig

    manifest, folder = manifest_of(store, training), store.folder(training)
    curves = _curves(folder / HISTORY_FILE)
    if (folder / TELEMETRY_FILE).is_file():
        curves |= _curves(folder / TELEMETRY_FILE)
    network = ModelConfig.from_dict(manifest.settings["model"])
    return TrainingFigures(
        key=training.key,
        digest=training.digest,
        model=manifest.settings["model"],
        train=manifest.settings["train"],
        curves=curves,
        parameters=count_parameters(network)["total"],
        flops_per_token=flops_per_token(network),
        notes=read_notes(folder),
        epoch=_epoch(store, manifest),
        tools=manifest.tools,
        modes=manifest.modes,
        evaluation=evaluation or {},
    )


def _curves(path: Path) -> dict[str, Curve]:
    """The curves of a table of (step, metric, value)."""
    lists = "list(step order by step, value), list(value order by step, value)"
    query = f"select metric, {lists} from read_parquet(?) group by 1"
    with duckdb.connect() as connection:
        rows = connection.execute(query, [str(path)]).fetchall()
    return {name: Curve(steps, values) for name, steps, values in rows}


def _epoch(store: Store, manifest: Manifest) -> Row:
    (dataset,) = manifest.input_refs("dataset")
    record = read_record(store.folder(dataset))
    groups = [group for group in record["groups"] if group["reads"]]
    tokens = sum(group["tokens"] * group["reads"] / group["count"] for group in groups)
    documents = record["splits"].get("train", {}).get("documents")
    return Row(sequences=sum(group["reads"] for group in groups), tokens=tokens, documents=documents)


# ---- the page and its summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's training."""
    run, training = outcome.run, outcome.made("train")
    if training is None:
        return None

    def draw() -> list[str]:
        return training_page(collect_training(run.store, training, outcome.metrics), run.corpus)

    drawn_from = [training.key, manifest_of(run.store, training).created, dict(sorted(outcome.metrics.items()))]
    return outcome.draw_once("training", f"Training of the model of {run.corpus}", drawn_from, draw)


def training_page(figures: TrainingFigures, corpus: str) -> list[str]:
    """Return the page, and its summary in Markdown.

    Args:
        corpus: its name.
    """
    marks = [
        Mark(event.step, cut(f"{event_name(event.kind)}: {event.message}", 120))
        for event in figures.notes.events
        if event.step > 0
    ]
    losses = [*_smoothed("training", figures.loss), _series("validation", figures.validation)]
    memory = {"resident": "memory/resident_mb", "GPU, highest so far": "memory/cuda_peak_mb"}
    used = [_series(name, figures.curve(metric)) for name, metric in memory.items() if figures.curve(metric)]
    rate = [_series("learning rate", figures.curve("lr"))]
    norm = _smoothed("norm", figures.curve("grad_norm"))
    speed = _smoothed("tokens/s", figures.curve("time/tokens_per_second"))
    samples: dict[str, list[Sample]] = {}
    for sample in sorted(figures.notes.samples, key=lambda sample: sample.step):
        samples.setdefault(sample.prompt, []).append(sample)
    return draw_page(
        "training.html",
        notices(figures),
        title=f"Corpus {corpus}: the training",
        figures=figures,
        duration=duration,
        loss_charts=[
            line_figure("curve-loss", "Loss", "nats a token", losses, marks, size="wide"),
            line_figure("curve-loss-log", "Loss, logarithmic", "nats a token", losses, marks, log=True, size="wide"),
        ],
        pace_charts=[
            line_figure("curve-lr", "Learning rate", "as the schedule sets it", rate, marks),
            line_figure("curve-gradient", "Gradient norm", "before clipping", norm, marks),
            line_figure("curve-speed", "Tokens per second", "labels by the time of a step", speed, marks),
            line_figure("curve-memory", "Memory", "MB of the process that trains", used, marks),
        ],
        samples={prompt: _spread(found, _SAMPLES) for prompt, found in samples.items()},
        events=sorted(figures.notes.events, key=lambda event: (event.step, event.at)),
        event_name=event_name,
        when=lambda event: datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        written=lambda value: value if isinstance(value, str) else json.dumps(value),
    )


def _series(name: str, curve: Curve) -> Series:
    return Series(name, curve.steps, curve.values)


def _smoothed(name: str, curve: Curve) -> list[Series]:
    """A curve, and where it is long its mean before it."""
    raw = _series(name, curve)
    if len(curve.steps) < _SMOOTHED_FROM:
        return [raw]
    return [
        raw._replace(name=f"{name}, each step", pale=True),
        smooth(raw, f"{name}, mean", max(5, len(curve.steps) // 100)),
    ]


def _spread(items: Sequence[Item], n: int) -> list[Item]:
    """At most so many items, evenly spread, the first and the last among them."""
    if len(items) <= n:
        return list(items)
    return [items[place] for place in sorted({round(number * (len(items) - 1) / (n - 1)) for number in range(n)})]


# ---- words


def event_name(kind: str) -> str:
    """A kind of event, for people."""
    return EVENTS.get(kind, legible(kind).replace("_", " "))


def notices(figures: TrainingFigures) -> list[Notice]:
    """Return what to look at first, the gravest first."""
    return notices_of("training_notices.html", figures=figures, event_name=event_name)
