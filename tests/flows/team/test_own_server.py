"""A Prefect server and workers that `sheepfold up` did not start, as docs/cluster.md tells to start them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import MARK, environment, kill_all, marked_processes
from test_deployments import EXPECTED, FILE
from test_servers import BIN, service
from test_team_box import free_port

from flows.team.automations import HEARTBEAT_SECONDS, NAMES
from flows.team.deployments import HEARTBEAT, read_deployments
from flows.team.prefect_server import PrefectServer
from flows.team.services import GPU_POOL, POOL, RETRAIN_QUEUE
from tests.tasks.tiny_run import write_texts

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at the variables of a process through /proc"),
]
PREFECT = [str(BIN / "prefect")]


@dataclass(frozen=True)
class Cluster:
    """A server that knows nothing yet, and a person's copy of the file of deployments."""

    folder: Path
    variables: dict[str, str]
    file: Path

    @property
    def api(self) -> PrefectServer:
        return PrefectServer(self.variables["PREFECT_API_URL"], seconds=60.0)

    def register(self, **other: str) -> subprocess.CompletedProcess[str]:
        """The command of the page."""
        return subprocess.run(
            [sys.executable, "-m", "flows.team.register", str(self.file)],
            env={**self.variables, **other},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )

    def start(self, deployment: str, **parameters: Any) -> str:
        found = self.api.ask(f"deployments/name/{deployment}")
        made = self.api.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def wait(self, run: str, state: str) -> None:
        while (found := self.api.ask(f"flow_runs/{run}"))["state_name"] != state:
            assert found["state_name"] not in ("Failed", "Crashed", "Cancelled"), found["state"]["message"]
            time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    texts = write_texts(folder / "documents")
    (folder / "prefect.yaml").write_text(FILE.read_text().replace("source: documents", f"source: {texts}"))
    port = free_port()
    variables = {
        **environment(folder / "home"),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    with ExitStack() as stack:
        stack.callback(kill_all, variables[MARK])
        server = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(service(server, variables, folder, f"{variables['PREFECT_API_URL']}/health"))
        yield Cluster(folder, variables, folder / "prefect.yaml")


def test_one_command_makes_all_and_again_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cluster.register()
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads(done.stdout)
    assert (made["pools"], made["queues"]) == ([POOL, GPU_POOL], [RETRAIN_QUEUE])
    assert len(made["deployments"]) == len(EXPECTED)
    assert made["automations"] == list(NAMES)
    again = json.loads(cluster.register().stdout)
    assert again == {"pools": [], "queues": [], "deployments": [], "automations": []}
    monkeypatch.setenv("SHEEPFOLD_HOME", cluster.variables["SHEEPFOLD_HOME"])
    versions = {item["version"] for item in read_deployments(cluster.file)}
    found = cluster.api.deployments()
    assert ({item["name"] for item in found}, {item["version"] for item in found}) == (EXPECTED, versions)


def test_a_run_says_that_it_lives_on_a_worker_that_was_told_nothing(cluster: Cluster) -> None:
    worker = [*PREFECT, "worker", "start", "--pool", GPU_POOL, "--limit", "1"]
    assert HEARTBEAT not in cluster.variables
    with service(worker, cluster.variables, cluster.folder):
        run = cluster.start("train/gpu", preset="tiny", max_steps=1_000_000)
        cluster.wait(run, "Running")
        members = processes_of(cluster, run)
        said = {member.environ().get(HEARTBEAT) for member in members}
        for member in members:
            member.kill()
    assert said == {str(HEARTBEAT_SECONDS)}


def processes_of(cluster: Cluster, run: str) -> list[psutil.Process]:
    """Those that a worker started for a run."""
    found = map(psutil.Process, marked_processes(cluster.variables[MARK]))
    return [process for process in found if process.environ().get("PREFECT__FLOW_RUN_ID") == run]
