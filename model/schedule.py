"""Learning rate schedules as pure functions of the step, without a state to save.

Training calls `learning_rate`; the other functions are the published curves, over a time t as defined in their source.
"""

from __future__ import annotations

import math

from .config import TrainConfig


def cosine(t: float, peak: float, floor: float, t_max: float) -> float:
    """Return a cosine decay from the peak to the floor (Loshchilov and Hutter 2017, without restarts).

    Args:
        t: from 0, where the rate is the peak; constant from t_max on.
        peak: highest learning rate.
        floor: lowest learning rate.
        t_max: where the floor is reached; above 0.
    """
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, t / t_max)))


def warmup_cosine(t: float, peak: float, floor: float, warmup_steps: int, max_steps: int) -> float:
    """Return a linear warm-up to the peak at t = warmup_steps, then a cosine decay to the floor at max_steps.

    Args:
        t: from 0, where the rate is 0 if there is a warm-up.
        peak: highest learning rate.
        floor: lowest learning rate after the warm-up.
        warmup_steps: length of the warm-up; 0 for none.
        max_steps: where the floor is reached.
    """
    if warmup_steps and t <= warmup_steps:
        return peak * t / warmup_steps
    return cosine(t - warmup_steps, peak, floor, max(1, max_steps - warmup_steps))


def inverse_square_root(t: float, peak: float, warmup_steps: int) -> float:
    """Return a linear warm-up to the peak at t = warmup_steps, then a decay as 1 / sqrt(t).

    Args:
        t: from 1.
        peak: highest learning rate.
        warmup_steps: length of the warm-up, at least 1.
    """
    return peak * min(t / warmup_steps, math.sqrt(warmup_steps / t))


def noam_peak(d_model: int, warmup_steps: int) -> float:
    """Return the peak of `noam`, (d_model * warmup_steps)^-0.5: the lr with which schedule="noam" equals `noam`."""
    return float((d_model * warmup_steps) ** -0.5)


def noam(t: float, d_model: int, warmup_steps: int) -> float:
    """Return d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (Vaswani et al. 2017, equation 3).

    Args:
        t: from 1.
        d_model: width of the network.
        warmup_steps: length of the warm-up, at least 1.
    """
    return inverse_square_root(t, noam_peak(d_model, warmup_steps), warmup_steps)


def warmup_stable_decay(
    t: float, peak: float, floor: float, warmup_steps: int, decay_steps: int, max_steps: int
) -> float:
    """Return a linear warm-up to the peak, a plateau, and a linear decay to the floor (Hu et al. 2024).

    Steps before the decay do not depend on max_steps, so that a run can be extended from there.

    Args:
        t: from 0, where the rate is 0 if there is a warm-up.
        peak: highest learning rate.
        floor: rate from t = max_steps on.
        warmup_steps: length of the warm-up; 0 for none.
        decay_steps: length of the decay, at most max_steps - warmup_steps; 0 for none.
        max_steps: where the decay ends.
    """
    if warmup_steps and t <= warmup_steps:
        return peak * t / warmup_steps
    fall = min(decay_steps, max_steps - warmup_steps)
    if fall <= 0 or t <= max_steps - fall:
        return peak
    return floor + (peak - floor) * max(0.0, (max_steps - t) / fall)


def learning_rate(step: float, config: TrainConfig) -> float:
    """Return the learning rate of one optimiser step.

    By default a schedule with a warm-up starts at t = 1, because a step at rate 0 has no effect: the last warm-up step
    has the peak, and the last step of "warmup_cosine" and "wsd" the floor. "cosine" starts at t = 0, with the peak.
    `first_step` sets another start.

    Args:
        step: number of optimiser steps before this one, from 0; a fraction where minutes decide on the steps.
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
