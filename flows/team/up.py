"""Start, inspect and stop a team's programs through supervisord, which starts them again when they end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.team.programs import (
    DEPLOY,
    GPU_WORKER,
    MLFLOW,
    POOLS,
    PREFECT,
    PROGRAM,
    WORKER,
    ask_prefect,
    is_healthy,
    processes,
)
from flows.team.settings import (
    MLFLOW_PASSWORD,
    MLFLOW_SCHEMA,
    MLFLOW_USER,
    PREFECT_SCHEMA,
    TeamFolder,
    TeamSettings,
    write_private,
)
from storage.errors import UserError
from storage.home import Home, without_password
from storage.locks import owner_lock

SERVICES = (PREFECT, MLFLOW, WORKER, GPU_WORKER)
HEALTH_SECONDS = 600.0  # a first start makes databases, maybe on a busy machine
POLL_SECONDS = 0.5
STOP_SECONDS = 15
TAIL_LINES = 20
ALIVE = ("STARTING", "RUNNING", "STOPPING")
NO_STATE = {"statename": "STOPPED", "exitstatus": 0, "pid": 0, "start": 0}
SOCKET_LENGTH = 100  # an address of a Unix socket holds 107 bytes

Say = Callable[[str], None]


class ServerFailed(UserError):
    """A program that did not start."""


def bring_up(home: Home, settings: TeamSettings, say: Say) -> list[str]:
    """Start supervisord and wait until every program is healthy; return the names of the programs started.

    Raises:
        UserError: if the settings cannot be used, differ from those of running servers, or a program fails.
    """
    settings.check()
    folder = TeamFolder(home.create())
    folder.logs.mkdir(parents=True, exist_ok=True)
    if len(os.fsencode(folder.socket)) > SOCKET_LENGTH:
        raise UserError(f"{folder.socket} is too long for a Unix socket: choose a shorter home")
    with owner_lock(folder.lock, on_wait=say):
        states = program_states(folder)
        if states:
            _check_unchanged(folder, settings)
            started = [name for name in SERVICES if states[name]["statename"] not in (*ALIVE, "BACKOFF")]
            deployed = states[DEPLOY]["statename"] in ALIVE or _has_deployed(states[DEPLOY])
            again = [] if deployed and not started and folder.settings() == settings else [DEPLOY]
            folder.keep_settings(settings)
            if again and states[DEPLOY]["statename"] in ALIVE:
                _rpc(folder).stopProcess(DEPLOY)
            for name in (*started, *again):
                _rpc(folder).startProcess(name, False)
        else:
            _end(processes(home))  # left by a supervisord that was killed
            _check_ports(settings)
            _prepare(home, folder, settings)
            _start_supervisord(folder)
            started = list(SERVICES)
        try:
            _wait_healthy(folder, settings, say)
        except BaseException:
            if not states:
                _stop(home, folder, say)
            raise
        return started


def _check_unchanged(folder: TeamFolder, settings: TeamSettings) -> None:
    if folder.settings().of_servers() != settings.of_servers():
        different = "settings"
    elif settings.auth and folder.wanted_secrets() != folder.secrets():
        different = "passwords"
    else:
        return
    raise UserError(f"the servers of {folder.home.path} run with other {different}: `sheepfold down` first, then `up`")


def _check_ports(settings: TeamSettings) -> None:
    for name, port in ((PREFECT, settings.prefect_port), (MLFLOW, settings.mlflow_port)):
        with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, port))
            except OSError as error:
                raise UserError(
                    f"{name} cannot listen on {settings.host} port {port} ({error.strerror}): choose another by "
                    f"--{name}-port, or stop the program that listens there"
                ) from None


def _prepare(home: Home, folder: TeamFolder, settings: TeamSettings) -> None:
    home.prefect.mkdir(parents=True, exist_ok=True)
    home.mlflow_artifacts.mkdir(parents=True, exist_ok=True)
    if settings.postgres:
        asyncio.run(_make_schemas(settings.postgres))
    folder.keep_settings(settings)
    if settings.auth:
        _prepare_mlflow_users(folder, folder.wanted_secrets())
    folder.write_addresses(settings)
    write_private(folder.configuration, _configuration())


def _prepare_mlflow_users(folder: TeamFolder, known: dict[str, str]) -> None:
    if importlib.util.find_spec("flask_wtf") is None:
        raise UserError("MLflow's passwords need Flask-WTF, which is not installed: pip install sheepfold[team]")
    database = f"sqlite:///{folder.mlflow_users}"
    write_private(
        folder.mlflow_auth,
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = {database}\n"
        f"admin_username = {known[MLFLOW_USER]}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\n",
    )
    changed = folder.keep_secrets(known)
    if not folder.mlflow_users.exists():
        write_private(folder.mlflow_users, "")  # MLflow would make it readable for everyone
    elif changed:  # MLflow gives a password to a new administrator only
        from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

        users = SqlAlchemyStore()
        users.init_db(database)
        if users.has_user(known[MLFLOW_USER]):
            users.update_user(known[MLFLOW_USER], known[MLFLOW_PASSWORD], is_admin=True)


async def _make_schemas(address: str) -> None:
    """Make a schema for each server: both keep their migrations in a table named alembic_version."""
    import asyncpg

    try:
        connection = await asyncpg.connect(address, timeout=10)
        try:
            for schema in (PREFECT_SCHEMA, MLFLOW_SCHEMA):
                await connection.execute(f"create schema if not exists {schema}")
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise UserError(
            f"PostgreSQL at {without_password(address)} cannot be used ({error or type(error).__name__}): check that "
            "it runs, that the database exists and that the user may create schemas"
        ) from None


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
    for priority, name in enumerate((*SERVICES, DEPLOY)):  # stopped in the opposite order
        once = name == DEPLOY
        text += f"""
[program:{name}]
command="{python}" -P -m flows.team.programs {name}
directory=%(here)s/..
priority={priority}
autorestart={"false" if once else "true"}
startsecs={0 if once else 10}
startretries=1000
stopsignal={"KILL" if name in POOLS else "TERM"}
stopasgroup={"false" if name in POOLS else "true"}
killasgroup={"false" if name in POOLS else "true"}
stopwaitsecs={STOP_SECONDS}
redirect_stderr=true
stdout_logfile=%(here)s/logs/{name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
    return text


def _start_supervisord(folder: TeamFolder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(folder.configuration)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ServerFailed(f"supervisord did not start: {(done.stdout + done.stderr).strip()}")


def _rpc(folder: TeamFolder) -> Any:
    from xmlrpc.client import ServerProxy

    from supervisor.xmlrpc import SupervisorTransport

    return ServerProxy(
        "http://127.0.0.1", transport=SupervisorTransport(serverurl=f"unix://{folder.socket}")
    ).supervisor


def program_states(folder: TeamFolder) -> dict[str, dict[str, Any]]:
    """Return supervisord's information about each program; empty if it does not run."""
    if not folder.socket.exists():
        return {}
    try:
        return {item["name"]: item for item in _rpc(folder).getAllProcessInfo()}
    except (OSError, HTTPException):
        return {}


def _has_deployed(state: dict[str, Any]) -> bool:
    return bool(state["statename"] == "EXITED" and state["exitstatus"] == 0)


def _wait_healthy(folder: TeamFolder, settings: TeamSettings, say: Say) -> None:
    until = time.monotonic() + HEALTH_SECONDS
    waiting = [*SERVICES, DEPLOY]
    while waiting:
        states = program_states(folder)
        for name in list(waiting):
            state = states.get(name, NO_STATE)
            if _has_deployed(state) if name == DEPLOY else _healthy(name, state, folder, settings):
                waiting.remove(name)
                say(f"{name} is ready")
            elif state["statename"] not in ALIVE or time.monotonic() > until:
                problem = "ended while it started" if state["statename"] not in ALIVE else "does not answer"
                log = folder.logs / f"{name}.log"
                raise ServerFailed(f"{name} {problem}; the end of {log}:\n{tail(log)}")
        time.sleep(POLL_SECONDS if waiting else 0)


def _healthy(name: str, state: dict[str, Any], folder: TeamFolder, settings: TeamSettings) -> bool:
    if not state["pid"]:
        return False
    if name == PREFECT:
        return is_healthy(f"{settings.prefect_api}/health")
    if name == MLFLOW:
        return is_healthy(f"{settings.mlflow_url}/health")
    try:
        found = ask_prefect(folder.client_variables(settings), f"work_pools/{POOLS[name]}/workers/filter", {})
    except httpx.HTTPError:  # the server is not up yet, or the pool is not made
        return False
    return any(
        worker["name"] == name
        and worker["status"] == "ONLINE"
        and datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() > state["start"]
        for worker in found
    )


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"  ({error.strerror})"
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


def bring_down(home: Home, say: Say) -> list[str]:
    """Stop the workers, whose runs are queued again, then the servers; return the names of the programs stopped."""
    folder = TeamFolder(home)
    if not folder.path.is_dir():
        return []
    with owner_lock(folder.lock, on_wait=say):
        return _stop(home, folder, say)


def _stop(home: Home, folder: TeamFolder, say: Say) -> list[str]:
    from xmlrpc.client import Fault

    running = {process.environ()[PROGRAM].rpartition(":")[2] for process in processes(home)}
    states = program_states(folder)
    if states:
        supervisor = _rpc(folder)
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


def switch_schedules(home: Home, active: bool) -> None:
    """Switch every schedule of the deployments on or off."""
    folder = TeamFolder(home)
    variables = folder.client_variables(folder.settings())
    for item in ask_prefect(variables, "deployments/filter", {}):
        for schedule in item["schedules"]:
            ask_prefect(variables, f"deployments/{item['id']}/schedules/{schedule['id']}", {"active": active}, "PATCH")


def running_team(home: Home) -> dict[str, str]:
    """Return the variables of a client of the home's servers; empty if its Prefect server does not run."""
    folder = TeamFolder(home)
    running = program_states(folder).get(PREFECT, NO_STATE)["pid"]
    return folder.client_variables(folder.settings()) if running else {}


def team_status(home: Home) -> dict[str, Any]:
    """Return addresses, programs and deployments; empty if the home never had a team."""
    folder = TeamFolder(home)
    if not folder.path.is_dir():
        return {}
    settings, states = folder.settings(), program_states(folder)
    services: dict[str, dict[str, Any]] = {}
    for name in SERVICES:
        state = states.get(name, NO_STATE)
        services[name] = {
            "pid": state["pid"] or None,
            "alive": bool(state["pid"]),
            "healthy": _healthy(name, state, folder, settings),
            "log": str(folder.logs / f"{name}.log"),
        }
    services[PREFECT]["url"], services[MLFLOW]["url"] = settings.prefect_url, settings.mlflow_url
    return {
        **({"prefect_api_url": settings.prefect_api} if services[PREFECT]["alive"] else {}),
        **({"mlflow_tracking_uri": settings.mlflow_url} if services[MLFLOW]["alive"] else {}),
        "services": services,
        "database": without_password(settings.postgres) if settings.postgres else "SQLite",
        "auth": settings.auth,
        "sources": settings.source.splitlines(),
        "environment_file": str(folder.environment),
        "deployments": _deployments(folder, settings) if services[PREFECT]["healthy"] else [],
    }


def _deployments(folder: TeamFolder, settings: TeamSettings) -> list[dict[str, Any]]:
    variables = folder.client_variables(settings)
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
