"""A Prefect server and workers that `sheepfold up` did not start, set up as docs/guides/cluster.md says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runs import MARK, environment, kill_all
from team_box import waited
from test_deployments import EXPECTED
from test_servers import BIN, free_port, service

from flows.team.programs import GPU_POOL, POOL, PREFECT_FILE, RETRAIN_QUEUE, ask_prefect
from tests.tasks.tiny_run import write_texts

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
PREFECT = [str(BIN / "prefect")]


class Cluster:
    """A server with the deployments of a copy of prefect.yaml."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.folder = folder
        self.variables = {
            **environment(folder / "home"),
            "SHEEPFOLD_SOURCE": str(write_texts(folder / "documents")),
            "SHEEPFOLD_PROMPTS": str(folder / "prompts.txt"),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EVENTS_EXPIRED_BUCKET_BUFFER": "P30D",
            "DO_NOT_TRACK": "1",
            "PATH": f"{BIN}:/usr/bin:/bin",
        }
        self.file = folder / "prefect.yaml"
        self.file.write_text(PREFECT_FILE.read_text())
        self.server = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        self.ask = partial(ask_prefect, self.variables)
        self.running = ExitStack()

    def serve(self) -> None:
        """Start the server."""
        address = f"{self.variables['PREFECT_API_URL']}/health"
        self.running.enter_context(service(self.server, self.variables, self.folder, address))

    def register(self) -> None:
        """Run the command of the page."""
        command = [sys.executable, "-m", "flows.team.programs", "register", str(self.file)]
        done = subprocess.run(command, env=self.variables, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def start(self, deployment: str, **parameters: Any) -> str:
        found = self.ask(f"deployments/name/{deployment}")
        made = self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def wait(self, run: str, state: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found: dict[str, Any] = self.ask(f"flow_runs/{run}")
            assert found["state_name"] != "Failed", found["state"]["message"]
            return found if found["state_name"] == state else None

        return waited(there, f"run {run} to be {state}")

    def put(self, run: str, state: str) -> None:
        self.ask(f"flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    with ExitStack() as stack:
        stack.callback(kill_all, made.variables[MARK])
        stack.enter_context(made.running)
        made.serve()
        made.register()
        yield made


def names(cluster: Cluster, kind: str) -> list[str]:
    return sorted(str(item["name"]) for item in cluster.ask(f"{kind}/filter", {}))


def test_registering_twice_makes_everything_once(cluster: Cluster) -> None:
    before = {kind: names(cluster, kind) for kind in ("work_pools", "deployments", "automations")}
    assert before["work_pools"] == [POOL, GPU_POOL]
    assert len(before["deployments"]) == len(EXPECTED)
    assert len(before["automations"]) == 3
    cluster.register()
    assert {kind: names(cluster, kind) for kind in before} == before


def test_deployments_take_folders_and_the_home_from_the_environment(cluster: Cluster) -> None:
    found = cluster.ask("deployments/name/retrain/weekly")
    source = cluster.variables["SHEEPFOLD_SOURCE"]
    assert found["parameters"] == {"source": source, "base": None, "settings": {"train.minutes": 10}}
    assert found["job_variables"]["env"]["SHEEPFOLD_HOME"] == cluster.variables["SHEEPFOLD_HOME"]
    (step,) = found["pull_steps"]
    assert step["prefect.deployments.steps.set_working_directory"] == {"directory": str(cluster.folder)}


def test_a_schedule_and_a_limit_that_a_person_set_survive_registering(cluster: Cluster) -> None:
    queue = f"work_pools/{POOL}/queues/{RETRAIN_QUEUE}"
    assert cluster.ask(queue)["concurrency_limit"] == 1
    cluster.ask(queue, {"concurrency_limit": 2}, "PATCH")
    item = cluster.ask("deployments/name/evaluate/champion")
    address = f"deployments/{item['id']}/schedules/{item['schedules'][0]['id']}"
    cluster.ask(address, {"active": True}, "PATCH")
    cluster.register()
    assert cluster.ask(queue)["concurrency_limit"] == 2
    assert cluster.ask("deployments/name/evaluate/champion")["schedules"][0]["active"]
    cluster.ask(queue, {"concurrency_limit": 1}, "PATCH")
    cluster.ask(address, {"active": False}, "PATCH")


def test_a_second_retraining_waits_for_the_first_and_others_do_not(cluster: Cluster) -> None:
    first, second = cluster.start("retrain/weekly"), cluster.start("retrain/on-new-documents")
    watch = cluster.start("ingest/watch")
    assert set(handed_out(cluster)) == {first, watch}
    cluster.put(first, "PENDING")
    cluster.put(first, "RUNNING")
    assert handed_out(cluster) == [watch]
    cluster.put(first, "COMPLETED")
    assert set(handed_out(cluster)) == {second, watch}
    for run in (second, watch):
        cluster.put(run, "CANCELLED")


def handed_out(cluster: Cluster) -> list[str]:
    """Runs that a worker of the pool is told to begin."""
    found = cluster.ask(f"work_pools/{POOL}/get_scheduled_flow_runs", {})
    return [item["flow_run"]["id"] for item in found]


def test_a_second_watch_is_cancelled_while_one_runs(cluster: Cluster) -> None:
    first, second = cluster.start("ingest/watch"), cluster.start("ingest/watch")
    cluster.ask(f"flow_runs/{first}/set_state", {"state": {"type": "PENDING"}})
    cluster.ask(f"flow_runs/{second}/set_state", {"state": {"type": "PENDING"}})
    assert cluster.ask(f"flow_runs/{first}")["state_type"] == "PENDING"
    assert cluster.ask(f"flow_runs/{second}")["state_type"] == "CANCELLED"
    cluster.put(first, "CANCELLED")


def test_a_run_completes_on_a_worker_without_variables_of_its_own(cluster: Cluster) -> None:
    worker = [*PREFECT, "worker", "start", "--pool", GPU_POOL, "--limit", "1"]
    with service(worker, cluster.variables, cluster.folder):
        cluster.wait(cluster.start("train/gpu", preset="tiny", max_steps=5), "Completed")


def test_runs_that_vanished_while_the_server_was_away_are_queued_again(cluster: Cluster) -> None:
    run = cluster.start("train/gpu")
    cluster.put(run, "PENDING")
    cluster.put(run, "RUNNING")
    database = cluster.folder / "prefect" / "prefect.db"

    def watched() -> list[Any]:
        with closing(sqlite3.connect(database, timeout=60)) as tables:
            return tables.execute("select 1 from automation_bucket where bucketing_key like ?", [f"%{run}%"]).fetchall()

    waited(watched, "the server to wait for heartbeats")
    cluster.running.close()
    with closing(sqlite3.connect(database)) as tables, tables:  # a day passes
        tables.execute("update automation_bucket set \"end\" = strftime('%Y-%m-%d %H:%M:%f000', \"end\", '-1 day')")
    cluster.serve()
    cluster.wait(run, "Crashed")
    cluster.register()
    cluster.wait(run, "AwaitingRetry")
