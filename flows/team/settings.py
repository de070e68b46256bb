"""What a team's servers were asked to be, kept in the home, and the secrets that go with it.

What is not given is as it was when the servers were last brought up, so that `sheepfold up` alone, called again by a
person or a timer, starts what is missing. Whatever may hold a password is written for its owner's eyes alone and
reaches a process by its environment, never by its command line, which everyone on the machine can read.
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

from flows.team import postgres
from storage.atomic import write_file
from storage.errors import UserError
from storage.home import TEAM_TRACKING, Home

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
ADMIN = "admin"
MLFLOW_PASSWORD_LENGTH = 12  # the least that it takes
# What a person may give by the servers' own variables, by its name in `Secrets`.
GIVEN = {
    "prefect": "PREFECT_SERVER_API_AUTH_STRING",
    "mlflow_user": "MLFLOW_AUTH_ADMIN_USERNAME",
    "mlflow_password": "MLFLOW_AUTH_ADMIN_PASSWORD",
    "mlflow_key": "MLFLOW_FLASK_SERVER_SECRET_KEY",
}
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[\w.-]+)(:\d+)?")  # no patterns: `*` would let any page of the web in


@dataclass(frozen=True)
class TeamSettings:
    """Where the servers listen, where they keep what they know, and what the deployments read.

    Attributes:
        host: address that both servers bind to.
        postgres: `postgresql://` address of a database for both servers; empty for SQLite in the home.
        auth: whether both ask for a name and a password.
        source: folders or files that the deployments read, absolute, one per line.
        prompts: file that `generate/batch` continues, absolute.
        allowed_hosts: further names by which MLflow's server may be asked for, with commas between them.
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
        """Refuse what could not work or would open the box to everyone.

        Raises:
            UserError: if so.
        """
        if self.prefect_port == self.mlflow_port:
            raise UserError(f"both servers cannot listen on port {self.prefect_port}: give --mlflow-port another one")
        if self.host not in LOOPBACK and not self.auth:
            raise UserError(
                f"on {self.host} everyone who reaches this machine could start runs and read models: give --auth too"
            )
        if self.postgres:
            postgres.check_address(self.postgres)
        for name in self.more_names:
            if not _HOST.fullmatch(name):
                raise UserError(
                    f"--allowed-hosts has {name!r}; it takes names with commas between them, each with a port or "
                    "without one, such as mlflow.example.org,flock:5000"
                )

    def of_servers(self) -> TeamSettings:
        """What needs the servers to start anew when it changes; what deployments read does not."""
        return replace(self, source="", prompts="")

    @property
    def more_names(self) -> list[str]:
        """The further names, one by one."""
        return [name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip()]

    @property
    def reached_at(self) -> str:
        """The host as a client on this machine writes it."""
        host = "127.0.0.1" if self.host in EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's pages."""
        return f"http://{self.reached_at}:{self.prefect_port}"

    @property
    def prefect_api(self) -> str:
        """Address of Prefect's API."""
        return f"{self.prefect_url}/api"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's pages and API."""
        return f"http://{self.reached_at}:{self.mlflow_port}"


@dataclass(frozen=True)
class Secrets:
    """What the servers ask for, and what MLflow signs its sessions with.

    Attributes:
        prefect: `name:password` of Prefect's API.
        mlflow_before: password that MLflow's admin had before this one; empty where there was none.
    """

    prefect: str
    mlflow_user: str
    mlflow_password: str
    mlflow_key: str
    mlflow_before: str = ""


class TeamFolder:
    """Files of a team's servers in a home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.path / "team"
        self.logs = self.path / "logs"
        self.state = self.path / "state.json"
        self.lock = self.path / ".lock"
        self.deployments = self.path / "prefect.yaml"
        self.environment = self.path / "environment"
        self.mlflow_users = self.path / "mlflow-users.db"
        self.mlflow_auth = self.path / "mlflow-auth.ini"
        self._settings = self.path / "settings.json"
        self._secrets = self.path / "secrets.json"

    def create(self) -> TeamFolder:
        """Make the folder; harmless when it exists."""
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def settings(self) -> TeamSettings:
        """What was last asked for."""
        known = {field.name for field in fields(TeamSettings)}
        return TeamSettings(**{name: value for name, value in _read(self._settings).items() if name in known})

    def keep_settings(self, settings: TeamSettings) -> None:
        """Remember what was asked for; an address of PostgreSQL holds a password."""
        write_private(self._settings, json.dumps(asdict(settings), indent=1))

    def secrets(self) -> Secrets:
        """Names and passwords that the servers ask for.

        Raises:
            UserError: if none are kept.
        """
        kept = _read(self._secrets)
        if not kept:
            raise UserError(
                f"{self._secrets} is not there, so it is not known what the servers ask for: `sheepfold down` first, "
                "then `up` makes it anew"
            )
        return _secrets_of(kept)

    def changed_secrets(self) -> list[str]:
        """Variables of the environment that give something else than what is kept."""
        known = asdict(self.secrets())
        return [GIVEN[name] for name, value in _given().items() if value != known[name]]

    def keep_secrets(self) -> None:
        """Keep what the environment gives, else what was kept, else something made up: for `up`, before servers start.

        Raises:
            UserError: if MLflow would not take the password that is given.
        """
        kept = _read(self._secrets) or {name: secrets.token_urlsafe(18) for name in ("prefect", "mlflow", "key")}
        given = _given()
        if 0 < len(given.get("mlflow_password", "")) < MLFLOW_PASSWORD_LENGTH:
            raise UserError(
                f"{GIVEN['mlflow_password']} has fewer than {MLFLOW_PASSWORD_LENGTH} characters, which MLflow asks "
                "for: give a longer one"
            )
        before = _secrets_of(kept).mlflow_password
        kept["given"] = {**kept.get("given", {}), **given}
        if _secrets_of(kept).mlflow_password != before:
            kept["mlflow_before"] = before
        write_private(self._secrets, json.dumps(kept, indent=1))

    def client_variables(self, settings: TeamSettings) -> dict[str, str]:
        """What a process needs to reach the servers."""
        found = {
            "SHEEPFOLD_HOME": str(self.home.path),
            "PREFECT_API_URL": settings.prefect_api,
            "MLFLOW_TRACKING_URI": settings.mlflow_url,
        }
        if settings.auth:
            known = self.secrets()
            found["PREFECT_API_AUTH_STRING"] = known.prefect
            found["MLFLOW_TRACKING_USERNAME"] = known.mlflow_user
            found["MLFLOW_TRACKING_PASSWORD"] = known.mlflow_password
        return found

    def write_addresses(self, settings: TeamSettings) -> None:
        """Let others find the servers: a file for the shell, and where the registry is if not in the home."""
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
    """Write a file whole that only its owner may read."""
    write_file(path, text.encode(), mode=0o600)


def _secrets_of(kept: dict[str, Any]) -> Secrets:
    """The secrets in a file: what was given comes before what was made up."""
    made = {
        "prefect": f"{ADMIN}:{kept['prefect']}",
        "mlflow_user": ADMIN,
        "mlflow_password": kept["mlflow"],
        "mlflow_key": kept["key"],
    }
    return Secrets(**{**made, **kept.get("given", {})}, mlflow_before=kept.get("mlflow_before", ""))


def _given() -> dict[str, str]:
    """What the environment gives, by its name in `Secrets`."""
    return {name: os.environ[variable] for name, variable in GIVEN.items() if os.environ.get(variable)}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): remove it and give the options of `sheepfold up` again"
        ) from None
    return found if isinstance(found, dict) else {}
