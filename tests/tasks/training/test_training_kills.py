"""Trainings that are stopped or killed: the next start goes on in the same MLflow run, to the same bits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tiny_run import SETTINGS, Ran, direct_run, home_at, train_in, with_tracking

from storage.catalog import corpus_ref
from storage.home import Home
from storage.store import open_store
from storage.tables import read_rows
from storage.tracking import Tracking
from tasks.core.progress import StageProgress
from tests.flows.runs import MARK, Command, kill_all, marked_processes, store_contents

STEPS = 3000
LATER = ("train", "evaluate", "generate", "prompts")  # stages of which the homes here know nothing yet
PATIENCE_SECONDS = 300


@pytest.fixture
def prepared_home(tiny: Ran, tmp_path: Path) -> Home:
    """A home with everything but the training."""
    return _prepared(tiny, tmp_path / "home")


def _prepared(tiny: Ran, folder: Path) -> Home:
    target = with_tracking(home_at(folder))
    shutil.copytree(tiny.run.home.store, target.store, ignore=shutil.ignore_patterns(*LATER, ".work", ".locks"))
    shutil.copyfile(tiny.run.home.hash_memo, target.hash_memo)
    store, name = open_store(target.store), corpus_ref("default")
    state = store.read_ref(name) or {}
    store.write_ref(name, {stage: refs for stage, refs in state.items() if stage not in LATER})
    return target


def _curve(home: Home) -> tuple[str, Counter[tuple[str, int]]]:
    """Status of the only run of a home, and how often it holds each point; what MLflow measures itself left out."""
    tracking = Tracking(home)
    (run,) = tracking.client.search_runs([tracking.experiment_id])
    names = [name for name in run.data.metrics if not name.startswith("system/")]
    points = Counter(
        (name, point.step) for name in names for point in tracking.client.get_metric_history(run.info.run_id, name)
    )
    return run.info.status, points


def _last_step(points: Counter[tuple[str, int]]) -> int:
    return max(step for name, step in points if name == "train/loss")


def _checkpoints(home: Home) -> list[int]:
    folders = Path(home.store, ".work", "train").glob("*/scratch/checkpoints/step-*")
    return sorted(int(folder.name[-8:]) for folder in folders)


class Interruption(BaseException):
    """Exception that SIGTERM raises in the main thread."""


@pytest.fixture
def raising_handler() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise Interruption

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_training_stopped_by_a_signal_goes_on_in_its_run_from_that_very_step(
    tiny: Ran, tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch, raising_handler: None
) -> None:
    assert tiny.checkpoint is not None
    shown = StageProgress.update

    def update(self: StageProgress, done: float, total: float, note: str = "") -> None:
        shown(self, done, total, note)
        if self.name == "train" and done == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patches, direct_run(prepared_home) as run:
        patches.setattr(StageProgress, "update", update)
        with pytest.raises(Interruption) as interruption:
            train_in(run, tiny_source)
    assert "its checkpoint is saved" in str(interruption.value.__cause__)
    stopped_at = _checkpoints(prepared_home)[-1]
    status, points = _curve(prepared_home)
    assert status == "KILLED"
    assert 7 <= stopped_at == _last_step(points)
    with direct_run(prepared_home) as run:
        checkpoint = train_in(run, tiny_source)
        manifest = run.store.find("train", checkpoint.key)
        assert manifest is not None and manifest.counts["resumed_from"] == stopped_at
    assert checkpoint == tiny.checkpoint
    assert set(_curve(prepared_home)[1].values()) == {1}


def _command(home: Home, source: Path) -> Command:
    settings = [
        f"--set={assignment}"
        for assignment in (*SETTINGS, f"train.max_steps={STEPS}", "execution.checkpoint_minutes=0.03")
    ]
    return Command(home.path, ["train", str(source), *settings])


def _interrupt(home: Home, source: Path, log: Path, how: Any) -> tuple[int, str]:
    """Starts the real command, lets it save another checkpoint, and interrupts it; its exit code and what it said."""
    before = _checkpoints(home)[-1:]
    command = _command(home, source)
    process = command.start(log)
    mark = command.variables[MARK]
    try:
        _until(lambda: _checkpoints(home)[-1:] > before or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        how(process, mark)
        code = process.wait(PATIENCE_SECONDS)
        _until(lambda: not marked_processes(mark))  # its server looks for it now and then
    finally:
        kill_all(mark)
    return code, log.read_text()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _terminate(process: subprocess.Popen[bytes], mark: str) -> None:
    process.terminate()


def _terminate_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """As a service manager does: the command's server and workers are told to end as well."""
    for one in marked_processes(mark):
        os.kill(one, signal.SIGTERM)


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    kill_all(mark)


@pytest.mark.full
@pytest.mark.prefect
@pytest.mark.timeout(1800)
def test_the_command_is_stopped_and_killed_and_goes_on_in_one_run_to_the_same_bits(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home, other = (_prepared(tiny, tmp_path / name) for name in ("home", "other"))
    for number, how in enumerate([_terminate, _terminate_all, _kill, _terminate]):
        code, said = _interrupt(home, tiny_source, tmp_path / f"log-{number}", how)
        status, points = _curve(home)
        if how is _kill:
            assert (code, status) == (-signal.SIGKILL, "RUNNING")
            continue
        assert code == 143, said
        stopped_at = _checkpoints(home)[-1]
        assert re.search(rf"training stopped as asked after step {stopped_at}; its checkpoint is saved", said), said
        assert "Traceback" not in said
        assert (status, _last_step(points)) == ("KILLED", stopped_at)
    result = _command(home, tiny_source).finish()
    assert isinstance(result, dict) and result["mlflow_run_id"]
    (folder,) = Path(home.store, "train").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"]["resumed_from"] == stopped_at
    status, points = _curve(home)
    assert status == "FINISHED" and set(points.values()) == {1}
    assert {(row["metric"], row["step"]) for row in read_rows(folder / "history.parquet")} <= points.keys()
    telemetry = [row["step"] for row in read_rows(folder / "telemetry.parquet") if row["metric"] == "time/step_seconds"]
    assert telemetry == list(range(1, STEPS + 1))
    _command(other, tiny_source).finish()
    assert store_contents(home.path) == store_contents(other.path)
