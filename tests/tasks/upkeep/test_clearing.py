"""Removal of artefacts that the next run does not need; trainings are kept unless their runs were deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import home_at, prose, write
from tiny_run import Ran, copy_of_store, run_prepare

from flows.stages import stage_facts
from storage.home import Home
from storage.store import open_store
from storage.tracking import Tracking
from tasks.upkeep.garbage import collect_garbage, sizes_of
from tasks.upkeep.verify import verify_home


@pytest.mark.full
def test_after_clearing_up_an_unchanged_corpus_computes_nothing_and_a_former_state_of_it_is_gone(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "in", {f"{number:02}.txt": prose(number) for number in range(12)})
    home = home_at(tmp_path / "home")
    run_prepare(home, source)
    write(source, {"new.txt": prose(50)})
    run_prepare(home, source)
    assert collect_garbage(home, open_store(home.store), stage_facts(), 7, dry_run=False)["removed"] == []
    said = collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=True)
    done = collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=False)
    assert said["removed"] == done["removed"]
    # the evaluation set and the tokeniser come from the former state, so what they were made from stays
    assert {name.partition("/")[0] for name in done["removed"]} == {"dataset"}
    assert sizes_of(open_store(home.store))["dataset"]["artefacts"] == 1
    assert all(
        not check["problems"] for check in verify_home(home, open_store(home.store), stage_facts(), "default")["checks"]
    )
    assert run_prepare(home, source).computed() == {}


@pytest.fixture
def home(tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a training that is neither registered nor the last one of a corpus nor known to MLflow."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    found = copy_of_store(tiny, tmp_path / "home")
    open_store(found.store).remove_ref("corpus/default")
    return found


@pytest.fixture
def key(tiny: Ran) -> str:
    """Of the training."""
    assert tiny.checkpoint is not None
    return tiny.checkpoint.key


def cleared(home: Home) -> set[str]:
    """Stages of what is cleared up, which is what was said before."""
    said = collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=True)
    done = collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=False)
    assert said["removed"] == done["removed"]
    return {name.partition("/")[0] for name in done["removed"]}


@pytest.mark.parametrize("database", ["lost", "new"])
def test_a_training_that_mlflow_knows_nothing_of_stays_with_its_dataset(home: Home, database: str) -> None:
    if database == "lost":
        (home.path / "mlflow.db").unlink()
    assert cleared(home).isdisjoint({"train", "dataset", "evaluate"})
    assert (home.path / "mlflow.db").exists() == (database == "new")


def test_a_training_that_was_removed_keeps_the_dataset_to_make_it_again_of(home: Home, key: str) -> None:
    open_store(home.store).remove("train", key, keep_manifest=True)
    assert "dataset" not in cleared(home)


def test_a_training_goes_when_its_run_is_deleted(home: Home, key: str) -> None:
    tracking = Tracking(home)
    run_id = tracking.ensure_run(key, "train", {}, {})
    assert "train" not in cleared(home)
    tracking.client.delete_run(run_id)
    assert {"train", "dataset", "evaluate"} <= cleared(home)


def test_a_training_whose_run_was_deleted_and_made_again_stays(home: Home, key: str) -> None:
    tracking = Tracking(home)
    tracking.client.delete_run(tracking.ensure_run(key, "train", {}, {}))
    tracking.ensure_run(key, "train", {}, {})
    assert "train" not in cleared(home)
