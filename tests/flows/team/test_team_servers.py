"""A team's box as a team uses it: real servers, a folder that documents are dropped into, workers that die."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from flows.arrivals import change
from postgres_server import PASSWORD, QUOTED, postgres_server
from runs import MARK, environment, kill_all
from test_deployments import EXPECTED
from test_team_box import free_port

from flows.team.api import NoAnswer, ask
from flows.team.prefect_server import PrefectServer
from flows.team.processes import family
from flows.team.services import GPU_POOL, POOL
from flows.team.settings import TeamFolder
from storage.home import Home

SCHEDULED = {"ingest/watch", "retrain/weekly", "evaluate/champion", "cleanup/nightly"}
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Box:
    """A box under test."""

    folder: Path
    variables: dict[str, str]

    @property
    def home(self) -> Home:
        return Home.from_environment(self.folder / "home")

    def run(self, *arguments: str) -> Any:
        """A `sheepfold` command; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments, "--json"],
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def ask(self, path: str, body: Any = None) -> Any:
        """Prefect's API."""
        folder = TeamFolder(self.home)
        return PrefectServer.of(folder, folder.settings()).ask(path, body)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run of a deployment; its id."""
        flow, name = deployment.split("/")
        found = self.ask(f"deployments/name/{flow}/{name}")
        made = self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def wait(self, run: str, *states: str) -> dict[str, Any]:
        """The run, once it is in one of the states."""
        while True:
            found: dict[str, Any] = self.ask(f"flow_runs/{run}")
            if found["state_name"] in states:
                return found
            assert found["state_name"] not in ("Failed", "Cancelled"), found["state"]["message"]
            time.sleep(0.5)

    def kill(self, service: str) -> None:
        """As if the power of a machine with only this service failed."""
        for member in family(str(self.home.path))[service]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was about to end by itself
                member.send_signal(signal.SIGKILL)


def new_box(folder: Path) -> Iterator[Box]:
    variables = environment(folder / "home")
    box = Box(folder, variables)
    try:
        yield box
    finally:
        subprocess.run([sys.executable, "-m", "flows.cli", "down"], env=variables, cwd=folder, check=False)
        kill_all(variables[MARK])


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Box]:
    """A box on SQLite that is up."""
    for made in new_box(tmp_path_factory.mktemp("box")):
        shutil.copytree(sample_folder / "text", made.folder / "documents")
        made.run("up", "--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        yield made


def test_up_brings_up_everything_and_again_nothing(box: Box) -> None:
    found = box.run("status")
    assert all(service["alive"] and service["healthy"] for service in found["services"].values())
    assert {item["name"] for item in found["deployments"]} == EXPECTED
    pools = {item["name"]: item["pool"] for item in found["deployments"]}
    assert pools.pop("train/gpu") == GPU_POOL
    assert set(pools.values()) == {POOL}
    again = box.run("up")
    assert (again["started"], again["made"]) == ([], {})
    assert again["services"] == found["services"]


def test_making_the_deployments_again_changes_nothing(box: Box) -> None:
    variables = {**os.environ, **TeamFolder(box.home).client_variables(TeamFolder(box.home).settings())}
    command = [sys.executable, "-m", "flows.team.register", str(TeamFolder(box.home).deployments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"pools": [], "queues": [], "deployments": [], "automations": []}


def test_what_a_person_set_on_a_page_outlives_another_folder(box: Box) -> None:
    documents = str(box.folder / "documents")
    path = "deployments/name/retrain/on-new-documents"
    before = box.ask(path)
    server = PrefectServer.of(TeamFolder(box.home), TeamFolder(box.home).settings())
    given = {**before["parameters"], "overrides": "train.minutes=60"}
    server.ask(f"deployments/{before['id']}", {"parameters": given}, "PATCH")
    for source in (str(box.folder), documents):
        assert "on-new-documents" in box.run("up", source)["made"]["deployments"]
        assert box.ask(path)["parameters"] == {**given, "source": source}


def test_documents_that_come_are_told_once_and_start_a_training(box: Box, sample_folder: Path) -> None:
    first = box.wait(box.start("ingest/watch"), "Completed")
    assert first["parameters"]["announce_share"] > 0
    cancel(box, told_run(box, 1))
    box.wait(box.start("ingest/watch"), "Completed")  # nothing new: nothing is told
    shutil.copytree(sample_folder / "text", box.folder / "documents" / "more")
    box.wait(box.start("ingest/watch"), "Completed")  # copies of what is there: nothing new either
    assert len(told(box)) == 1


def test_changes_that_are_told_at_once_start_a_run_each_and_one_that_is_told_twice_one(box: Box) -> None:
    tell = [change("other", source, 1.0, f"snapshot of {source}") for source in ("first", "first", "second")]
    for event in tell:
        box.ask("events", [event.model_dump(mode="json")])
    while len(found := [run for run in told(box) if run["parameters"]["corpus"] == "other"]) < 2:
        time.sleep(0.5)
    for run in found:
        cancel(box, run)
    assert sorted(run["parameters"]["source"] for run in found) == ["first", "second"]


def cancel(box: Box, run: dict[str, Any]) -> None:
    box.ask(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLED", "name": "Cancelled"}, "force": True})


def told(box: Box) -> list[dict[str, Any]]:
    """Runs that arrivals started."""
    deployment = box.ask("deployments/name/retrain/on-new-documents")
    query = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    found: list[dict[str, Any]] = box.ask("flow_runs/filter", query)
    return found


def told_run(box: Box, count: int) -> dict[str, Any]:
    while len(found := told(box)) < count:
        time.sleep(0.5)
    assert found[0]["parameters"]["corpus"] == "default"
    assert found[0]["parameters"]["source"] == str(box.folder / "documents")
    return found[0]


def test_a_run_whose_worker_vanished_is_queued_again_and_ends(box: Box) -> None:
    run = box.start("train/gpu", preset="tiny", max_steps=1_000_000)
    box.wait(run, "Running")
    wait_for_heartbeat(box, run)
    box.kill("gpu-worker")
    assert box.run("status")["services"]["gpu-worker"]["alive"] is False
    assert box.run("up")["started"] == ["gpu-worker"]
    box.wait(run, "AwaitingRetry", "Pending", "Submitting")
    found = box.wait(run, "Running")
    assert found["run_count"] == 2


def wait_for_heartbeat(box: Box, run: str) -> None:
    wanted = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    while not box.ask("events/filter", {"filter": wanted})["events"]:
        time.sleep(0.5)


def test_schedules_that_are_switched_on_stay_on_and_make_runs(box: Box) -> None:
    assert not any(item["scheduled"] for item in box.run("status")["deployments"])
    box.run("up", "--schedules")
    assert on_schedule(box) == SCHEDULED
    box.run("up")
    assert on_schedule(box) == SCHEDULED
    for name in SCHEDULED:
        deployment = box.ask(f"deployments/name/{name}")
        query = {"deployments": {"id": {"any_": [deployment["id"]]}}}
        while not any(run["auto_scheduled"] for run in box.ask("flow_runs/filter", query)):
            time.sleep(0.5)


def on_schedule(box: Box) -> set[str]:
    return {item["name"] for item in box.run("status")["deployments"] if item["scheduled"]}


def test_a_killed_server_is_started_again_and_knows_what_it_knew(box: Box) -> None:
    before = {item["name"] for item in box.run("status")["deployments"]}
    box.kill("prefect")
    box.kill("mlflow")
    assert box.run("up")["started"] == ["prefect", "mlflow"]
    assert {item["name"] for item in box.run("status")["deployments"]} == before


def test_down_ends_all_of_it(box: Box) -> None:
    assert set(box.run("down")["ended"]) == {"prefect", "mlflow", "worker", "gpu-worker"}
    assert family(str(box.home.path)) == {}
    found = box.run("status")
    assert not any(service["alive"] for service in found["services"].values())
    assert found["champion"] is None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Box]:
    """A box on PostgreSQL that asks for names and passwords, with one model."""
    pytest.importorskip("psycopg2", reason="MLflow reaches PostgreSQL through psycopg2")
    pytest.importorskip("flask_wtf", reason="MLflow's names and passwords need Flask-WTF")
    with postgres_server(free_port()) as database:
        for made in new_box(tmp_path_factory.mktemp("guarded")):
            shutil.copytree(sample_folder / "text", made.folder / "documents")
            ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
            given = {**made.variables, "SHEEPFOLD_POSTGRES": database.over_tls}
            replace(made, variables=given).run("up", "--auth", *ports)
            made.wait(made.start("retrain/weekly", preset="tiny", max_steps=5), "Completed")
            yield made


def test_both_servers_keep_all_they_know_in_postgres(guarded: Box) -> None:
    assert not (guarded.home.path / "mlflow.db").exists()
    assert not (guarded.home.prefect / "prefect.db").exists()
    found = guarded.run("status")
    assert found["database"].startswith("postgresql://shepherd:***@")
    assert found["champion"]["version"] == "1"


def test_without_a_password_neither_server_answers(guarded: Box) -> None:
    settings = TeamFolder(guarded.home).settings()
    for address in (f"{settings.prefect_api}/flows/filter", f"{settings.mlflow_url}/api/2.0/mlflow/experiments/search"):
        with pytest.raises(NoAnswer, match="401"):
            ask(address, {"max_results": 1})


def test_no_password_is_in_a_log_a_state_or_a_command_line(guarded: Box) -> None:
    folder = TeamFolder(guarded.home)
    known = folder.secrets()
    secret = [text.encode() for text in (known.prefect, known.mlflow_password, known.mlflow_key, PASSWORD, QUOTED)]
    open_files = [path for path in guarded.home.path.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path for path in open_files if any(text in path.read_bytes() for text in secret)] == []
    lines = [
        " ".join(member.cmdline()).encode() for found in family(str(guarded.home.path)).values() for member in found
    ]
    assert len(lines) >= 4
    assert not any(text in line for text in secret for line in lines)
    for name in ("worker", "gpu-worker"):
        variables = " ".join(family(str(guarded.home.path))[name][0].environ().values()).encode()
        assert not any(text in variables for text in (PASSWORD.encode(), QUOTED.encode()))
    for run in guarded.ask("flow_runs/filter", {}):
        assert not any(text in json.dumps(run).encode() for text in secret)
    for deployment in guarded.ask("deployments/filter", {}):
        assert not any(text in json.dumps(deployment).encode() for text in secret)


def artifacts_of(box: Box, run: str) -> dict[str, str]:
    """What a run left on Prefect's pages, by its key."""
    found = box.ask("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
    return {item["key"]: item["data"] for item in found}


def test_the_champion_is_measured_by_its_deployment(guarded: Box) -> None:
    page = guarded.home.reports_of("default") / "evaluation.html"
    before = page.read_bytes()
    page.unlink()
    run = guarded.start("evaluate/champion")
    guarded.wait(run, "Completed")
    assert "bits per byte" in artifacts_of(guarded, run)["sheepfold-evaluation"]
    assert len(page.read_bytes()) > len(before) / 2


def test_prompts_of_a_file_are_continued_by_its_deployment(guarded: Box) -> None:
    (guarded.folder / "prompts.txt").write_text("The first prompt\nThe second prompt\n")  # where `up` looked for it
    guarded.wait(guarded.start("generate/batch", max_new_tokens=8), "Completed")
    found = guarded.run("sql", "select prompt from completions order by prompt")
    assert [row["prompt"] for row in found] == ["The first prompt", "The second prompt"]


def test_the_store_is_cleared_up_by_its_deployment_and_stays_whole(guarded: Box) -> None:
    passing = guarded.folder / "documents" / "passing.txt"
    passing.write_text("A text that comes, is read once and goes again, so that what was made of it is garbage.\n" * 9)
    guarded.run("ingest", str(passing.parent))
    passing.unlink()
    guarded.run("ingest", str(passing.parent))
    assert garbage(guarded) > 0
    run = guarded.start("cleanup/nightly", grace_days=0)
    guarded.wait(run, "Completed")
    assert "are removed" in artifacts_of(guarded, run)["sheepfold-cleanup"]
    assert garbage(guarded) == 0
    assert guarded.run("verify")["ok"]
    assert guarded.run("status")["champion"]["version"] == "1"


def garbage(box: Box) -> int:
    """Artefacts that nothing needs."""
    return sum(item["garbage"] for item in box.run("gc", "--dry-run", "--grace-days", "0")["sizes"])


def test_trainings_for_the_gpu_run_one_at_a_time(guarded: Box) -> None:
    asked = [guarded.start("train/gpu", preset="tiny", max_steps=5, seed=seed) for seed in (1, 2)]
    first, second = sorted((guarded.wait(run, "Completed") for run in asked), key=lambda run: str(run["start_time"]))
    assert first["end_time"] <= second["start_time"]


def test_up_again_needs_no_password_typed(guarded: Box) -> None:
    guarded.kill("worker")
    assert guarded.run("up")["started"] == ["worker"]
