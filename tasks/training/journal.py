"""The journal of a training: clock values, events and samples, which are no part of what it computes.

While the training runs, each is a line of JSON beside the checkpoints, so that a kill loses nothing that a checkpoint
covers. When it ends, they become two files of the artefact: `telemetry.parquet` (one point per metric and step) and
`journal.json` (the rest). Steps that are computed again after a kill, or after going back, are noted again; the last
note counts.
"""

from __future__ import annotations

import json
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storage.schemas import HISTORY
from storage.tables import write_columns

LINES_FILE = "journal.jsonl"
JOURNAL_FILE = "journal.json"
TELEMETRY_FILE = "telemetry.parquet"
FLUSH_SECONDS = 5.0
MOST_EVENTS = 1_000  # of the newest ones: a training that reports a spike at every step must not fill a page


@dataclass(frozen=True)
class Event:
    """Something that happened besides a step.

    Attributes:
        step: the step it belongs to.
        kind: one word, such as `resumed` or `spike`.
        message: what it was, in a sentence.
        at: seconds since 1970.
    """

    step: int
    kind: str
    message: str
    at: float


@dataclass(frozen=True)
class Sample:
    """A continuation that the network wrote while it was trained."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Start:
    """A start of the training; there are several where it was interrupted.

    Attributes:
        at: seconds since 1970.
        flops_per_token: what a token of training costs.
        limit: FLOP/s of the machine.
        limit_source: where that number comes from.
    """

    at: float
    flops_per_token: float
    limit: float
    limit_source: str


@dataclass
class Notes:
    """Content of a journal beside telemetry."""

    starts: list[Start] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


class Journal:
    """Writes the notes of a training as they come.

    Args:
        path: of the lines; what is there from before an interruption stays.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.notes = Notes()
        self._clock = clock
        path.parent.mkdir(parents=True, exist_ok=True)
        self._telemetry = _read(path, self.notes) if path.is_file() else {}
        self._known = bool(self._telemetry)
        self._file = path.open("a", encoding="utf-8")
        self._flushed = time.monotonic()

    def start(self, flops_per_token: float, limit: float, limit_source: str) -> None:
        """The training starts, or goes on."""
        self._note(self.notes.starts, Start(self._clock(), flops_per_token, limit, limit_source))

    def telemetry(self, step: int, values: Mapping[str, float]) -> None:
        """Clock values of a step."""
        if self._known:  # the first step since an interruption
            self._known = False
            self.event(step - 1, "resumed", _resumed_words(step))
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        _keep(self._telemetry, step, values)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def event(self, step: int, kind: str, message: str) -> bool:
        """Note an event; whether it was not noted before."""
        known = {(event.step, event.kind, event.message) for event in self.notes.events}
        # a training may be resumed twice at one step; all else is the same step computed again
        if kind != "resumed" and (step, kind, message) in known:
            return False
        self._note(self.notes.events, Event(step, kind, message, self._clock()))
        del self.notes.events[:-MOST_EVENTS]
        return True

    def sample(self, found: Sequence[Sample]) -> None:
        """Note samples of one step; those of an earlier computation of it make room."""
        steps = {sample.step for sample in found}
        self.notes.samples[:] = [sample for sample in self.notes.samples if sample.step not in steps]
        for sample in found:
            self._note(self.notes.samples, sample)

    def flush(self) -> None:
        """Make everything durable so far."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()

    def close(self) -> None:
        """End writing."""
        self._file.close()

    def points(self) -> Iterator[tuple[str, int, float]]:
        """Telemetry as points (metric, step, value)."""
        for metric, steps, values in _columns(self._telemetry):
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                yield metric, step, value

    def write(self, folder: Path) -> None:
        """Write the two files of the artefact."""
        columns = list(_columns(self._telemetry))
        table: dict[str, Any] = {
            "step": np.concatenate([np.empty(0, np.int64), *(steps for _, steps, _ in columns)]),
            "metric": [metric for metric, steps, _ in columns for _ in range(len(steps))],
            "value": np.concatenate([np.empty(0), *(values for _, _, values in columns)]),
        }
        write_columns(folder / TELEMETRY_FILE, HISTORY, table)
        text = json.dumps(asdict(self.notes), ensure_ascii=False, indent=1)
        (folder / JOURNAL_FILE).write_text(text, encoding="utf-8")

    def _note(self, notes: list[Any], note: Event | Sample | Start) -> None:
        notes.append(note)
        self._file.write(json.dumps({type(note).__name__.lower(): asdict(note)}) + "\n")
        self._file.flush()


def read_notes(folder: Path) -> Notes:
    """Starts, events and samples of a training's artefact; none where it was made without a journal."""
    path = folder / JOURNAL_FILE
    if not path.is_file():
        return Notes()
    record = json.loads(path.read_text(encoding="utf-8"))
    return Notes(
        [Start(**entry) for entry in record["starts"]],
        [Event(**entry) for entry in record["events"]],
        [Sample(**entry) for entry in record["samples"]],
    )


_Telemetry = dict[str, "array[float]"]  # of each metric the values by step from 1, NaN where there is none


def _keep(telemetry: _Telemetry, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        column = telemetry.setdefault(name, array("d"))
        if len(column) < step:
            column.extend([math.nan] * (step - len(column)))
        column[step - 1] = value


def _columns(telemetry: _Telemetry) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each metric with the steps at which it has a value, and these values."""
    for metric, column in sorted(telemetry.items()):
        values = np.array(column, np.float64)
        places = np.flatnonzero(~np.isnan(values))
        yield metric, places + 1, values[places]


def _read(path: Path, notes: Notes) -> _Telemetry:
    """Fill the notes from lines that were written before; a last line that a kill cut is cut off."""
    telemetry: _Telemetry = {}
    whole = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            _take(json.loads(line), notes, telemetry)
    with path.open("r+b") as file:
        file.truncate(whole)
    return telemetry


def _take(record: dict[str, Any], notes: Notes, telemetry: _Telemetry) -> None:
    if "start" in record:
        notes.starts.append(Start(**record["start"]))
    elif "event" in record:
        notes.events.append(Event(**record["event"]))
    elif "sample" in record:
        sample = Sample(**record["sample"])
        notes.samples[:] = [kept for kept in notes.samples if (kept.step, kept.prompt) != (sample.step, sample.prompt)]
        notes.samples.append(sample)
    else:
        _keep(telemetry, record.pop("step"), record)


def _resumed_words(step: int) -> str:
    return (
        "started anew: there was no checkpoint yet" if step == 1 else f"went on from the checkpoint of step {step - 1}"
    )
