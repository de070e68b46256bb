"""A training that is run again with `--refresh train`: a new MLflow run, with its own curve and its own version."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

import tasks.training.train
from flows.promote import promote_model
from storage.home import Home
from storage.tracking import REFRESHES_TAG, Tracking
from tasks.core.progress import StageProgress
from tasks.core.run import Run
from tasks.core.settings import ModelSettings
from tasks.registry.models import ensure_training_run
from tasks.training.train import TrainStageSettings, model_config, run_name

STEPS = 20


class Interrupted(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    """A home with one finished training and its run."""
    home = copy_of_store(tiny, tmp_path / "home")
    with direct_run(home) as run:
        ensure_training_run(run, tiny.checkpoint)
    return home


def interrupt_at(patch: pytest.MonkeyPatch, step: int) -> None:
    shown = StageProgress.update

    def update(self: StageProgress, done: float, total: float, note: str = "") -> None:
        shown(self, done, total, note)
        if self.name == "train" and done == step:
            raise Interrupted

    patch.setattr(StageProgress, "update", update)


def change_weights(patch: pytest.MonkeyPatch) -> None:
    """Let the second training end with other weights, as it does on another machine."""
    train_job = tasks.training.train.train_job

    def changed(job: Any, *arguments: Any, **more: Any) -> Any:
        from model import ModelConfig
        from model.checkpoint import load_weights, save_weights

        result = train_job(job, *arguments, **more)
        model = load_weights(result.weights, ModelConfig.from_dict(job.model))
        next(model.parameters()).data.add_(1e-3)
        save_weights(result.weights, model)
        return result

    patch.setattr(tasks.training.train, "train_job", changed)


def curve(tracking: Tracking, run_id: str) -> Counter[int]:
    return Counter(point.step for point in tracking.client.get_metric_history(run_id, "train/loss"))


def runs(run: Run) -> list[Any]:
    """The runs, the oldest first."""
    tracking = run.tracking
    return list(tracking.client.search_runs([tracking.experiment_id], order_by=["attributes.start_time ASC"]))


def test_a_refreshed_training_is_a_run_of_its_own_and_its_version_points_there(
    tiny: Ran, tiny_source: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        change_weights(patch)
        again = run_whole(home, tiny_source, refresh=("train",))
    assert again.checkpoint is not None and tiny.checkpoint is not None
    assert again.checkpoint.key == tiny.checkpoint.key and again.checkpoint.digest != tiny.checkpoint.digest
    with direct_run(home) as run:
        done, run_id = promote_model(run, again.checkpoint, again.evaluation)
        first, second = runs(run)
        tracking = run.tracking
        for made in (first, second):
            assert curve(tracking, made.info.run_id) == Counter(range(1, STEPS + 1))
            assert made.info.status == "FINISHED" and made.data.params
        assert second.data.tags[REFRESHES_TAG] == first.info.run_id and REFRESHES_TAG not in first.data.tags
        assert done.version.run_id == run_id == second.info.run_id


@pytest.mark.full
def test_a_refreshed_training_that_is_killed_goes_on_in_its_own_run(
    tiny: Ran, tiny_source: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_at(patch, 7)
        saving = tiny_settings("execution.checkpoint_minutes=0")  # every step
        run_whole(home, tiny_source, saving, refresh=("train",))
    again = run_whole(home, tiny_source, refresh=("train",))
    assert again.checkpoint is not None
    with direct_run(home) as run:
        assert run.store.find("train", again.checkpoint.key).counts["resumed_from"] == 6  # type: ignore[union-attr]
        ensure_training_run(run, again.checkpoint)
        assert len(runs(run)) == 2
        for made in runs(run):
            assert curve(run.tracking, made.info.run_id) == Counter(range(1, STEPS + 1))


@pytest.mark.full
def test_a_training_whose_artefact_was_removed_is_a_new_run(tiny: Ran, tiny_source: Path, home: Home) -> None:
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        run.store.remove("train", tiny.checkpoint.key)
    again = run_whole(home, tiny_source)
    assert again.checkpoint is not None
    with direct_run(home) as run:
        ensure_training_run(run, again.checkpoint)
        assert [made.info.status for made in runs(run)] == ["FINISHED", "FINISHED"]
        assert curve(run.tracking, runs(run)[1].info.run_id) == Counter(range(1, STEPS + 1))


@pytest.mark.parametrize(
    ("corpus", "preset", "overrides", "name"),
    [
        ("default", "tiny", {}, "default · tiny · 1,200 steps"),
        ("letters", "tiny", {"n_layer": 1, "d_model": 32}, "letters · {parameters} parameters · 1,200 steps"),
        ("", "tiny", {}, "tiny · 1,200 steps"),
    ],
)
def test_a_run_is_named_by_corpus_size_and_steps(
    corpus: str, preset: str, overrides: dict[str, Any], name: str
) -> None:
    from model import ModelConfig, count_parameters

    network = model_config(ModelSettings(preset, overrides), vocab_size=512)
    settings = TrainStageSettings(network, {"max_steps": 1200})
    parameters = count_parameters(ModelConfig.from_dict(network))["total"]
    assert run_name(settings, corpus) == name.format(parameters=f"{parameters:,}")
