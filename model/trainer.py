"""Training loop with bit-exact resuming.

A run that is killed and resumed ends with the same bits as an uninterrupted one (on the same kind of device, with the
same torch and thread count): batches are a pure function of the position, the learning rate is one of the step, dropout
has its own random stream, and all other state is in the checkpoint. Time affects only when checkpoints are written, and
with a budget in minutes the plans, which are in the checkpoint.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .adapters import trained_state
from .architecture import ModelConfig
from .budget import Budget
from .callbacks import Callbacks, TrainingStopped
from .config import Execution, TrainConfig
from .data import Batch, Group, Order, Part, SequenceSource, read_ahead, trim
from .distributed import SINGLE, Ranks, check_share, evaluate, gather_once
from .guards import NonFiniteLoss, advice, best_step, is_out_of_patience, spike_of
from .metrics import NllSum, bits_per_byte
from .run_checkpoints import RunCheckpoints, weights_digest
from .schedule import learning_rate
from .step import Stepper, new_stepper
from .transformer import Transformer

Row = dict[str, Any]
StepData = tuple[list[int], list[Batch]]  # numbers of the step's sequences on all ranks, this rank's micro-batches

AHEAD = 2  # steps whose batches are prefetched
SPIKE_SCORE = "spike/score"


@dataclass(frozen=True)
class TrainResult:
    """Result of a finished training.

    Attributes:
        model: the trained network, in evaluation mode; if it was sharded, on the first rank only.
        history: one row per optimiser step with step, tokens (labels so far), train/loss, lr, grad_norm, val/loss after
            an evaluation, and spike/score at a spike of the loss or gradient norm. A row with val/source_changed (1) is
            the first after a resume with other validation sequences, whose losses are not comparable with earlier ones.
            Rows have no times, so that equal runs have equal histories; only a budget in minutes adds its seconds, and
            at a new plan the share of the budget used and the steps planned (see `budget`). With `replay` evaluations
            add val/replay_bits_per_byte and val/own_bits_per_byte (of the rest), and there is a row of step 0.
        steps: optimiser steps of the run, those before a resume included.
        resumed_from: step of the checkpoint from which the run resumed; 0 without one.
        best_step: with patience, the step with the lowest validation loss, whose weights the network has.
        adapter: weights of the adapters, which the network has, by the names of `adapters.AdaptedLinear`.
    """

    model: Transformer
    history: list[Row]
    steps: int
    resumed_from: int
    best_step: int | None = None
    adapter: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Trainer:
    """Trains one network on one source of sequences.

    Args:
        model_config: configuration of the network.
        train_config: hyperparameters.
        train_source: training sequences.
        val_source: validation sequences; None does not evaluate.
        replay: their part that is to be remembered; None measures the whole only.
        groups: groups of training sequences with their reads per epoch; None reads each sequence once.
        device: device of this rank.
        checkpoint_dir: folder of the run's checkpoints; None saves none. Saved are a step every
            `execution.checkpoint_minutes`, the last step, the step at which the run is stopped, and with patience each
            step with the lowest validation loss so far.
        identity: further identity of the run (dataset, tokeniser, ...), besides the configurations, the number of
            training sequences, their groups and the initial weights. A run resumes only with the same identity. The
            validation sequences are not part of it, because they do not affect the weights.
        initial_weights: state dict to start from; None draws the weights from the seed.
        callbacks: called on the first rank.
        execution: settings that are not part of the identity.
        ranks: the ranks of the training, each with a Trainer of the same arguments; all read checkpoint_dir.
        stop: when set on any rank, the training stops after the current step.
        clock: seconds since any point in time, for a budget in minutes.
        began: time of that clock from which the minutes count; None means the beginning of `fit`.

    Raises:
        ValueError: there are no training sequences, a group exceeds them, the sequences of a step cannot be split over
            the ranks, or patience is set without validation sequences.
    """

    model_config: ModelConfig
    train_config: TrainConfig
    train_source: SequenceSource
    val_source: SequenceSource | None = None
    _: KW_ONLY
    replay: Part | None = None
    groups: Sequence[Group] | None = None
    device: torch.device | str = "cpu"
    checkpoint_dir: Path | str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    initial_weights: Mapping[str, Tensor] | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    execution: Execution = field(default_factory=Execution)
    ranks: Ranks = SINGLE
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    began: float | None = None

    def __post_init__(self) -> None:
        n, config = len(self.train_source), self.train_config
        groups = [Group(0, n, n)] if self.groups is None else self.groups
        for group in groups:
            if group.first + group.count > n:
                raise ValueError(
                    f"a group has the sequences from {group.first} to {group.first + group.count - 1}, but there are "
                    f"{n}; groups and sequences do not match"
                )
        self.order = Order(groups, config.seed)
        self._device = torch.device(self.device)
        check_share(config.batch_size, config.grad_accum, self.ranks.world_size)
        if config.patience and self.val_source is None:
            raise ValueError(
                f"patience={config.patience} needs a validation loss, but there are no validation sequences; "
                f"give val_source, or patience=0"
            )
        if config.patience and self.ranks.world_size > 1 and self.checkpoint_dir is None:
            raise ValueError("patience with several processes keeps the best weights on disk; give checkpoint_dir")

    def fit(self) -> TrainResult:
        """Train to the last step, resuming from the newest good checkpoint if there is one.

        Returns:
            The trained network and its metric history.

        Raises:
            NonFiniteLoss: a loss or gradient is NaN or infinite; good checkpoints stay.
            OSError: a checkpoint cannot be written.
            OutOfMemory: the network, a step or an evaluation does not fit into memory.
            TrainingStopped: `stop` was set; the last step is saved if there is a checkpoint_dir.
            ValueError: a checkpoint belongs to another run, or the data or the initial weights do not fit the model.
        """
        self.budget = Budget(self.train_config, self.clock, self.began)
        stepper = new_stepper(
            self.model_config, self.train_config, self._device, self.execution, self.ranks, self.initial_weights
        )
        saved = self._checkpoints(stepper)
        history, other_validation = saved.resume() if saved else ([], False)
        step = resumed_from = history[-1]["step"] if history else 0
        best_weights, told = dict[str, Tensor](), False
        self.budget.resume(history)
        if not self._is_last(history):
            for sentence in advice(self.train_config.precision, self._device):
                self._event(step, "advice", sentence)
            for note in stepper.notes:
                self._event(step, "execution", note)
        if self.replay is not None and not history:
            if stepper.is_sharded:
                gather_once(stepper.model)
            history.append({"step": 0, "tokens": 0, **self._measure(stepper, 0)[1]})
            if self.ranks.is_first:
                self.callbacks.step(0, self.budget.plan.steps, history[0])
        ahead = count(step + 1) if self.train_config.minutes else range(step + 1, self.train_config.max_steps + 1)
        batches = read_ahead(lambda number: self._data(number, stepper), ahead, AHEAD)
        with closing(batches):
            while not self._is_last(history):
                step, started = step + 1, time.perf_counter()
                flags = (self.stop.is_set(), saved is not None and saved.is_due)
                row, stopping, due = self._step(stepper, step, history, next(batches), flags)
                seconds = time.perf_counter() - started
                if other_validation and step == resumed_from + 1:
                    row["val/source_changed"] = 1.0
                row.update(self.budget.after(step, self.ranks.from_first))
                if not told and (busy := self.budget.busy()):
                    self._event(step, "busy", busy)
                    told = True
                history.append(row)
                self._evaluate(stepper, step, row)  # adds val/loss to the last row of the history
                self._report(history, seconds)
                is_last = self._is_last(history)
                is_best = bool(self.train_config.patience) and "val/loss" in row and best_step(history) == step
                if saved is not None and (is_last or is_best or stopping or due):
                    saved.save(history, self.callbacks)
                elif is_best:
                    best_weights = {name: one.clone() for name, one in trained_state(stepper.model).items()}
                if stopping and not is_last:
                    raise TrainingStopped(step, saved=saved is not None)
        best = best_step(history) if self.train_config.patience else None
        if best is not None and best != step:
            stepper.load_trained(saved.best_weights(best) if saved else best_weights)
        adapter = trained_state(stepper.model) if self.train_config.adapter != "none" else {}
        return TrainResult(stepper.plain(), history, step, resumed_from, best, adapter)

    def _checkpoints(self, stepper: Stepper) -> RunCheckpoints | None:
        if self.checkpoint_dir is None:
            return None
        groups = [f"{group.reads} of {group.count} from {group.first}" for group in self.order.groups]
        identity = {
            **{f"model.{name}": repr(value) for name, value in self.model_config.to_dict().items()},
            **{f"train.{name}": repr(value) for name, value in self.train_config.to_dict().items()},
            "train_sequences": str(len(self.train_source)),
            "train_sequences_read": ", ".join(groups),
            **self.identity,
        }
        if self.initial_weights is not None:
            identity["initial_weights"] = weights_digest(self.initial_weights)
        return RunCheckpoints(Path(self.checkpoint_dir), identity, self.val_source, stepper)

    def _step(
        self, stepper: Stepper, step: int, history: list[Row], data: StepData, flags: tuple[bool, ...]
    ) -> tuple[Row, bool, bool]:
        """Take a step. Returns its row, and whether any rank asked to stop, and to save."""
        indices, batches = data
        lr = learning_rate(self.budget.place(step), self.train_config)
        result = stepper.run(batches, lr, step, indices, flags)
        stopping, due = result.flags
        row: Row = {
            "step": step,
            "tokens": result.tokens + (history[-1]["tokens"] if history else 0),
            "train/loss": result.loss,
            "lr": lr,
            "grad_norm": result.grad_norm,
        }
        spike = spike_of(history, row, self.train_config.spike_zscore)
        if spike is not None:
            row[SPIKE_SCORE] = spike[0]
            if SPIKE_SCORE not in (history[-1] if history else {}):  # only the first of consecutive spikes is reported
                self._event(step, "spike", f"spike at step {step}: {spike[1]}", indices)
        return row, stopping, due

    def _data(self, step: int, stepper: Stepper) -> StepData:
        """Return the batches of a step; called in the prefetching thread."""
        n_batches, n_rows = self.train_config.grad_accum, self.train_config.batch_size
        indices = self.order.at(np.arange((step - 1) * n_batches * n_rows, step * n_batches * n_rows))
        batches = []
        for part in self.ranks.share(indices.reshape(n_batches, n_rows)):
            batch = self.train_source.batch(part)
            highest = max(int(batch.inputs.max()), int(batch.labels.max()))
            if highest >= self.model_config.vocab_size:
                raise ValueError(
                    f"the batch holds token id {highest}, but vocab_size is {self.model_config.vocab_size}; "
                    f"the tokens were made with another tokeniser than the model"
                )
            if not stepper.is_compiled:
                batch = trim(batch)
            if self._device.type == "cuda":  # copies from pinned memory are asynchronous
                inputs, labels = (torch.from_numpy(ids).pin_memory() for ids in batch[:2])
                batch = Batch(inputs, labels, batch.documents)
            batches.append(batch)
        return indices.tolist(), batches

    def _evaluate(self, stepper: Stepper, step: int, row: Row) -> None:
        config = self.train_config
        if self.val_source is None or (step % config.eval_every and step != self.budget.plan.steps):
            return
        began = self.budget.seconds
        found, bits = self._measure(stepper, step)
        row.update({"val/loss": found.loss, **bits})
        if self.ranks.world_size == 1:
            self.callbacks.sample(step, stepper.model)
        self.budget.reserve = self.budget.seconds - began  # the last evaluation will take as long

    def _measure(self, stepper: Stepper, step: int) -> tuple[NllSum, Row]:
        """Evaluate. Returns the sum over the validation sequences, and bits per byte of `replay` and of the rest."""

        def total(source: SequenceSource) -> NllSum:
            with stepper.explaining_memory(f"the evaluation after step {step}"):
                return evaluate(stepper.model, source, self.train_config.batch_size, self._device, self.ranks)

        assert self.val_source is not None
        found = total(self.val_source)
        if found.tokens and not math.isfinite(found.loss):
            raise NonFiniteLoss(f"the validation loss is {found.loss}", step, [])
        if self.replay is None:
            return found, {}
        nats = total(self.replay.source).nll_nats
        return found, {
            "val/replay_bits_per_byte": bits_per_byte(nats, *self.replay.size),
            "val/own_bits_per_byte": bits_per_byte(found.nll_nats - nats, *self.replay.rest),
        }

    def _is_last(self, history: list[Row]) -> bool:
        if not history:
            return False
        over = "val/loss" in history[-1] and is_out_of_patience(history, self.train_config.patience)
        return over or history[-1]["step"] >= self.budget.plan.steps

    def _report(self, history: list[Row], seconds: float) -> None:
        row, last = history[-1], self.budget.plan.steps
        if self.ranks.is_first:
            rate = (row["tokens"] - (history[-2]["tokens"] if len(history) > 1 else 0)) / seconds
            metrics = {**row, "time/step_seconds": seconds, "time/tokens_per_second": rate}
            self.callbacks.step(row["step"], last, metrics)
        if row["step"] < last and self._is_last(history):
            self._event(
                row["step"],
                "early stop",
                f"the validation loss has not fallen in {self.train_config.patience} evaluations: the run "
                f"ends at step {row['step']} of {last} with the weights of step {best_step(history)}",
            )

    def _event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        if self.ranks.is_first:
            self.callbacks.event(step, kind, message, sequences)
