"""Training: the strength of the regularisation by cross-validation, and an honest word on what the model is worth.

In go the texts of both sides, out come weights and figures. Every figure is of examples that the model in question had
not seen. The strength is chosen by log loss, so that the AUC reported is not that of a choice for the best AUC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.curate.classifier.features import BUCKETS, F64, Features, featurise
from tasks.curate.classifier.logistic import balanced, fit, log_losses, sigmoid

FOLDS = 5
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # strongest first: each fit begins where the one before ended
WEAK_AUC = 0.7
FOLD_TOLERANCE = 1e-4

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """A model.

    Attributes:
        weights: one for each bucket and, last, the intercept.
        metrics: what JSON knows: `auc` with `fold_aucs` and their standard error `auc_error`; `accuracy` and
            `balanced_accuracy` at a score of 0.5; `log_loss` (both sides weigh the same), the strength `l2` and the
            grid it was chosen from; `note` if the model is weak.
    """

    weights: F64
    metrics: dict[str, Any]


def train(good: Sequence[str], bad: Sequence[str], progress: Progress) -> Trained:
    """Train a classifier.

    Args:
        good, bad: normalised texts, `FOLDS` or more of each, in an order that has nothing to do with what they are
            like (that of their hashes): every fifth is of one fold.
        progress: told how many fits of how many are done.
    """
    features, buckets = featurise([*good, *bad]).narrowed()
    is_good = np.arange(len(good) + len(bad)) < len(good)
    fold = np.concatenate([np.arange(len(good)) % FOLDS, np.arange(len(bad)) % FOLDS])
    n_fits = FOLDS * len(STRENGTHS) + 1
    unseen = _cross_validate(features, is_good, fold, lambda done: progress(done, n_fits))
    everything = balanced(is_good, np.ones(len(is_good), bool))
    losses = [float((everything * log_losses(logits, is_good)).sum()) for logits in unseen]
    best = int(np.argmin(np.round(losses, 6)))  # the strongest of equals
    parameters = fit(features, is_good, everything, STRENGTHS[best])
    progress(n_fits, n_fits)
    weights = np.zeros(BUCKETS + 1)
    weights[buckets] = parameters[:-1]
    weights[-1] = parameters[-1]
    figures = _figures(unseen[best], is_good, fold)
    grid = [{"l2": l2, "log_loss": round(loss, 6)} for l2, loss in zip(STRENGTHS, losses, strict=True)]
    metrics = {
        **figures,
        "log_loss": grid[best]["log_loss"],
        "l2": STRENGTHS[best],
        "grid": grid,
        "folds": FOLDS,
        "n_features": len(buckets),
        "note": _note(figures["auc"]),
    }
    return Trained(weights, metrics)


def score_texts(texts: Sequence[str], weights: F64) -> F64:
    """The probability that each text is good, to six digits.

    It is that of a document drawn from as many good as bad ones. A text scores the same in any company.
    """
    return np.round(sigmoid(featurise(texts).times(weights[:-1]) + weights[-1]), 6)


def auc(logits: F64, good: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve: how often a good example scores higher than a bad one; equal scores are half a win."""
    bad_logits = np.sort(logits[~good])
    below = np.searchsorted(bad_logits, logits[good], "left") + np.searchsorted(bad_logits, logits[good], "right")
    return float(below.mean() / (2 * len(bad_logits)))


def _cross_validate(
    features: Features, good: npt.NDArray[np.bool_], fold: npt.NDArray[np.int64], done: Callable[[int], None]
) -> list[F64]:
    """For each strength the logits of all examples, each by a model that had not seen its fold."""
    unseen = [np.zeros(len(good)) for _ in STRENGTHS]
    fits = 0
    for held_out in range(FOLDS):
        mine = fold == held_out
        weights = balanced(good, ~mine)
        parameters = None
        for l2, logits in zip(STRENGTHS, unseen, strict=True):
            parameters = fit(features, good, weights, l2, start=parameters, tolerance=FOLD_TOLERANCE)
            logits[mine] = (features.times(parameters[:-1]) + parameters[-1])[mine]
            fits += 1
            done(fits)
    return unseen


def _figures(logits: F64, good: npt.NDArray[np.bool_], fold: npt.NDArray[np.int64]) -> dict[str, Any]:
    """What unseen examples say. Logits of different folds come of different models, so each fold has its AUC."""
    aucs = [auc(logits[fold == one], good[fold == one]) for one in range(FOLDS)]
    right = (logits > 0) == good
    return {
        "auc": round(float(np.mean(aucs)), 6),
        "auc_error": round(float(np.std(aucs, ddof=1) / np.sqrt(FOLDS)), 6),
        "fold_aucs": [round(value, 6) for value in aucs],
        "accuracy": round(float(right.mean()), 6),
        "balanced_accuracy": round(float((right[good].mean() + right[~good].mean()) / 2), 6),
    }


def _note(found: float) -> str:
    if found >= WEAK_AUC:
        return ""
    return (
        f"the classifier hardly tells good from bad: its AUC on examples it had not seen is {found:.2f}, where 0.5 is "
        f"chance and {WEAK_AUC} the least expected; give more examples, or clearer ones, before relying on its scores"
    )
