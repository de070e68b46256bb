"""Metrics of the machine during a training, and tables of a run, in MLflow."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from storage.tracking import Tracking

MEMORY = "system/system_memory_usage_megabytes"


@pytest.fixture
def run_id(tracking: Tracking) -> str:
    return tracking.ensure_run(uuid.uuid4().hex, "train-test", {"model.n_layer": 2}, {})


def steps(tracking: Tracking, run_id: str, metric: str) -> list[int]:
    return [point.step for point in tracking.client.get_metric_history(run_id, metric)]


def look_on(tracking: Tracking, run_id: str, n: int) -> None:
    """Look on until so many looks at the machine were noted."""
    deadline = time.monotonic() + 60
    with tracking.system_metrics(run_id, seconds=0.05):
        while len(steps(tracking, run_id, MEMORY)) < n and time.monotonic() < deadline:
            pass


def test_looks_at_the_machine_are_noted(tracking: Tracking, run_id: str) -> None:
    look_on(tracking, run_id, 3)
    looks = steps(tracking, run_id, MEMORY)
    assert looks == list(range(len(looks))) and len(looks) >= 3


def test_after_an_interruption_the_looks_go_on_where_they_ended(tracking: Tracking, run_id: str) -> None:
    look_on(tracking, run_id, 2)
    before = len(steps(tracking, run_id, MEMORY))
    look_on(tracking, run_id, before + 2)
    looks = steps(tracking, run_id, MEMORY)
    assert looks == list(range(len(looks))) and len(looks) >= before + 2
    assert set(Counter(looks).values()) == {1}


def test_a_short_look_leaves_nothing_and_no_thread_behind(tracking: Tracking, run_id: str) -> None:
    import threading

    with tracking.system_metrics(run_id, seconds=3600):
        pass
    assert steps(tracking, run_id, MEMORY) == []
    assert not [thread for thread in threading.enumerate() if "system metrics" in thread.name.lower()]


def test_what_is_noted_of_the_machine_is_no_part_of_the_curve(tracking: Tracking, run_id: str) -> None:
    tracking.log_points(run_id, [("train/loss", 3, 1.0), (MEMORY, 9, 1.0)])
    assert tracking.last_steps(run_id) == {"train/loss": 3}


def test_a_table_is_replaced_and_named_once(tracking: Tracking, run_id: str) -> None:
    assert not tracking.has_file(run_id, "samples.json")
    for text in ("first", "zweiter ü"):
        tracking.log_table(run_id, "samples.json", ["step", "text"], [[1, text]])
    assert tracking.has_file(run_id, "samples.json")
    path = tracking.client.download_artifacts(run_id, "samples.json")
    assert json.loads(Path(path).read_text("utf-8")) == {"columns": ["step", "text"], "data": [[1, "zweiter ü"]]}
    tag = tracking.client.get_run(run_id).data.tags["mlflow.loggedArtifacts"]
    assert json.loads(tag) == [{"path": "samples.json", "type": "table"}]
