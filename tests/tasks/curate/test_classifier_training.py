"""The classifier learns what is there to be learnt, says what it is worth, and is the same on every run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from classifier_samples import manuals, rubbishes
from dedup_samples import prose

from storage.errors import UserError
from tasks.curate.classifier import READ_CHARS, score_texts, train

TEXTS = ["", " \n ", "one", "one two", "ONE two one Two", "羊 羊", *(prose(400, seed) for seed in range(30))]


Trained = tuple[np.ndarray, dict[str, Any]]


def trained(good: list[str], bad: list[str]) -> Trained:
    return train(good, bad, lambda done, total: None)


@pytest.fixture(scope="module")
def learnt() -> Trained:
    return trained(manuals(60), rubbishes(60))


def test_it_tells_manuals_from_rubbish_that_it_has_not_seen(learnt: Trained) -> None:
    assert score_texts(manuals(100, 1_000), learnt[0]).min() > 0.5
    assert score_texts(rubbishes(100, 1_000), learnt[0]).max() < 0.5
    assert learnt[1]["auc"] > 0.99
    assert learnt[1]["accuracy"] > 0.99
    assert learnt[1]["note"] == ""


def test_examples_without_words_are_refused() -> None:
    with pytest.raises(UserError, match="the examples of the classifier have no words"):
        trained([i * "!" for i in range(1, 12)], [i * "?" for i in range(1, 12)])


def test_a_text_scores_the_same_in_any_company(learnt: Trained) -> None:
    texts = [*TEXTS, *manuals(10), *rubbishes(10), "wool " * 50_000]
    together = score_texts(texts, learnt[0])
    assert together.tolist() == [score_texts([text], learnt[0])[0] for text in texts]
    assert score_texts(texts[::-1], learnt[0]).tolist() == together[::-1].tolist()


def test_the_smaller_side_counts_as_much_as_the_larger() -> None:
    metrics = trained(manuals(20), rubbishes(200))[1]
    assert metrics["balanced_accuracy"] > 0.95


@pytest.mark.parametrize("filling", ["a ", "羊", "x", " ", "word "])
def test_of_a_giant_text_the_beginning_is_read(learnt: Trained, filling: str) -> None:
    text = filling * (2_000_000 // len(filling))
    assert score_texts([text], learnt[0]) == score_texts([text[:READ_CHARS]], learnt[0])


def test_scoring_does_not_load_scikit_learn() -> None:
    """It would cost every process that scores a second and 150 MB."""
    code = (
        "import sys, numpy as np, tasks.curate.classifier as c;"
        "c.score_texts(['a b'], np.zeros(c.BUCKETS + 1)); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
