"""Everything that looks on while a training runs: the bar, the curve in MLflow, the journal, samples, system metrics.

It is told what the trainer tells (`metrics`, `checkpoint`, `progress`, `event`, `sample`), and changes nothing of it.
A point takes MLflow about 0.1 ms, in which a small network trains on a token or two. So it gets losses, learning rates
and gradient norms of every step, and of the clock values, all of which the journal keeps, one in a second.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.tables import stream_rows
from storage.tracking import PointBuffer
from tasks.training.journal import LINES_FILE, TELEMETRY_FILE, Journal, Sample, read_notes
from tasks.training.throughput import Speedometer, flops_per_token, limit_of, memory

if TYPE_CHECKING:
    from model.architecture import ModelConfig
    from storage.tracking import Tracking
    from tasks.core.progress import StageProgress
    from tasks.training.samples import Sampler

logger = logging.getLogger("sheepfold")

SAMPLES_FILE = "samples.json"
CLOCK_VALUES = ("time/", "memory/")  # metrics that equal runs do not share; they are no part of the history
STEP_SECONDS = "time/step_seconds"
CURVE_SECONDS = 10.0  # between two writes of the curve to MLflow
CLOCK_PAUSE = 1.0  # seconds of steps between two of which MLflow gets the clock values
_SHOWN = 160  # characters of a sample in the log
_QUIET = ("resumed", "kernel", "early stop")  # events that are no warnings


class ClockSteps:
    """Says of which steps MLflow gets the clock values: the first one, and then one in `CLOCK_PAUSE` of their time."""

    def __init__(self) -> None:
        self._since = math.inf

    def takes(self, seconds: float) -> bool:
        """Return True if the next step, which took so long, is one of them."""
        self._since += seconds
        if self._since < CLOCK_PAUSE:
            return False
        self._since = 0.0
        return True


class Watch:
    """Looks on at one training.

    Args:
        scratch: a folder that survives a kill.
        tracking: where the curve goes.
        run_id: the training's run.
        progress: the bar.
        network: shape of the network.
        device: `cpu` or `cuda`.
        precision: of the training.
        sampler: draws samples; None draws none.
        processes: that train together.
    """

    def __init__(
        self,
        scratch: Path,
        tracking: Tracking,
        run_id: str,
        progress: StageProgress,
        network: ModelConfig,
        *,
        device: str = "cpu",
        precision: str = "fp32",
        sampler: Sampler | None = None,
        processes: int = 1,
    ) -> None:
        self._tracking = tracking
        self._run_id = run_id
        self._progress = progress
        self._device = device
        self._sampler = sampler
        self._points = PointBuffer(tracking, run_id, CURVE_SECONDS)
        self._clock_steps = ClockSteps()
        self._journal = Journal(scratch / LINES_FILE)
        cost, limit = flops_per_token(network), limit_of(device, precision)
        self._speed = Speedometer(cost / processes, limit)
        self._journal.start(cost / processes, limit.flops, limit.source)
        self._validation = ""
        self._told = False
        self._open = ExitStack()
        self._open.callback(self._journal.close)
        self._open.enter_context(tracking.system_metrics(run_id))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step, under the names of the curve."""
        if "memory/resident_mb" not in values:  # whoever trains in another process knows it better
            values = {**values, **memory(self._device)}
        clock = {name: value for name, value in values.items() if name.startswith(CLOCK_VALUES)}
        self._journal.telemetry(step, clock)
        left_out = {"step"}  # which is what the curve is drawn over
        if not self._clock_steps.takes(values.get(STEP_SECONDS, CLOCK_PAUSE)):
            left_out |= clock.keys()
        self._points.add(step, {name: value for name, value in values.items() if name not in left_out})

    def checkpoint(self, step: int) -> None:
        """A checkpoint of this step becomes visible now: what the artefact will hold of it is made durable before.

        MLflow's curve is not hurried: what a kill takes of it, at most what came since it was written last, comes from
        the artefact in the end (`sync_run`).
        """
        self._journal.flush()

    def progress(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        pace = self._speed.pace(step, total, metrics.get("tokens", 0))
        if "val/loss" in metrics:
            self._validation = f" val {metrics['val/loss']:.3f}"
        words = pace.words()
        note = f"loss {metrics['train/loss']:.3f}" if "train/loss" in metrics else ""
        self._progress.update(step, total, f"{note}{self._validation}{', ' if words else ''}{words}")

    def event(self, step: int, kind: str, message: str) -> None:
        """Something happened besides a step; the same of a step that is computed again is told only once."""
        if self._journal.event(step, kind, message):
            level = logging.INFO if kind in _QUIET else logging.WARNING
            logger.log(level, "train: step %d: %s: %s", step, kind, message)

    def sample(self, step: int, model: Any) -> None:
        """Let the network write something, if there is time for it."""
        if self._sampler is not None:
            self._keep(self._sampler.draw(model, step))

    def finish(self, model: Any, step: int) -> None:
        """The training is over: its last words, and everything to MLflow."""
        if self._sampler is not None and not any(sample.step == step for sample in self._journal.notes.samples):
            self._keep(self._sampler.draw(model, step, last=True))
        self._points.flush()

    def end(self, status: str) -> None:
        """Write the curve so far to MLflow and mark the run as FAILED, or as KILLED if it is to be resumed."""
        self._points.end(status)

    def close(self) -> None:
        """Look on no more."""
        self._open.close()

    def write(self, folder: Path) -> None:
        """Write what was noted into the artefact."""
        self._journal.write(folder)

    def _keep(self, found: Sequence[Sample]) -> None:
        from mlflow.exceptions import MlflowException

        if not found:
            return
        self._journal.sample(found)
        for sample in found:
            # it begins like a document: for the terminal alone, not for Prefect's database
            logger.info("train: step %d writes: %s", sample.step, _line(sample), extra={"send_to_api": False})
        try:
            _log_samples(self._tracking, self._run_id, self._journal.notes.samples)
        except MlflowException as error:
            if not self._told:
                logger.warning("MLflow does not take the samples (%s); they are completed later", error)
            self._told = True


def sync_journal(tracking: Tracking, run_id: str, folder: Path) -> list[tuple[str, int, float]]:
    """Make MLflow hold the samples of a finished training; returns those points of its telemetry that belong there.

    Args:
        folder: the training's artefact.
    """
    samples = read_notes(folder).samples
    if samples and not tracking.has_file(run_id, SAMPLES_FILE):
        _log_samples(tracking, run_id, samples)
    path = folder / TELEMETRY_FILE
    if not path.is_file():
        return []
    points = [(row["metric"], row["step"], row["value"]) for row in stream_rows(path)]
    steps = _clock_steps((step, value) for metric, step, value in points if metric == STEP_SECONDS)
    return [point for point in points if point[1] in steps]


def _clock_steps(timed: Iterable[tuple[int, float]]) -> set[int]:
    """Of steps and their seconds, in their order, those of which MLflow gets the clock values; the last is one."""
    chosen, found, step = ClockSteps(), set(), 0
    for step, seconds in timed:
        if chosen.takes(seconds):
            found.add(step)
    return found | {step}


def sync_samples(tracking: Tracking, run_id: str, folder: Path) -> None:
    """Make MLflow hold the samples that a training's artefact has, and no others."""
    _log_samples(tracking, run_id, read_notes(folder).samples)


def _log_samples(tracking: Tracking, run_id: str, samples: Sequence[Sample]) -> None:
    columns = ["step", "prompt", "text"]
    tracking.log_table(run_id, SAMPLES_FILE, columns, [[item.step, item.prompt, item.text] for item in samples])


def _line(sample: Sample) -> str:
    """A sample in one line that no character of it can break or turn around."""
    text = f"{sample.prompt} | {sample.text}"
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
