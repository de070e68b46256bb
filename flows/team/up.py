"""Start, inspect and stop a team's programs through supervisord, which starts them again when they end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import httpx
import psutil

from flows.team.programs import (
    CLIENT,
    DEPLOY,
    GPU_WORKER,
    MLFLOW,
    MLFLOW_AUTH,
    MLFLOW_SCHEMA,
    POOLS,
    PREFECT,
    PREFECT_SCHEMA,
    SERVICES,
    WORKER,
    ask_prefect,
    processes,
    program,
    register,
)
from flows.team.settings import (
    ENVIRONMENT,
    MLFLOW_PASSWORD,
    MLFLOW_USER,
    TeamSettings,
    team_folder,
    write_private,
)
from storage.errors import UserError
from storage.home import Home, without_password
from storage.locks import owner_lock
from storage.tracking import create_database

HEALTH_SECONDS = 600.0  # a first start makes databases, maybe on a busy machine
POLL_SECONDS = 0.5
STOP_SECONDS = 15
TAIL_LINES = 20
NO_STATE = {"statename": "STOPPED", "pid": 0}

Say = Callable[[str], None]


def bring_up(home: Home, settings: TeamSettings, say: Say, schedules: bool | None = None) -> list[str]:
    """Start what does not run, wait until it is healthy, and make the deployments.

    Args:
        schedules: switches the schedules of the deployments on or off; by default each stays as it is.

    Returns:
        The names of the programs started.

    Raises:
        UserError: if the settings cannot be used, differ from those of running servers, or a program fails.
    """
    settings = settings.with_secrets()
    settings.check()
    folder = team_folder(home.create())
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with owner_lock(folder / ".lock", on_wait=say):
        running = bool(program_states(home))
        if running and settings.of_servers() != TeamSettings.kept(home).of_servers():
            raise UserError(
                f"the servers of {home.path} run with other settings or passwords: `sheepfold down` first, then `up`"
            )
        if not running:
            _end(processes(home))  # left by a supervisord that was killed
            _check_ports(settings)
        settings.keep(home)
        try:
            if not running:
                _start_supervisord(home, settings)
            started = [item["name"] for item in _rpc(home).startAllProcesses(False)]
            for name in SERVICES:
                _wait_healthy(name, home, settings)
                say(f"{name} is ready")
            _deploy(home, settings, schedules)
        except BaseException:
            if not running:
                _stop(home, say)
            raise
        return [name for name in SERVICES if name in started]


def _check_ports(settings: TeamSettings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for name, port in ((PREFECT, settings.prefect_port), (MLFLOW, settings.mlflow_port)):
        try:
            socket.create_server((settings.host, port), family=family).close()
        except OSError as error:
            raise UserError(
                f"{name} cannot listen on {settings.host} port {port} ({error.strerror}): choose another by "
                f"--{name}-port, or stop the program that listens there"
            ) from None


def _start_supervisord(home: Home, settings: TeamSettings) -> None:
    home.prefect.mkdir(exist_ok=True)
    home.mlflow_artifacts.mkdir(exist_ok=True)
    if settings.postgres:
        make_schemas(settings.postgres)
    else:
        create_database(f"sqlite:///{home.path / 'mlflow.db'}")
    if settings.auth:
        _prepare_mlflow_users(team_folder(home), settings.secrets[MLFLOW_PASSWORD])
    configuration = team_folder(home) / "supervisord.conf"
    write_private(configuration, _configuration())
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(configuration)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise UserError(f"supervisord did not start: {(done.stdout + done.stderr).strip()}")


def make_schemas(address: str) -> None:
    """Make a schema for each server: both keep their migrations in a table named alembic_version."""
    import psycopg2  # type: ignore[import-untyped]

    try:
        connection = psycopg2.connect(address, connect_timeout=10)
        with connection, connection.cursor() as cursor:
            for schema in (PREFECT_SCHEMA, MLFLOW_SCHEMA):
                cursor.execute(f"create schema if not exists {schema}")
        connection.close()
    except psycopg2.Error as error:
        raise UserError(
            f"PostgreSQL at {without_password(address)} cannot be used ({str(error).strip()}): check that it runs, "
            "that the database exists and that the user may create schemas"
        ) from None


def _prepare_mlflow_users(folder: Path, password: str) -> None:
    database = f"sqlite:///{folder / 'mlflow-users.db'}"
    write_private(
        folder / MLFLOW_AUTH,
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = {database}\n"
        f"admin_username = {MLFLOW_USER}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\n",
    )
    if (folder / "mlflow-users.db").exists():  # MLflow gives a password to a new administrator only
        from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

        users = SqlAlchemyStore()
        users.init_db(database)
        if users.has_user(MLFLOW_USER):
            users.update_user(MLFLOW_USER, password, is_admin=True)


def _configuration() -> str:
    """Return supervisord's configuration; programs run in the home, the folder above it."""
    python = sys.executable.replace("%", "%%")
    text = """\
; Written by `sheepfold up`.
[supervisord]
pidfile=%(here)s/supervisord.pid
logfile=%(here)s/logs/supervisord.log

[unix_http_server]
file=%(here)s/supervisor.sock

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    for name in SERVICES:  # a killed worker leaves its runs, which `down` then ends in good order
        text += f"""
[program:{name}]
command="{python}" -P -m flows.team.programs {name}
directory=%(here)s/..
autostart=false
autorestart=true
startsecs=10
startretries=1000
{"stopsignal=KILL" if name in POOLS else "stopasgroup=true"}
redirect_stderr=true
stdout_logfile=%(here)s/logs/{name}.log
stdout_logfile_maxbytes=10MB
"""
    return text


def _rpc(home: Home) -> Any:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(serverurl=f"unix://{team_folder(home) / 'supervisor.sock'}")
    return ServerProxy("http://127.0.0.1", transport=transport).supervisor


def program_states(home: Home) -> dict[str, dict[str, Any]]:
    """Return supervisord's information about each program; empty if it does not run, or is about to end."""
    try:
        return {item["name"]: item for item in _rpc(home).getAllProcessInfo()}
    except (OSError, HTTPException, Fault):
        return {}


def _wait_healthy(name: str, home: Home, settings: TeamSettings) -> None:
    until = time.monotonic() + HEALTH_SECONDS
    while not _healthy(name, state := program_states(home).get(name, NO_STATE), settings):
        if (ended := state["statename"] not in ("STARTING", "RUNNING")) or time.monotonic() > until:
            raise UserError(f"{name} {'ended while it started' if ended else 'does not answer'}; {_tail(home, name)}")
        time.sleep(POLL_SECONDS)


def _healthy(name: str, state: dict[str, Any], settings: TeamSettings) -> bool:
    address = {PREFECT: f"{settings.prefect_url}/api/health", MLFLOW: f"{settings.mlflow_url}/health"}.get(name)
    try:
        return state["statename"] == "RUNNING" and (address is None or CLIENT.get(address, timeout=5).is_success)
    except httpx.TransportError:
        return False


def _tail(home: Home, name: str) -> str:
    log = team_folder(home) / "logs" / f"{name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines[-TAIL_LINES:])])


def _deploy(home: Home, settings: TeamSettings, schedules: bool | None) -> None:
    command, variables = program(DEPLOY, home, settings)
    with (team_folder(home) / "logs" / f"{DEPLOY}.log").open("wb") as log:
        try:  # runs start in the folder of the home
            register(command, variables, schedules, cwd=home.path.parent, stdout=log, stderr=log)
        except subprocess.CalledProcessError:
            raise UserError(f"the deployments cannot be made; {_tail(home, DEPLOY)}") from None


def bring_down(home: Home, say: Say) -> list[str]:
    """Stop the workers, whose runs are queued again, then the servers; return the names of the programs stopped."""
    if not team_folder(home).is_dir():
        return []
    with owner_lock(team_folder(home) / ".lock", on_wait=say):
        return _stop(home, say)


def _stop(home: Home, say: Say) -> list[str]:
    running = {name for name in SERVICES if processes(home, name)}
    if program_states(home):
        supervisor = _rpc(home)
        pid = supervisor.getPID()
        for name in (GPU_WORKER, WORKER):
            say(f"stopping {name}")
            with suppress(Fault):  # it does not run
                supervisor.stopProcess(name)
            _end(processes(home, name))  # its runs report to the server
        say("stopping the servers")
        supervisor.shutdown()
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
    _end(processes(home))
    return [name for name in SERVICES if name in running]


def _end(found: list[psutil.Process]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, found = psutil.wait_procs(found, timeout=STOP_SECONDS)


def running_team(home: Home) -> dict[str, str]:
    """Return the variables of a client of the home's servers; empty if its Prefect server does not run."""
    running = program_states(home).get(PREFECT, NO_STATE)["pid"]
    return TeamSettings.kept(home).client_variables(home) if running else {}


def team_status(home: Home) -> dict[str, Any]:
    """Return addresses, programs and deployments; empty if the home never had a team."""
    if not team_folder(home).is_dir():
        return {}
    settings, states = TeamSettings.kept(home), program_states(home)
    services: dict[str, dict[str, Any]] = {}
    for name in SERVICES:
        state = states.get(name, NO_STATE)
        healthy = _healthy(name, state, settings)
        services[name] = {"pid": state["pid"] or None, "alive": bool(state["pid"]), "healthy": healthy}
    return {
        **({"prefect_api_url": f"{settings.prefect_url}/api"} if services[PREFECT]["alive"] else {}),
        **({"mlflow_tracking_uri": settings.mlflow_url} if services[MLFLOW]["alive"] else {}),
        "services": services,
        "database": without_password(settings.postgres) if settings.postgres else "SQLite",
        "auth": settings.auth,
        "sources": settings.source.splitlines(),
        "environment_file": str(team_folder(home) / ENVIRONMENT),  # also holds the names and passwords
        "logs": str(team_folder(home) / "logs"),
        "deployments": _deployments(settings.client_variables(home)) if services[PREFECT]["healthy"] else [],
    }


def _deployments(variables: dict[str, str]) -> list[dict[str, Any]]:
    flows = {item["id"]: item["name"] for item in ask_prefect(variables, "flows/filter", {})}
    found = [
        {
            "name": f"{flows[item['flow_id']]}/{item['name']}",
            "pool": item["work_pool_name"],
            "scheduled": any(schedule["active"] for schedule in item["schedules"]) and not item["paused"],
        }
        for item in ask_prefect(variables, "deployments/filter", {})
    ]
    return sorted(found, key=lambda item: str(item["name"]))
