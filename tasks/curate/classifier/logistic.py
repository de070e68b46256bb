"""Logistic regression by Newton's method, its steps found by conjugate gradients; the same bytes on every run.

Minimised is `sum(weight * log(1 + exp(-sign * logit))) + l2 / 2 * |w|**2` with logits `X w + intercept`, where weights
sum to one and the intercept is free. No matrix beyond X is ever made, so that a quarter of a million features cost
what the words of the examples cost. (Lin, Weng and Keerthi 2008, "Trust Region Newton Method for Large-Scale Logistic
Regression"; with a line search in place of the trust region, which this convex function does not need.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tasks.curate.classifier.features import F64, Features

MAX_NEWTON_STEPS = 60
MAX_CONJUGATE_STEPS = 100
MAX_HALVINGS = 30
SUFFICIENT_DECREASE = 1e-4


def sigmoid(logits: F64) -> F64:
    """Probabilities; never overflows."""
    result: F64 = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return result


def log_losses(logits: F64, good: npt.NDArray[np.bool_]) -> F64:
    """Cost in nats of each example."""
    result: F64 = np.logaddexp(0.0, np.where(good, -logits, logits))
    return result


def balanced(good: npt.NDArray[np.bool_], used: npt.NDArray[np.bool_]) -> F64:
    """Weights of the examples in use: each side has half of them, however many it has."""
    weights = np.zeros(len(good))
    for side in (good & used, ~good & used):
        weights[side] = 0.5 / np.count_nonzero(side)
    return weights


def fit(
    features: Features,
    good: npt.NDArray[np.bool_],
    weights: F64,
    l2: float,
    *,
    start: F64 | None = None,
    tolerance: float = 1e-9,
) -> F64:
    """Fit a model.

    Args:
        features: one row for each example.
        good: which examples are good.
        weights: how much each counts; 0 leaves it out.
        l2: strength of the regularisation, above 0.
        start: parameters to begin with, such as those for a similar strength.
        tolerance: the gradient's length, as a share of that of all zeros, at which it is done.

    Returns:
        A number for each feature and, last, the intercept.
    """
    parameters = np.zeros(features.n_columns + 1) if start is None else start.copy()
    logits = _logits(features, parameters)
    goal = tolerance * _length(_gradient(features, good, weights, l2, np.zeros_like(parameters), 0 * logits))
    for _ in range(MAX_NEWTON_STEPS):
        gradient = _gradient(features, good, weights, l2, parameters, logits)
        if _length(gradient) <= goal:
            break
        step = _newton_step(features, weights, l2, logits, gradient)
        slope = _dot(gradient, step)
        if slope >= 0:  # as far down as numbers of 64 bits tell
            break
        along = _logits(features, step)
        before = _cost(good, weights, l2, parameters, logits)
        size = 1.0
        for _ in range(MAX_HALVINGS):
            after = _cost(good, weights, l2, parameters + size * step, logits + size * along)
            if after <= before + SUFFICIENT_DECREASE * size * slope:
                break
            size /= 2
        else:
            break
        parameters = parameters + size * step
        logits = logits + size * along
    return parameters


def _newton_step(features: Features, weights: F64, l2: float, logits: F64, gradient: F64) -> F64:
    """About `-inverse(Hessian) gradient`, as exact as the distance to the minimum is worth."""
    chances = sigmoid(logits)
    curvature = weights * chances * (1.0 - chances)

    def hessian_times(vector: F64) -> F64:
        return _transposed(features, curvature * _logits(features, vector)) + _penalty(l2, vector)

    length = _length(gradient)
    goal = min(0.1, float(np.sqrt(length))) * length
    step = np.zeros_like(gradient)
    residual = -gradient
    direction = residual
    square = _dot(residual, residual)
    for _ in range(MAX_CONJUGATE_STEPS):
        bent = hessian_times(direction)
        curve = _dot(direction, bent)
        if curve <= 0:  # only the free intercept, where every example is beyond doubt
            break
        share = square / curve
        step = step + share * direction
        residual = residual - share * bent
        fresh = _dot(residual, residual)
        if np.sqrt(fresh) <= goal:
            break
        direction = residual + (fresh / square) * direction
        square = fresh
    return step


def _logits(features: Features, parameters: F64) -> F64:
    return features.times(parameters[:-1]) + parameters[-1]


def _transposed(features: Features, vector: F64) -> F64:
    return np.append(features.transposed_times(vector), vector.sum())


def _penalty(l2: float, parameters: F64) -> F64:
    penalty = l2 * parameters
    penalty[-1] = 0.0
    return penalty


def _gradient(
    features: Features, good: npt.NDArray[np.bool_], weights: F64, l2: float, parameters: F64, logits: F64
) -> F64:
    return _transposed(features, weights * (sigmoid(logits) - good)) + _penalty(l2, parameters)


def _cost(good: npt.NDArray[np.bool_], weights: F64, l2: float, parameters: F64, logits: F64) -> float:
    losses = weights * log_losses(logits, good)
    return float(losses.sum()) + 0.5 * l2 * _dot(parameters[:-1], parameters[:-1])


def _dot(one: F64, other: F64) -> float:
    """Scalar product by numpy's own sum: that of a linear algebra library depends on its number of threads."""
    return float((one * other).sum())


def _length(vector: F64) -> float:
    return float(np.sqrt(_dot(vector, vector)))
