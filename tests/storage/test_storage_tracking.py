"""The projection into MLflow: one run per training, every point once, whatever was killed in between."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlflow
import pytest

from storage.home import Home
from storage.tracking import TRAIN_KEY_TAG, Point, PointBuffer, client, pages_under

if TYPE_CHECKING:
    from storage.tracking import Tracking

CURVE: list[Point] = [(name, step, step / 10) for step in range(1, 8) for name in ("train/loss", "lr")]


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def run_id(tracking: Tracking, key: str) -> str:
    return tracking.ensure_run(key, "train-test", {"model.n_layer": 2}, {"prefect.flow_run_id": "f"})


@pytest.mark.parametrize(
    ("address", "pages"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000/#"),
        ("https://mlflow.example/base/", "https://mlflow.example/base/#"),
        ("sqlite:////home/mlflow.db", None),
    ],
)
def test_only_a_server_shows_pages(address: str, pages: str | None) -> None:
    assert pages_under(address) == pages


def test_a_second_home_of_a_process_has_its_own_database_and_not_that_of_the_first(
    tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow.set_tracking_uri(None)  # as a process begins: MLflow writes an address into the environment where it changes
    client(tracking.home)
    assert Home.from_environment(tmp_path).tracking_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_the_address_that_a_person_set_stays(tracking: Tracking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    mlflow.set_tracking_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    client(tracking.home)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://tracking:5000"


def curve(tracking: Tracking, run_id: str) -> list[Point]:
    """All points that MLflow holds of the curve, repetitions among them."""
    points = [
        (name, point.step, point.value)
        for name in ("train/loss", "lr")
        for point in tracking.client.get_metric_history(run_id, name)
    ]
    return sorted(points)


class Cut(Exception):
    """Stands for a kill: what was not written by then is lost."""


def test_asking_for_a_run_again_gives_the_same_run_with_the_same_parameters(
    tracking: Tracking, key: str, run_id: str
) -> None:
    again = tracking.ensure_run(key, "other name", {"model.n_layer": 3}, {"prefect.flow_run_id": "second"})
    assert again == run_id and tracking.runs(key) == [run_id]
    data = tracking.client.get_run(run_id).data
    assert data.params == {"model.n_layer": "2"}
    assert data.tags[TRAIN_KEY_TAG] == key and data.tags["prefect.flow_run_id"] == "second"


def test_an_unknown_training_has_no_run(tracking: Tracking, key: str) -> None:
    assert tracking.runs(key) == []


def test_parameters_that_a_kill_left_out_are_written_when_the_run_is_asked_for_again(
    tracking: Tracking, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(tracking.client, "log_batch", cut)
        tracking.ensure_run(key, "train-test", {"model.n_layer": 2}, {})
    (run_id,) = tracking.runs(key)
    assert tracking.ensure_run(key, "train-test", {"model.n_layer": 2}, {}) == run_id
    assert tracking.client.get_run(run_id).data.params == {"model.n_layer": "2"}


def test_a_second_opening_of_the_home_uses_the_same_experiment(tracking: Tracking) -> None:
    from storage.tracking import Tracking as Opened

    assert Opened(tracking.home).experiment_id == tracking.experiment_id


def test_artefacts_of_the_experiment_lie_in_the_home(tracking: Tracking) -> None:
    location = tracking.client.get_experiment(tracking.experiment_id).artifact_location
    assert location == tracking.home.mlflow_artifacts.as_uri()


def test_points_are_written_once_when_a_kill_cut_the_writing_between_two_batches(
    tracking: Tracking, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tracking.client._tracking_client.store
    written = store.log_batch
    batches: list[int] = []

    def log_batch(*arguments: Any, **named: Any) -> None:
        if len(batches) == 2:
            raise Cut
        batches.append(len(named["metrics"]))
        written(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr("mlflow.tracking._tracking_service.client.MAX_METRICS_PER_BATCH", 3)
        patch.setattr(store, "log_batch", log_batch)
        tracking.log_missing(run_id, CURVE)
    assert batches == [3, 3] and len(curve(tracking, run_id)) == 6
    tracking.log_missing(run_id, CURVE)
    assert curve(tracking, run_id) == sorted(CURVE)
    tracking.log_missing(run_id, CURVE)
    assert curve(tracking, run_id) == sorted(CURVE)


def test_points_that_are_missing_in_the_middle_of_a_curve_are_filled_in(tracking: Tracking, run_id: str) -> None:
    tracking.log_points(run_id, [*CURVE[:4], *CURVE[10:]])
    tracking.log_missing(run_id, CURVE)
    assert curve(tracking, run_id) == sorted(CURVE)


def test_a_buffer_writes_nothing_before_it_is_flushed_and_then_each_point_once(tracking: Tracking, run_id: str) -> None:
    buffer = PointBuffer(tracking, run_id, seconds=3600)
    for step in range(1, 8):
        buffer.add(step, {"train/loss": step / 10, "lr": step / 10})
    assert curve(tracking, run_id) == []
    buffer.flush()
    buffer.flush()
    assert curve(tracking, run_id) == sorted(CURVE)


def test_a_buffer_whose_time_is_up_writes_what_it_holds(tracking: Tracking, run_id: str) -> None:
    buffer = PointBuffer(tracking, run_id, seconds=-1)
    buffer.add(1, {"train/loss": 0.1})
    assert curve(tracking, run_id) == [("train/loss", 1, 0.1)]


def test_a_training_that_goes_on_from_a_checkpoint_repeats_no_point(tracking: Tracking, run_id: str) -> None:
    first = PointBuffer(tracking, run_id, seconds=3600)
    for step in range(1, 6):
        first.add(step, {"train/loss": step / 10, "lr": step / 10})
    first.flush()
    second = PointBuffer(tracking, run_id, seconds=3600)  # killed at step 5, with a checkpoint of step 3
    for step in range(4, 8):
        second.add(step, {"train/loss": step / 10, "lr": step / 10})
    second.flush()
    assert Counter(curve(tracking, run_id)) == Counter(CURVE)


def set_clock(patch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Let the buffer, and nothing else, read this clock."""
    patch.setattr("storage.tracking.time", SimpleNamespace(monotonic=clock, time=time.time))


class Outage:
    """Lets the client's next writes of metrics fail, the last of them after the server took it."""

    def __init__(self, tracking: Tracking, patch: pytest.MonkeyPatch, failures: int) -> None:
        self.left = failures
        self._written = tracking.client.log_batch
        patch.setattr(tracking.client, "log_batch", self.log_batch)

    def log_batch(self, *arguments: Any, **named: Any) -> None:
        from mlflow.exceptions import MlflowException

        if not self.left:
            return self._written(*arguments, **named)
        self.left -= 1
        if not self.left:
            self._written(*arguments, **named)
        raise MlflowException("API request failed with error code 503")


def test_points_that_mlflow_did_not_take_wait_and_are_written_once(
    tracking: Tracking, run_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_clock(monkeypatch, lambda: 0.0)
    outage = Outage(tracking, monkeypatch, failures=2)
    buffer = PointBuffer(tracking, run_id, seconds=3600)
    for step in range(1, 8):
        buffer.add(step, {"train/loss": step / 10, "lr": step / 10})
        if step % 3 == 0:
            buffer.flush()
    assert outage.left == 0
    buffer.flush()
    assert curve(tracking, run_id) == sorted(CURVE)
    assert [record.message for record in caplog.records if record.name == "sheepfold"] == [
        "MLflow does not accept the training's metrics (API request failed with error code 503): check its server; the "
        "training continues, and missing points are written when it responds"
    ]


def test_an_mlflow_that_is_slow_to_fail_costs_a_small_share_of_the_training(
    tracking: Tracking, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    clock, asked = [0.0], []

    def log_batch(*_: Any, **__: Any) -> None:
        asked.append(clock[0])
        clock[0] += 3
        raise MlflowException("timed out")

    set_clock(monkeypatch, lambda: clock[0])
    monkeypatch.setattr(tracking.client, "log_batch", log_batch)
    buffer = PointBuffer(tracking, run_id, seconds=5)
    for step in range(1, 401):
        clock[0] += 1
        buffer.add(step, {"lr": 0.1})
        buffer.flush()
    assert asked == [1, 104, 207, 310]


def test_a_failed_training_tells_its_own_fault_although_mlflow_is_silent(
    tracking: Tracking, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("API request failed with error code 503")

    buffer = PointBuffer(tracking, run_id, seconds=3600)
    with monkeypatch.context() as patch:
        patch.setattr(tracking.client, "set_terminated", refuse)
        buffer.end("FAILED")
    assert tracking.client.get_run(run_id).info.status == "RUNNING"
    buffer.end("FAILED")
    assert tracking.client.get_run(run_id).info.status == "FAILED"


def test_last_steps_are_those_of_each_metric(tracking: Tracking, run_id: str) -> None:
    tracking.log_points(run_id, [("train/loss", 7, 1.0), ("train/loss", 3, 2.0), ("lr", 5, 0.1)])
    assert tracking.last_steps(run_id) == {"train/loss": 7, "lr": 5}


def test_a_run_is_running_until_it_is_finished_and_finishing_it_twice_changes_nothing(
    tracking: Tracking, run_id: str
) -> None:
    assert tracking.client.get_run(run_id).info.status == "RUNNING"
    tracking.finish(run_id)
    ended = tracking.client.get_run(run_id).info
    tracking.finish(run_id)
    assert ended.status == "FINISHED"
    assert tracking.client.get_run(run_id).info.end_time == ended.end_time


@pytest.mark.parametrize(("ended", "then"), [("FAILED", "RUNNING"), ("KILLED", "RUNNING"), ("FINISHED", "FINISHED")])
def test_a_failed_run_that_is_asked_for_again_is_running_again_and_a_finished_one_stays_so(
    tracking: Tracking, key: str, run_id: str, ended: str, then: str
) -> None:
    tracking.finish(run_id, ended)
    tracking.ensure_run(key, "train-test", {}, {})
    assert tracking.client.get_run(run_id).info.status == then


def test_a_dataset_is_tied_to_a_run_once_with_an_address_that_reads_back(tracking: Tracking, run_id: str) -> None:
    location = 'C:\\data\\"quoted"'
    for _ in range(2):
        tracking.log_dataset(run_id, "dataset", "ab" * 32, location, "training")
    (entry,) = tracking.client.get_run(run_id).inputs.dataset_inputs
    assert entry.dataset.digest == ("ab" * 32)[:36]
    assert json.loads(entry.dataset.source) == {"uri": location}
