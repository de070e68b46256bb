"""The classifier learns what is there to be learnt, says what it is worth, and is the same on every run."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from classifier_samples import manuals, rubbishes
from dedup_samples import plain_words, prose

from tasks.curate.classifier import training
from tasks.curate.classifier.features import BUCKETS, READ_CHARS, Features, featurise
from tasks.curate.classifier.logistic import balanced, fit, sigmoid
from tasks.curate.classifier.training import FOLDS, STRENGTHS, Trained, score_texts, train
from tasks.text.words import read_batches, word_runs

TEXTS = ["", " \n ", "one", "one two", "ONE two one Two", "羊 羊", *(prose(400, seed) for seed in range(30))]


def trained(good: list[str], bad: list[str]) -> Trained:
    return train(good, bad, lambda done, total: None)


def dense(features: Features) -> np.ndarray:
    matrix = np.zeros((features.n_rows, features.n_columns))
    matrix[features.rows, features.columns] = features.values
    return matrix


@pytest.fixture(scope="module")
def learnt() -> Trained:
    return trained(manuals(60), rubbishes(60))


def test_it_tells_manuals_from_rubbish_that_it_has_not_seen(learnt: Trained) -> None:
    assert score_texts(manuals(100, 1_000), learnt.weights).min() > 0.5
    assert score_texts(rubbishes(100, 1_000), learnt.weights).max() < 0.5
    assert learnt.metrics["auc"] > 0.99
    assert learnt.metrics["accuracy"] > 0.99
    assert learnt.metrics["note"] == ""


def test_labels_without_meaning_are_reported_as_chance() -> None:
    texts = manuals(200)
    random.Random(3).shuffle(texts)
    metrics = trained(texts[:100], texts[100:]).metrics
    assert 0.4 < metrics["auc"] < 0.6
    assert 0.4 < metrics["balanced_accuracy"] < 0.6
    assert "0.5 is chance" in metrics["note"]


def test_two_runs_give_equal_bytes(learnt: Trained) -> None:
    again = trained(manuals(60), rubbishes(60))
    assert again.weights.tobytes() == learnt.weights.tobytes()
    assert again.metrics == learnt.metrics


def test_a_text_scores_the_same_in_any_company(learnt: Trained) -> None:
    texts = [*TEXTS, *manuals(10), *rubbishes(10), "wool " * 50_000]
    together = score_texts(texts, learnt.weights)
    assert together.tolist() == [score_texts([text], learnt.weights)[0] for text in texts]
    assert score_texts(texts[::-1], learnt.weights).tolist() == together[::-1].tolist()


def test_the_smaller_side_counts_as_much_as_the_larger() -> None:
    metrics = trained(manuals(20), rubbishes(200)).metrics
    assert metrics["balanced_accuracy"] > 0.95


def test_a_text_that_was_held_out_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(features: Features, good: np.ndarray, weights: np.ndarray, l2: float, **options: object) -> np.ndarray:
        seen.append(weights > 0)
        return fit(features, good, weights, l2, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "fit", spy)
    trained(manuals(12), rubbishes(13))
    folds = np.array(seen[: FOLDS * len(STRENGTHS) : len(STRENGTHS)])
    assert (~folds).sum(axis=0).tolist() == [1] * 25
    assert seen[-1].all()


@pytest.mark.parametrize("filling", ["a ", "羊", "x", " ", "word "])
def test_of_a_giant_text_the_beginning_is_read(filling: str) -> None:
    text = filling * (2_000_000 // len(filling))
    whole, cut = featurise([text]), featurise([text[:READ_CHARS]])
    assert np.array_equal(whole.values, cut.values)
    assert len(plain_words(text[:READ_CHARS])) == 0 or len(whole.values) > 0


@pytest.mark.parametrize("l2", STRENGTHS)
def test_a_fit_is_where_the_slope_of_the_cost_is_nought(l2: float) -> None:
    features, _ = featurise([*manuals(15), *rubbishes(25)]).narrowed()
    good = np.arange(40) < 15
    weights = balanced(good, np.ones(40, bool))
    parameters = fit(features, good, weights, l2)
    matrix = dense(features)
    slope = matrix.T @ (weights * (1 / (1 + np.exp(-(matrix @ parameters[:-1] + parameters[-1]))) - good))
    assert np.abs(slope + l2 * parameters[:-1]).max() < 1e-9
    assert np.abs(np.sum(weights * (sigmoid(matrix @ parameters[:-1] + parameters[-1]) - good))) < 1e-9


def test_features_are_those_of_plain_python() -> None:
    matrix = dense(featurise(TEXTS))
    for row, text in zip(matrix, TEXTS, strict=True):
        words = next(read_batches([text])).words
        buckets = Counter(
            int(value) % BUCKETS for value in [*words.values.tolist(), *word_runs(words, 2).values.tolist()]
        )
        expected = {bucket: 1 + math.log(count) for bucket, count in buckets.items()}
        length = math.sqrt(sum(value * value for value in expected.values()))
        assert {int(place): row[place] for place in np.flatnonzero(row)} == pytest.approx(
            {bucket: value / length for bucket, value in expected.items()}
        )
