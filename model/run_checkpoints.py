"""The checkpoints of one training run: when one is due, what it holds, and how the run goes on from it.

`checkpoint` knows how they lie on the disk, `saver` writes them beside the training; here is what the trainer wants of
both. Of several ranks the first one writes; all of them ask, so that they do the same.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from .checkpoint import Checkpoint, best_checkpoint, differences, load_checkpoint
from .config import TrainConfig
from .data import SequenceSource
from .distributed import Ranks
from .identity import execution_record, source_digest, warn_if_bits_may_differ
from .saver import CheckpointSaver

if TYPE_CHECKING:
    import torch

    from .execution import Execution
    from .step import Stepper

Row = dict[str, Any]

SAVING_SHARE = 0.02  # of a run's time, at most, goes into checkpoints


class RunCheckpoints:
    """Saves and loads what a run needs to go on; to be closed, which waits for what is being saved.

    Args:
        folder: holds the run's checkpoints; None saves nothing.
        pause: fewest seconds between two that only a clock asks for; 0 saves every step.
        identity: what the run is made of.
        train_config: how it trains.
        val_source: what it evaluates on.
        execution: how it computes.
        device: where it computes.
        ranks: the processes that train together.
        on_checkpoint: called with (step) before a checkpoint becomes visible.
    """

    def __init__(
        self,
        folder: Path | None,
        pause: float,
        identity: dict[str, str],
        train_config: TrainConfig,
        val_source: SequenceSource | None,
        execution: Execution,
        device: torch.device,
        ranks: Ranks,
        on_checkpoint: Callable[[int], None] | None,
    ) -> None:
        self.folder = folder
        self.pause = pause
        self.identity = identity
        self.train_config = train_config
        self.val_source = val_source
        self.execution = execution
        self.device = device
        self.ranks = ranks
        self.on_checkpoint = on_checkpoint
        self._saver = CheckpointSaver(folder, execution.keep) if folder and ranks.is_first else None
        self._last_save = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saver is not None:
            self._saver.close()

    @property
    def is_due(self) -> bool:
        """Whether it is time for one on this rank; a large model's are rarer: saving stays a small share of the run."""
        if self._saver is None:
            return False
        if not self.pause:
            return True
        pause = max(self.pause, self._saver.cost / SAVING_SHARE)
        return not self._saver.busy and time.monotonic() - self._last_save >= pause

    def save(self, stepper: Stepper, step: int, history: list[Row], *, best: bool) -> None:
        """Saves on the first rank what all of them hold; nothing without a folder.

        Raises:
            OSError: the checkpoint before this one could not be written.
        """
        if self.folder is None:
            return
        state = self.state(stepper, step, history)
        if self._saver is not None:
            if self.on_checkpoint:
                self.on_checkpoint(step)
            self._saver.save(state, best=best)
        self._last_save = time.monotonic()

    def wait(self) -> None:
        """Returns when what this rank saves is on the disk.

        Raises:
            OSError: it could not be written.
        """
        if self._saver is not None:
            self._saver.wait()

    def state(self, stepper: Stepper, step: int, history: list[Row]) -> Checkpoint:
        """The checkpoint of a step; all ranks call it, the first gets the tensors."""
        tensors = stepper.state()
        return Checkpoint(
            step=step,
            position=step * self.train_config.grad_accum,
            weights=tensors["weights"],
            optimizer=tensors["optimizer"],
            random=tensors["random"],
            scaler=stepper.scaler.state_dict(),
            identity=self.identity,
            validation=self._validation,
            history=history,
            execution=execution_record(self.execution, self.device, self.ranks.world_size),
        )

    def best_weights(self) -> dict[str, Tensor]:
        """The weights with the lowest validation loss so far, which were saved; all ranks call it."""
        self.wait()
        self.ranks.barrier()  # only then are they on the disk for all
        place = None if self.folder is None else best_checkpoint(self.folder)
        assert place is not None  # the newest checkpoint is that of the last row, and knows of the best one
        return load_checkpoint(place).weights

    def resume(self, stepper: Stepper, history: list[Row]) -> tuple[int, bool]:
        """Fills stepper and history from the newest good checkpoint.

        Returns:
            Its step, 0 if there is none; and whether validation losses to come are measured on other sequences than
            those of the history.

        Raises:
            ValueError: it belongs to another run, or the ranks find different ones.
        """
        saved = self._newest()
        self._last_save = time.monotonic()
        if saved is None:
            return 0, False
        difference = differences(saved.identity, self.identity)
        if difference:
            raise ValueError(
                f"the checkpoint of step {saved.step} in {self.folder} belongs to another run: {difference}. "
                f"Restore what it was to continue that run, or train in another checkpoint folder"
            )
        if self.ranks.is_first:
            warn_if_bits_may_differ(saved, execution_record(self.execution, self.device, self.ranks.world_size))
        stepper.load(saved.weights, saved.optimizer, saved.random, saved.step)
        if saved.scaler:
            stepper.scaler.load_state_dict(saved.scaler)
        history.extend(saved.history)
        changed = (
            saved.step < self.train_config.max_steps
            and self.val_source is not None
            and any("val/loss" in row for row in history)
            and saved.validation != self._validation
        )
        if changed and self.ranks.is_first:
            warnings.warn(
                f"from step {saved.step + 1} on, validation losses are measured on other validation sequences than "
                f"before; the history marks that step with val/source_changed",
                stacklevel=4,
            )
        return saved.step, changed

    def _newest(self) -> Checkpoint | None:
        """The newest good checkpoint; damaged newer ones go."""
        saved = self._saver.load() if self._saver else None
        newest = self.ranks.from_first(saved and saved.step)
        if newest is not None and saved is None and self.folder is not None:
            saved = load_checkpoint(self.folder)
            if saved.step != newest:
                raise ValueError(
                    f"rank {self.ranks.rank} finds the checkpoint of step {saved.step} in {self.folder}, and "
                    f"the first rank that of step {newest}; all ranks need the same folder"
                )
        return saved

    @cached_property
    def _validation(self) -> str:
        """Digest of the validation sequences; empty without any."""
        return "" if self.val_source is None else source_digest(self.val_source, self.train_config.batch_size)
