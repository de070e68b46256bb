"""Programs that supervisord runs for a team, in the home folder: `python -m flows.team.programs NAME`.

Each sets its environment from the kept settings and replaces itself by the server or worker, so that the configuration
of supervisord holds no password. `deploy` runs once after each start and makes Prefect's work pools and deployments;
`register [FILE]` does the same on the Prefect server of PREFECT_API_URL.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.team.settings import (
    EVERYWHERE,
    LOOPBACK,
    MLFLOW_KEY,
    MLFLOW_PASSWORD,
    PREFECT_LOGIN,
    SECRETS,
    TeamFolder,
    TeamSettings,
    mlflow_database,
    prefect_database,
)
from storage.home import Home

PREFECT, MLFLOW, WORKER, GPU_WORKER, DEPLOY = "prefect", "mlflow", "worker", "gpu-worker", "deploy"
POOL, GPU_POOL, RETRAIN_QUEUE = "sheepfold", "sheepfold-gpu", "retrain"
POOLS = {WORKER: POOL, GPU_WORKER: GPU_POOL}
FLOWS = Path(__file__).parents[1]
PREFECT_FILE, AUTOMATIONS_FILE = FLOWS / "prefect.yaml", FLOWS / "automations.yaml"
PROGRAM = "SHEEPFOLD_PROGRAM"  # HOME:NAME, in the environment of a program and of every process that it starts
RUNS_AT_ONCE = max(4, os.cpu_count() or 1)
LOOPBACK_HOSTS = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]", "[[]::1]:*")  # also of a tunnel
# variables of the caller's shell that must not reach the programs
OTHERS = {
    *SECRETS,
    *("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_PROFILE", "SHEEPFOLD_POSTGRES"),
    *("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL", "MLFLOW_TRACKING_URI"),
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_REGISTRY_URI", "MLFLOW_BACKEND_STORE_URI"),
    "MLFLOW_RUN_ID",
}
CLIENT = httpx.Client(trust_env=False, timeout=60)  # no proxy: the servers are on this machine
COMMON = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PYTHONUNBUFFERED": "1",
}


def program(name: str, folder: TeamFolder, settings: TeamSettings) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a program."""
    build = {PREFECT: _prefect, MLFLOW: _mlflow}.get(name, _client)
    arguments, variables = build(name, folder, settings)
    inherited = {key: value for key, value in os.environ.items() if key not in OTHERS}
    own = {
        # jobs are started as `python`
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PREFECT_HOME": str(folder.home.prefect),
        PROGRAM: f"{folder.home.path}:{name}",
    }
    return [sys.executable, "-P", "-m", *arguments], {**inherited, **COMMON, **own, **variables}


def _prefect(_: str, folder: TeamFolder, settings: TeamSettings) -> tuple[list[str], dict[str, str]]:
    variables = {
        "PREFECT_API_URL": settings.prefect_api,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder.home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # in memory, a restart would end every run of a deployment with a limit
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if settings.postgres:
        variables |= prefect_database(settings.postgres)
    if settings.auth:
        variables[PREFECT_LOGIN] = variables["PREFECT_API_AUTH_STRING"] = folder.secrets()[PREFECT_LOGIN]
    if settings.host in EVERYWHERE:
        variables["PREFECT_UI_API_URL"] = "/api"  # under the name that the browser used
    return ["prefect", "server", "start", "--host", settings.host, "--port", str(settings.prefect_port)], variables


def _mlflow(_: str, folder: TeamFolder, settings: TeamSettings) -> tuple[list[str], dict[str, str]]:
    names = [] if settings.host in LOOPBACK else _own_names(settings.host)
    hosts = [f"{name}:{settings.mlflow_port}" for name in names]
    for name in settings.host_names:  # without a port: behind a proxy, or with the port of the server
        hosts += [name] if name.rpartition(":")[2].isdigit() else [name, f"{name}:{settings.mlflow_port}"]
    artifacts = folder.home.mlflow_artifacts.as_uri()
    variables = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder.home.path / 'mlflow.db'}",
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": artifacts,  # also read without the server, as the database is
        "MLFLOW_ARTIFACTS_DESTINATION": artifacts,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        # other names are refused, against DNS rebinding
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join([*LOOPBACK_HOSTS, *hosts]),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(
            f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")
        ),
    }
    if settings.postgres:
        variables |= mlflow_database(settings.postgres)
        del variables["MLFLOW_DEFAULT_ARTIFACT_ROOT"]
    arguments = ["mlflow", "server", "--host", settings.host, "--port", str(settings.mlflow_port), "--workers", "1"]
    if settings.auth:
        known = folder.secrets()
        variables |= {name: known[name] for name in (MLFLOW_PASSWORD, MLFLOW_KEY)}
        variables["MLFLOW_AUTH_CONFIG_PATH"] = str(folder.mlflow_auth)
        arguments += ["--app-name", "basic-auth"]
    return arguments, variables


def _own_names(host: str) -> list[str]:
    """Return the names and addresses under which other machines reach a server on this one."""
    names = [socket.gethostname(), socket.getfqdn()]
    found = [host]
    if host in EVERYWHERE:
        wanted = (socket.AF_INET, socket.AF_INET6)
        found = [item.address for card in psutil.net_if_addrs().values() for item in card if item.family in wanted]
    addresses = [f"[{address.partition('%')[0]}]" if ":" in address else address for address in found]
    return list(dict.fromkeys(name.lower() for name in (*names, *addresses)))


def _client(name: str, folder: TeamFolder, settings: TeamSettings) -> tuple[list[str], dict[str, str]]:
    variables = folder.client_variables(settings)
    if name == DEPLOY:
        variables |= {"SHEEPFOLD_SOURCE": settings.source, "SHEEPFOLD_PROMPTS": settings.prompts}
        return _deploy_command(PREFECT_FILE), variables
    limit = 1 if name == GPU_WORKER else RUNS_AT_ONCE
    start = ["prefect", "worker", "start", "--type", "process", "--pool", POOLS[name], "--name", name]
    return [*start, "--limit", str(limit)], variables


def _deploy_command(file: Path) -> list[str]:
    return ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]


def deploy(command: list[str], variables: dict[str, str]) -> None:
    """Make what is missing of the pools, the queue and the automations, run `prefect deploy`, and find lost runs."""
    import yaml

    ask = partial(ask_prefect, variables)
    while not is_healthy(f"{variables['PREFECT_API_URL']}/health"):
        time.sleep(0.2)
    for name in (POOL, GPU_POOL):
        ask("work_pools/", {"name": name, "type": "process"})
    ask(f"work_pools/{POOL}/queues", {"name": RETRAIN_QUEUE, "concurrency_limit": 1})
    known = {item["name"] for item in ask("automations/filter", {})}
    for automation in yaml.safe_load(AUTOMATIONS_FILE.read_text(encoding="utf-8"))["automations"]:
        if automation["name"] not in known:
            ask("automations/", automation)
    before = {item["id"]: item["schedules"] for item in ask("deployments/filter", {})}
    subprocess.run(command, env=variables, check=True)
    for item in ask("deployments/filter", {}):  # `prefect deploy` made every schedule as inactive as in the file
        active = {schedule["slug"] for schedule in before.get(item["id"], []) if schedule["active"]}
        for schedule in item["schedules"]:
            if schedule["slug"] in active:
                ask(f"deployments/{item['id']}/schedules/{schedule['id']}", {"active": True}, "PATCH")
    _find_lost_runs(ask)


def _find_lost_runs(ask: Callable[..., Any]) -> None:
    """Queue crashed runs again, and let the automations watch the others: a server that starts forgets past events."""
    query = {"tags": {"all_": ["sheepfold"]}, "state": {"type": {"any_": ["CRASHED", "PENDING", "RUNNING"]}}}
    for run in ask("flow_runs/filter", {"flow_runs": query}):
        crashed = run["state_type"] == "CRASHED"
        if crashed:
            ask(f"flow_runs/{run['id']}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})
        event = {
            "id": str(uuid.uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": f"prefect.flow-run.{'AwaitingRetry' if crashed else 'heartbeat'}",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run['id']}", "prefect.resource.name": run["name"]},
            "related": [{"prefect.resource.id": "prefect.tag.sheepfold", "prefect.resource.role": "tag"}],
        }
        ask("events", [event])


def ask_prefect(variables: Mapping[str, str], path: str, body: Any = None, method: str = "") -> Any:
    """Return the answer of Prefect's API; what exists already is no error, and a busy server is asked again.

    Args:
        variables: environment of a client, as of `TeamFolder.client_variables`.
        method: by default POST with a body, else GET.

    Raises:
        httpx.HTTPError: if the server does not answer, or refuses.
    """
    user, _, password = variables.get("PREFECT_API_AUTH_STRING", "").partition(":")
    address, auth = f"{variables['PREFECT_API_URL']}/{path}", (user, password) if user else None
    while True:
        answer = CLIENT.request(method or ("GET" if body is None else "POST"), address, json=body, auth=auth)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:  # SQLite is locked
            break
        time.sleep(1)
    if answer.status_code != httpx.codes.CONFLICT:
        answer.raise_for_status()
    return answer.json() if answer.content else None


def is_healthy(url: str) -> bool:
    """Return True if a server answers at its health address."""
    try:
        return CLIENT.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def processes(home: Home, name: str = "") -> list[psutil.Process]:
    """Return the living processes of a program, or of all programs of a home, and all that they started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(PROGRAM, "")
            if mark.rpartition(":")[0] == str(home.path) and name in ("", mark.rpartition(":")[2]):
                found.append(process)
    return found


def main(name: str) -> None:
    """Replace this process by a program of the home in the current folder."""
    home = Home.from_environment(Path.cwd())
    folder = TeamFolder(home)
    for process in processes(home, name):  # left by a killed leader; runs of deployments go on
        with contextlib.suppress(psutil.Error):
            if "PREFECT__FLOW_RUN_ID" not in process.environ():
                process.kill()
    command, variables = program(name, folder, folder.settings())
    if name == DEPLOY:
        os.chdir(home.path.parent)  # where runs of the deployments start
        deploy(command, variables)
    else:
        os.execve(command[0], command, variables)


if __name__ == "__main__":
    if sys.argv[1] == "register":
        file = Path(sys.argv[2]) if len(sys.argv) > 2 else PREFECT_FILE
        deploy([sys.executable, "-m", *_deploy_command(file)], dict(os.environ))
    else:
        main(sys.argv[1])
