"""Two runs at once on one store: each artefact is made once, both come to the same end, and nothing is there twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from runs import MARK, environment, marked_processes, store_contents

from storage.home import Home
from storage.registry import Registry
from storage.tracking import Tracking
from tests.tasks.tiny_run import SETTINGS, write_texts

pytestmark = [pytest.mark.faults, pytest.mark.prefect, pytest.mark.timeout(900)]


def _start(home: Path, source: Path) -> tuple[subprocess.Popen[str], str]:
    variables = environment(home)
    settings = [f"--set={item}" for item in SETTINGS]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(source), *settings, "--json"],
        env={**variables, "MLFLOW_TRACKING_URI": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, variables[MARK]


def _finish(process: subprocess.Popen[str], mark: str) -> dict[str, Any]:
    said, complaints = process.communicate()
    assert process.returncode == 0, complaints[-4000:]
    assert marked_processes(mark) == []
    result: dict[str, Any] = json.loads(said)
    return result


def test_two_runs_that_begin_at_once_make_each_artefact_once_and_one_version(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts")
    alone = _finish(*_start(tmp_path / "alone", source))
    started = [_start(tmp_path / "home", source) for _ in range(2)]
    one, other = (_finish(*process) for process in started)
    assert store_contents(tmp_path / "home") == store_contents(tmp_path / "alone")
    made = Counter()
    for result in (one, other):
        made.update({item["stage"]: item["computed"] for item in result["stages"]})
    assert +made == +Counter({item["stage"]: item["computed"] for item in alone["stages"]})
    assert one["model"]["version"] == other["model"]["version"] == "1"
    assert one["metrics"] == other["metrics"] == alone["metrics"]
    tracking = Tracking(Home(tmp_path / "home", "", f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}"))
    (version,) = Registry(tracking, "default").versions()
    assert version.aliases == ("champion",)
    (run,) = tracking.client.search_runs([tracking.experiment_id])
    steps = [point.step for point in tracking.client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(steps) == sorted(set(steps)) != []
    assert list((tmp_path / "home" / "store" / ".locks").rglob("*.lock")) == []
    assert list((tmp_path / "home" / "store" / ".work" / "train").iterdir()) == []
