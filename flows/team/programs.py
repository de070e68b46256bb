"""The servers and workers of a team, run by supervisord in the home folder: start, health, deployments, stop.

supervisord starts each as `python -m flows.team.programs NAME`, which reads its environment from the recorded settings
and replaces itself by the server or worker, so that the configuration holds no password; one that ends is restarted.
`register [FILE]` creates missing work pools, the queue, automations and the deployments on the Prefect server of
PREFECT_API_URL.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

import httpx
import psutil

from flows.team.settings import (
    ENVIRONMENT,
    EVERYWHERE,
    LOOPBACK,
    MLFLOW_KEY,
    MLFLOW_PASSWORD,
    MLFLOW_USER,
    PREFECT_LOGIN,
    TeamSettings,
    postgres_variables,
    team_folder,
    write_private,
)
from storage.errors import Unreachable, UserError
from storage.home import Home, without_password
from storage.locks import owner_lock
from storage.tracking import create_database, quieten
from tasks.serving import API_KEY

SERVICES = PREFECT, MLFLOW, WORKER, GPU_WORKER, SERVE = "prefect", "mlflow", "worker", "gpu-worker", "serve"
DEPLOY = "deploy"  # not run by supervisord
POOL, GPU_POOL, RETRAIN_QUEUE = "sheepfold", "sheepfold-gpu", "retrain"
POOLS = {WORKER: POOL, GPU_WORKER: GPU_POOL}
FLOWS = Path(__file__).parents[1]
PREFECT_FILE, AUTOMATIONS_FILE = FLOWS / "prefect.yaml", FLOWS / "automations.yaml"
PROGRAM = "SHEEPFOLD_PROGRAM"  # HOME:NAME, in the environment of supervisord, the programs and their descendants
MLFLOW_AUTH = "mlflow-auth.ini"
# supervisord's socket, and the link to its temporary folder: the path of a socket has at most 107 bytes, which a home
# may exceed, and a file system may not support sockets
SOCKET, SOCKET_FOLDER = "supervisor.sock", "socket"
PREFECT_SCHEMA, MLFLOW_SCHEMA = "sheepfold_prefect", "sheepfold_mlflow"
RUNS_AT_ONCE = {WORKER: max(4, os.cpu_count() or 1), GPU_WORKER: 1}
LOOPBACK_HOSTS = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]", "[[]::1]:*")  # also of a tunnel
BUSY_SECONDS = 60
HEALTH_SECONDS = 600.0  # long, because a first start creates databases
POLL_SECONDS = 0.5
STOP_SECONDS = 15
TAIL_LINES = 20
NO_STATE = {"statename": "STOPPED", "pid": 0}
CLIENT = httpx.Client(trust_env=False, timeout=60)  # without a proxy, because the servers are local
COMMON = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # while the server's database is unreachable
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PYTHONUNBUFFERED": "1",
}

Say = Callable[[str], None]


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
    elif name == SERVE:
        command = ["flows.cli", "serve", "--wait", "--host", settings.host, "--port", str(settings.serve_port)]
        variables = client
    else:
        command = ["prefect", "worker", "start", "--type", "process", "--pool", POOLS[name], "--name", name]
        command += ["--limit", str(RUNS_AT_ONCE[name])]
        variables = client
    return [sys.executable, "-P", "-m", *command], _environment(name, home, variables)


def _environment(name: str, home: Home, variables: Mapping[str, str]) -> dict[str, str]:
    # without the servers and logins of the caller's shell
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PREFECT_", "MLFLOW_")) and key not in ("SHEEPFOLD_POSTGRES", API_KEY)
    }
    own = {
        # jobs are started as `python`
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PREFECT_HOME": str(home.prefect),
        PROGRAM: f"{home.path}:{name}",
    }
    return {**inherited, **COMMON, **own, **variables}


def _prefect_variables(home: Home, settings: TeamSettings) -> dict[str, str]:
    variables = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # in memory, a restart would end every run of a deployment with a limit
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # after an outage the server still knows the runs whose heartbeats it expects
        "PREFECT_SERVER_EVENTS_EXPIRED_BUCKET_BUFFER": "P30D",
    }
    if settings.postgres:
        variables |= postgres_variables(settings.postgres)
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = "postgresql+asyncpg://"
        variables["PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH"] = PREFECT_SCHEMA
    if settings.auth:
        variables[PREFECT_LOGIN] = settings.secrets[PREFECT_LOGIN]
    if settings.host in EVERYWHERE:
        variables["PREFECT_UI_API_URL"] = "/api"  # relative, because browsers use different host names
    return variables


def _mlflow_variables(home: Home, settings: TeamSettings) -> dict[str, str]:
    names = [name.strip() for name in settings.allowed_hosts.split(",") if name.strip()]
    if settings.host not in LOOPBACK:
        cards = [item for card in psutil.net_if_addrs().values() for item in card if item.family == socket.AF_INET]
        names += [socket.gethostname(), socket.getfqdn(), settings.reached_at, *(item.address for item in cards)]
    # also without a port, for a proxy
    hosts = [host.lower() for name in names for host in (name, f"{name}:{settings.mlflow_port}")]
    artifacts = home.mlflow_artifacts.as_uri()
    variables = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home.path / 'mlflow.db'}",
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": artifacts,  # a folder, to read it without the server as well
        "MLFLOW_ARTIFACTS_DESTINATION": artifacts,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        # other host names are refused, against DNS rebinding
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


def register(
    file: Path,
    variables: dict[str, str],
    schedules: bool | None = None,
    stopped: datetime | None = None,
    **options: Any,
) -> None:
    """Create missing pools, queue and automations, run `prefect deploy`, and queue lost runs again.

    Args:
        file: the deployments.
        variables: environment of a client of the server.
        schedules: switch the schedules on or off; None leaves each as it is.
        stopped: time at which no worker of the home ran; None if one may have run all the time.
        **options: further arguments of `subprocess.run`.

    Raises:
        UserError: if an environment variable that the file reads is not set.
        Unreachable: if the server does not respond, or responds with an error.
        subprocess.CalledProcessError: if `prefect deploy` fails.
    """
    import yaml

    # an undefined variable would leave its placeholder in the parameters
    asked = set(re.findall(r"\{\{\s*\$(\w+)\s*\}\}", file.read_text(encoding="utf-8")))
    if missing := sorted(asked - variables.keys()):
        raise UserError(f"{file} reads {', '.join(missing)}, which is not set: export it and run this again")
    ask = partial(ask_prefect, variables)
    for name in (POOL, GPU_POOL):
        ask("work_pools/", {"name": name, "type": "process"})
    ask(f"work_pools/{POOL}/queues", {"name": RETRAIN_QUEUE, "concurrency_limit": 1})
    known = {item["name"] for item in ask("automations/filter", {})}
    for automation in yaml.safe_load(AUTOMATIONS_FILE.read_text(encoding="utf-8"))["automations"]:
        if automation["name"] not in known:
            ask("automations/", automation)
    before = {item["id"]: item["schedules"] for item in ask("deployments/filter", {})}
    command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    try:
        subprocess.run(command, env=variables, check=True, **options)
    finally:
        for item in ask("deployments/filter", {}):  # `prefect deploy` deactivated every schedule, as in the file
            active = {schedule["slug"] for schedule in before.get(item["id"], []) if schedule["active"]}
            for schedule in item["schedules"]:
                if schedules or (schedules is None and schedule["slug"] in active):
                    ask(f"deployments/{item['id']}/schedules/{schedule['id']}", {"active": True}, "PATCH")
    for run in _lost_runs(ask, stopped):
        ask(f"flow_runs/{run['id']}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})


def _lost_runs(ask: Callable[..., Any], stopped: datetime | None) -> list[dict[str, Any]]:
    """Return crashed runs, and runs started before `stopped` on pools whose only worker is the home's.

    The automations find them too, but a server that was started after the run takes 15 minutes to detect the crash.
    """

    def runs(states: list[str], **query: Any) -> list[dict[str, Any]]:
        wanted = {"tags": {"all_": ["sheepfold"]}, "state": {"type": {"any_": states}}}
        found: list[dict[str, Any]] = ask("flow_runs/filter", {"flow_runs": wanted, **query})
        return found

    lost = runs(["CRASHED"])
    if stopped is None:
        return lost
    for name, pool in POOLS.items():
        if [worker["name"] for worker in ask(f"work_pools/{pool}/workers/filter", {})] == [name]:
            begun = runs(["PENDING", "RUNNING"], work_pools={"name": {"any_": [pool]}})
            lost += [run for run in begun if datetime.fromisoformat(run["state"]["timestamp"]) < stopped]
    return lost


def ask_prefect(variables: Mapping[str, str], path: str, body: Any = None, method: str = "") -> Any:
    """Return the response of Prefect's API; a conflict with an existing object is ignored, a busy server is retried.

    Args:
        variables: environment of a client, see `TeamSettings.client_variables`.
        method: HTTP method; by default POST with a body, GET without.

    Raises:
        Unreachable: if the server does not respond, or responds with an error.
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
        raise Unreachable(f"the request to Prefect's server failed ({error}): see its log") from error
    return answer.json() if answer.content else None


def processes(home: Home, name: str = "") -> list[psutil.Process]:
    """Return the running processes of one program or of all programs of a home, with their descendants."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(PROGRAM, "")
            if mark.rpartition(":")[0] == str(home.path) and name in ("", mark.rpartition(":")[2]):
                found.append(process)
    return found


def bring_up(home: Home, settings: TeamSettings, say: Say, schedules: bool | None = None) -> list[str]:
    """Start programs that do not run, wait until they are healthy, and create the deployments.

    Args:
        schedules: switch the schedules of the deployments on or off; None leaves each as it is.

    Returns:
        The names of the programs started.

    Raises:
        UserError: if the settings are invalid, differ from those of running servers, or a program fails.
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
                f"the servers of {home.path} run with other settings or passwords: run `sheepfold down`, then `up`"
            )
        if not running:
            _end(processes(home))  # processes of a killed supervisord, or one whose socket is lost
            _check_ports(settings)
        stopped = None if running else datetime.now(UTC)
        settings.keep(home)
        try:
            if not running:
                _start_supervisord(home, settings)
            started = [item["name"] for item in _rpc(home).startAllProcesses(False)]
            for name in _services(settings):
                _wait_healthy(name, home, settings)
                say(f"{name} is ready")
            _deploy(home, settings, schedules, stopped)
        except BaseException:
            if not running:
                _stop(home, say)
            raise
        return [name for name in SERVICES if name in started]


def _services(settings: TeamSettings) -> tuple[str, ...]:
    return SERVICES if settings.serve_port else SERVICES[:-1]


def _check_ports(settings: TeamSettings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for name, port in ((PREFECT, settings.prefect_port), (MLFLOW, settings.mlflow_port), (SERVE, settings.serve_port)):
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
    _remove_socket(home)
    place = Path(tempfile.mkdtemp(prefix="sheepfold-"))
    (team_folder(home) / SOCKET_FOLDER).symlink_to(place)
    configuration = team_folder(home) / "supervisord.conf"
    write_private(configuration, _configuration(place / SOCKET, _services(settings)))
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(configuration)]
    environment = {**os.environ, PROGRAM: f"{home.path}:supervisord"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise UserError(f"supervisord did not start: {(done.stdout + done.stderr).strip()}")


def make_schemas(address: str) -> None:
    """Create a schema per server, because both name the table of their migrations alembic_version."""
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
    if (folder / "mlflow-users.db").exists():  # MLflow itself sets the password only of a new administrator
        quieten()
        from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

        users = SqlAlchemyStore()
        users.init_db(database)
        if users.has_user(MLFLOW_USER):
            users.update_user(MLFLOW_USER, password, is_admin=True)


def _configuration(address: Path, services: Sequence[str]) -> str:
    """Return supervisord's configuration; services run in its parent folder, the home."""
    python, listening = (str(path).replace("%", "%%") for path in (sys.executable, address))
    text = f"""\
; Written by `sheepfold up`.
[supervisord]
pidfile=%(here)s/supervisord.pid
logfile=%(here)s/logs/supervisord.log

[unix_http_server]
file={listening}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    for name in services:  # workers are killed, so that their runs continue until `down` ends them
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

    address = (team_folder(home) / SOCKET_FOLDER).resolve() / SOCKET
    transport = SupervisorTransport(serverurl=f"unix://{address}")
    return ServerProxy("http://127.0.0.1", transport=transport).supervisor


def _remove_socket(home: Home) -> None:
    link = team_folder(home) / SOCKET_FOLDER
    if link.is_symlink():
        with suppress(FileNotFoundError):
            shutil.rmtree(link.resolve())
        link.unlink()


def program_states(home: Home) -> dict[str, dict[str, Any]]:
    """Return supervisord's information about each program; empty if it does not run, or is ending."""
    try:
        return {item["name"]: item for item in _rpc(home).getAllProcessInfo()}
    except (OSError, HTTPException, Fault):
        return {}


def _wait_healthy(name: str, home: Home, settings: TeamSettings) -> None:
    until = time.monotonic() + HEALTH_SECONDS
    while not _healthy(name, state := program_states(home).get(name, NO_STATE), settings):
        if (ended := state["statename"] not in ("STARTING", "RUNNING")) or time.monotonic() > until:
            raise UserError(f"{name} {'ended while it started' if ended else 'does not respond'}; {_tail(home, name)}")
        time.sleep(POLL_SECONDS)


def _healthy(name: str, state: dict[str, Any], settings: TeamSettings) -> bool:
    servers = {PREFECT: f"{settings.prefect_url}/api", MLFLOW: settings.mlflow_url, SERVE: settings.serve_url}
    address = f"{servers[name]}/health" if name in servers else None
    try:
        return state["statename"] == "RUNNING" and (address is None or CLIENT.get(address, timeout=5).is_success)
    except httpx.TransportError:
        return False


def _tail(home: Home, name: str) -> str:
    log = team_folder(home) / "logs" / f"{name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines[-TAIL_LINES:])])


def _deploy(home: Home, settings: TeamSettings, schedules: bool | None, stopped: datetime | None) -> None:
    places = {"SHEEPFOLD_SOURCE": settings.source, "SHEEPFOLD_PROMPTS": settings.prompts}
    variables = _environment(DEPLOY, home, settings.client_variables(home) | places)
    with (team_folder(home) / "logs" / f"{DEPLOY}.log").open("wb") as log:
        try:  # runs start in the folder of the home
            register(PREFECT_FILE, variables, schedules, stopped, cwd=home.path.parent, stdout=log, stderr=log)
        except subprocess.CalledProcessError:
            raise UserError(f"the deployments cannot be created; {_tail(home, DEPLOY)}") from None


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
            _end(processes(home, name))  # before the server, to which its runs report
        say("stopping the servers")
        supervisor.shutdown()
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
    _end(processes(home))
    _remove_socket(home)
    return [name for name in SERVICES if name in running]


def _end(found: list[psutil.Process]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, found = psutil.wait_procs(found, timeout=STOP_SECONDS)


def running_team(home: Home) -> dict[str, str]:
    """Return the client variables of the home's servers; empty if its Prefect server does not run."""
    running = program_states(home).get(PREFECT, NO_STATE)["pid"]
    return TeamSettings.kept(home).client_variables(home) if running else {}


def team_status(home: Home) -> dict[str, Any]:
    """Return addresses, programs and deployments; empty if the home never had a team."""
    if not team_folder(home).is_dir():
        return {}
    settings, states = TeamSettings.kept(home), program_states(home)
    services: dict[str, dict[str, Any]] = {}
    for name in _services(settings):
        state = states.get(name, NO_STATE)
        healthy = _healthy(name, state, settings)
        services[name] = {"pid": state["pid"] or None, "alive": bool(state["pid"]), "healthy": healthy}
    return {
        **({"prefect_api_url": f"{settings.prefect_url}/api"} if services[PREFECT]["alive"] else {}),
        **({"mlflow_tracking_uri": settings.mlflow_url} if services[MLFLOW]["alive"] else {}),
        **({"completions_url": f"{settings.serve_url}/v1"} if services.get(SERVE, {}).get("alive") else {}),
        "services": services,
        "database": without_password(settings.postgres) if settings.postgres else "SQLite",
        "auth": settings.auth,
        "sources": settings.source.splitlines(),
        "environment_file": str(team_folder(home) / ENVIRONMENT),  # with names and passwords
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


def main(name: str) -> None:
    """Replace this process by a program of the home in the current folder."""
    home = Home.from_environment(Path.cwd())
    if name not in POOLS:  # a killed MLflow server leaves a child that listens; runs of a killed worker continue
        for process in processes(home, name):
            with suppress(psutil.Error):
                process.kill()
    command, variables = program(name, home, TeamSettings.kept(home))
    os.execve(command[0], command, variables)


if __name__ == "__main__":
    if sys.argv[1] == "register":
        try:
            register(Path(sys.argv[2]) if len(sys.argv) > 2 else PREFECT_FILE, dict(os.environ))
        except UserError as error:
            sys.exit(f"error: {error}")
    else:
        main(sys.argv[1])
