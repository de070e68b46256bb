"""Random streams of a training run that nothing outside can disturb, and that disturb nothing outside.

Dropout can only draw from torch's global generators. So the run keeps their state for itself: it is put in
before each step and taken out after it, and whatever evaluation, callbacks or the caller draw in between does
not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# One seed, several independent streams: a stream's number is part of its key.
WEIGHTS_STREAM, DROPOUT_STREAM = 0, 1


def derive_seed(seed: int, stream: int) -> int:
    """The seed of one named stream of a run."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class RandomState:
    """States of torch's global generators (CPU and, on a CUDA device, that device's).

    Args:
        seed: of the stream.
        device: where the run computes.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._states: dict[str, Tensor] = {}
        outside = self._read()
        torch.manual_seed(seed)
        self._states = self._read()
        self._write(outside)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, torch draws from this stream; afterwards the global generators are as they were before."""
        outside = self._read()
        self._write(self._states)
        try:
            yield
        finally:
            self._states = self._read()
            self._write(outside)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named uint8 tensors."""
        return dict(self._states)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Puts back what tensors() returned."""
        if set(tensors) != set(self._states):
            raise ValueError(
                f"random states of {sorted(tensors)} were saved, expected {sorted(self._states)}; "
                f"continue on the kind of device that the run started on, or start it anew"
            )
        self._states = dict(tensors)

    def _read(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _write(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self._device)
