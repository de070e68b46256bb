"""Runs that vanish while Prefect's server is away itself: a server that starts forgets what it had waited for."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runs import environment
from test_deployments import FILE
from test_servers import BIN, service
from test_team_box import free_port

from flows.team.automations import NEVER_BEGAN, STOPPED
from flows.team.prefect_server import PrefectServer

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
LEAST_SECONDS = 10  # that Prefect takes for something that is waited for
MAKE_OLD = """
update automation_bucket set "start" = strftime('%Y-%m-%d %H:%M:%f', "start", '-1 hour');
update automation_bucket set "end" = strftime('%Y-%m-%d %H:%M:%f', "end", '-1 hour');
update events set occurred = strftime('%Y-%m-%d %H:%M:%f', occurred, '-1 hour');
update flow_run_state set timestamp = strftime('%Y-%m-%d %H:%M:%f', timestamp, '-1 hour');
"""


def test_runs_that_vanished_while_prefect_was_away_are_queued_again(tmp_path: Path) -> None:
    port = free_port()
    api = PrefectServer(f"http://127.0.0.1:{port}/api", seconds=60.0)
    variables = {
        **environment(tmp_path / "home"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": api.api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    server = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with service(server, variables, tmp_path, f"{api.api}/health"):
        subprocess.run([sys.executable, "-m", "flows.team.register", str(FILE)], env=variables, check=True)
        running, pending = (began(api, "PENDING", "RUNNING"), began(api, "PENDING"))
        while waited_for(tmp_path) != {STOPPED, NEVER_BEGAN}:
            time.sleep(0.1)
        assert api.await_silent_runs() == []
    make_old(tmp_path)
    with service(server, variables, tmp_path, f"{api.api}/health"):
        while waited_for(tmp_path):  # the server forgets
            time.sleep(0.1)
        wait_less(api)
        api.await_silent_runs()
        while {state(api, running), state(api, pending)} != {"AwaitingRetry"}:
            time.sleep(0.5)


def wait_less(api: PrefectServer) -> None:
    """Let a run be lost sooner than in earnest."""
    for item in api.ask("automations/filter", {}):
        if item["name"] in (STOPPED, NEVER_BEGAN):
            meant = {name: item[name] for name in ("name", "description", "enabled", "trigger", "actions")}
            meant["trigger"]["within"] = LEAST_SECONDS
            api.ask(f"automations/{item['id']}", meant, "PUT")


def began(api: PrefectServer, *states: str) -> str:
    """A run of a deployment that got as far as that; its id."""
    deployment = api.ask("deployments/name/retrain/weekly")
    run = api.ask(f"deployments/{deployment['id']}/create_flow_run", {})["id"]
    for name in states:
        api.ask(f"flow_runs/{run}/set_state", {"state": {"type": name}})
    return str(run)


def state(api: PrefectServer, run: str) -> Any:
    return api.ask(f"flow_runs/{run}")["state_name"]


def waited_for(folder: Path) -> set[str]:
    """The automations that wait for something."""
    with closing(sqlite3.connect(folder / "prefect" / "prefect.db")) as database:
        found = database.execute("select name from automation_bucket join automation a on a.id = automation_id")
        return {name for (name,) in found}


def make_old(folder: Path) -> None:
    """As if the server had been away for an hour."""
    with closing(sqlite3.connect(folder / "prefect" / "prefect.db")) as database:
        database.executescript(MAKE_OLD)
