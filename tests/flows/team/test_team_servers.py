"""A team as it is used: real servers, a folder that documents are dropped into, processes that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from postgres_server import PASSWORD, QUOTED, postgres_server
from team_box import Box, new_box, waited
from test_deployments import EXPECTED
from test_servers import free_port

from flows.ingest import change
from flows.team.programs import GPU_POOL, MLFLOW, POOL, PREFECT, WORKER, processes
from flows.team.settings import SECRETS, TeamSettings, team_folder
from tasks.serving import API_KEY

SCHEDULED = {"ingest/watch", "retrain/weekly", "evaluate/champion", "cleanup/nightly"}
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Box]:
    """A team on SQLite, in a home that lies deeper than the address of a socket may be long."""
    temporary = tmp_path_factory.mktemp("temporary")  # where Prefect makes a folder for each run
    for made in new_box(tmp_path_factory.mktemp("box" + 100 * "-")):
        shutil.copytree(sample_folder / "text", made.folder / "documents")
        made.variables["TMPDIR"] = str(temporary)
        made.run("up", "--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        yield made


def test_up_starts_everything_and_again_nothing(box: Box) -> None:
    found = box.run("status")
    assert all(service["alive"] and service["healthy"] for service in found["services"].values())
    assert {item["name"] for item in found["deployments"]} == EXPECTED
    pools = {item["name"]: item["pool"] for item in found["deployments"]}
    assert pools.pop("train/gpu") == GPU_POOL
    assert set(pools.values()) == {POOL}
    again = box.run("up")
    assert again["started"] == []
    assert again["services"] == found["services"]


def test_other_ports_are_refused_while_the_servers_run(box: Box) -> None:
    command = [sys.executable, "-m", "flows.cli", "up", "--mlflow-port", str(free_port())]
    done = subprocess.run(command, env=box.variables, cwd=box.folder, capture_output=True, text=True)
    assert done.returncode != 0
    assert "run with other settings or passwords: run `sheepfold down`" in done.stderr


def test_another_folder_reaches_the_deployments_of_running_servers(box: Box) -> None:
    documents = str(box.folder / "documents")
    for source in (str(box.folder), documents):
        assert box.run("up", source)["started"] == []
        found = box.ask("deployments/name/retrain/on-new-documents")
        assert found["parameters"] == {"source": source, "base": None, "settings": {"train.minutes": 10}}


@pytest.mark.parametrize("program", [WORKER, MLFLOW, PREFECT])
def test_a_killed_program_is_started_again(box: Box, program: str) -> None:
    before = {item["name"] for item in box.run("status")["deployments"]}
    box.wait_healthy((program, box.kill(program)))
    assert {item["name"] for item in box.run("status")["deployments"]} == before
    assert len(processes(box.home, program)) == len([*_leaders(box, program)])


def _leaders(box: Box, program: str) -> list[psutil.Process]:
    leader = psutil.Process(box.pid(program))
    return [leader, *leader.children(recursive=True)]


def test_up_replaces_what_a_killed_supervisord_left_behind(box: Box) -> None:
    before = {process.pid for process in processes(box.home)}
    os.kill(int((team_folder(box.home) / "supervisord.pid").read_text()), signal.SIGKILL)
    box.run("up")
    assert not before & {process.pid for process in processes(box.home)}


def test_up_replaces_a_supervisord_whose_socket_was_cleared_away(box: Box) -> None:
    before = {process.pid for process in processes(box.home)}
    shutil.rmtree((team_folder(box.home) / "socket").resolve())
    box.run("up")
    assert not before & {process.pid for process in processes(box.home)}


def test_documents_that_come_start_one_training(box: Box, sample_folder: Path) -> None:
    first = box.wait(box.start("ingest/watch"), "Completed")
    assert first["parameters"]["announce_share"] > 0
    cancel(box, told_run(box, 1))
    box.wait(box.start("ingest/watch"), "Completed")  # nothing is new
    shutil.copytree(sample_folder / "text", box.folder / "documents" / "more")
    box.wait(box.start("ingest/watch"), "Completed")  # copies are not new either
    assert len(told(box)) == 1


def test_two_changes_at_once_start_a_run_each_and_the_same_change_twice_starts_one(box: Box) -> None:
    tell = [change("other", source, 1.0, f"snapshot of {source}") for source in ("first", "first", "second")]
    for event in tell:
        box.ask("events", [event.model_dump(mode="json")])

    def both() -> list[dict[str, Any]] | None:
        found = [run for run in told(box) if run["parameters"]["corpus"] == "other"]
        return found if len(found) >= 2 else None

    found = waited(both, "two runs of retrain/on-new-documents")
    for run in found:
        cancel(box, run)
    assert sorted(run["parameters"]["source"] for run in found) == ["first", "second"]


def cancel(box: Box, run: dict[str, Any]) -> None:
    box.ask(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLED", "name": "Cancelled"}, "force": True})


def told(box: Box) -> list[dict[str, Any]]:
    """Runs that the trigger started."""
    deployment = box.ask("deployments/name/retrain/on-new-documents")
    query = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    found: list[dict[str, Any]] = box.ask("flow_runs/filter", query)
    return found


def told_run(box: Box, count: int) -> dict[str, Any]:
    waited(lambda: len(told(box)) >= count, f"run {count} of retrain/on-new-documents")
    found = told(box)
    assert found[0]["parameters"]["corpus"] == "default"
    assert found[0]["parameters"]["source"] == str(box.folder / "documents")
    return found[0]


def test_a_run_that_stopped_reporting_is_queued_again(box: Box) -> None:
    run = box.start("train/gpu", preset="tiny", max_steps=1_000_000)
    box.wait(run, "Running")
    wait_for_heartbeat(box, run)
    before = box.kill("gpu-worker")
    for process in processes(box.home, "gpu-worker"):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run:
                process.kill()
    box.wait_healthy(("gpu-worker", before))
    box.wait(run, "Crashed", "AwaitingRetry", "Pending", "Submitting")
    assert box.wait(run, "Running")["run_count"] == 2
    end(box, run)


def end(box: Box, run: str) -> None:
    """Cancel a run as Prefect's page does, which ends its process, too."""
    box.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    box.wait(run, "Cancelled")


def wait_for_heartbeat(box: Box, run: str) -> None:
    wanted = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    waited(lambda: box.ask("events/filter", {"filter": wanted})["events"], "a heartbeat")


def test_schedules_that_are_switched_on_stay_on_and_make_runs(box: Box) -> None:
    assert not any(item["scheduled"] for item in box.run("status")["deployments"])
    box.run("up", "--schedules")
    assert on_schedule(box) == SCHEDULED
    box.run("up", str(box.folder))
    assert on_schedule(box) == SCHEDULED
    ids = {box.ask(f"deployments/name/{name}")["id"] for name in SCHEDULED}

    def planned() -> bool:
        runs = box.ask("flow_runs/filter", {})
        return ids <= {run["deployment_id"] for run in runs if run["auto_scheduled"]}

    waited(planned, "runs of each schedule")
    box.run("up", "--no-schedules")
    assert on_schedule(box) == set()


def on_schedule(box: Box) -> set[str]:
    return {item["name"] for item in box.run("status")["deployments"] if item["scheduled"]}


def test_down_queues_running_runs_again_and_stops_everything(box: Box) -> None:
    run = box.start("train/gpu", preset="tiny", max_steps=1_000_000)
    box.wait(run, "Running")
    assert set(box.run("down")["ended"]) == {"prefect", "mlflow", "worker", "gpu-worker"}
    assert processes(box.home) == []
    found = box.run("status")
    assert not any(service["alive"] for service in found["services"].values())
    assert found["champion"] is None
    assert box.run("down")["ended"] == []
    box.run("up")
    waited(lambda: box.ask(f"flow_runs/{run}")["run_count"] >= 2, "the run to start again")
    end(box, run)


def test_a_run_that_a_power_cut_ended_is_queued_again_by_up(box: Box) -> None:
    run = box.start("train/gpu", preset="tiny", max_steps=1_000_000)
    lost = box.wait(run, "Running")
    for process in processes(box.home):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    box.run("up")
    assert box.ask(f"flow_runs/{run}")["state_id"] != lost["state_id"]
    waited(lambda: box.ask(f"flow_runs/{run}")["run_count"] > lost["run_count"], "the run to start again")
    end(box, run)


def test_a_run_takes_relative_paths_from_beside_the_home_and_copies_nothing(box: Box) -> None:
    box.wait(box.start("ingest/watch", source="documents"), "Completed")
    texts = [path for path in (box.folder / "documents").rglob("*") if path.is_file()]
    assert box.run("sql", "select count(*) n from files")[0]["n"] == len(texts)
    assert not list(Path(box.variables["TMPDIR"]).rglob("*.txt"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Box]:
    """A team on PostgreSQL over TLS that asks for names and passwords, with one model."""
    pytest.importorskip("psycopg2", reason="MLflow reaches PostgreSQL through psycopg2")
    pytest.importorskip("flask_wtf", reason="MLflow's names and passwords need Flask-WTF")
    with postgres_server(free_port()) as database:
        for made in new_box(tmp_path_factory.mktemp("guarded")):
            shutil.copytree(sample_folder / "text", made.folder / "documents")
            ports = [f"--{name}-port={free_port()}" for name in ("prefect", "mlflow", "serve")]
            given = {**made.variables, "SHEEPFOLD_POSTGRES": database.over_tls}
            replace(made, variables=given).run("up", "--auth", *ports)
            made.wait(made.start("retrain/weekly", preset="tiny", max_steps=5), "Completed")
            yield made


def test_both_servers_use_postgres(guarded: Box) -> None:
    assert not (guarded.home.path / "mlflow.db").exists()
    assert not (guarded.home.prefect / "prefect.db").exists()
    found = guarded.run("status")
    assert found["database"].startswith("postgresql://shepherd:***@")
    assert found["champion"]["version"] == "1"


def test_without_a_password_neither_server_answers(guarded: Box) -> None:
    settings = TeamSettings.kept(guarded.home)
    for address in (
        f"{settings.prefect_url}/api/flows/filter",
        f"{settings.mlflow_url}/api/2.0/mlflow/experiments/search",
    ):
        assert httpx.post(address, json={"max_results": 1}).status_code == httpx.codes.UNAUTHORIZED


def test_the_champion_is_served_as_soon_as_there_is_one_to_those_with_the_key(guarded: Box) -> None:
    address = f"{guarded.run('status')['completions_url']}/completions"
    request = {"model": "champion", "prompt": "The", "max_tokens": 2}

    def status(**headers: str) -> int:
        with contextlib.suppress(httpx.ConnectError):  # it is still being loaded
            return httpx.post(address, json=request, headers=headers, timeout=60).status_code
        return 0

    key = TeamSettings.kept(guarded.home).secrets[API_KEY]
    waited(lambda: status(Authorization=f"Bearer {key}") == httpx.codes.OK, "the champion to answer")
    assert status() == httpx.codes.UNAUTHORIZED


def test_mlflow_refuses_other_host_names(guarded: Box) -> None:
    address = f"{TeamSettings.kept(guarded.home).mlflow_url}/api/2.0/mlflow/experiments/search?max_results=1"
    for host, status in (("localhost", httpx.codes.UNAUTHORIZED), ("evil.example.org", httpx.codes.FORBIDDEN)):
        assert httpx.get(address, headers={"Host": f"{host}:{httpx.URL(address).port}"}).status_code == status


def test_no_password_is_in_a_log_a_state_or_a_command_line(guarded: Box) -> None:
    known = TeamSettings.kept(guarded.home).secrets
    secret = [known[name].encode() for name in SECRETS]
    secret += [PASSWORD.encode(), QUOTED.encode()]
    open_files = [path for path in guarded.home.path.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path for path in open_files if any(text in path.read_bytes() for text in secret)] == []
    lines = [" ".join(process.cmdline()).encode() for process in processes(guarded.home)]
    assert len(lines) >= 4
    assert not any(text in line for text in secret for line in lines)
    for name in ("worker", "gpu-worker"):
        variables = " ".join(processes(guarded.home, name)[0].environ().values()).encode()
        assert not any(text in variables for text in (PASSWORD.encode(), QUOTED.encode()))
    for kind in ("flow_runs", "deployments"):
        for item in guarded.ask(f"{kind}/filter", {}):
            assert not any(text in json.dumps(item).encode() for text in secret)


def artifacts_of(box: Box, run: str) -> dict[str, str]:
    """Prefect's artifacts of a run by key."""
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
    (guarded.folder / "prompts.txt").write_text("The first prompt\nThe second prompt\n")  # the default of `up`
    guarded.wait(guarded.start("generate/batch", max_new_tokens=8), "Completed")
    found = guarded.run("sql", "select prompt from completions order by prompt")
    assert [row["prompt"] for row in found] == ["The first prompt", "The second prompt"]


def test_the_store_is_cleaned_by_its_deployment_and_stays_whole(guarded: Box) -> None:
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
    """Number of artifacts that nothing needs."""
    return sum(item["garbage"] for item in box.run("gc", "--dry-run", "--grace-days", "0")["sizes"])


def test_trainings_for_the_gpu_run_one_at_a_time(guarded: Box) -> None:
    asked = [guarded.start("train/gpu", preset="tiny", max_steps=5, seed=seed) for seed in (1, 2)]
    first, second = sorted((guarded.wait(run, "Completed") for run in asked), key=lambda run: str(run["start_time"]))
    assert first["end_time"] <= second["start_time"]


def test_up_again_needs_no_password_and_takes_a_new_one_after_down(guarded: Box) -> None:
    assert guarded.run("up")["started"] == []
    changed = {**guarded.variables, "MLFLOW_AUTH_ADMIN_PASSWORD": "another-password"}
    command = [sys.executable, "-m", "flows.cli", "up"]
    done = subprocess.run(command, env=changed, cwd=guarded.folder, capture_output=True, text=True)
    assert done.returncode != 0 and "run with other settings or passwords" in done.stderr
    guarded.run("down")
    replace(guarded, variables=changed).run("up")
    address = f"{TeamSettings.kept(guarded.home).mlflow_url}/api/2.0/mlflow/users/current"
    assert httpx.get(address, auth=("admin", "another-password")).status_code == httpx.codes.OK
