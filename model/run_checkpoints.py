"""Checkpoints of one training, and resuming from them.

A run resumes only with the identity of its checkpoint; another execution (device, threads, ...) gives a warning.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .callbacks import Callbacks
from .checkpoint import Checkpoint, best_checkpoint, newest_to_continue, read_checkpoint, save_checkpoint
from .data import SequenceSource
from .guards import best_step
from .step import Stepper

Row = dict[str, Any]

_MAX_LISTED = 4  # differences in a message


@dataclass
class RunCheckpoints:
    """Saves and loads the state of a run; every rank calls its methods.

    Args:
        folder: holds the checkpoints, at the same path on every rank.
        identity: settings and data of the run, as text by name.
        val_source: the validation sequences.
        stepper: the state that is saved and loaded.
    """

    folder: Path
    identity: dict[str, str]
    val_source: SequenceSource | None
    stepper: Stepper

    def __post_init__(self) -> None:
        self._execution = _execution_record(self.stepper)
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True on the first rank if checkpoint_minutes have passed since the last checkpoint."""
        minutes = self.stepper.execution.checkpoint_minutes
        return self.stepper.ranks.is_first and time.monotonic() - self._saved_at >= 60 * minutes

    def save(self, history: list[Row], callbacks: Callbacks) -> None:
        """Write the checkpoint of the last step in the history.

        Raises:
            OSError: it cannot be written; older checkpoints stay.
        """
        stepper, step = self.stepper, history[-1]["step"]
        if stepper.ranks.is_first:
            callbacks.checkpoint(step)
        state = Checkpoint(
            step=step,
            position=step * stepper.config.grad_accum,
            **stepper.tensors(),
            scaler=stepper.scaler.state_dict(),
            identity=self.identity,
            validation=self._validation,
            history=history,
            execution=self._execution,
            best_step=(best_step(history) or 0) if stepper.config.patience else 0,
        )
        keep, sharded = stepper.execution.keep, stepper.is_sharded
        save_checkpoint(self.folder, state, keep=keep, ranks=stepper.ranks, sharded=sharded)
        self._saved_at = time.monotonic()

    def resume(self) -> tuple[list[Row], bool]:
        """Load the newest good checkpoint.

        Returns:
            Its history, empty without a checkpoint; and True if later validation losses are on other sequences than
            those in the history.

        Raises:
            ValueError: it belongs to another run, or a rank does not find it.
        """
        ranks = self.stepper.ranks
        place = newest_to_continue(self.folder) if ranks.is_first else None
        name = ranks.from_first(place and place.name)
        if name is None:
            return [], False
        saved = self._read(name)
        difference = differences(saved.identity, self.identity)
        if difference:
            raise ValueError(
                f"the checkpoint of step {saved.step} in {self.folder} belongs to another run: {difference}. "
                f"Restore the former settings to resume that run, or use another checkpoint folder"
            )
        self.stepper.load(saved)
        difference = differences(saved.execution, self._execution)
        if difference and ranks.is_first:
            warnings.warn(
                f"the run resumes from step {saved.step} with another execution: {difference}; its result may differ "
                f"in the last bits from that of an uninterrupted run",
                stacklevel=3,
            )
        changed = (
            (self.stepper.config.minutes or saved.step < self.stepper.config.max_steps)
            and self.val_source is not None
            and any("val/loss" in row or row["step"] == 0 for row in saved.history)
            and saved.validation != self._validation
        )
        if changed and ranks.is_first:
            warnings.warn(
                f"from step {saved.step + 1} on, validation losses are measured on other validation sequences than "
                f"before; the history marks that step with val/source_changed",
                stacklevel=3,
            )
        return saved.history, changed

    def best_weights(self, step: int) -> dict[str, Tensor]:
        """Return the saved weights of the step with the lowest validation loss."""
        name = best_checkpoint(self.folder, step).name if self.stepper.ranks.is_first else None
        # receiving the name also means that the first rank has written the file
        return self._read(self.stepper.ranks.from_first(name)).weights

    def _read(self, name: str) -> Checkpoint:
        place = self.folder / name
        if not place.is_dir():
            raise ValueError(f"rank {self.stepper.ranks.rank} does not find {place}; all ranks need the same folder")
        return read_checkpoint(place, self.stepper.empty_like_saved if self.stepper.is_sharded else None)

    @cached_property
    def _validation(self) -> str:
        """Digest of the validation sequences in order; empty without them."""
        if self.val_source is None:
            return ""
        digest, n, size = hashlib.sha256(), len(self.val_source), self.stepper.config.batch_size
        for first in range(0, n, size):
            batch = self.val_source.batch(np.arange(first, min(first + size, n)))
            for ids in (batch.inputs, batch.labels):
                digest.update(f"{ids.shape}\n".encode())
                digest.update(np.ascontiguousarray(ids).tobytes())
            if batch.documents is not None:
                digest.update(f"{batch.documents}\n".encode())
        return digest.hexdigest()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 of names, shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differences(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return the first differences of two records as text; empty if they are equal."""
    found = []
    for key in sorted(saved.keys() | wanted.keys()):
        if saved.get(key) != wanted.get(key):
            was = f"was {saved[key]!r}" if key in saved else "was not there"
            now = f"is now {wanted[key]!r}" if key in wanted else "is not there any more"
            found.append(f"{key!r} {was} and {now}")
    more = [f"{len(found) - _MAX_LISTED} more differ"] if len(found) > _MAX_LISTED else []
    return "; ".join(found[:_MAX_LISTED] + more)


def _execution_record(stepper: Stepper) -> dict[str, str]:
    """Return versions, device, threads and kernels, which affect the last bits of results."""
    device, execution, n_processes = stepper.device, stepper.execution, stepper.ranks.world_size
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
