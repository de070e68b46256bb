"""The learning rate of each step: a warm-up and what follows it, a cosine alone or a constant.

Pure functions of the step, so that there is no scheduler state to save or to lose. `learning_rate` is what training
asks; the others are the published curves, each over a time t that counts as its source counts.
"""

from __future__ import annotations

import math

from .config import TrainConfig


def cosine(t: float, peak: float, floor: float, t_max: float) -> float:
    """Half a cosine from the peak down to the floor (Loshchilov and Hutter 2017, without restarts).

    Args:
        t: from 0, where the rate is the peak; from t_max on it stays at the floor.
        peak: highest learning rate.
        floor: lowest learning rate.
        t_max: where the floor is reached; above 0.
    """
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, t / t_max)))


def warmup_cosine(t: float, peak: float, floor: float, warmup_steps: int, max_steps: int) -> float:
    """Linear from 0 at t = 0 to the peak at t = warmup_steps, then a cosine that is at the floor from max_steps on.

    Args:
        t: from 0, where the rate is 0 (with any warm-up).
        peak: highest learning rate.
        floor: lowest learning rate behind the warm-up.
        warmup_steps: length of the rise; 0 leaves it out.
        max_steps: where the floor is reached.
    """
    if warmup_steps and t <= warmup_steps:
        return peak * t / warmup_steps
    return cosine(t - warmup_steps, peak, floor, max(1, max_steps - warmup_steps))


def inverse_square_root(t: float, peak: float, warmup_steps: int) -> float:
    """Linear up to the peak at t = warmup_steps, then falling as 1 / sqrt(t).

    Args:
        t: from 1.
        peak: highest learning rate.
        warmup_steps: length of the rise, at least 1.
    """
    return peak * min(t / warmup_steps, math.sqrt(warmup_steps / t))


def noam(t: float, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (Vaswani et al. 2017, equation 3).

    The width and the warm-up only set the peak of an inverse square root, (d_model * warmup_steps)^-0.5. With that peak
    as lr, schedule="noam" gives these very rates.

    Args:
        t: from 1.
        d_model: width of the network.
        warmup_steps: length of the rise, at least 1.
    """
    return inverse_square_root(t, (d_model * warmup_steps) ** -0.5, warmup_steps)


def warmup_stable_decay(
    t: float, peak: float, floor: float, warmup_steps: int, decay_steps: int, max_steps: int
) -> float:
    """Linear up to the peak at t = warmup_steps, the peak, and over the last decay_steps linear down to the floor.

    All steps before the fall are the same whatever max_steps is, so that a run can be made longer from there (Hu et al.
    2024).

    Args:
        t: from 0, where the rate is 0 (with any warm-up).
        peak: highest learning rate.
        floor: rate at t = max_steps, which is kept from there on.
        warmup_steps: length of the rise; 0 leaves it out.
        decay_steps: length of the fall, cut to what the warm-up leaves of max_steps; 0 leaves it out.
        max_steps: where the fall ends.
    """
    if warmup_steps and t <= warmup_steps:
        return peak * t / warmup_steps
    fall = min(decay_steps, max_steps - warmup_steps)
    if fall <= 0 or t <= max_steps - fall:
        return peak
    return floor + (peak - floor) * max(0.0, (max_steps - t) / fall)


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of one optimiser step.

    A schedule that rises from zero counts this step already: its first step has a small rate above zero, because a
    step at rate 0 is lost. So the last warm-up step has the peak, and the last step of "warmup_cosine" and of "wsd" the
    floor. "cosine" counts the steps before this one: its first step has the peak. No schedule changes once it is at its
    floor.

    Args:
        step: number of optimiser steps before this one, from 0.
        config: gives schedule, lr, min_lr_ratio, max_steps, the warm-up and decay_ratio.
    """
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "noam":
        return inverse_square_root(step + 1, config.lr, config.warmup_steps)
    floor = config.lr * config.min_lr_ratio
    if config.schedule == "cosine":
        return cosine(step, config.lr, floor, config.max_steps)
    if config.schedule == "wsd":
        decay_steps = round(config.decay_ratio * config.max_steps)
        return warmup_stable_decay(step + 1, config.lr, floor, config.warmup_steps, decay_steps, config.max_steps)
    return warmup_cosine(step + 1, config.lr, floor, config.warmup_steps, config.max_steps)
