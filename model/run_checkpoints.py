"""The checkpoints of one training: what they hold, how a run continues from them, and by what they know the run.

A checkpoint of another identity is refused, one of another execution is reported.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .architecture import ModelConfig
from .callbacks import Callbacks
from .checkpoint import (
    Checkpoint,
    best_checkpoint,
    discard_newer,
    latest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from .config import Execution, TrainConfig
from .data import Order, SequenceSource
from .distributed import Ranks
from .guards import best_step
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


_NAMED = 4  # differences that a message names


def source_digest(source: SequenceSource, batch_size: int) -> str:
    """Return the sha256 over all inputs, labels and documents, in order."""
    digest = hashlib.sha256()
    for first in range(0, len(source), batch_size):
        batch = source.batch(np.arange(first, min(first + batch_size, len(source))))
        for ids in (batch.inputs, batch.labels):
            digest.update(f"{ids.shape}\n".encode())
            digest.update(np.ascontiguousarray(ids).tobytes())
        if batch.documents is not None:
            digest.update(f"{batch.documents}\n".encode())
    return digest.hexdigest()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, shapes, types and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def full_identity(
    identity: Mapping[str, str],
    model_config: ModelConfig,
    train_config: TrainConfig,
    train_source: SequenceSource,
    order: Order,
) -> dict[str, str]:
    """Return what a run is made of, as text by name; a checkpoint is continued only by a run of the same.

    Args:
        identity: what the caller adds (dataset, tokeniser, ...).
    """
    own = {f"model.{name}": repr(value) for name, value in model_config.to_dict().items()}
    own |= {f"train.{name}": repr(value) for name, value in train_config.to_dict().items()}
    own["train_sequences"] = str(len(train_source))
    own["train_sequences_read"] = ", ".join(
        f"{group.reads} of {group.count} from {group.first}" for group in order.groups
    )
    return {**own, **identity}


def execution_record(execution: Execution, device: torch.device, n_processes: int) -> dict[str, str]:
    """Return what decides about the last bits, and is no part of the identity."""
    cpu = f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": str(torch.get_num_threads()),
        "kernels": "deterministic" if torch.are_deterministic_algorithms_enabled() else "fastest",
        "compile": str(execution.compile),
        "recompute": str(execution.recompute),
        "processes": f"{n_processes} by {execution.sharding}" if n_processes > 1 else "1",
    }


def differences(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return which entries of two records differ, the first few of many; empty if they agree."""
    found = []
    for key in sorted(saved.keys() | wanted.keys()):
        if saved.get(key) != wanted.get(key):
            was = f"was {saved[key]!r}" if key in saved else "was not there"
            now = f"is now {wanted[key]!r}" if key in wanted else "is not there any more"
            found.append(f"{key!r} {was} and {now}")
    more = [f"{len(found) - _NAMED} more differ"] if len(found) > _NAMED else []
    return "; ".join(found[:_NAMED] + more)
