"""The checkpoints of one training: what they hold, and how a run continues from them."""

from __future__ import annotations

import time
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .callbacks import Callbacks
from .checkpoint import (
    Checkpoint,
    best_checkpoint,
    discard_newer,
    latest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from .config import TrainConfig
from .data import SequenceSource
from .distributed import Ranks
from .execution import Execution
from .guards import best_step
from .identity import differences, execution_record, source_digest
from .step import Stepper

Row = dict[str, Any]


class RunCheckpoints:
    """Saves and loads what a run needs to go on; all ranks call its methods.

    Args:
        folder: holds the checkpoints, on the same path for all ranks.
        identity: what the run is made of.
        config: how it trains.
        val_source: what it evaluates on.
        execution: gives the interval and the number of checkpoints to keep.
        device: where it computes.
        ranks: the processes that train together.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, str],
        config: TrainConfig,
        val_source: SequenceSource | None,
        execution: Execution,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.config = config
        self.val_source = val_source
        self.execution = execution
        self.ranks = ranks
        self._record = execution_record(execution, device, ranks.world_size)
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True on the first rank when the interval has passed."""
        return self.ranks.is_first and time.monotonic() - self._saved_at >= 60 * self.execution.checkpoint_minutes

    def save(self, stepper: Stepper, history: list[Row], callbacks: Callbacks) -> None:
        """Save the step of the last row.

        Raises:
            OSError: it cannot be written; older checkpoints stay.
        """
        step = history[-1]["step"]
        if self.ranks.is_first:
            callbacks.checkpoint(step)
        state = Checkpoint(
            step=step,
            position=step * self.config.grad_accum,
            **stepper.tensors(),
            scaler=stepper.scaler.state_dict(),
            identity=self.identity,
            validation=self._validation,
            history=history,
            execution=self._record,
            best_step=(best_step(history) or 0) if self.config.patience else 0,
        )
        keep, sharded = self.execution.keep, stepper.is_sharded
        save_checkpoint(self.folder, state, keep=keep, ranks=self.ranks, sharded=sharded)
        self._saved_at = time.monotonic()

    def resume(self, stepper: Stepper) -> tuple[list[Row], bool]:
        """Load the newest good checkpoint.

        Returns:
            Its history, empty if there is none; and True if validation losses to come are measured on other sequences
            than those of the history.

        Raises:
            ValueError: it belongs to another run, or a rank does not find it.
        """
        place = latest_checkpoint(self.folder) if self.ranks.is_first else None
        if place is not None:
            discard_newer(place)
        name = self.ranks.from_first(place and place.name)
        if name is None:
            return [], False
        saved = self._read(name, stepper)
        difference = differences(saved.identity, self.identity)
        if difference:
            raise ValueError(
                f"the checkpoint of step {saved.step} in {self.folder} belongs to another run: {difference}. "
                f"Restore what it was to continue that run, or train in another checkpoint folder"
            )
        stepper.load(saved)
        difference = differences(saved.execution, self._record)
        if difference and self.ranks.is_first:
            warnings.warn(
                f"the run goes on from step {saved.step}, but computes in another way: {difference}; its result may "
                f"differ in the last bits from that of a run which was not stopped",
                stacklevel=3,
            )
        changed = (
            saved.step < self.config.max_steps
            and self.val_source is not None
            and any("val/loss" in row for row in saved.history)
            and saved.validation != self._validation
        )
        if changed and self.ranks.is_first:
            warnings.warn(
                f"from step {saved.step + 1} on, validation losses are measured on other validation sequences than "
                f"before; the history marks that step with val/source_changed",
                stacklevel=3,
            )
        return saved.history, changed

    def best_weights(self, stepper: Stepper, step: int) -> dict[str, Tensor]:
        """Return the weights of the step with the lowest validation loss, which was saved."""
        place = best_checkpoint(self.folder, step) if self.ranks.is_first else None
        # the first rank's word is also the sign that it has written them
        return self._read(self.ranks.from_first(place and place.name), stepper).weights

    def _read(self, name: str, stepper: Stepper) -> Checkpoint:
        if not (self.folder / name).is_dir():
            raise ValueError(
                f"rank {self.ranks.rank} does not find {self.folder / name}; all ranks need the same folder"
            )
        return read_checkpoint(self.folder / name, stepper.empty_like_saved if stepper.is_sharded else None)

    @cached_property
    def _validation(self) -> str:
        """Digest of the validation sequences; empty without any."""
        return "" if self.val_source is None else source_digest(self.val_source, self.config.batch_size)
