"""Settings and secrets of a team's servers, kept in HOME/team.

Options that are not given keep their last value, so that `sheepfold up` alone starts the same servers again. Files that
may hold a password have mode 0600; passwords reach a process by its environment, never by its command line.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from storage.atomic import write_file
from storage.errors import UserError
from storage.home import TEAM_TRACKING, Home

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
MLFLOW_PASSWORD_LENGTH = 12  # MLflow refuses shorter ones
# the servers' own variables, which may give the secrets for the next start
SECRETS = PREFECT_LOGIN, MLFLOW_USER, MLFLOW_PASSWORD, MLFLOW_KEY = (
    "PREFECT_SERVER_API_AUTH_STRING",
    "MLFLOW_AUTH_ADMIN_USERNAME",
    "MLFLOW_AUTH_ADMIN_PASSWORD",
    "MLFLOW_FLASK_SERVER_SECRET_KEY",
)
PREFECT_SCHEMA, MLFLOW_SCHEMA = "sheepfold_prefect", "sheepfold_mlflow"
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")  # read by every PostgreSQL driver from PGSSLMODE and so on
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[\w.-]+)(:\d+)?")  # no `*`: it would let any web page in


@dataclass(frozen=True)
class TeamSettings:
    """Options of `sheepfold up`.

    Attributes:
        host: address that both servers bind to.
        prefect_port: port of Prefect's server.
        mlflow_port: port of MLflow's server.
        postgres: `postgresql://` address of a database for both servers; empty for SQLite in the home.
        auth: both servers ask for a name and a password.
        source: absolute folders or files that the deployments read, one per line.
        prompts: absolute path of the file that `generate/batch` continues.
        allowed_hosts: further host names under which MLflow's server answers, separated by commas.
    """

    host: str = "127.0.0.1"
    prefect_port: int = 4200
    mlflow_port: int = 5000
    postgres: str = ""
    auth: bool = False
    source: str = ""
    prompts: str = ""
    allowed_hosts: str = ""

    def check(self) -> None:
        """Check that the settings agree.

        Raises:
            UserError: if they do not, or would open the servers to everyone.
        """
        if self.prefect_port == self.mlflow_port:
            raise UserError(f"both servers cannot listen on port {self.prefect_port}: give --mlflow-port another one")
        if self.host not in LOOPBACK and not self.auth:
            raise UserError(
                f"on {self.host} everyone who reaches this machine could start runs and read models: give --auth too"
            )
        if self.postgres:
            _database(self.postgres)
        for name in self.host_names:
            if not _HOST.fullmatch(name):
                raise UserError(
                    f"--allowed-hosts has {name!r}; it takes names separated by commas, each with a port or without "
                    "one, such as mlflow.example.org,flock:5000"
                )

    def of_servers(self) -> TeamSettings:
        """Return the settings that a running server cannot change."""
        return replace(self, source="", prompts="")

    @property
    def host_names(self) -> list[str]:
        """The further host names as a list."""
        return [name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip()]

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's pages."""
        return f"http://{self._reached_at}:{self.prefect_port}"

    @property
    def prefect_api(self) -> str:
        """Address of Prefect's API."""
        return f"{self.prefect_url}/api"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's pages and API."""
        return f"http://{self._reached_at}:{self.mlflow_port}"

    @property
    def _reached_at(self) -> str:
        host = "127.0.0.1" if self.host in EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host


def prefect_database(address: str) -> dict[str, str]:
    """Return the variables that give Prefect's server its schema of a PostgreSQL database."""
    url, tls = _database(address)
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": urlunsplit(url._replace(scheme="postgresql+asyncpg")),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": PREFECT_SCHEMA,
        **tls,
    }


def mlflow_database(address: str) -> dict[str, str]:
    """Return the variables that give MLflow's server its schema of a PostgreSQL database."""
    url, tls = _database(address)
    query = "&".join(filter(None, (url.query, f"options={quote(f'-csearch_path={MLFLOW_SCHEMA}')}")))
    return {"MLFLOW_BACKEND_STORE_URI": urlunsplit(url._replace(scheme="postgresql+psycopg2", query=query)), **tls}


def _database(address: str) -> tuple[SplitResult, dict[str, str]]:
    """Return an address of PostgreSQL without its TLS options, and these as environment variables."""
    try:
        url = urlsplit(address)
        _ = url.port  # raises ValueError
    except ValueError:
        url = SplitResult("", "", "", "", "")
    # an unquoted / or @ in a password would be split elsewhere, and part of the password be shown as a host
    if url.scheme not in ("postgresql", "postgres") or address.count("@") != int("@" in url.netloc):
        raise UserError(
            "--postgres takes postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and got something else: in a name or "
            "password, write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B and ] as %5D"
        )
    options = dict(parse_qsl(url.query))
    if unknown := set(options) - {*_TLS, "host", "port"}:
        raise UserError(
            f"--postgres has the option {min(unknown)}, which Prefect's server does not take; leave it out (options "
            f"that both servers take: {', '.join((*_TLS, 'host', 'port'))})"
        )
    tls = {f"PG{name.upper()}": options.pop(name) for name in _TLS if name in options}
    return url._replace(query=urlencode(options)), tls


class TeamFolder:
    """Files of a team's servers in a home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.path / "team"
        self.logs = self.path / "logs"
        self.lock = self.path / ".lock"
        self.configuration = self.path / "supervisord.conf"
        self.socket = self.path / "supervisor.sock"
        self.environment = self.path / "environment"
        self.mlflow_users = self.path / "mlflow-users.db"
        self.mlflow_auth = self.path / "mlflow-auth.ini"
        self._settings = self.path / "settings.json"
        self._secrets = self.path / "secrets.json"

    def settings(self) -> TeamSettings:
        """Return the settings that were kept last."""
        known = {field.name for field in fields(TeamSettings)}
        return TeamSettings(**{name: value for name, value in _read(self._settings).items() if name in known})

    def keep_settings(self, settings: TeamSettings) -> None:
        """Keep the settings; the address of PostgreSQL may hold a password."""
        write_private(self._settings, json.dumps(asdict(settings), indent=1))

    def secrets(self) -> dict[str, str]:
        """Return the kept secrets by variable.

        Raises:
            UserError: if there are none.
        """
        if not (kept := _read(self._secrets)):
            raise UserError(f"{self._secrets} is missing: `sheepfold down` first, then `up` makes new passwords")
        return kept

    def wanted_secrets(self) -> dict[str, str]:
        """Return the secrets for the next start: those of the environment, else the kept ones, else random ones.

        Raises:
            UserError: if MLflow would refuse the given password.
        """
        given = {name: os.environ[name] for name in SECRETS if os.environ.get(name)}
        if 0 < len(given.get(MLFLOW_PASSWORD, "")) < MLFLOW_PASSWORD_LENGTH:
            raise UserError(f"{MLFLOW_PASSWORD} has fewer than {MLFLOW_PASSWORD_LENGTH} characters: MLflow refuses it")
        new = {name: secrets.token_urlsafe(18) for name in SECRETS} | {MLFLOW_USER: "admin"}
        return {**new, PREFECT_LOGIN: f"admin:{new[PREFECT_LOGIN]}", **_read(self._secrets), **given}

    def keep_secrets(self, known: dict[str, str]) -> bool:
        """Keep the secrets for this and later starts; return True if they changed."""
        changed = _read(self._secrets) != known
        write_private(self._secrets, json.dumps(known, indent=1))
        return changed

    def client_variables(self, settings: TeamSettings) -> dict[str, str]:
        """Return the environment variables of a client of the servers."""
        found = {
            "SHEEPFOLD_HOME": str(self.home.path),
            "PREFECT_API_URL": settings.prefect_api,
            "MLFLOW_TRACKING_URI": settings.mlflow_url,
        }
        if settings.auth:
            known = self.secrets()
            found["PREFECT_API_AUTH_STRING"] = known[PREFECT_LOGIN]
            found["MLFLOW_TRACKING_USERNAME"] = known[MLFLOW_USER]
            found["MLFLOW_TRACKING_PASSWORD"] = known[MLFLOW_PASSWORD]
        return found

    def write_addresses(self, settings: TeamSettings) -> None:
        """Write the client variables for shells, and for `Home` where MLflow's database is not in the home."""
        variables, tracking = self.client_variables(settings), self.home.path / TEAM_TRACKING
        if settings.postgres:
            login = {name: value for name, value in variables.items() if name.startswith("MLFLOW_TRACKING_")}
            del login["MLFLOW_TRACKING_URI"]
            write_private(tracking, json.dumps({"uri": settings.mlflow_url, "variables": login}, indent=1))
        else:
            tracking.unlink(missing_ok=True)
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        write_private(self.environment, "".join(lines))


def write_private(path: Path, text: str) -> None:
    """Write a file atomically that only its owner may read."""
    write_file(path, text.encode(), mode=0o600)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): remove it and give the options of `sheepfold up` again"
        ) from None
