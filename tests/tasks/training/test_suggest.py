"""Suggestions: sensible sizes for a corpus and a time, measured once, taken by the training that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_run, run_prepare, tiny_settings, write_texts

from flows.train import suggest_training, train_model
from storage.errors import UserError
from storage.home import Home
from storage.lineage import manifest_of
from tasks.core.settings import (
    PROPOSED,
    ExecutionSettings,
    ModelSettings,
    TrainSettings,
    load_settings,
    parse_assignments,
)
from tasks.training.suggest import DROPOUT, MORE_DECAY, SUGGESTED, candidates_of, read_suggestion, shape_of_tokens

CPU = "cpu, 2 threads, torch 2"
OPEN = ("curate.validation_share=0.3", "train.minutes=0.02", "execution.processes=1")


@pytest.mark.parametrize(("tokens", "name"), [(1, "a"), (2_000_000, "a"), (20_000_000, "b"), (10**10, "c")])
def test_given_tokens_choose_the_size_nearest_to_twenty_a_parameter(tokens: int, name: str) -> None:
    assert shape_of_tokens({"a": 10**5, "b": 10**6, "c": 10**7}, tokens) == name


def test_a_given_preset_is_the_only_candidate() -> None:
    shapes, plans = candidates_of(ModelSettings("tiny"), TrainSettings(), 300, 64, CPU)
    assert list(shapes) == list(plans) == ["tiny"]


def test_what_is_given_of_the_network_holds_for_every_candidate_that_it_fits() -> None:
    shapes, _ = candidates_of(ModelSettings(overrides={"n_head": 4}), TrainSettings(), 300, 64, CPU)
    assert len(shapes) > 2
    assert {shape["n_head"] for shape in shapes.values()} == {4}
    with pytest.raises(UserError, match="n_head"):
        candidates_of(ModelSettings(overrides={"n_head": 7}), TrainSettings(), 300, 64, CPU)


def test_a_schedule_of_ones_own_replaces_the_proposed_one() -> None:
    for given, expected in (
        ({}, PROPOSED),
        ({"decay_ratio": 0.3}, {**PROPOSED, "decay_ratio": 0.3}),
        ({"schedule": "cosine"}, {"optimizer": "muon", "schedule": "cosine", "min_lr_ratio": 0.1}),
    ):
        _, plans = candidates_of(ModelSettings(), TrainSettings(overrides=given), 300, 64, CPU)
        assert all(expected.items() <= plan.items() for plan in plans.values())


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    return copy_of_store(tiny, tmp_path / "home", "train", "dataset", "suggest")


def test_a_run_without_a_preset_takes_the_suggestion_and_asks_once(home: Home, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts")
    settings = load_settings(None, parse_assignments([*OPEN]))
    ran = run_prepare(home, source, settings)
    with direct_run(home) as run:
        suggestion = suggest_training(run, settings, ran.prepared)
        found = read_suggestion(run.store.folder(suggestion))
        checkpoint = train_model(run, settings, ran.prepared)
        trained = manifest_of(run.store, checkpoint).settings
        assert trained["model"] == found["model"]
        assert {name: trained["train"][name] for name in SUGGESTED} == {
            name: found["train"][name] for name in SUGGESTED
        }
        assert trained["train"]["max_steps"] <= found["max_steps"]
        assert found["candidates"][0]["name"] == "modern-200k"
        assert found["why"] and all(reason.endswith(".") for reason in found["why"])
        assert run.reports["suggest"].computed == 1
    with direct_run(home) as again:
        assert suggest_training(again, settings, ran.prepared) == suggestion
        assert again.reports["suggest"].computed == 0


def test_a_network_is_chosen_for_the_passes_that_are_allowed(home: Home, tmp_path: Path) -> None:
    settings = load_settings(None, parse_assignments([*OPEN, "train.max_epochs=0.1"]))
    ran = run_prepare(home, write_texts(tmp_path / "texts"), settings)
    with direct_run(home) as run:
        found = read_suggestion(run.store.folder(suggest_training(run, settings, ran.prepared)))
    assert {item["passes"] for item in found["candidates"] if item["step_seconds"]} == {0.1}
    assert "0.1 times, as often as train.max_epochs allows" in " ".join(found["why"])


@pytest.mark.parametrize(
    ("settings", "dropout", "decay"),
    [
        (["train.max_tokens=100000000"], DROPOUT, 0.1 * MORE_DECAY),
        (["train.max_tokens=100000000", "train.max_epochs=9"], {}, 0.1),
        (["train.max_tokens=100000000", "train.weight_decay=0.2"], {}, 0.2),
        pytest.param(["train.max_tokens=100000000", "model.drop_attn=0"], {}, 0.1, marks=pytest.mark.full),
        pytest.param(["train.max_tokens=100000000", "train.optimizer=adam"], DROPOUT, 0.0, marks=pytest.mark.full),
        pytest.param(["train.max_tokens=100000000", "train.optimizer=adam_l2"], DROPOUT, 0.1, marks=pytest.mark.full),
        pytest.param(["train.max_steps=1", "train.grad_accum=4096"], DROPOUT, 1.0, marks=pytest.mark.full),
        pytest.param(["train.minutes=2"], DROPOUT, 0.1 * MORE_DECAY, marks=pytest.mark.full),
    ],
)
def test_a_text_that_is_read_many_times_is_learnt_with_dropout_and_decay_unless_one_is_given(
    home: Home, tmp_path: Path, settings: list[str], dropout: dict[str, float], decay: float
) -> None:
    chosen = load_settings(None, parse_assignments([OPEN[0], OPEN[2], *settings]))
    ran = run_prepare(home, write_texts(tmp_path / "texts"), chosen)
    with direct_run(home) as run:
        found = read_suggestion(run.store.folder(suggest_training(run, chosen, ran.prepared)))
    assert {name: found["model"][name] for name in DROPOUT} == {**dict.fromkeys(DROPOUT, 0.0), **dropout}
    assert found["train"]["weight_decay"] == pytest.approx(decay)
    assert ("learnt by heart" in " ".join(found["why"])) == bool(dropout)


def test_steps_are_timed_in_the_processes_that_will_train(home: Home, tmp_path: Path) -> None:
    settings = load_settings(None, parse_assignments([*OPEN[:2], "model.preset=tiny", "execution.processes=3"]))
    ran = run_prepare(home, write_texts(tmp_path / "texts"), settings)
    refused = pytest.raises(UserError, match=r"execution\.processes is 3: 3 processes cannot share the 8 sequences")
    with direct_run(home) as run, refused:
        suggest_training(run, settings, ran.prepared)


def test_what_is_computed_in_another_way_is_another_device() -> None:
    assert ExecutionSettings(keep=5).words() == ""
    assert ExecutionSettings(compile=True).words() == "compiled"
    assert (
        ExecutionSettings(processes=2, recompute=True, sharding="fsdp").words()
        == "2 processes by fsdp, activations computed again"
    )


def test_given_steps_need_no_measurement(home: Home, tmp_path: Path) -> None:
    settings = load_settings(None, parse_assignments(["curate.validation_share=0.3", "train.max_steps=3"]))
    ran = run_prepare(home, write_texts(tmp_path / "texts"), settings)
    with direct_run(home) as run:
        suggestion = suggest_training(run, settings, ran.prepared)
        found = read_suggestion(run.store.folder(suggestion))
    assert found["step_seconds"] is None
    assert "tokens a parameter" in json.dumps(found["why"])


@pytest.mark.full
def test_a_corpus_that_grows_a_little_keeps_its_suggestion(home: Home, tmp_path: Path) -> None:
    settings = load_settings(None, parse_assignments([*OPEN]))
    refs = []
    for count in (9, 10):
        ran = run_prepare(home, write_texts(tmp_path / "texts", range(count)), settings)
        with direct_run(home) as run:
            refs.append(suggest_training(run, settings, ran.prepared))
    assert refs[0] == refs[1]


def test_with_a_preset_and_steps_nothing_is_suggested(tiny: Ran) -> None:
    assert "suggest" not in tiny.reports
    assert tiny_settings().model.preset == "tiny"
