"""The law of forecasts: fitted to the trainings that stand beside the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.forecast import fit, left_out, points_of, trainings
from tasks.training import law

CONSTANTS = np.array([law.E, law.A, law.B])
NAMES = ("body", "ids", "tokens", "read")
SIZES = [(2e5, 512, 1e6, 1e5), (2e5, 512, 1e6, 1e6), (1e6, 2048, 2e6, 1e6), (1e6, 512, 2e6, 5e6), (5e6, 4096, 3e6, 5e6)]


def row(arm: str, bits: float, corpus: str = "a", **counts: float) -> dict[str, Any]:
    """Return a row whose figure in windows that overlap, which the law does not speak of, is another one."""
    return {"arm": arm, "corpus": corpus, "recipe": {}, "counts": counts | {"bits_per_byte": bits}, "bits_per_byte": 0}


def test_the_law_has_the_constants_of_the_measured_trainings() -> None:
    assert fit(trainings()) == pytest.approx(CONSTANTS, rel=1e-3)


def test_the_interval_is_as_wide_as_texts_differ_that_the_law_was_not_fitted_to() -> None:
    points = trainings()
    assert len({point.corpus for point in points}) > 3
    assert np.sqrt(np.mean(np.square(left_out(points)))) == pytest.approx(law.SPREAD, abs=1e-3)


def test_the_ranges_are_those_of_the_measured_trainings() -> None:
    for name, ends in law.MEASURED.items():
        values = [getattr(point, name) for point in trainings()]
        assert (min(values), max(values)) == ends


def test_the_fit_recovers_the_law_from_the_rows_of_a_benchmark(tmp_path: Path) -> None:
    made = [row("ours", 2.0 * law.expected_ratio(*one), **dict(zip(NAMES, one, strict=True))) for one in SIZES]
    rows = [
        *made,
        row("5-gram", 1.9, reference=2.0),
        row("ours", 9.0, "without a 5-gram model", body=1, ids=1, tokens=1, read=1),
    ]
    file = tmp_path / "rows.json"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    points = points_of([file])
    assert len(points) == len(SIZES)
    assert fit(points) == pytest.approx(CONSTANTS)
