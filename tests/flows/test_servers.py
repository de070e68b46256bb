"""A Prefect server, a worker and MLflow's pages, as a team would use them, looked at in a real browser."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import MARK, environment, kill_all

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TOP = {"parent_task_run_id": {"is_null_": True}}  # no subflows


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to whoever asks for any."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def service(command: list[str], variables: dict[str, str], folder: Path, url: str = "") -> Iterator[None]:
    """A server for as long as the context lasts; entered when it answers at its address."""
    with (folder / f"{Path(command[0]).name}-{command[1]}.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + 300
            while url and not answers(url):
                assert time.monotonic() < until, f"{command} does not answer; see {log.name}"
                assert process.poll() is None, f"{command} ended; see {log.name}"
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:  # Prefect's worker at times waits for ever for a loop of its own
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclass(frozen=True)
class Team:
    """One box with its servers."""

    folder: Path
    variables: dict[str, str]
    prefect: str
    mlflow: str

    def call(self, *command: str) -> str:
        """Run a command in the team's folder."""
        done = subprocess.run(command, env=self.variables, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def post(self, path: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        """Ask Prefect's API."""
        request = urllib.request.Request(
            f"{self.prefect}/api/{path}", json.dumps(query).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    shutil.copytree(sample_folder / "text", folder / "documents")
    shutil.copyfile(ROOT / "flows" / "prefect.yaml", folder / "prefect.yaml")
    prefect, mlflow = free_port(), free_port()
    variables = {
        **environment(folder / ".sheepfold"),
        "PREFECT_HOME": str(folder / "prefect-home"),
        "SHEEPFOLD_SOURCE": "documents",
        "SHEEPFOLD_PROMPTS": "prompts.txt",
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(folder),
    }
    box = Team(folder, variables, f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}")
    with ExitStack() as stack:
        stack.callback(kill_all, variables[MARK])
        server = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(prefect)]
        stack.enter_context(service(server, variables, folder, f"{box.prefect}/api/health"))
        box.call(sys.executable, "-m", "flows.team.programs", "register", "prefect.yaml")
        worker = [str(BIN / "prefect"), "worker", "start", "--pool", "sheepfold"]
        stack.enter_context(service(worker, variables, folder))
        box.call(*deployment_run())
        store = f"sqlite:///{folder / '.sheepfold' / 'mlflow.db'}"
        pages = [str(BIN / "mlflow"), "ui", "--backend-store-uri", store, "--port", str(mlflow)]
        stack.enter_context(service(pages, variables, folder, f"{box.mlflow}/health"))
        yield box


def deployment_run() -> list[str]:
    """The command that a person types, with a training of seconds."""
    run = [str(BIN / "prefect"), "deployment", "run", "retrain/weekly", "--watch", "--watch-timeout", "600"]
    for parameter in ("source=documents", "preset=tiny", "max_steps=20"):
        run += ["--param", parameter]
    return run


@pytest.fixture(scope="module")
def page(chromium: Any) -> Any:
    """A window of the browser, patient enough for pages that are made while they are looked at."""
    window = chromium.new_page(viewport={"width": 1400, "height": 1600})
    window.set_default_timeout(60_000)
    return window


def test_a_deployment_run_completes_and_the_same_again_finds_everything(team: Team) -> None:
    team.call(*deployment_run())
    runs = team.post("flow_runs/filter", {"sort": "START_TIME_DESC", "flow_runs": TOP})
    assert [run["state_name"] for run in runs[:2]] == ["Completed", "Completed"]
    parts = team.post("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [runs[0]["id"]]}}})
    query = {"flow_runs": {"id": {"any_": [runs[0]["id"], *(part["id"] for part in parts)]}}}
    tasks = [
        task
        for task in team.post("task_runs/filter", query)
        if not task["state"]["state_details"].get("child_flow_run_id")  # a subflow
    ]
    states = {task["name"].partition(" ")[0]: task["state_name"] for task in tasks}
    assert states.pop("promote") == "Completed"
    assert set(states) >= {"train", "evaluate", "curate", "generate"}
    assert set(states.values()) == {"Cached"}


def test_the_page_of_a_run_shows_its_tasks_and_artefacts(team: Team, page: Any) -> None:
    run = team.post("flow_runs/filter", {"sort": "START_TIME_ASC", "flow_runs": TOP})[0]
    page.goto(f"{team.prefect}/runs/flow-run/{run['id']}")
    page.get_by_text(run["name"]).first.wait_for()
    page.get_by_text("Task Runs", exact=True).first.click()
    page.get_by_text("train · ", exact=False).first.wait_for()
    page.get_by_text("Artifacts", exact=True).first.click()
    page.get_by_text("Report of corpus", exact=False).first.wait_for()


def test_the_page_of_a_training_shows_its_curves(team: Team, page: Any) -> None:
    import sqlite3

    with sqlite3.connect(team.folder / ".sheepfold" / "mlflow.db") as database:
        (run_id, experiment) = database.execute("select run_uuid, experiment_id from runs").fetchone()
    page.goto(f"{team.mlflow}/#/experiments/{experiment}/runs/{run_id}/model-metrics")
    page.locator("svg.main-svg").first.wait_for()
    page.get_by_text("loss", exact=True).first.wait_for()
