"""Random streams of a training, isolated from the global generators, and seeding of the global generators.

Dropout can only draw from torch's global generators. So a training keeps their state, sets it before each step and
saves it afterwards, independently of random numbers drawn by evaluation, callbacks or the caller.
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
    """Return the seed of a stream of a run; further numbers select its branches."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_everything(seed: int, *, deterministic: bool = False) -> dict[str, str]:
    """Seed python, numpy and torch on the CPU and every CUDA device, and select torch's kernels.

    Equal seed, data, torch version and thread count then give equal weights, gradients and updates: on a CPU always, on
    the same GPU model if `deterministic`.

    Args:
        seed: at least 0.
        deterministic: use deterministic kernels only, which are slower; an operation without one raises RuntimeError.
            Other GPU kernels sum in an order that varies between runs.

    Returns:
        The settings as text, for a record.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed={seed}; expected a whole number of at least 0")
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy's limit
    torch.manual_seed(seed)  # also of CUDA devices before CUDA is first used
    if deterministic:  # cuBLAS needs a fixed workspace for it
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # setting it imports torch's compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # kernels chosen by timing vary between runs
    return {
        "seed": str(seed),
        "generators": "python, numpy, torch" + (", cuda" if torch.cuda.is_available() else ""),
        "kernels": "deterministic" if deterministic else "fastest",
        "threads": str(torch.get_num_threads()),
    }


class RandomState:
    """States of torch's generators for a training, of the CPU and a CUDA device.

    Args:
        seed: seed of the stream.
        device: device of the training.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        # not by torch.manual_seed, which would seed all global generators
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        for gpu in self._gpus:
            self._states["cuda"] = torch.Generator(gpu).manual_seed(seed).get_state()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let torch draw from this stream, and restore the global generators afterwards."""
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
        """Return the states as named uint8 tensors."""
        return dict(self._states)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load the states that `tensors` returned.

        Raises:
            ValueError: they belong to another kind of device.
        """
        if set(tensors) != set(self._states):
            raise ValueError(
                f"random states of {sorted(tensors)} were saved, expected {sorted(self._states)}; "
                f"resume on the kind of device that the run started on, or start a new run"
            )
        self._states = dict(tensors)
