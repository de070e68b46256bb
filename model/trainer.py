"""The training loop: sequences in, a trained network and its metric history out.

A run that is killed anywhere and started again ends with the same bits as one that was left alone (same
device kind, torch and thread count): batches are a pure function of the position, the learning rate of the
step, dropout draws from a stream of its own, and all of the rest is in the checkpoint. Clocks decide when to
save, never what is computed.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .advice import advice, attention_kernel
from .architecture import ModelConfig
from .config import TrainConfig
from .data import SequenceSource
from .distributed import SINGLE, Ranks, check_share
from .execution import Execution
from .guards import SPIKE_SCORE, EarlyStop, SpikeDetector, telling_of_memory
from .identity import full_identity, weights_digest
from .kernels import release_freed_memory
from .order import Group, Order
from .run_checkpoints import RunCheckpoints
from .schedule import learning_rate
from .step import NonFiniteLoss, Stepper, new_stepper
from .stopping import StopRequest, TrainingStopped
from .transformer import Transformer

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What a finished run leaves.

    Attributes:
        model: the trained network, in evaluation mode.
        history: one row per optimiser step with step, tokens (labels read so far), train/loss, lr, grad_norm, val/loss
            where an evaluation took place, and spike/score where the loss or the gradient leapt. A row with
            val/source_changed (1) is the first after a resume with other validation sequences: losses before and from
            there on do not compare. No clock values: equal runs have equal histories.
        steps: optimiser steps done over all starts of the run.
        resumed_from: step of the checkpoint that this start went on from; 0 if it began anew.
        best_step: with patience, the step whose weights the network has: that with the lowest validation loss.
    """

    model: Transformer
    history: list[Row]
    steps: int
    resumed_from: int
    best_step: int | None = None


class Trainer:
    """Trains one network on one source of sequences.

    Args:
        model_config: the network's shape.
        train_config: how to train it.
        train_source: sequences to learn from.
        val_source: sequences to evaluate on, in order, all of them; None evaluates nothing.
        groups: how often an epoch reads which sequences of train_source; None reads each once.
        device: where to compute.
        checkpoint_dir: holds this run's checkpoints; None saves nothing.
        checkpoint_seconds: shortest pause between two checkpoints, longer where saving would take more than
            `run_checkpoints.SAVING_SHARE` of the time. The last step is always saved, and so is each with the lowest
            validation loss so far. 0 saves every step.
        identity: what else the run is made of (dataset, tokeniser, ...). A checkpoint continues only under
            the same identity; the configurations, the number of training sequences, their groups and the initial
            weights belong to it by themselves. The validation sequences do not: they shape no weights.
        initial_weights: the state of a network of this shape to start from (model.state_dict()); None draws the
            weights from the seed.
        on_metrics: called with (step, metrics) after each step. The metrics are the history's row with
            "time/step_seconds" and "time/tokens_per_second" added. Steps after the last checkpoint of a
            killed run are computed, and reported, again.
        on_checkpoint: called with (step) before a checkpoint becomes visible, so that the caller can first
            make durable what belongs to the steps it covers.
        on_event: called with (step, kind, message) where something happens that the person should know: "advice",
            "execution", "kernel", "spike" or "early stop". Without it, all but the kernel are warnings.
        on_progress: called with (step, max_steps, metrics) at the end of each step.
        on_sample: called with (step, network) after an evaluation, where one process trains; it may let the network
            write something, but must change nothing of it and draw from no global random stream.
        documents_of: says of which documents sequences with these numbers are made, for messages.
        execution: how to compute; no part of the run's identity.
        ranks: the processes that train together, each with a Trainer of the same arguments. The first writes
            checkpoints and is the only one that calls back; all of them read checkpoint_dir.
        stop: asked after each step whether to stop; of several ranks, one that is asked to stops all.

    Raises:
        ValueError: there are no sequences to train on, a group reaches beyond them, the ranks cannot share a step,
            or patience is asked for without sequences to evaluate on.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        train_config: TrainConfig,
        train_source: SequenceSource,
        val_source: SequenceSource | None = None,
        *,
        groups: Sequence[Group] | None = None,
        device: torch.device | str = "cpu",
        checkpoint_dir: Path | str | None = None,
        checkpoint_seconds: float = 15.0,
        identity: Mapping[str, str] | None = None,
        initial_weights: Mapping[str, Tensor] | None = None,
        on_metrics: Callable[[int, dict[str, float]], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
        on_event: Callable[[int, str, str], None] | None = None,
        on_progress: Callable[[int, int, dict[str, float]], None] | None = None,
        on_sample: Callable[[int, Transformer], None] | None = None,
        documents_of: Callable[[Sequence[int]], str] | None = None,
        execution: Execution = Execution(),
        ranks: Ranks = SINGLE,
        stop: StopRequest | None = None,
    ) -> None:
        self.model_config = model_config
        self.train_config = train_config
        self.train_source = train_source
        self.val_source = val_source
        self.order = _order(groups, len(train_source), train_config.seed)
        self.device = torch.device(device)
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self.checkpoint_seconds = checkpoint_seconds
        self.identity = full_identity(identity or {}, model_config, train_config, train_source, self.order)
        self.initial_weights = initial_weights
        if initial_weights is not None:
            self.identity["initial_weights"] = weights_digest(initial_weights)
        check_share(train_config.batch_size, train_config.grad_accum, ranks.world_size)
        self.ranks = ranks
        self.on_metrics = on_metrics if ranks.is_first else None
        self.on_checkpoint = on_checkpoint if ranks.is_first else None
        self.on_event = on_event if ranks.is_first else None
        self.on_progress = on_progress if ranks.is_first else None
        self.on_sample = on_sample if ranks.world_size == 1 else None
        self.documents_of = documents_of
        self.execution = execution
        self.stop = stop
        self._spikes = SpikeDetector(train_config.spike_zscore)
        self._early_stop = EarlyStop(train_config.patience)
        if train_config.patience and val_source is None:
            raise ValueError(
                f"patience={train_config.patience} waits for the validation loss, but there are no sequences to "
                f"evaluate on; give val_source, or patience=0"
            )
        if train_config.patience and ranks.world_size > 1 and checkpoint_dir is None:
            raise ValueError("patience ends a run with its best weights, which several processes find in a folder only")

    def fit(self) -> TrainResult:
        """Trains to the last step, from the newest good checkpoint if there is one.

        Raises:
            NonFiniteLoss: a loss or gradient is NaN or infinite; good checkpoints stay.
            OSError: a checkpoint cannot be written.
            OutOfMemory: the network, a step or an evaluation does not fit into memory.
            TrainingStopped: it was asked to stop; the step it stopped after is saved.
            ValueError: a checkpoint belongs to another run, or the data or the initial weights do not fit the model.
        """
        checkpoints = RunCheckpoints(
            self.checkpoint_dir,
            self.checkpoint_seconds,
            self.identity,
            self.train_config,
            self.val_source,
            self.execution,
            self.device,
            self.ranks,
            self.on_checkpoint,
        )
        with checkpoints:  # whatever ends the training, what is being saved is saved to its end
            return self._fit(checkpoints)

    def _fit(self, checkpoints: RunCheckpoints) -> TrainResult:
        with self._telling_of_memory("the network"):
            stepper = new_stepper(self.model_config, self.train_config, self.device, self.execution, self.ranks)
        if self.initial_weights is not None:
            _load_initial(stepper, self.initial_weights)
        history: list[Row] = []
        resumed_from, other_validation = checkpoints.resume(stepper, history)
        step, is_last = resumed_from, self._is_last(resumed_from, history)
        if not is_last:
            self._tell_what_to_know(stepper, step)
        while not is_last:
            step += 1
            started = time.perf_counter()
            row = self._step(stepper, step, history)
            seconds = time.perf_counter() - started
            if other_validation and step == resumed_from + 1:
                row["val/source_changed"] = 1.0
            if self._is_evaluated(step) and self.val_source is not None:
                row["val/loss"] = self._evaluate(stepper, step)
                if self.on_sample:
                    self.on_sample(step, stepper.model)
            history.append(row)
            metrics = _with_timing(row, history, seconds)
            if self.on_metrics:
                self.on_metrics(step, metrics)
            is_best = "val/loss" in row and self._early_stop.best(history) == step
            is_last = self._is_last(step, history)
            if is_last and step < self.train_config.max_steps:
                self._tell(step, "early stop", self._early_stop.verdict(history, self.train_config.max_steps))
            if is_best and self.train_config.patience and self.checkpoint_dir is None:
                self._best_weights = {name: one.clone() for name, one in stepper.network.weights().items()}
            stopping, is_due = self.ranks.any(
                self.stop is not None and self.stop.asked and not is_last, checkpoints.is_due
            )
            if is_last or is_best or stopping or is_due:
                checkpoints.save(stepper, step, history, best=is_best)
            if self.on_progress:
                self.on_progress(step, self.train_config.max_steps, metrics)
            if stopping:
                checkpoints.wait()
                raise TrainingStopped(step, saved=self.checkpoint_dir is not None)
        best = self._load_best(stepper, history, checkpoints)
        model = stepper.network.plain()
        model.compiled.clear()
        model.recompute = False
        release_freed_memory()
        return TrainResult(model, history, step, resumed_from, best)

    def _step(self, stepper: Stepper, step: int, history: list[Row]) -> Row:
        config = self.train_config
        size = config.batch_size * config.grad_accum
        indices = self.order.at(np.arange((step - 1) * size, step * size))
        parts = self.ranks.share(indices.reshape(config.grad_accum, config.batch_size))
        batches = [self.train_source.batch(part) for part in parts]
        lr = learning_rate(step - 1, config)
        try:
            result = stepper.run(batches, lr, step, indices.tolist())
        except NonFiniteLoss as error:
            if self.documents_of is None:
                raise
            raise error.of_documents(self.documents_of(error.suspects or error.indices)) from error
        row: Row = {
            "step": step,
            "tokens": result.tokens + (history[-1]["tokens"] if history else 0),
            "train/loss": result.loss,
            "lr": lr,
            "grad_norm": result.grad_norm,
        }
        spike = self._spikes.judge(history, result.loss, result.grad_norm)
        if spike is not None:
            row[SPIKE_SCORE] = spike.score
            if not history or SPIKE_SCORE not in history[-1]:  # of several in a row, the first one is told
                self._tell(step, "spike", f"step {step} leaps: {spike}. {self._documents(indices)}".removesuffix(". "))
        return row

    def _documents(self, indices: np.ndarray) -> str:
        return "" if self.documents_of is None or not self.ranks.is_first else self.documents_of(indices.tolist())

    def _tell(self, step: int, kind: str, message: str) -> None:
        if self.on_event is not None:
            self.on_event(step, kind, message)
        elif kind != "kernel" and self.ranks.is_first:
            warnings.warn(message, stacklevel=4)

    def _tell_what_to_know(self, stepper: Stepper, step: int) -> None:
        for sentence in advice(self.train_config, self.device):
            self._tell(step, "advice", sentence)
        for note in stepper.notes:
            self._tell(step, "execution", note)
        kernel = attention_kernel(self.model_config, self.train_config, self.device, execution=self.execution)
        self._tell(step, "kernel", kernel)

    def _is_last(self, step: int, history: list[Row]) -> bool:
        """Whether the run ends with the step of the last row."""
        if step == self.train_config.max_steps:
            return True
        return bool(history) and "val/loss" in history[-1] and self._early_stop.is_over(history)

    def _is_evaluated(self, step: int) -> bool:
        return step % self.train_config.eval_every == 0 or step == self.train_config.max_steps

    def _evaluate(self, stepper: Stepper, step: int) -> float:
        assert self.val_source is not None
        with self._telling_of_memory(f"the evaluation after step {step}"):
            found = stepper.network.evaluate(self.val_source, self.train_config.batch_size, self.device)
        if found.tokens and not math.isfinite(found.loss):
            raise NonFiniteLoss(f"the validation loss is {found.loss}", step, [])
        return found.loss

    def _telling_of_memory(self, doing: str) -> AbstractContextManager[None]:
        return telling_of_memory(doing, self.device, self.model_config, self.train_config, self.execution)

    def _load_best(self, stepper: Stepper, history: list[Row], checkpoints: RunCheckpoints) -> int | None:
        """Gives the network the best weights, if the run is to end with them; returns their step."""
        best = self._early_stop.best(history)
        if not self.train_config.patience or best is None:
            return None
        if best != history[-1]["step"]:
            weights = self._best_weights if self.checkpoint_dir is None else checkpoints.best_weights()
            stepper.network.load_weights(weights)
        return best


def _order(groups: Sequence[Group] | None, n: int, seed: int) -> Order:
    groups = [Group(0, n, n)] if groups is None else groups
    for group in groups:
        if group.first + group.count > n:
            raise ValueError(
                f"a group has the sequences from {group.first} to {group.first + group.count - 1}, but there are {n}; "
                f"groups and sequences do not match"
            )
    return Order(groups, seed)


def _load_initial(stepper: Stepper, weights: Mapping[str, Tensor]) -> None:
    try:
        stepper.network.load_weights(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the initial weights do not fit the configuration: {error}; train with the ModelConfig they were made with"
        ) from error


def _with_timing(row: Row, history: list[Row], seconds: float) -> dict[str, float]:
    before = history[-2]["tokens"] if len(history) > 1 else 0
    rate = (row["tokens"] - before) / seconds
    return {**row, "time/step_seconds": seconds, "time/tokens_per_second": rate}
