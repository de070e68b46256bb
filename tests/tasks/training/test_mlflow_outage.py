"""A real MLflow server that goes away in the middle of a training, or whose answers are lost: the training goes on, and
nothing is lost or there twice."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from proxy import LOSE, PASS, Answer, Proxy
from tiny_run import Ran, copy_of_store, direct_run, empty_database, run_whole, tiny_settings, train_in

from flows.promote import promote_model
from storage.home import Home
from storage.registry import Registry
from storage.tables import read_rows
from storage.tracking import Tracking
from tasks.core.progress import StageProgress
from tasks.registry.models import ensure_training_run
from tasks.training import telemetry

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

STEPS, GONE, BACK = 60, 20, 40
LATER = ("train", "evaluate", "generate", "complete", "prompts")


@dataclass
class Server:
    """An MLflow server on loopback that can be killed and started again at the same address."""

    folder: Path
    port: int = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])

    @property
    def address(self) -> str:
        """Where it is, or was."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        backend = ["--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        artifacts = ["--artifacts-destination", str(self.folder / "artifacts")]
        command = [str(Path(sys.executable).with_name("mlflow")), "server", *backend, *artifacts]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=2):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def kill(self) -> None:
        """End it and its workers on the spot."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """It runs; whoever asks it in vain gives up soon, instead of after minutes."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    monkeypatch.setattr(telemetry, "CURVE_SECONDS", -1.0)  # points are sent at each step
    found = Server(tmp_path / "mlflow")
    (found.folder / "mlflow.db").write_bytes(empty_database())
    found.start()
    return found


def test_a_server_that_is_gone_in_the_middle_of_a_training_has_every_point_once_in_the_end(
    tiny: Ran,
    tiny_source: Path,
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = copy_of_store(tiny, tmp_path / "home", *LATER)
    home = Home(folder.path, folder.store, server.address)
    shown = StageProgress.update

    def update(self: StageProgress, done: float, total: float, note: str = "") -> None:
        shown(self, done, total, note)
        if self.name == "train" and done == GONE:
            server.kill()
        if self.name == "train" and done == BACK:
            server.start()

    monkeypatch.setattr(StageProgress, "update", update)
    try:
        with caplog.at_level(logging.WARNING, logger="sheepfold"), direct_run(home) as run:
            checkpoint = train_in(run, tiny_source, tiny_settings(f"train.max_steps={STEPS}"))
            run_id = ensure_training_run(run, checkpoint)
            history = read_rows(run.store.folder(checkpoint) / "history.parquet")
            client = run.tracking.client
            run = client.get_run(run_id)
            points = Counter(
                (name, point.step)
                for name in run.data.metrics
                if not name.startswith("system/")
                for point in client.get_metric_history(run_id, name)
            )
    finally:
        server.kill()
    assert run.info.status == "FINISHED"
    assert {(row["metric"], row["step"]) for row in history} <= points.keys()
    assert {step for name, step in points if name == "train/loss"} == set(range(1, STEPS + 1))
    assert set(points.values()) == {1}
    told = [record.message for record in caplog.records if "does not accept the training's metrics" in record.message]
    assert len(told) == 1 and "missing points are written when it responds" in told[0]


def test_what_is_asked_for_again_because_the_answer_was_lost_is_there_once(
    tiny: Ran, tiny_source: Path, tmp_path: Path, server: Server
) -> None:
    proxy = Proxy(server.address)
    waiting = {"runs/create", "model-versions/create"}

    def lose_first(method: str, path: str) -> Answer:
        asked = path.rpartition("/mlflow/")[2]
        if method == "POST" and asked in waiting:
            waiting.remove(asked)
            return LOSE
        return PASS

    proxy.decide = lose_first
    folder = copy_of_store(tiny, tmp_path / "home", *LATER)
    home = Home(folder.path, folder.store, proxy.endpoint)
    try:
        ran = run_whole(home, tiny_source)
        assert ran.checkpoint is not None
        with direct_run(home) as run:
            promote_model(run, ran.checkpoint, ran.evaluation)
        tracking = Tracking(home)
        runs = tracking.client.search_runs([tracking.experiment_id])
        versions = Registry(tracking, "default").versions()
    finally:
        proxy.close()
        server.kill()
    assert not waiting  # both answers were lost
    (run,), (version,) = runs, versions
    assert version.run_id == run.info.run_id
    assert run.info.status == "FINISHED" and run.data.params
