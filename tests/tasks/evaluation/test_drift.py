"""Drift: which documents are fresh to a model, and what is said of its figures on them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tiny_run import Ran, copy_of_store, direct_run, run_prepare, write_texts

from flows.evaluate import measure_drift
from storage.home import Home
from storage.tables import read_columns
from tasks.core.settings import EvaluationSettings
from tasks.evaluation.compare import Drift, drift_between
from tasks.evaluation.tables import DIMENSIONS, Evaluated

BIT = math.log(2)


def evaluated(bits: np.ndarray, n_bytes: int = 10) -> Evaluated:
    """Documents of so many bytes, each with so many bits in all."""
    n = len(bits)
    sums = {name: np.zeros(n, np.int64) for name in ("tokens", "lost_bytes")}
    sums |= {"bytes": np.full(n, n_bytes), "nll_nats": bits * BIT, "charged_nats": np.zeros(n)}
    return Evaluated([f"{place}" for place in range(n)], {name: ["a"] * n for name in DIMENSIONS}, sums)


def test_drift_is_the_difference_of_bits_per_byte() -> None:
    found = drift_between(evaluated(np.array([30.0, 10.0])), evaluated(np.array([8.0, 8.0, 14.0])))
    assert (found.fresh, found.own) == pytest.approx((2.0, 1.0))
    assert found.difference.value == pytest.approx(1.0)
    assert found.difference.documents == 2


def test_either_set_is_drawn_by_itself() -> None:
    """Of two documents of 10 and 30 bits a draw takes the one twice, the other twice, or both; the others are equal."""
    found = drift_between(evaluated(np.array([30.0, 10.0])), evaluated(np.array([10.0] * 3)), resamples=2000)
    assert (found.difference.low, found.difference.high) == pytest.approx((0.0, 2.0))


def test_harder_documents_are_told_from_a_lucky_draw() -> None:
    generator = np.random.default_rng(0)
    own = evaluated(generator.normal(20, 3, 200))
    assert "significantly worse" in drift_between(evaluated(generator.normal(22, 3, 100)), own).sentence()
    assert "significantly better" in drift_between(evaluated(generator.normal(18, 3, 100)), own).sentence()
    assert "no significant difference" in drift_between(evaluated(generator.normal(20, 3, 100)), own).sentence()


def test_one_document_says_nothing_of_others() -> None:
    found = drift_between(evaluated(np.array([30.0])), evaluated(np.array([8.0, 8.0])))
    assert "1 fresh document," in found.sentence() and "too few documents" in found.sentence()
    assert set(found.figures()) == {"drift/bits_per_byte", "drift/difference", "drift/documents"}
    json.dumps(found.figures(), allow_nan=False)


# real documents


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    return copy_of_store(tiny, tmp_path / "home")


def drift_of(home: Home, tiny: Ran) -> tuple[Drift, list[str]] | str:
    """The drift of the tiny model with the beginnings of the fresh texts, or the note that there is none."""
    assert tiny.checkpoint is not None and tiny.evaluation is not None
    with direct_run(home) as run:
        found = measure_drift(run, tiny.checkpoint, tiny.evaluation, EvaluationSettings())
        if found is None:
            return run.notes[-1]
        texts = read_columns(run.store.folder(found[1]) / "documents.parquet", ["text"])["text"]
        return found[0], sorted(text.splitlines()[0] for text in texts)


def test_documents_that_came_after_the_training_are_fresh_and_their_copies_are_not(
    home: Home, tiny: Ran, tmp_path: Path
) -> None:
    source = write_texts(tmp_path / "texts", range(14))
    old = (source / "text-03.txt").read_text()
    (source / "longer-copy.txt").write_text(f"{old}one more line\n")
    run_prepare(home, source)
    found = drift_of(home, tiny)
    assert isinstance(found, tuple)
    drift, texts = found
    assert texts == ["Text 12", "Text 13"]
    assert tiny.metrics is not None
    assert drift.own == pytest.approx(tiny.metrics["val/bits_per_byte"])
    assert drift.difference.documents == 2


def test_without_a_fresh_document_nothing_is_known(home: Home, tiny: Ran, tiny_source: Path) -> None:
    run_prepare(home, tiny_source)
    assert drift_of(home, tiny) == (
        "no document was added since this model was trained, so its drift cannot be measured"
    )
