"""Checkpoints written beside the training: a consistent copy is taken at once, a thread brings it to the disk.

The training waits for the copy alone, which is memory to memory, and into the memory of the copy before: to get new
memory from the system takes longer than to copy. One copy is under way at a time: whoever saves faster than the disk
takes it waits for the one before. What a kill leaves is `checkpoint`'s business, and the same as if the training had
waited.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .checkpoint import (
    Checkpoint,
    discard_newer,
    history_line,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)


class CheckpointSaver:
    """Saves and loads the checkpoints of one run; to be closed, which waits for the last one.

    Args:
        folder: holds the run's checkpoints; made when the first is saved.
        keep: number of newest checkpoints to keep; the best one is kept beside them.

    Attributes:
        cost: seconds that the last finished save took from the training: the copy, and the processor time of the
            write. Waiting for the disk is not in it.
    """

    def __init__(self, folder: Path | str, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.cost = 0.0
        self._best_step = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._memory: dict[str, dict[str, Tensor]] = {}  # of the last copy, by group and name
        self._lines: list[tuple[dict[str, Any], str]] = []  # history rows that were put into text before

    def load(self) -> Checkpoint | None:
        """The newest good checkpoint, or None; damaged newer ones go, and saves know from it which one is the best."""
        self.wait()
        place = latest_checkpoint(self.folder)
        if place is None:
            return None
        state = load_checkpoint(place)
        discard_newer(place)
        self._best_step = state.best_step
        return state

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: Checkpoint, *, best: bool = False) -> None:
        """Copies the state and lets a thread write it; what the caller changes from now on is not in it.

        Args:
            state: what to save; its best_step is filled in here.
            best: this is the checkpoint with the lowest validation loss so far.

        Raises:
            OSError: the checkpoint before this one could not be written.
        """
        began = time.monotonic()
        self.wait()
        if best:
            self._best_step = state.step
        copy = dataclasses.replace(
            state,
            weights=self._copied("weights", state.weights),
            optimizer=self._copied("optimizer", state.optimizer),
            random=self._copied("random", state.random),
            scaler=dict(state.scaler),
            history=list(state.history),
            best_step=self._best_step,
        )
        waited = time.monotonic() - began
        self._thread = threading.Thread(target=self._write, args=(copy, waited), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
            OSError: a checkpoint could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            error.add_note(f"while a checkpoint was written to {self.folder}; older checkpoints there are whole")
            raise error

    def close(self) -> None:
        """Waits for the last checkpoint; see `wait`."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, state: Checkpoint, waited: float) -> None:
        began = time.thread_time()
        try:
            save_checkpoint(self.folder, state, keep=self.keep, history_lines=self._text_of(state.history))
        except BaseException as error:  # noqa: BLE001 - raised where the training asks next
            self._error = error
        self.cost = waited + time.thread_time() - began

    def _text_of(self, history: list[dict[str, Any]]) -> list[str]:
        """The rows as lines; each row is put into text once, because a long run has very many."""
        known = self._lines
        same = 0
        while same < min(len(known), len(history)) and known[same][0] is history[same]:
            same += 1
        known[same:] = [(row, history_line(row)) for row in history[same:]]
        return [line for _, line in known]

    def _copied(self, group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in main memory that nobody but the next save touches; in that of the last one where they fit."""
        before, found = self._memory.get(group, {}), {}
        for name, tensor in tensors.items():
            place = before.get(name)
            if place is None or (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
                place = torch.empty(tensor.shape, dtype=tensor.dtype)
            found[name] = place.copy_(tensor.detach())
        self._memory[group] = found
        return found
