"""Evaluations of real models: the page that a run leaves, two models compared, figures at the model in MLflow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from html_tags import Tags
from tiny_run import SETTINGS, Ran, copy_of_store, direct_run, plan_of, run_whole, tiny_settings

from flows.compare import compare
from flows.evaluate import measure_beside
from flows.options import CompareOptions
from flows.promote import promote_model
from storage.errors import UserError
from storage.home import Home
from storage.registry import Registry
from storage.tables import read_rows
from tasks.core.run import Run
from tasks.core.settings import EvaluationSettings, parse_assignments
from tasks.registry.models import UnknownModel
from tasks.report.evaluation import Measured, collect_evaluation, write
from tasks.report.page import Outcome
from tests.flows.runs import store_contents

WORSE = ("train.max_steps=2",)


@pytest.fixture(scope="module")
def home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The tiny run with its names, to which tests add."""
    home = copy_of_store(tiny, tmp_path_factory.mktemp("measured") / "home")
    shutil.copytree(Path(tiny.run.home.store) / ".refs", Path(home.store) / ".refs", dirs_exist_ok=True)
    return home


@pytest.fixture(scope="module")
def worse(home: Home, tiny: Ran, tiny_source: Path) -> Ran:
    """A model that was trained for two steps, promoted after the first one."""
    made = run_whole(home, tiny_source, tiny_settings(*WORSE))
    with direct_run(home) as run:
        for ran in (tiny, made):
            assert ran.checkpoint is not None
            promote_model(run, ran.checkpoint, ran.evaluation)
    return made


def measured_of(run: Run, ran: Ran) -> tuple[Measured, dict[str, float]]:
    assert ran.checkpoint is not None and ran.evaluation is not None and ran.completions is not None
    settings, evalset = EvaluationSettings(), ran.prepared.evalset
    return measure_beside(run, "a model", ran.checkpoint, evalset, ran.evaluation, ran.completions, settings)


def test_the_page_holds_the_figures_of_the_tables_and_is_drawn_once(home: Home, tiny: Ran) -> None:
    assert tiny.metrics is not None
    with direct_run(home) as run:
        measured, _ = measured_of(run, tiny)
        outcome = Outcome(run, measured=measured)
        made = write(outcome)
        assert made is not None
        (page,) = made.files
        words = " ".join(Tags(page.read_text(encoding="utf-8")).words)
        drawn = page.stat().st_mtime_ns
        assert write(outcome) == made
        assert page.stat().st_mtime_ns == drawn
        figures = collect_evaluation(run.store, measured)
    for name in ("bits_per_byte", "ngram_bits_per_byte", "unigram_bits_per_byte"):
        assert f"{tiny.metrics[f'val/{name}']:.4f}" in words
    held_out = read_rows(tiny.folder(tiny.prepared.evalset) / "documents.parquet", ["doc_id", "text"])
    texts = {row["doc_id"]: row["text"] for row in held_out}
    listed = [*figures.best, *figures.worst]
    assert {item.doc_id for item in listed} == set(texts)
    assert all(texts[item.doc_id].startswith(item.begins) and item.path in words for item in listed)
    assert sum(item.sums.documents for item in figures.exposures) == len(texts)
    assert figures.completions and all(item.marks is not None for item in figures.completions)


def test_a_plan_says_what_tracing_a_run_would_compute(home: Home, tiny_source: Path, tiny: Ran) -> None:
    with direct_run(home) as run:
        measured_of(run, tiny)
    planned = plan_of(home, tiny_source, tiny_settings("evaluate.trace=true"))
    assert {name: planned[name].cached for name in ("trace_index", "memorised", "gram_overlap", "contamination")} == {
        "trace_index": True, "memorised": True, "gram_overlap": True, "contamination": True,
    }  # fmt: skip


def test_tracing_can_be_left_out(home: Home, tiny: Ran) -> None:
    assert tiny.checkpoint is not None and tiny.evaluation is not None and tiny.completions is not None
    evalset = tiny.prepared.evalset
    with direct_run(home) as run:
        settings = EvaluationSettings(trace=False)
        found, _ = measure_beside(run, "a model", tiny.checkpoint, evalset, tiny.evaluation, tiny.completions, settings)
        assert "trace_index" not in run.reports
        figures = collect_evaluation(run.store, found)
    assert (found.memorised, found.contamination, list(figures.exposures)) == (None, None, [])


def test_a_challenger_stands_beside_the_champion_that_it_met(home: Home, tiny: Ran, worse: Ran) -> None:
    assert tiny.metrics is not None and worse.metrics is not None
    with direct_run(home) as run:
        measured, beside = measured_of(run, worse)
        figures = collect_evaluation(run.store, measured)
        assert measured_of(run, tiny)[0].rival is None, "there was no champion before the first"
    assert beside["val/champion_bits_per_byte"] == tiny.metrics["val/bits_per_byte"]
    assert figures.rival is not None
    assert figures.rival.name == "the champion (version 1)"
    assert figures.rival.difference.value == pytest.approx(
        worse.metrics["val/bits_per_byte"] - tiny.metrics["val/bits_per_byte"]
    )


def test_figures_stand_at_the_model_with_the_evaluation_set(home: Home, worse: Ran) -> None:
    assert worse.metrics is not None and worse.checkpoint is not None
    with direct_run(home) as run:
        version = Registry(run.tracking, "default").by_digest().get(worse.checkpoint.digest)
        assert version is not None
        points = run.tracking.client.get_logged_model(version.model_id).metrics or []
    held = {(point.key, point.value, point.dataset_name, point.dataset_digest) for point in points}
    digest = worse.prepared.evalset.digest[:36]
    assert {(name, value, "evalset", digest) for name, value in worse.metrics.items()} <= held


def compared(home: Home, a: str, b: str, **options: str) -> dict[str, Any]:
    """Call the flow's function without Prefect; returns its report."""
    settings = parse_assignments(SETTINGS)
    return compare.function(CompareOptions(home=str(home.path), a=a, b=b, settings=settings, **options))


def test_a_model_does_not_differ_from_itself(home: Home, worse: Ran) -> None:
    found = compared(home, "champion", "1")
    assert [found["difference"][name] for name in ("value", "low", "high", "clear")] == [0, 0, 0, False]
    assert all(item["difference"]["value"] == 0 for item in found["slices"])
    assert all(item["bits"] == 0 for item in found["documents"])


def test_two_models_differ_by_their_bits_and_show_their_texts(home: Home, tiny: Ran, worse: Ran) -> None:
    assert tiny.metrics is not None and worse.metrics is not None
    document = compared(home, "champion", "challenger")
    expected = tiny.metrics["val/bits_per_byte"] - worse.metrics["val/bits_per_byte"]
    assert document["difference"]["value"] == pytest.approx(expected)
    assert document["difference"]["low"] <= expected <= document["difference"]["high"] < 0
    assert document["metrics"]["val/loss"] == {"a": tiny.metrics["val/loss"], "b": worse.metrics["val/loss"]}
    assert document["documents"][0]["path"].startswith("text-")
    assert document["documents"][0]["begins"].startswith("Text ")
    assert all(item["a"] != item["b"] for item in document["completions"])
    words = " ".join(Tags(Path(document["page"]).read_text(encoding="utf-8")).words)
    assert f"{worse.metrics['val/bits_per_byte']:.4f}" in words
    assert document["completions"][0]["prompt"] in words


def test_what_was_compared_is_found_again(home: Home, worse: Ran) -> None:
    first = compared(home, "champion", "challenger")
    made = store_contents(home.path)
    again = compared(home, "1", "2")
    assert store_contents(home.path) == made
    assert again["page"] == first["page"]


def test_models_are_compared_on_texts_from_outside_and_continue_prompts_of_a_file(
    home: Home, worse: Ran, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("the dog watches the sheep from the gate\n" * 4)
    (tmp_path / "prompts.txt").write_text("the shepherd\nthe dog\n")
    prompts = str(tmp_path / "prompts.txt")
    found = compared(home, "champion", "challenger", on=str(tmp_path / "text.txt"), prompts=prompts)
    assert found["difference"]["documents"] == 1
    assert [item["prompt"] for item in found["completions"]] == ["the shepherd", "the dog"]
    assert [item["path"] for item in found["documents"]] == [None] and found["notes"] == []


@pytest.mark.full
def test_the_same_pair_on_other_documents_or_prompts_has_a_page_of_its_own(
    home: Home, worse: Ran, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("the dog watches the sheep from the gate\n" * 4)
    (tmp_path / "prompts.txt").write_text("the shepherd\n")
    how = [{}, {"on": str(tmp_path / "text.txt")}, {"prompts": str(tmp_path / "prompts.txt")}]
    pages = [Path(compared(home, "champion", "challenger", **options)["page"]) for options in how]
    assert len(set(pages)) == 3 and all(page.is_file() for page in pages)


def test_a_model_that_read_the_documents_is_told(home: Home, worse: Ran) -> None:
    notes = compared(home, "champion", "challenger", on="train")["notes"]
    assert [note.partition(" was trained on some")[0] for note in notes] == ["champion", "challenger"]


@pytest.mark.parametrize("name", ["nobody", "99", "models:/sheepfold@none", "0" * 32])
def test_a_name_that_leads_to_no_model_is_told(home: Home, worse: Ran, name: str) -> None:
    with pytest.raises(UnknownModel, match=f"no model '{name}': give an alias"):
        compared(home, "champion", name)


def test_a_folder_without_a_model_is_told(home: Home, worse: Ran, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a model folder: it lacks"):
        compared(home, "champion", str(tmp_path))
