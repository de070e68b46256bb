"""Telemetry of a training: the progress bar, the curve in MLflow, system metrics, the journal and samples of text.

It receives the trainer's callbacks and changes nothing of the training. While that runs, clock values, events and
samples are lines of JSON beside the checkpoints, so that a kill loses nothing that a checkpoint covers. When it ends,
they become two files of the artefact: `telemetry.parquet` (one point per metric and step) and `journal.json` (the
rest). Steps that are computed again after a kill, or after going back, are noted again; the last note counts.

A point takes MLflow about 0.1 ms, in which a small network trains on a token or two. So it gets losses, learning rates
and gradient norms of every step, and of the clock values, all of which the journal keeps, one in a second.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from model.callbacks import Callbacks
from storage.schemas import HISTORY, SHARD_FILE, TOKENS_FILE
from storage.tables import read_columns, stream_rows, write_columns
from storage.tracking import PointBuffer
from tasks.training.throughput import Speedometer, flops_per_token, limit_of, memory

if TYPE_CHECKING:
    from model.architecture import ModelConfig
    from storage.tracking import Tracking
    from tasks.core.stage import Work
    from tasks.tokens.index import Index
    from tasks.tokens.tokenizer_kinds import Tokenizer

logger = logging.getLogger("sheepfold")

LINES_FILE = "journal.jsonl"
JOURNAL_FILE = "journal.json"
TELEMETRY_FILE = "telemetry.parquet"
SAMPLES_FILE = "samples.json"
FLUSH_SECONDS = 5.0
MOST_EVENTS = 1_000  # of the newest ones: a training that reports a spike at every step must not fill a page

CLOCK_VALUES = ("time/", "memory/")  # metrics that equal runs do not share; they are no part of the history
STEP_SECONDS = "time/step_seconds"
CURVE_SECONDS = 10.0  # between two writes of the curve to MLflow
CLOCK_PAUSE = 1.0  # seconds of steps between two of which MLflow gets the clock values
_SHOWN = 160  # characters of a sample in the log
_QUIET = ("resumed", "early stop")  # events that are no warnings

N_PROMPTS = 2
PROMPT_CHARACTERS = 48
MOST_PROMPT_IDS = 48
NEW_TOKENS = 64
TEMPERATURE = 0.6  # greedy text soon repeats itself
SHARE_OF_TIME = 0.003  # of the training's, at most; the sample of the last step is always drawn
_TRIES = 200  # pieces that are searched for beginnings of documents


# ---- the journal


@dataclass(frozen=True)
class Event:
    """Something that happened besides a step."""

    step: int
    kind: str  # one word, such as `resumed` or `spike`
    message: str  # a sentence
    at: float  # seconds since 1970


@dataclass(frozen=True)
class Sample:
    """A continuation that the network wrote while it was trained."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Start:
    """A start of the training; there are several where it was interrupted."""

    at: float  # seconds since 1970
    flops_per_token: float
    limit: float  # FLOP/s of the machine
    limit_source: str  # where that number comes from


@dataclass
class Notes:
    """Content of a journal besides the clock values."""

    starts: list[Start] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


class Journal:
    """Write the notes of a training as they come.

    Args:
        path: file of the lines; those from before an interruption stay.
        clock: returns seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.notes = Notes()
        self._clock = clock
        path.parent.mkdir(parents=True, exist_ok=True)
        self._telemetry: dict[str, array[float]] = {}  # of each metric the values by step from 1, NaN for none
        if path.is_file():
            self._read()
        self._known = bool(self._telemetry)
        self._file = path.open("a", encoding="utf-8")
        self._flushed = time.monotonic()

    def start(self, flops_per_token: float, limit: float, limit_source: str) -> None:
        """Note that the training starts or is resumed."""
        self._note(self.notes.starts, Start(self._clock(), flops_per_token, limit, limit_source))

    def telemetry(self, step: int, values: Mapping[str, float]) -> bool:
        """Note the clock values of a step; returns True for the first step since an interruption."""
        interrupted, self._known = self._known, False
        if interrupted:
            resumed = f"went on from the checkpoint of step {step - 1}"
            self.event(step - 1, "resumed", "started anew: there was no checkpoint yet" if step == 1 else resumed)
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._keep(step, values)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()
        return interrupted

    def event(self, step: int, kind: str, message: str) -> bool:
        """Note an event; returns False if it was noted before."""
        known = ((event.step, event.kind, event.message) for event in self.notes.events)
        # a training may be resumed twice at one step; all else is the same step computed again
        if kind != "resumed" and (step, kind, message) in known:
            return False
        self._note(self.notes.events, Event(step, kind, message, self._clock()))
        del self.notes.events[:-MOST_EVENTS]
        return True

    def sample(self, found: Sequence[Sample]) -> None:
        """Note the samples of one step in place of those of an earlier computation of it."""
        steps = {sample.step for sample in found}
        self.notes.samples[:] = [sample for sample in self.notes.samples if sample.step not in steps]
        for sample in found:
            self._note(self.notes.samples, sample)

    def flush(self) -> None:
        """Make everything durable that was noted so far."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, folder: Path) -> None:
        """Write the two files of the artefact."""
        steps, metrics, values = [np.empty(0, np.int64)], list[str](), [np.empty(0)]
        for metric, column in sorted(self._telemetry.items()):
            found = np.array(column, np.float64)
            places = np.flatnonzero(~np.isnan(found))
            steps.append(places + 1)
            metrics += [metric] * len(places)
            values.append(found[places])
        table: dict[str, Any] = {"step": np.concatenate(steps), "metric": metrics, "value": np.concatenate(values)}
        write_columns(folder / TELEMETRY_FILE, HISTORY, table)
        text = json.dumps(asdict(self.notes), ensure_ascii=False, indent=1)
        (folder / JOURNAL_FILE).write_text(text, encoding="utf-8")

    def _note(self, notes: list[Any], note: Event | Sample | Start) -> None:
        notes.append(note)
        self._file.write(json.dumps({type(note).__name__.lower(): asdict(note)}) + "\n")
        self._file.flush()

    def _keep(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            column = self._telemetry.setdefault(name, array("d"))
            column.extend([math.nan] * (step - len(column)))
            column[step - 1] = value

    def _read(self) -> None:
        """Take in the lines that were written before; a last line that a kill cut is cut off."""
        notes, whole = self.notes, 0
        with self.path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                record: dict[str, Any] = json.loads(line)
                match record:
                    case {"start": start}:
                        notes.starts.append(Start(**start))
                    case {"event": event}:
                        notes.events.append(Event(**event))
                    case {"sample": sample}:
                        place = (sample["step"], sample["prompt"])
                        notes.samples[:] = [kept for kept in notes.samples if (kept.step, kept.prompt) != place]
                        notes.samples.append(Sample(**sample))
                    case {"step": step, **values}:
                        self._keep(step, values)
            file.truncate(whole)


def read_notes(folder: Path) -> Notes:
    """Return starts, events and samples of a training's artefact; none if it was made without a journal."""
    path = folder / JOURNAL_FILE
    return TypeAdapter(Notes).validate_json(path.read_bytes()) if path.is_file() else Notes()


# ---- samples


def first_ids(index: Index, folders: Mapping[str, Path], tokenizer: Tokenizer, context: int) -> list[list[int]]:
    """Return the beginnings of a few training documents as prompts, the same for the same dataset.

    None is held out: samples that people look at shape decisions, and those must not be made on validation text.

    Args:
        index: sequences of the training split.
        folders: folders of the token shards, by key.
        context: longest input of the network; a prompt takes half of it at most.
    """
    from model.data import order

    n = len(index.shard)
    if not n:
        return []
    begins: dict[int, np.ndarray] = {}  # of the documents of each shard
    found: list[list[int]] = []
    for place in order(n, seed=0, epoch=0)[:_TRIES].tolist():
        shard, start = int(index.shard[place]), int(index.start[place])
        folder = folders[index.shards[shard]]
        if shard not in begins:
            begins[shard] = np.array(read_columns(folder / TOKENS_FILE, ["offset"])["offset"], np.int64)
        if start not in begins[shard]:
            continue
        most = min(int(index.length[place]), MOST_PROMPT_IDS, max(1, context // 2))
        ids = np.load(folder / SHARD_FILE, mmap_mode="r", allow_pickle=False)[start : start + most].tolist()
        prompt = _cut(tokenizer, ids)
        if prompt not in found:  # samples are told apart by their prompts
            found.append(prompt)
        if len(found) == N_PROMPTS:
            break
    return found


def _cut(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the fewest ids whose text is long enough, without the one that ends the document."""
    if len(ids) > 1 and ids[-1] == tokenizer.eos_id:
        ids = ids[:-1]
    long_enough = (n for n in range(1, len(ids)) if len(tokenizer.decode(ids[:n])) >= PROMPT_CHARACTERS)
    return list(ids[: next(long_enough, len(ids))])


class Sampler:
    """Continue a few prompts now and then, with noise of their own, so that the training's random numbers stay.

    Args:
        tokenizer: tokeniser of the dataset.
        prompts: ids of each prompt.
        vocab_size: rows of the network's embedding; ids that the tokeniser does not know are never drawn.
        clock: returns seconds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        unknown = range(tokenizer.vocab_size, vocab_size)
        self._never = tuple(index for index in (*tokenizer.special_ids, *unknown) if index != tokenizer.eos_id)
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._longest = 0.0

    def draw(self, model: Any, step: int, last: bool = False) -> list[Sample]:
        """Return continuations of the prompts; none if they would take more than their share of the time.

        Args:
            model: the network; it is put into evaluation mode and back.
            step: optimiser steps done.
            last: draw in any case, because the training is over.
        """
        from model.config import GenerationConfig
        from model.generation import generate

        started = self._clock()
        allowed = SHARE_OF_TIME * (started - self._began)
        if not self._prompts or (self._spent + self._longest > allowed and not last):
            return []
        config = GenerationConfig(
            max_new_tokens=NEW_TOKENS,
            temperature=TEMPERATURE,
            eos_id=self._tokenizer.eos_id,
            min_new_tokens=1,
            suppress=self._never,
        )
        made = generate(model, self._prompts, config)
        found = [
            Sample(step, self._tokenizer.decode(prompt), self._tokenizer.decode_continuation(prompt, item.ids))
            for prompt, item in zip(self._prompts, made, strict=True)
        ]
        took = self._clock() - started
        self._spent += took
        self._longest = max(self._longest, took)
        return found


# ---- the curve


class ClockSteps:
    """Choose the steps whose clock values go to MLflow: the first, and then one in `CLOCK_PAUSE` of their time."""

    def __init__(self) -> None:
        self._since = math.inf

    def takes(self, seconds: float) -> bool:
        """Return True if the next step, which took so many seconds, is one of them."""
        self._since += seconds
        if self._since < CLOCK_PAUSE:
            return False
        self._since = 0.0
        return True


def curve_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the trainer's metrics under the names of the curve, which say that validation is on a sample."""
    return {name.replace("val/", "val_sample/"): value for name, value in metrics.items()}


class Watch(Callbacks):
    """Telemetry of one training, from the trainer's reports.

    Args:
        work: the training's stage; its scratch folder survives a kill.
        run_id: the training's run in MLflow.
        processes: number of processes that train together.
        sampler: draws samples; None draws none.
        documents_of: returns the documents of training sequences, in a sentence.

    Attributes:
        journal: to be written into the artefact.
    """

    def __init__(
        self,
        work: Work,
        tracking: Tracking,
        run_id: str,
        network: ModelConfig,
        precision: str,
        processes: int,
        sampler: Sampler | None,
        documents_of: Callable[[Sequence[int]], str],
    ) -> None:
        self._documents_of = documents_of
        self._tracking = tracking
        self._run_id = run_id
        self._progress = work.progress
        self._device = work.machine.device
        self._sampler = sampler
        self._points = PointBuffer(tracking, run_id, CURVE_SECONDS)
        self._clock_steps = ClockSteps()
        self.journal = Journal(work.scratch / LINES_FILE)
        devices = processes if self._device.startswith("cuda") else 1  # one CPU has all processes
        cost, limit = flops_per_token(network) / devices, limit_of(self._device, precision)
        self._speed = Speedometer(cost, limit.flops)
        self.journal.start(cost, limit.flops, limit.source)
        self._validation = ""
        self._told = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the system; after an error the run is FAILED, or KILLED if it is to be resumed."""
        with closing(self.journal), self._tracking.system_metrics(self._run_id):
            try:
                yield
            except BaseException as error:
                self._points.end("FAILED" if isinstance(error, Exception) else "KILLED")
                raise

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        """Record and show a step that is done, or the base before the first one, of which nothing was timed."""
        if not step:
            self._points.add(step, {name: value for name, value in curve_names(metrics).items() if name != "step"})
            return
        values = {**memory(self._device), **curve_names(metrics)}  # a rank's memory is its own
        clock = {name: value for name, value in values.items() if name.startswith(CLOCK_VALUES)}
        if self.journal.telemetry(step, clock) and step > 1:
            logger.info("train: resumed at step %d of %d", step - 1, max_steps)
        left_out = {"step"}  # which is what the curve is drawn over
        if not self._clock_steps.takes(values.get(STEP_SECONDS, CLOCK_PAUSE)):
            left_out |= clock.keys()
        self._points.add(step, {name: value for name, value in values.items() if name not in left_out})
        words = self._speed.pace(step, max_steps, metrics.get("tokens", 0))
        if "val/loss" in metrics:
            self._validation = f" val {metrics['val/loss']:.3f}"
        note = f"loss {metrics['train/loss']:.3f}" if "train/loss" in metrics else ""
        self._progress.update(step, max_steps, f"{note}{self._validation}{', ' if words else ''}{words}")

    def checkpoint(self, step: int) -> None:
        """Make the journal durable. MLflow's curve need not be: `sync_run` adds points that a kill loses."""
        self.journal.flush()

    def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        """Note and log an event with its documents; that of a step that is computed again is logged once."""
        if sequences:
            message = f"{message}. {self._documents_of(sequences)}"
        if self.journal.event(step, kind, message):
            level = logging.INFO if kind in _QUIET else logging.WARNING
            logger.log(level, "train: step %d: %s: %s", step, kind, message)

    def sample(self, step: int, model: Any, last: bool = False) -> None:
        """Draw samples, if there is time for them or it is the last step."""
        from mlflow.exceptions import MlflowException

        found = [] if self._sampler is None else self._sampler.draw(model, step, last)
        if not found:
            return
        self.journal.sample(found)
        # a sample begins like a document: for the terminal alone, not for Prefect's database
        logger.info("train: step %d writes: %s", found[0].step, _line(found[0]), extra={"send_to_api": False})
        try:
            log_samples(self._tracking, self._run_id, self.journal.notes.samples)
        except MlflowException as error:
            if not self._told:
                logger.warning("MLflow does not take the samples (%s); they are completed later", error)
            self._told = True

    def finish(self, model: Any, step: int) -> None:
        """Draw the samples of the last step and write the rest of the curve to MLflow."""
        if not any(sample.step == step for sample in self.journal.notes.samples):
            self.sample(step, model, last=True)
        self._points.flush()


def sync_journal(tracking: Tracking, run_id: str, folder: Path) -> list[tuple[str, int, float]]:
    """Log the samples of a finished training if MLflow lacks them; returns the telemetry that MLflow should have.

    Args:
        folder: the training's artefact.
    """
    samples = read_notes(folder).samples
    if samples and not tracking.has_file(run_id, SAMPLES_FILE):
        log_samples(tracking, run_id, samples)
    path = folder / TELEMETRY_FILE
    if not path.is_file():
        return []
    points = [(row["metric"], row["step"], row["value"]) for row in stream_rows(path)]
    timed = [(step, value) for metric, step, value in points if metric == STEP_SECONDS]
    chosen = ClockSteps()
    steps = {step for step, seconds in timed if chosen.takes(seconds)} | {step for step, _ in timed[-1:]}
    return [point for point in points if point[1] in steps]


def log_samples(tracking: Tracking, run_id: str, samples: Sequence[Sample]) -> None:
    """Make the samples beside an MLflow run equal to these."""
    columns = ["step", "prompt", "text"]
    tracking.log_table(run_id, SAMPLES_FILE, columns, [[item.step, item.prompt, item.text] for item in samples])


def _line(sample: Sample) -> str:
    """Return a sample on one line, without characters that could break or reverse it."""
    text = f"{sample.prompt} | {sample.text}"
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
