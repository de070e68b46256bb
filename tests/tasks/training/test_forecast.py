"""Forecasts: what a training is expected to reach beside the n-gram model, and where nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_run import Ran, copy_of_store, direct_run, run_prepare, write_texts

from flows.evaluate import evaluate_model
from flows.train import train_model
from storage.home import Home
from tasks.core.settings import load_settings, parse_assignments
from tasks.training.forecast import Outlook, forecast_sentence, forecast_text, read_forecast
from tasks.training.law import MEASURED, expected_ratio

TOKENS = 1_000_000


def suggestion(**seconds: float | None) -> dict[str, Any]:
    """Return a suggestion with networks of 200,000 and 1 million parameters."""
    sizes = {"small": 200_000, "large": 1_000_000}
    return {
        "preset": "small",
        "model": {"max_seq_len": 256, "vocab_size": 1024},
        "train": {"batch_size": 8, "grad_accum": 1},
        "candidates": [{"name": name, "body": sizes[name], "step_seconds": each} for name, each in seconds.items()],
    }


def outlook(ngram_bits: float = 2.0, max_epochs: float = 20.0) -> Outlook:
    return Outlook(suggestion(small=1.0, large=2.0), TOKENS, max_epochs, ngram_bits, 1.1 * ngram_bits)


def test_more_time_gives_fewer_bits_and_a_larger_network() -> None:
    found = [outlook().best(minutes) for minutes in (1.0, 10.0, 60.0)]
    bits = [item.bits_per_byte for item in found]
    assert None not in bits
    assert bits == sorted(bits, reverse=True)
    assert (found[0].preset, found[-1].preset) == ("small", "large")
    assert all(item.low < item.bits_per_byte < item.high for item in found)  # type: ignore[operator]


def test_the_bits_are_in_proportion_to_those_of_the_ngram_model() -> None:
    one, other = outlook(2.0).best(10.0), outlook(3.0).best(10.0)
    assert other.bits_per_byte == pytest.approx(1.5 * (one.bits_per_byte or 0))


def test_a_text_is_read_no_more_often_than_allowed() -> None:
    assert outlook(max_epochs=2.0).best(60.0).passes == 2.0


def test_far_from_what_was_measured_nothing_is_forecast() -> None:
    far = Outlook(suggestion(small=1.0), round(MEASURED["tokens"][1]) * 100, 20.0, 2.0, 2.2)
    assert far.best(10.0).bits_per_byte is None
    assert far.best(10.0).passes > 0
    larger = {**suggestion(small=16.0), "train": {"batch_size": 128, "grad_accum": 1}}  # as on a GPU
    assert Outlook(larger, TOKENS, 20.0, 2.0, 2.2).best(10.0).bits_per_byte is None


def test_the_time_to_beat_the_ngram_model_is_where_the_bits_fall_below_its_own() -> None:
    found = outlook()
    needed = found.minutes_to_beat()
    assert needed is not None
    before, then = (min(bits for bits, _ in found.each(minutes)) for minutes in (needed / 1.2, needed))
    assert then < found.ngram_bits < before
    slow = Outlook(suggestion(small=1e5), TOKENS, 20.0, 2.0, 2.2)
    assert slow.minutes_to_beat() is None


def test_the_law_counts_repetition_less_and_prefers_larger_networks_and_smaller_vocabularies() -> None:
    once = expected_ratio(1e6, 512, 1e6, 1e6)
    assert expected_ratio(1e6, 512, 2e6, 2e6) < expected_ratio(1e6, 512, 1e6, 2e6) < once
    assert expected_ratio(1e6, 512, 1e6, 1e9) == pytest.approx(expected_ratio(1e6, 512, 1e6, 1e10), rel=1e-3)
    assert expected_ratio(2e6, 512, 1e6, 1e6) < once < expected_ratio(1e6, 4096, 1e6, 1e6)


def told(bits: float | None, needed: float | None) -> dict[str, Any]:
    ends = {"low": bits and bits - 0.1, "high": bits and bits + 0.1}
    asked = {"minutes": 3.0, "preset": "small", "passes": 1.2, "bits_per_byte": bits, **ends}
    return {"order": 5, "ngram_bits_per_byte": 2.3, "asked": asked, "others": [], "minutes_to_beat": needed}


@pytest.mark.parametrize(
    ("bits", "needed", "words"),
    [
        (2.1, 1.0, "2.10 bits per byte are expected (2.00 to 2.20 in nine of ten); the 5-gram model of the same text"),
        (2.5, 11.2, "3 minutes are too few for a network to beat it: beating it takes about 12 minutes."),
        (2.5, 170.0, "beating it takes about 3 hours."),
        (2.5, None, "how many it takes was not measured."),
        (None, None, "nothing is forecast; the 5-gram model of the same text has 2.30."),
    ],
)
def test_the_sentence_says_what_the_time_is_worth(bits: float | None, needed: float | None, words: str) -> None:
    assert words in forecast_sentence(told(bits, needed))
    page = forecast_text(told(bits, needed))
    assert "| 3 | small | 1.2 |" in page
    assert "None" not in page


def test_a_run_is_told_the_figure_of_the_ngram_model_that_its_evaluation_has(tiny: Ran, tmp_path: Path) -> None:
    home: Home = copy_of_store(tiny, tmp_path / "home", "train", "dataset", "suggest")
    settings = load_settings(
        None, parse_assignments(["curate.validation_share=0.3", "train.minutes=0.02", "execution.processes=1"])
    )
    ran = run_prepare(home, write_texts(tmp_path / "texts"), settings)
    with direct_run(home) as run:
        checkpoint = train_model(run, settings, ran.prepared)
        (ref,) = run.produced["forecast"]
        _, metrics = evaluate_model(run, checkpoint, ran.prepared.evalset)
        found = read_forecast(run.store.folder(ref))
    assert found["ngram_bits_per_byte"] == pytest.approx(metrics["val/ngram_bits_per_byte"])
    assert found["asked"]["minutes"] == 0.02


@pytest.mark.full
def test_a_network_or_recipe_of_ones_own_has_no_forecast(tiny: Ran, tmp_path: Path) -> None:
    home: Home = copy_of_store(tiny, tmp_path / "home", "train", "dataset", "suggest")
    given = ["curate.validation_share=0.3", "train.minutes=0.02", "execution.processes=1", "train.lr=0.002"]
    settings = load_settings(None, parse_assignments(given))
    ran = run_prepare(home, write_texts(tmp_path / "texts"), settings)
    with direct_run(home) as run:
        train_model(run, settings, ran.prepared)
        assert "forecast" not in run.produced
