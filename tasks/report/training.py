"""The page of a training: loss, learning rate, gradient, speed, memory, samples, events and settings."""

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

from model.budget import STEPS as PLANNED
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
from tasks.training.train import HISTORY_FILE, REPLAY_MODE

EVENTS = {  # titles of kinds of events; other kinds are shown by their names
    "spike": "loss spike",
    "execution": "changed execution",
    "replay": "no curve of forgetting",
}
_SMOOTHED_FROM = 40  # fewest values of a curve with a mean
_SAMPLES = 6  # most samples per prompt


@dataclass(frozen=True)
class Curve:
    """Values of one metric, ascending by step."""

    steps: Sequence[int] = ()
    values: Sequence[float] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def last(self) -> float:
        """The last value; NaN if empty."""
        return self.values[-1] if self.values else math.nan

    @property
    def broken(self) -> bool:
        """True if a value is not finite."""
        return not all(map(math.isfinite, self.values))

    @property
    def lowest(self) -> tuple[int, float]:
        """Step and value of the lowest finite value, the first of several; step 0 and NaN if there is none."""
        finite = [(value, step) for step, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)]
        value, step = min(finite, default=(math.nan, 0))
        return step, value


# reading


def collect_training(store: Store, training: ArtifactRef, evaluation: Mapping[str, float] | None = None) -> Row:
    """Read the figures of a training from its artefact and its inputs.

    Args:
        evaluation: metrics on the whole evaluation set, if known.

    Returns:
        `key` of the artefact; `model` and `train`, complete configurations; `curves` by metric, including telemetry;
        `parameters`; `flops_per_token` of training, 6 N + 12 L n_head head_dim T; `notes` (starts, events, samples);
        `epoch`, with the `sequences` read, their `tokens` (labels), and training `documents`; `tools` (versions and
        device); `modes` (of random numbers and kernels); `evaluation`.

    Raises:
        StoreError: the training or one of its inputs is missing.
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
    """Compute further figures from those of a training.

    Returns:
        `loss` and `validation` (curves); `steps` done, and `planned` (more after early stopping); `tokens`, labels
        trained on; `sequences_per_step`; `epochs`, passes over the training split; `step_seconds`, without
        evaluations, checkpoints and repeated steps; `tokens_per_second` of the steps with a known time; `start`, the
        last one; `mfu`, 0 to 1; `forgetting`, see `_forgetting`. Unknown values are None, or NaN for floats.
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
    validation = found.curves.get("val_sample/loss", Curve())
    planned = found.curves.get(PLANNED) or Curve([0], [found.train.get("max_steps", steps)])  # the last plan
    return Row(
        loss=loss,
        validation=validation,
        forgetting=_forgetting(found, validation.lowest[0] if found.train.get("patience") else steps),
        steps=steps,
        planned=int(planned.last),
        tokens=int(done.last) if math.isfinite(done.last) else 0,
        sequences_per_step=per_step,
        epochs=steps * per_step / found.epoch.sequences if found.epoch and found.epoch.sequences else None,
        step_seconds=step_seconds,
        tokens_per_second=speed,
        start=start,
        mfu=speed * start.flops_per_token / start.limit if start and start.limit and speed == speed else None,
    )


def _forgetting(found: Row, step: int) -> Row | None:
    """Return bits per byte of the base and of the model on the replay set and on the rest of the validation sample.

    Args:
        step: the step whose weights the model has.

    Returns:
        `name` of the replay set; `replay` and `own`, a pair each. None if they were not measured, or if the validation
        sequences changed during the training.
    """
    pairs = []
    for name in ("replay", "own"):
        curve = found.curves.get(f"val_sample/{name}_bits_per_byte", Curve())
        values = dict(zip(curve.steps, curve.values, strict=True))
        pairs.append((values.get(0), values.get(step)))
    if None in (*pairs[0], *pairs[1]) or "val_sample/source_changed" in found.curves:
        return None
    return Row(name=found.modes[REPLAY_MODE], replay=pairs[0], own=pairs[1])


def _curves(path: Path) -> dict[str, Curve]:
    """Read the curves of a table of (step, metric, value)."""
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


# page and summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's training; returns None without one."""
    run, training = outcome.run, outcome.made("train")
    if training is None:
        return None

    def draw() -> list[str]:
        return training_page(collect_training(run.store, training, outcome.metrics), run.corpus)

    drawn_from = [training.key, manifest_of(run.store, training).created, dict(sorted(outcome.metrics.items()))]
    return outcome.draw_once("training", f"Training of the model of {run.corpus}", drawn_from, draw)


def training_pictures(found: Row) -> dict[str, Markup]:
    """Return charts of loss, learning rate and gradient norm as SVG documents by name."""
    return {
        "loss": line_picture("Loss", "nats per token", _losses(found)),
        "learning-rate": line_picture("Learning rate", "set by the schedule", [_series(found, "rate", "lr")]),
        "gradient": line_picture(
            "Gradient norm", "before clipping, with its moving average", _smoothed(_series(found, "norm", "grad_norm"))
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
    """Return the page and its Markdown summary from the result of `collect_training`."""
    marks = [
        Mark(event.step, cut(f"{event_name(event.kind)}: {event.message}", 120))
        for event in found.notes.events
        if event.step > 0
    ]
    figures = derived(found)
    losses = _losses(found)
    bits = [_series(found, name, f"val_sample/{name}_bits_per_byte") for name in ("replay", "own")]
    memory = {"resident": "memory/resident_mb", "GPU, peak": "memory/cuda_peak_mb"}
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
        title=f"Corpus {corpus}: training",
        duration=duration,
        charts=[
            line_figure("curve-loss", "Training and validation loss", "nats per token", losses, marks, size="wide"),
            line_figure("curve-lr", "Learning rate", "set by the schedule", rate, marks),
            line_figure("curve-gradient", "Gradient norm", "before clipping", norm, marks),
            line_figure("curve-speed", "Tokens per second", "labels per second of step time", speed, marks),
            line_figure("curve-memory", "Memory", "MB, of the training process", used, marks),
        ],
        kept_chart=line_figure(
            "curve-kept", "Forgetting", "bits per byte of the replay set and of the rest", bits, marks, size="wide"
        )
        if bits[0].steps
        else "",
        samples={prompt: _spread(drawn) for prompt, drawn in samples.items()},
        event_name=event_name,
        when=lambda event: datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        written=lambda value: value if isinstance(value, str) else json.dumps(value),
        **vars(found),
        **vars(figures),
    )


def _smoothed(raw: Series) -> list[Series]:
    """Return a curve, and if it is long its bias-corrected exponential moving average, which skips gaps."""
    if len(raw.steps) < _SMOOTHED_FROM:
        return [raw]
    keep = 1 - 2 / (max(5, len(raw.steps) // 100) + 1)
    mean, weight, values = 0.0, 0.0, []
    for value in raw.values:
        if math.isfinite(value):
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        values.append(mean / weight if weight else math.nan)
    each_step = replace(raw, name=f"{raw.name}, each step", pale=True)
    return [each_step, Series(f"{raw.name}, moving average", raw.steps, values)]


def _spread(samples: list[Sample]) -> list[Sample]:
    """Choose at most `_SAMPLES` samples at even distances, including the first and the last."""
    if len(samples) <= _SAMPLES:
        return samples
    last = len(samples) - 1
    return [samples[place] for place in sorted({round(n * last / (_SAMPLES - 1)) for n in range(_SAMPLES)})]


# names and notices


def event_name(kind: str) -> str:
    """Return the title of a kind of event."""
    return EVENTS.get(kind, legible(kind).replace("_", " "))


def notices(found: Row) -> list[Notice]:
    """Return the notices of the page, most severe first."""
    return notices_of("training_notices.html", event_name=event_name, **vars(found), **vars(derived(found)))
