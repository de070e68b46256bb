"""Settings of a team's servers, recorded with their passwords in HOME/team.

Options that are not given keep their last value, so that `sheepfold up` without options starts the same servers again.
Files with passwords have mode 0600; processes get passwords in their environment, never on the command line.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from pydantic import Field

from flows.options import TeamOptions
from storage.atomic import write_file
from storage.errors import UserError
from storage.home import TEAM_TRACKING, Home
from tasks.serving import API_KEY

SETTINGS, ENVIRONMENT = "settings.json", "environment"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
MLFLOW_USER, MLFLOW_PASSWORD_LENGTH = "admin", 12  # MLflow refuses shorter passwords
# variables of the servers; set in the environment of `sheepfold up`, they replace the recorded secrets
PREFECT_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
MLFLOW_PASSWORD = "MLFLOW_AUTH_ADMIN_PASSWORD"
MLFLOW_KEY = "MLFLOW_FLASK_SERVER_SECRET_KEY"
SECRETS = PREFECT_LOGIN, MLFLOW_PASSWORD, MLFLOW_KEY, API_KEY
_HOSTS = re.compile(r"[\w.:\[\], -]*")  # without `*`, which would admit any web page
_POSTGRES = re.compile(
    r"postgres(ql)?://((?P<PGUSER>[^:@/?#\[\]]+)(:(?P<PGPASSWORD>[^@/?#\[\]]*))?@)?"
    r"(?P<PGHOST>\[[0-9a-fA-F:]+\]|[\w.-]+)?(:(?P<PGPORT>\d+))?(/(?P<PGDATABASE>[^@/?#]*))?"
    r"(\?(?P<options>[^@?#]*))?"
)
_POSTGRES_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "host", "port")


class TeamSettings(TeamOptions, frozen=True):
    """Recorded options of `sheepfold up`, with secrets.

    Attributes:
        secrets: passwords and keys, by the names in `SECRETS`; empty without `auth`.
    """

    secrets: dict[str, str] = Field(default={})

    @classmethod
    def kept(cls, home: Home) -> TeamSettings:
        """Return the recorded settings of a home, or the defaults."""
        path = team_folder(home) / SETTINGS
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValueError:  # its message may quote a password, so it is not shown
            raise UserError(f"{path} is damaged: remove it and give the options of `sheepfold up` again") from None

    def keep(self, home: Home) -> None:
        """Write the settings, the client variables for shells, and those for `Home` if MLflow uses PostgreSQL."""
        write_private(team_folder(home) / SETTINGS, self.model_dump_json(indent=1))
        variables, tracking = self.client_variables(home), home.path / TEAM_TRACKING
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        write_private(team_folder(home) / ENVIRONMENT, "".join(lines))
        login = {name: value for name, value in variables.items() if name.startswith("MLFLOW_TRACKING_")}
        if self.postgres:
            write_private(tracking, json.dumps({"uri": login.pop("MLFLOW_TRACKING_URI"), "variables": login}))
        else:
            tracking.unlink(missing_ok=True)

    def check(self) -> None:
        """Check the settings.

        Raises:
            UserError: if they are in conflict, or would expose the servers without passwords.
        """
        ports = [self.prefect_port, self.mlflow_port, self.serve_port]
        if taken := next((port for place, port in enumerate(ports) if port in ports[:place]), 0):
            raise UserError(f"two servers cannot listen on port {taken}: give one of them another port")
        if self.host not in LOOPBACK and not self.auth:
            raise UserError(
                f"on {self.host} anyone with access to the network could start runs and read models: give --auth too"
            )
        if self.postgres:
            postgres_variables(self.postgres)
        if not _HOSTS.fullmatch(self.allowed_hosts):
            raise UserError(
                f"--allowed-hosts is {self.allowed_hosts!r}: give names separated by commas, with or without a port, "
                "such as mlflow.example.org,flock:5000"
            )
        if self.serve_port and not self.auth and os.environ.get(API_KEY):
            raise UserError(f"{API_KEY} is set, but without --auth no key is asked for: give --auth, or unset it")
        if self.auth and len(self.secrets.get(MLFLOW_PASSWORD, "")) < MLFLOW_PASSWORD_LENGTH:
            raise UserError(
                f"{MLFLOW_PASSWORD} has fewer than {MLFLOW_PASSWORD_LENGTH} characters, which MLflow refuses: set a "
                "longer one"
            )

    def with_secrets(self) -> TeamSettings:
        """Return the settings with secrets from the environment, else the recorded ones, else random ones."""
        new = {name: secrets.token_urlsafe(18) for name in SECRETS}
        new[PREFECT_LOGIN] = f"admin:{new[PREFECT_LOGIN]}"
        given = {name: os.environ[name] for name in SECRETS if os.environ.get(name)}
        return self.model_copy(update={"secrets": {**new, **self.secrets, **given} if self.auth else {}})

    def of_servers(self) -> TeamSettings:
        """Return the settings that need a restart of the servers."""
        return self.model_copy(update={"source": "", "prompts": ""})

    @property
    def reached_at(self) -> str:
        """Local host name or address of the servers, for URLs."""
        host = "127.0.0.1" if self.host in EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's pages."""
        return f"http://{self.reached_at}:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's pages and API."""
        return f"http://{self.reached_at}:{self.mlflow_port}"

    @property
    def serve_url(self) -> str:
        """Address at which the champion answers."""
        return f"http://{self.reached_at}:{self.serve_port}"

    def client_variables(self, home: Home) -> dict[str, str]:
        """Return the environment variables of a client of the servers."""
        found = {
            "SHEEPFOLD_HOME": str(home.path),
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
        }
        if self.auth:
            found["PREFECT_API_AUTH_STRING"] = self.secrets[PREFECT_LOGIN]
            found["MLFLOW_TRACKING_USERNAME"] = MLFLOW_USER
            found["MLFLOW_TRACKING_PASSWORD"] = self.secrets[MLFLOW_PASSWORD]
            found[API_KEY] = self.secrets.get(API_KEY, "")  # settings of a team that served nothing have none
        return found


def postgres_variables(address: str) -> dict[str, str]:
    """Return an address of PostgreSQL as the environment variables that all its drivers read.

    Raises:
        UserError: if its format is invalid, or it has an option that one of the drivers does not support.
    """
    found = _POSTGRES.fullmatch(address)
    if not found:  # the address may hold a password, so it is not shown
        raise UserError(
            "--postgres has another format than postgresql://USER:PASSWORD@HOST:PORT/DATABASE: correct it; in a name "
            "or password, write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B and ] as %5D"
        )
    parts = {name: unquote(value.strip("[]")) for name, value in found.groupdict().items() if value}
    options = dict(parse_qsl(parts.pop("options", "")))
    if unknown := set(options) - set(_POSTGRES_OPTIONS):
        raise UserError(
            f"--postgres has the option {min(unknown)}, which Prefect's server does not support: leave it out (options "
            f"of both servers: {', '.join(_POSTGRES_OPTIONS)})"
        )
    return {**parts, **{f"PG{name.upper()}": value for name, value in options.items()}}


def team_folder(home: Home) -> Path:
    """Return the folder of a team's settings, passwords and logs in a home."""
    return home.path / "team"


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    write_file(path, text.encode(), mode=0o600)
