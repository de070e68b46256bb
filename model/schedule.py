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


def noam_peak(d_model: int, warmup_steps: int) -> float:
    """Highest rate of `noam`, (d_model * warmup_steps)^-0.5; as lr it makes schedule="noam" that very curve."""
    return float((d_model * warmup_steps) ** -0.5)


def noam(t: float, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (Vaswani et al. 2017, equation 3).

    The width and the warm-up only set the peak of an inverse square root.

    Args:
        t: from 1.
        d_model: width of the network.
        warmup_steps: length of the rise, at least 1.
    """
    return inverse_square_root(t, noam_peak(d_model, warmup_steps), warmup_steps)


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

    By default a schedule with a warm-up begins at t = 1, because a step at rate 0 is lost: so the last warm-up step has
    the peak, and the last step of "warmup_cosine" and of "wsd" the floor. "cosine" begins at t = 0, with the peak.
    `first_step` chooses otherwise. No schedule changes once it is at its floor.

    Args:
        step: number of optimiser steps before this one, from 0.
        config: gives schedule, lr, min_lr_ratio, max_steps, first_step, the warm-up and decay_ratio.
    """
    if config.schedule == "constant":
        return config.lr
    t = step + config.first_step
    if config.schedule == "noam":
        return inverse_square_root(t, config.lr, config.warmup)
    floor = config.lr * config.min_lr_ratio
    if config.schedule == "cosine":
        return cosine(t, config.lr, floor, config.max_steps)
    if config.schedule == "wsd":
        decay_steps = round(config.decay_ratio * config.max_steps)
        return warmup_stable_decay(t, config.lr, floor, config.warmup, decay_steps, config.max_steps)
    return warmup_cosine(t, config.lr, floor, config.warmup, config.max_steps)
