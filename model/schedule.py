"""The learning rate of each step: linear warm-up, then a cosine down to a floor (Loshchilov and Hutter 2017).

A pure function of the step, so that there is no scheduler state to save or to lose.
"""

from __future__ import annotations

import math

from .config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of one optimiser step.

    The first step already has a small rate above zero ((step + 1) / warmup_steps of the peak), the last
    warm-up step has the peak, and the last step of all has lr * min_lr_ratio; later steps stay there.

    Args:
        step: number of optimiser steps before this one, from 0.
        config: gives lr, min_lr_ratio, max_steps and the warm-up.
    """
    done, warmup = step + 1, config.warmup_steps
    if done <= warmup:
        return config.lr * done / warmup
    progress = min(1.0, (done - warmup) / max(1, config.max_steps - warmup))
    floor = config.lr * config.min_lr_ratio
    return floor + (config.lr - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
