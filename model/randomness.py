"""Random streams of a training run that nothing outside can disturb, and that disturb nothing outside.

Dropout can only draw from torch's global generators. So the run keeps their state for itself: it is put in
before each step and taken out after it, and whatever evaluation, callbacks or the caller draw in between does
not matter. `seed_everything` is for whoever wants the global generators in a known state: one call for all of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# One seed, several independent streams: a stream's number is part of its key.
WEIGHTS_STREAM, DROPOUT_STREAM = 0, 1


def derive_seed(seed: int, *stream: int) -> int:
    """The seed of one named stream of a run; further numbers tell its branches apart, all 0 being the stream itself."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int, *, deterministic: bool = False) -> dict[str, str]:
    """Seeds python, numpy and torch on the CPU and every CUDA device, and chooses torch's kernels.

    Equal seed, data, torch and thread count then give equal weights, gradients and updates: on a CPU always, on a GPU
    if `deterministic`, on the same model of GPU.

    Args:
        seed: at least 0.
        deterministic: only kernels that give the same bits each time, which are slower; an operation without one raises
            RuntimeError. Without it some kernels of a GPU add in an order that changes from run to run, so that two
            runs differ in the last bits of a step and drift apart from there.

    Returns:
        What was set, as text for a record.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed={seed}; expected a whole number of at least 0")
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy takes no more
    torch.manual_seed(seed)  # of the CPU and of every CUDA device, also before CUDA is first used
    if deterministic:  # cuBLAS is so with fixed workspaces only
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # to set it, torch loads its compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # measuring kernels at run time would choose another one each time
    return {
        "seed": str(seed),
        "generators": "python, numpy, torch" + (", cuda" if torch.cuda.is_available() else ""),
        "kernels": "deterministic" if deterministic else "fastest",
        "threads": str(torch.get_num_threads()),
    }


class RandomState:
    """States of torch's global generators (CPU and, on a CUDA device, that device's).

    Args:
        seed: of the stream.
        device: where the run computes.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        # from generators of its own: torch.manual_seed would reseed every device of the process
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        for gpu in self._gpus:
            self._states["cuda"] = torch.Generator(gpu).manual_seed(seed).get_state()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, torch draws from this stream; afterwards the global generators are as they were before."""
        with torch.random.fork_rng(self._gpus):
            torch.set_rng_state(self._states["cpu"])
            for gpu in self._gpus:
                torch.cuda.set_rng_state(self._states["cuda"], gpu)
            try:
                yield
            finally:
                self._states = {"cpu": torch.get_rng_state()}
                for gpu in self._gpus:
                    self._states["cuda"] = torch.cuda.get_rng_state(gpu)

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
