"""How long a training step takes on a machine, found out by taking some."""

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
    """How long an optimiser step takes here: the median over steps on random tokens, after two to warm up.

    Args:
        model_config: the network's shape.
        train_config: gives micro-batch, accumulation and precision.
        device: where to compute.
        steps: number of steps that are measured.
        execution: how to compute.
        ranks: the processes that take the steps together; all of them call.

    Returns:
        Seconds per optimiser step; evaluation and checkpoints are not in it.
    """
    stepper = new_stepper(model_config, train_config, torch.device(device), execution, ranks)
    generator = np.random.Generator(np.random.Philox(key=[0, 0]))
    n_batches, n_rows = ranks.share(np.empty((train_config.grad_accum, train_config.batch_size))).shape
    shape = (n_rows, model_config.max_seq_len + 1)
    seconds = []
    for step in range(1, steps + 3):
        ids = [generator.integers(model_config.vocab_size, size=shape) for _ in range(n_batches)]
        started = time.perf_counter()
        stepper.run([Batch(one[:, :-1], one[:, 1:]) for one in ids], learning_rate(0, train_config), step, [])
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])
