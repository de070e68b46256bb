"""The processes of a team's box as commands: Prefect's server, MLflow's, a worker, and one for the GPU.

Passwords and addresses that hold them are in the environment, never in a command line.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.team import postgres
from flows.team.settings import EVERYWHERE, GIVEN, LOOPBACK, TeamFolder, TeamSettings, write_private
from storage.errors import UserError

PREFECT, MLFLOW, WORKER, GPU_WORKER = "prefect", "mlflow", "worker", "gpu-worker"
POOL, GPU_POOL = "sheepfold", "sheepfold-gpu"
RETRAIN_QUEUE = "retrain"  # of the first, for retrainings: one at a time
LOOPBACK_HOSTS = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[[]::1]", "[[]::1]:*")  # also of a tunnel
WORKER_NAMES = {WORKER: POOL, GPU_WORKER: GPU_POOL}

# Set anew for the servers, whatever the person's own shell talks to.
OTHERS = (
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_PROFILE",
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_BACKEND_STORE_URI",
    "MLFLOW_RUN_ID",
    *GIVEN.values(),  # as they are kept
    "SHEEPFOLD_POSTGRES",  # whose password is the servers' business and no run's
)
# Nothing leaves the machine.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
QUERY_SECONDS = 3  # between two questions of a worker for runs: Prefect's own ten are felt, and each costs a little
LEAST_AT_ONCE = 4  # runs of the worker; more wait, for each is a process with its libraries


@dataclass(frozen=True)
class Service:
    """A process to keep running.

    Attributes:
        variables: what its environment has beside the person's.
        health: address that answers once it serves; empty for a worker.
        port: that it listens on; 0 for a worker.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    health: str = ""
    port: int = 0

    def environment(self) -> dict[str, str]:
        """The whole environment."""
        own = {name: value for name, value in os.environ.items() if name not in OTHERS}
        return {**own, **QUIET, **self.variables}


def services(folder: TeamFolder, settings: TeamSettings) -> list[Service]:
    """Every process of the box, servers first.

    Raises:
        UserError: if a package that was asked for is not installed.
    """
    return [
        _prefect(folder, settings),
        _mlflow(folder, settings),
        _worker(folder, settings, WORKER, ("--limit", str(max(LEAST_AT_ONCE, os.cpu_count() or 1)))),
        _worker(folder, settings, GPU_WORKER, ("--limit", "1")),
    ]


def _prefect(folder: TeamFolder, settings: TeamSettings) -> Service:
    home = folder.home.prefect
    variables = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": settings.prefect_api,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # else runs of years ago stay for ever
    }
    if settings.postgres:
        variables |= postgres.prefect_variables(settings.postgres)
    if settings.auth:
        known = folder.secrets()
        variables["PREFECT_SERVER_API_AUTH_STRING"] = known.prefect
        variables["PREFECT_API_AUTH_STRING"] = known.prefect
    if settings.host in EVERYWHERE:
        variables["PREFECT_UI_API_URL"] = "/api"  # a browser elsewhere reaches it by the name it typed
    command = _tool("prefect", "server", "start", "--host", settings.host, "--port", str(settings.prefect_port))
    return Service(PREFECT, command, variables, f"{settings.prefect_api}/health", settings.prefect_port)


def _mlflow(folder: TeamFolder, settings: TeamSettings) -> Service:
    home = folder.home
    variables = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home.path / 'mlflow.db'}",
        "MLFLOW_ARTIFACTS_DESTINATION": home.mlflow_artifacts.as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        **_known_names(settings),
    }
    if settings.postgres:
        variables["MLFLOW_BACKEND_STORE_URI"] = postgres.mlflow_address(settings.postgres)
    more: tuple[str, ...] = ()
    if settings.auth:
        if importlib.util.find_spec("flask_wtf") is None:
            raise UserError(
                "MLflow's names and passwords need Flask-WTF, which is not installed: pip install sheepfold[team]"
            )
        known = folder.secrets()
        if not folder.mlflow_users.exists():
            write_private(folder.mlflow_users, "")  # MLflow would make it readable for all
        folder.mlflow_users.chmod(0o600)
        write_private(folder.mlflow_auth, _auth_file(folder.mlflow_users, known.mlflow_user))
        variables["MLFLOW_AUTH_CONFIG_PATH"] = str(folder.mlflow_auth)
        variables["MLFLOW_AUTH_ADMIN_PASSWORD"] = known.mlflow_password
        variables["MLFLOW_FLASK_SERVER_SECRET_KEY"] = known.mlflow_key
        more = ("--app-name", "basic-auth")
    command = _tool("mlflow", "server", "--host", settings.host, "--port", str(settings.mlflow_port), "--workers", "1")
    return Service(MLFLOW, (*command, *more), variables, f"{settings.mlflow_url}/health", settings.mlflow_port)


def _known_names(settings: TeamSettings) -> dict[str, str]:
    """What MLflow answers to: it refuses other names, lest a page elsewhere that renames itself to us reads our data.

    The same names are those from which its own pages may change something.
    """
    names = [] if settings.host in LOOPBACK else _own_names(settings.host)
    hosts = [f"{name}:{settings.mlflow_port}" for name in names]
    for name in settings.more_names:  # without a port: behind a proxy, or as the server listens
        hosts += [name] if name.rpartition(":")[2].isdigit() else [name, f"{name}:{settings.mlflow_port}"]
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join([*LOOPBACK_HOSTS, *hosts]),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def _own_names(host: str) -> list[str]:
    """How a machine elsewhere may write the address that a server on this one listens on."""
    names = [socket.gethostname(), socket.getfqdn()]
    found = [host]
    if host in EVERYWHERE:
        wanted = (socket.AF_INET, socket.AF_INET6)
        found = [item.address for card in psutil.net_if_addrs().values() for item in card if item.family in wanted]
    addresses = [f"[{address.partition('%')[0]}]" if ":" in address else address for address in found]
    return list(dict.fromkeys(name.lower() for name in (*names, *addresses)))


def _auth_file(users: Path, admin: str) -> str:
    return (
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = sqlite:///{users}\n"
        f"admin_username = {admin}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\n"
    )


def _worker(folder: TeamFolder, settings: TeamSettings, name: str, more: tuple[str, ...]) -> Service:
    variables = {
        **folder.client_variables(settings),
        "PREFECT_HOME": str(folder.home.prefect),
        "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS),
    }
    command = _tool("prefect", "worker", "start", "--pool", WORKER_NAMES[name], "--type", "process", "--name", name)
    return Service(name, (*command, *more), variables)


def _tool(module: str, *arguments: str) -> tuple[str, ...]:
    """A tool of the environment that this command runs in, which need not be on the PATH."""
    return (sys.executable, "-m", module, *arguments)
