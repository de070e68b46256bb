"""Programs that supervisord runs for a team, in the home folder: `python -m flows.team.programs NAME`.

Each sets its environment from the kept settings and replaces itself by the server or worker, so that the configuration
of supervisord holds no password. `register [FILE]` makes what is missing of work pools, queue and automations on the
Prefect server of PREFECT_API_URL, and the deployments.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
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
    TeamSettings,
    postgres_variables,
    team_folder,
)
from storage.errors import Unreachable
from storage.home import Home

SERVICES = PREFECT, MLFLOW, WORKER, GPU_WORKER = "prefect", "mlflow", "worker", "gpu-worker"
DEPLOY = "deploy"  # not run by supervisord
POOL, GPU_POOL, RETRAIN_QUEUE = "sheepfold", "sheepfold-gpu", "retrain"
POOLS = {WORKER: POOL, GPU_WORKER: GPU_POOL}
FLOWS = Path(__file__).parents[1]
PREFECT_FILE, AUTOMATIONS_FILE = FLOWS / "prefect.yaml", FLOWS / "automations.yaml"
PROGRAM = "SHEEPFOLD_PROGRAM"  # HOME:NAME, in the environment of a program and of every process that it starts
MLFLOW_AUTH = "mlflow-auth.ini"
PREFECT_SCHEMA, MLFLOW_SCHEMA = "sheepfold_prefect", "sheepfold_mlflow"
RUNS_AT_ONCE = {WORKER: max(4, os.cpu_count() or 1), GPU_WORKER: 1}
LOOPBACK_HOSTS = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]", "[[]::1]:*")  # also of a tunnel
BUSY_SECONDS = 60
CLIENT = httpx.Client(trust_env=False, timeout=60)  # no proxy: the servers are on this machine
COMMON = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # a server whose database is away
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PYTHONUNBUFFERED": "1",
}


def program(name: str, home: Home, settings: TeamSettings) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a program."""
    client = settings.client_variables(home)
    if name == PREFECT:
        command = ["prefect", "server", "start", "--host", settings.host, "--port", str(settings.prefect_port)]
        variables = client | _prefect_variables(home, settings)
    elif name == MLFLOW:
        command = ["mlflow", "server", "--host", settings.host, "--port", str(settings.mlflow_port), "--workers", "1"]
        command += ["--app-name", "basic-auth"] if settings.auth else []
        variables = _mlflow_variables(home, settings)
    elif name == DEPLOY:
        command = _deploy_command(PREFECT_FILE)
        variables = client | {"SHEEPFOLD_SOURCE": settings.source, "SHEEPFOLD_PROMPTS": settings.prompts}
    else:
        command = ["prefect", "worker", "start", "--type", "process", "--pool", POOLS[name], "--name", name]
        command += ["--limit", str(RUNS_AT_ONCE[name])]
        variables = client
    # servers and logins of the caller's shell are not the team's
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PREFECT_", "MLFLOW_")) and key != "SHEEPFOLD_POSTGRES"
    }
    own = {
        # jobs are started as `python`
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PREFECT_HOME": str(home.prefect),
        PROGRAM: f"{home.path}:{name}",
    }
    return [sys.executable, "-P", "-m", *command], {**inherited, **COMMON, **own, **variables}


def _prefect_variables(home: Home, settings: TeamSettings) -> dict[str, str]:
    variables = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # in memory, a restart would end every run of a deployment with a limit
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # a server that was away finds the runs whose heartbeats it waited for
        "PREFECT_SERVER_EVENTS_EXPIRED_BUCKET_BUFFER": "P30D",
    }
    if settings.postgres:
        variables |= postgres_variables(settings.postgres)
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = "postgresql+asyncpg://"
        variables["PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH"] = PREFECT_SCHEMA
    if settings.auth:
        variables[PREFECT_LOGIN] = settings.secrets[PREFECT_LOGIN]
    if settings.host in EVERYWHERE:
        variables["PREFECT_UI_API_URL"] = "/api"  # under the name that the browser used
    return variables


def _mlflow_variables(home: Home, settings: TeamSettings) -> dict[str, str]:
    names = [name.strip() for name in settings.allowed_hosts.split(",") if name.strip()]
    if settings.host not in LOOPBACK:
        cards = [item for card in psutil.net_if_addrs().values() for item in card if item.family == socket.AF_INET]
        names += [socket.gethostname(), socket.getfqdn(), settings.reached_at, *(item.address for item in cards)]
    # without a port: behind a proxy
    hosts = [host.lower() for name in names for host in (name, f"{name}:{settings.mlflow_port}")]
    artifacts = home.mlflow_artifacts.as_uri()
    variables = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home.path / 'mlflow.db'}",
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
        variables |= postgres_variables(settings.postgres)
        variables["MLFLOW_BACKEND_STORE_URI"] = "postgresql+psycopg2://"
        variables["PGOPTIONS"] = f"-csearch_path={MLFLOW_SCHEMA}"
        del variables["MLFLOW_DEFAULT_ARTIFACT_ROOT"]
    if settings.auth:
        variables |= {name: settings.secrets[name] for name in (MLFLOW_PASSWORD, MLFLOW_KEY)}
        variables["MLFLOW_AUTH_CONFIG_PATH"] = str(team_folder(home) / MLFLOW_AUTH)
    return variables


def _deploy_command(file: Path) -> list[str]:
    return ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]


def register(command: list[str], variables: dict[str, str], schedules: bool | None = None, **options: Any) -> None:
    """Make what is missing of pools, queue and automations, run `prefect deploy`, and queue crashed runs again.

    Args:
        command: runs `prefect deploy`.
        variables: environment of a client of the server.
        schedules: switches the schedules on or off; by default each stays as it is.
        options: further ones of `subprocess.run`.

    Raises:
        Unreachable: if the server does not answer, or refuses.
        subprocess.CalledProcessError: if `prefect deploy` fails.
    """
    import yaml

    ask = partial(ask_prefect, variables)
    for name in (POOL, GPU_POOL):
        ask("work_pools/", {"name": name, "type": "process"})
    ask(f"work_pools/{POOL}/queues", {"name": RETRAIN_QUEUE, "concurrency_limit": 1})
    known = {item["name"] for item in ask("automations/filter", {})}
    for automation in yaml.safe_load(AUTOMATIONS_FILE.read_text(encoding="utf-8"))["automations"]:
        if automation["name"] not in known:
            ask("automations/", automation)
    before = {item["id"]: item["schedules"] for item in ask("deployments/filter", {})}
    try:
        subprocess.run(command, env=variables, check=True, **options)
    finally:
        for item in ask("deployments/filter", {}):  # `prefect deploy` made every schedule as inactive as in the file
            active = {schedule["slug"] for schedule in before.get(item["id"], []) if schedule["active"]}
            for schedule in item["schedules"]:
                if schedules or (schedules is None and schedule["slug"] in active):
                    ask(f"deployments/{item['id']}/schedules/{schedule['id']}", {"active": True}, "PATCH")
    crashed = {"tags": {"all_": ["sheepfold"]}, "state": {"type": {"any_": ["CRASHED"]}}}
    for run in ask("flow_runs/filter", {"flow_runs": crashed}):
        ask(f"flow_runs/{run['id']}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})


def ask_prefect(variables: Mapping[str, str], path: str, body: Any = None, method: str = "") -> Any:
    """Return the answer of Prefect's API; what exists already is no error, and a busy server is asked again.

    Args:
        variables: environment of a client, as of `TeamSettings.client_variables`.
        method: by default POST with a body, else GET.

    Raises:
        Unreachable: if the server does not answer, or refuses.
    """
    user, _, password = variables.get("PREFECT_API_AUTH_STRING", "").partition(":")
    address, auth = f"{variables['PREFECT_API_URL']}/{path}", (user, password) if user else None
    until = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            answer = CLIENT.request(method or ("GET" if body is None else "POST"), address, json=body, auth=auth)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > until:
                break
            time.sleep(1)  # SQLite is locked
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()
    except httpx.HTTPError as error:
        raise Unreachable(f"Prefect's server does not do what it is asked ({error}): look at its log") from error
    return answer.json() if answer.content else None


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
    if name not in POOLS:  # a killed MLflow server leaves one that listens; runs of a killed worker go on
        for process in processes(home, name):
            with contextlib.suppress(psutil.Error):
                process.kill()
    command, variables = program(name, home, TeamSettings.kept(home))
    os.execve(command[0], command, variables)


if __name__ == "__main__":
    if sys.argv[1] == "register":
        file = Path(sys.argv[2]) if len(sys.argv) > 2 else PREFECT_FILE
        register([sys.executable, "-m", *_deploy_command(file)], dict(os.environ))
    else:
        main(sys.argv[1])
