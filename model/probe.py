"""Time of a training step on this machine, measured."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from .architecture import ModelConfig
from .config import TrainConfig
from .data import Batch
from .distributed import SINGLE, Ranks
from .execution import Execution
from .schedule import learning_rate
from .step import new_stepper


def measure_step_seconds(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device | str = "cpu",
    steps: int = 8,
    *,
    execution: Execution = Execution(),
    ranks: Ranks = SINGLE,
) -> float:
    """Return the seconds of an optimiser step: the median over random tokens, after two steps to warm up.

    Args:
        train_config: gives micro-batch, accumulation and precision.
        steps: number of steps that are measured.
        ranks: the processes that take the steps together; all of them call.
    """
    stepper = new_stepper(model_config, train_config, torch.device(device), execution, ranks)
    generator = np.random.default_rng(0)
    n_batches, n_rows = ranks.share(np.empty((train_config.grad_accum, train_config.batch_size))).shape
    seconds = []
    for step in range(1, steps + 3):
        shape = (n_batches, n_rows, model_config.max_seq_len + 1)
        ids = generator.integers(model_config.vocab_size, size=shape)
        started = time.perf_counter()
        stepper.run([Batch(one[:, :-1], one[:, 1:]) for one in ids], learning_rate(0, train_config), step, [])
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])
