"""The page of a training: how the loss went, at what speed, what was written on the way, what it was made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import duckdb
from markupsafe import Markup

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from tasks.report.charts import Mark, Series, line_figure, line_picture
from tasks.report.page import Notice, Outcome, Page, draw_page, notices_of
from tasks.report.queries import Row
from tasks.report.wording import cut, legible
from tasks.tokens.index import read_record
from tasks.training.telemetry import TELEMETRY_FILE, Sample, read_notes
from tasks.training.throughput import duration, flops_per_token
from tasks.training.train import HISTORY_FILE

EVENTS = {  # what kinds of events are called; another kind is shown as it is
    "spike": "loss spike",
    "execution": "computed otherwise",
}
_SMOOTHED_FROM = 40  # values from which on a mean is drawn over them
_SAMPLES = 6  # of a prompt: the first and last, and others evenly between


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


# ---- reading


def collect_training(store: Store, training: ArtifactRef, evaluation: Mapping[str, float] | None = None) -> Row:
    """Read the figures of a training from its artefact and those it was made from.

    Args:
        evaluation: figures on the whole evaluation set, where they are known.

    Returns:
        `key` of the artefact; `model` and `train`, complete configurations; `curves` by metric, telemetry
        among them; `parameters`; `flops_per_token` of training, by the rule 6 N + 12 L n_head head_dim T; `notes`
        (starts, events, samples); `epoch`, the `sequences` that one reads, `tokens` (labels) in them, and training
        `documents`; `tools` (versions and device); `modes` (of random numbers and kernels); `evaluation`.

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
    return Row(
        key=training.key,
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


def derived(found: Row) -> Row:
    """Return what follows from the figures of a training.

    Returns:
        `loss` and `validation` (curves); `steps` that were done, and `planned` (fewer are done where the validation
        loss falls no further); `tokens`, labels trained on; `sequences_per_step`; `epochs`, passes over the training
        split; `step_seconds`, without evaluations, checkpoints and what was computed again; `tokens_per_second` of the
        steps whose time is known; `start`, the last one; `mfu`, the share of the machine's limit. None, or NaN in place
        of a number, stands for what is not known.
    """
    loss, seconds, done = (found.curves.get(name, Curve()) for name in ("train/loss", "time/step_seconds", "tokens"))
    steps = loss.steps[-1] if loss else 0
    per_step = int(found.train.get("batch_size", 1)) * int(found.train.get("grad_accum", 1))
    step_seconds, speed = math.fsum(seconds.values), math.nan
    if step_seconds:
        known = set(seconds.steps)
        counts = zip(done.steps, (after - before for before, after in pairwise((0.0, *done.values))), strict=True)
        speed = math.fsum(count for step, count in counts if step in known) / step_seconds
    start = found.notes.starts[-1] if found.notes.starts else None
    return Row(
        loss=loss,
        validation=found.curves.get("val_sample/loss", Curve()),
        steps=steps,
        planned=int(found.train.get("max_steps", steps)),
        tokens=int(done.last) if math.isfinite(done.last) else 0,
        sequences_per_step=per_step,
        epochs=steps * per_step / found.epoch.sequences if found.epoch and found.epoch.sequences else None,
        step_seconds=step_seconds,
        tokens_per_second=speed,
        start=start,
        mfu=speed * start.flops_per_token / start.limit if start and start.limit and speed == speed else None,
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


def training_pictures(found: Row) -> dict[str, Markup]:
    """Return loss, learning rate and gradient norm of what `collect_training` returns as SVG documents by name."""
    return {
        "loss": line_picture("Loss", "nats a token", _losses(found)),
        "learning-rate": line_picture("Learning rate", "as the schedule sets it", [_series(found, "rate", "lr")]),
        "gradient": line_picture(
            "Gradient norm", "before clipping; and its mean", _smoothed(_series(found, "norm", "grad_norm"))
        ),
    }


def _series(found: Row, name: str, metric: str) -> Series:
    curve = found.curves.get(metric, Curve())
    return Series(name, curve.steps, curve.values)


def _losses(found: Row) -> list[Series]:
    return [
        *_smoothed(_series(found, "training", "train/loss")),
        _series(found, "validation", "val_sample/loss"),
    ]


def training_page(found: Row, corpus: str) -> list[str]:
    """Return the page of what `collect_training` returns, and its summary in Markdown."""
    marks = [
        Mark(event.step, cut(f"{event_name(event.kind)}: {event.message}", 120))
        for event in found.notes.events
        if event.step > 0
    ]
    figures = derived(found)
    losses = _losses(found)
    memory = {"resident": "memory/resident_mb", "GPU, highest so far": "memory/cuda_peak_mb"}
    used = [_series(found, name, metric) for name, metric in memory.items() if metric in found.curves]
    rate = [_series(found, "learning rate", "lr")]
    norm = _smoothed(_series(found, "norm", "grad_norm"))
    speed = _smoothed(_series(found, "tokens/s", "time/tokens_per_second"))
    samples: dict[str, list[Sample]] = {}
    for sample in sorted(found.notes.samples, key=lambda sample: sample.step):
        samples.setdefault(sample.prompt, []).append(sample)
    return draw_page(
        "training.html",
        notices(found),
        title=f"Corpus {corpus}: the training",
        duration=duration,
        charts=[
            line_figure("curve-loss", "Loss", "nats a token", losses, marks, size="wide"),
            line_figure("curve-lr", "Learning rate", "as the schedule sets it", rate, marks),
            line_figure("curve-gradient", "Gradient norm", "before clipping", norm, marks),
            line_figure("curve-speed", "Tokens per second", "labels by the time of a step", speed, marks),
            line_figure("curve-memory", "Memory", "MB of the process that trains", used, marks),
        ],
        samples={prompt: _spread(drawn) for prompt, drawn in samples.items()},
        event_name=event_name,
        when=lambda event: datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        written=lambda value: value if isinstance(value, str) else json.dumps(value),
        **vars(found),
        **vars(figures),
    )


def _smoothed(raw: Series) -> list[Series]:
    """A curve, and where it is long its unbiased exponential moving average before it, which passes over gaps."""
    if len(raw.steps) < _SMOOTHED_FROM:
        return [raw]
    keep = 1 - 2 / (max(5, len(raw.steps) // 100) + 1)
    mean, weight, values = 0.0, 0.0, []
    for value in raw.values:
        if math.isfinite(value):
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        values.append(mean / weight if weight else math.nan)
    each_step = replace(raw, name=f"{raw.name}, each step", pale=True)
    return [each_step, Series(f"{raw.name}, mean", raw.steps, values)]


def _spread(samples: list[Sample]) -> list[Sample]:
    """At most so many as are shown, evenly spread, the first and the last among them."""
    if len(samples) <= _SAMPLES:
        return samples
    last = len(samples) - 1
    return [samples[place] for place in sorted({round(n * last / (_SAMPLES - 1)) for n in range(_SAMPLES)})]


# ---- words


def event_name(kind: str) -> str:
    """A kind of event, for people."""
    return EVENTS.get(kind, legible(kind).replace("_", " "))


def notices(found: Row) -> list[Notice]:
    """Return what to look at first, the gravest first."""
    return notices_of("training_notices.html", event_name=event_name, **vars(found), **vars(derived(found)))
