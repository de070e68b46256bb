"""Settings of a team's servers: refused ones, kept ones, and who may read them."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request
from postgres_server import postgres_server
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from test_servers import free_port
from typer.testing import CliRunner

from flows.cli import app
from flows.team.programs import (
    MLFLOW,
    MLFLOW_SCHEMA,
    PREFECT,
    PREFECT_SCHEMA,
    SERVICES,
    WORKER,
    bring_up,
    make_schemas,
    processes,
    program,
    program_states,
)
from flows.team.settings import (
    ENVIRONMENT,
    MLFLOW_PASSWORD,
    PREFECT_LOGIN,
    SECRETS,
    TeamSettings,
    postgres_variables,
    team_folder,
)
from storage.errors import UserError
from storage.home import Home

WITH_PASSWORDS = TeamSettings(
    auth=True,
    secrets={PREFECT_LOGIN: "admin:pass-of-prefect", MLFLOW_PASSWORD: "pass-of-mlflow"}
    | dict.fromkeys(SECRETS[2:], "pass-of-others"),
)
ADDRESS = "postgresql://shepherd:p%40ss@db:5432/flock"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in (*SECRETS, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    made = Home.from_environment(tmp_path / "home").create()
    team_folder(made).mkdir()
    return made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TeamSettings(prefect_port=5000), "two servers cannot listen on port 5000"),
        (TeamSettings(serve_port=4200), "two servers cannot listen on port 4200"),
        (TeamSettings(host="0.0.0.0"), "give --auth too"),
        (TeamSettings(allowed_hosts="flock, http://x"), "--allowed-hosts is 'flock, http://x': give names"),
        (TeamSettings(allowed_hosts="*"), "--allowed-hosts is '\\*'"),
        (TeamSettings(postgres=f"{ADDRESS}?channel_binding=require"), "--postgres has the option channel_binding"),
        (TeamSettings(postgres="mysql://x"), "--postgres has another format"),
    ],
)
def test_what_cannot_be_or_opens_the_box_to_everyone_is_refused(settings: TeamSettings, said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings.check()


def test_a_box_that_asks_for_passwords_may_listen_everywhere_and_is_reached_on_loopback() -> None:
    settings = TeamSettings(host="0.0.0.0", auth=True).with_secrets()
    settings.check()
    assert settings.prefect_url == "http://127.0.0.1:4200"


def test_settings_are_kept_for_the_next_time(home: Home) -> None:
    assert TeamSettings.kept(home) == TeamSettings()
    settings = TeamSettings(prefect_port=4444, postgres=ADDRESS, source="/docs\n/more")
    settings.keep(home)
    assert TeamSettings.kept(home) == settings


def test_what_may_hold_a_password_is_for_its_owner_alone(home: Home) -> None:
    WITH_PASSWORDS.model_copy(update={"postgres": ADDRESS}).keep(home)
    files = [path for path in team_folder(home).rglob("*") if path.is_file()]
    holding = [path for path in files if any(text in path.read_text() for text in ("pass-of", "p%40ss"))]
    assert {path.name for path in holding} == {"settings.json", "environment", "tracking.json"}
    assert {path.stat().st_mode & 0o777 for path in holding} == {0o600}


def test_secrets_of_the_environment_are_kept_for_later_starts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TeamSettings(auth=True).with_secrets()
    assert len(first.secrets[MLFLOW_PASSWORD]) >= 24 and first.secrets[PREFECT_LOGIN].startswith("admin:")
    assert first.with_secrets() == first
    monkeypatch.setenv(PREFECT_LOGIN, "me:mine")
    first.with_secrets().keep(home)
    monkeypatch.delenv(PREFECT_LOGIN)
    assert TeamSettings.kept(home).with_secrets().secrets == {**first.secrets, PREFECT_LOGIN: "me:mine"}


def test_a_password_that_mlflow_would_refuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MLFLOW_PASSWORD, "elevenchars")
    with pytest.raises(UserError, match="MLFLOW_AUTH_ADMIN_PASSWORD has fewer than 12 characters"):
        TeamSettings(auth=True).with_secrets().check()


def test_no_password_is_in_a_command_line_and_that_of_the_database_in_no_worker(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEEPFOLD_POSTGRES", ADDRESS)
    settings = WITH_PASSWORDS.model_copy(update={"postgres": ADDRESS})
    for name in SERVICES:
        command, variables = program(name, home, settings)
        assert not any(secret in " ".join(command) for secret in ("pass-of", "p@ss", "p%40ss"))
        assert any(text in value for value in variables.values() for text in ("p@ss", "p%40ss")) == (
            name in (PREFECT, MLFLOW)
        )


def test_the_programs_do_not_use_the_servers_of_the_callers_shell(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_PROFILE"):
        monkeypatch.setenv(name, "http://elsewhere")
    for name in SERVICES:
        assert "http://elsewhere" not in program(name, home, TeamSettings())[1].values()


def test_jobs_find_the_python_that_runs_sheepfold(home: Home) -> None:
    _, variables = program(WORKER, home, TeamSettings())
    found = subprocess.run(["sh", "-c", "command -v python"], env=variables, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).parent == Path(sys.executable).parent


def test_prefects_server_opens_a_connection_to_sqlite_per_request() -> None:
    """A bounded pool would deadlock: requests that wait for the lock hold all connections."""
    address = make_url("sqlite+aiosqlite:////srv/sheepfold/prefect/prefect.db")
    assert address.get_dialect().get_pool_class(address) is NullPool


def known_to_mlflow(home: Home, settings: TeamSettings) -> Callable[[str], bool]:
    """Return MLflow's own check of a host name."""
    _, given = program(MLFLOW, home, settings)
    hosts = given["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    origins = given["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")

    def known(host: str) -> bool:
        answered = is_allowed_host_header(hosts, host)
        assert answered != should_block_cors_request(f"http://{host}", "POST", origins)
        return answered

    return known


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3"])
def test_mlflow_answers_under_the_names_of_its_machine(home: Home, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.team.programs.socket.gethostname", lambda: "Flock")
    monkeypatch.setattr("flows.team.programs.socket.getfqdn", lambda: "flock.example.org")
    card = [SimpleNamespace(family=socket.AF_INET, address="10.1.2.3")]
    monkeypatch.setattr("flows.team.programs.psutil.net_if_addrs", lambda: {"eth0": card})
    known = known_to_mlflow(home, TeamSettings(host=host, auth=True, mlflow_port=5001).with_secrets())
    for name in ("flock:5001", "flock.example.org:5001", "10.1.2.3:5001", "localhost:5001", "127.0.0.1:5001"):
        assert known(name), name
    for name in ("evil.example.org:5001", "flock.example.org.evil.org:5001", "10.1.2.3.evil.org:5001"):
        assert not known(name), name


def test_mlflow_on_loopback_answers_there_and_under_the_names_it_is_given(home: Home) -> None:
    known = known_to_mlflow(home, TeamSettings(allowed_hosts="mlflow.example.org, flock:80"))
    for name in ("localhost:5999", "[::1]:5000", "mlflow.example.org", "mlflow.example.org:5000", "flock:80"):
        assert known(name), name
    for name in (f"{socket.gethostname()}:5000", "flock:81", "evil.example.org"):
        assert not known(name), name


def test_the_address_of_the_database_is_taken_from_the_environment_and_not_printed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TeamSettings] = []
    monkeypatch.setattr("flows.team.programs.bring_up", lambda home, settings, *_: asked.append(settings) or [])
    monkeypatch.setenv("SHEEPFOLD_POSTGRES", ADDRESS)
    done = CliRunner().invoke(app, ["up", str(team_folder(home)), "--home", str(home.path)])
    assert done.exit_code == 0 and [settings.postgres for settings in asked] == [ADDRESS]
    assert "p%40ss" not in done.output


def test_a_port_that_is_taken_is_reported_before_anything_starts(home: Home) -> None:
    settings = TeamSettings(prefect_port=free_port(), mlflow_port=free_port())
    said = rf"mlflow cannot listen on 127.0.0.1 port {settings.mlflow_port}"
    with socket.create_server(("127.0.0.1", settings.mlflow_port)), pytest.raises(UserError, match=said):
        bring_up(home, settings, print)
    assert not list(team_folder(home).glob("*.conf"))


@pytest.mark.full
def test_a_server_that_fails_is_reported_with_the_end_of_its_log_and_stops_the_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.path.joinpath("mlflow.db").write_text("no database")
    settings = TeamSettings(prefect_port=free_port(), mlflow_port=free_port())
    with pytest.raises(UserError, match=r"(?s)mlflow ended while it started; the end of .*mlflow\.log:\n.*database"):
        bring_up(home, settings, print)
    assert processes(home) == []
    assert program_states(home) == {}


def test_a_shell_reads_the_file_of_addresses(home: Home) -> None:
    WITH_PASSWORDS.keep(home)
    file = shlex.quote(str(team_folder(home) / ENVIRONMENT))
    script = f". {file}; echo $PREFECT_API_URL $MLFLOW_TRACKING_URI $PREFECT_API_AUTH_STRING"
    found = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["http://127.0.0.1:4200/api", "http://127.0.0.1:5000", "admin:pass-of-prefect"]


def test_the_registry_of_a_home_on_postgres_is_the_teams_server(home: Home) -> None:
    TeamSettings(postgres=ADDRESS).keep(home)
    found = Home.from_environment(home.path)
    assert (found.tracking_uri, found.login()) == ("http://127.0.0.1:5000", {})
    WITH_PASSWORDS.model_copy(update={"postgres": ADDRESS}).keep(home)
    assert found.login()["MLFLOW_TRACKING_PASSWORD"] == "pass-of-mlflow"
    TeamSettings().keep(home)
    assert Home.from_environment(home.path).tracking_uri.startswith("sqlite:")


def test_prefects_driver_reads_every_variable_of_an_address() -> None:
    asked = "sslmode=verify-full&sslrootcert=/srv/ca.crt&sslcert=/srv/me.crt&sslkey=/srv/me.key"
    given = postgres_variables(f"postgresql://shepherd:p%40ss@[::1]:5432/flock?{asked}")
    assert given == {
        "PGUSER": "shepherd",
        "PGPASSWORD": "p@ss",
        "PGHOST": "::1",
        "PGPORT": "5432",
        "PGDATABASE": "flock",
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": "/srv/ca.crt",
        "PGSSLCERT": "/srv/me.crt",
        "PGSSLKEY": "/srv/me.key",
    }
    reader = inspect.getsource(asyncpg.connect_utils)
    assert all(f"'{name}'" in reader for name in given)
    assert postgres_variables("postgresql://shepherd@/flock?host=/run/postgresql")["PGHOST"] == "/run/postgresql"


@pytest.mark.full
def test_each_server_has_its_schema_and_uses_tls_where_the_address_asks_for_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypted = text("select current_schema(), ssl from pg_stat_ssl where pid = pg_backend_pid()")
    with postgres_server(free_port()) as database:
        make_schemas(database.over_tls)
        settings = TeamSettings(postgres=database.over_tls)
        _, variables = program(PREFECT, home, settings)
        address = variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
        path = variables["PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH"]

        async def as_prefect() -> object:
            made = create_async_engine(address, connect_args={"server_settings": {"search_path": path}})
            async with made.connect() as connection:
                return tuple((await connection.execute(encrypted)).one())

        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert asyncio.run(as_prefect()) == (PREFECT_SCHEMA, True)
        _, variables = program(MLFLOW, home, settings)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with create_engine(variables["MLFLOW_BACKEND_STORE_URI"]).connect() as connection:
            assert tuple(connection.execute(encrypted).one()) == (MLFLOW_SCHEMA, True)
        monkeypatch.setenv("PGSSLROOTCERT", "/nowhere")
        with pytest.raises(FileNotFoundError):
            asyncio.run(as_prefect())


UNCLEAR = [f"postgresql://shepherd:se{mark}cret@db:5432/flock" for mark in "/#?@["] + ["postgresql://shepherd:secret/x"]


@pytest.mark.parametrize("address", UNCLEAR)
def test_an_address_whose_password_is_not_quoted_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(UserError, match=r"--postgres has another format.* write / as %2F") as raised:
        TeamSettings(postgres=address).check()
    assert "cret" not in str(raised.value)


def test_a_database_that_does_not_answer_is_reported_without_its_password() -> None:
    with pytest.raises(
        UserError, match=r"PostgreSQL at postgresql://shepherd:\*\*\*@127.0.0.1:1/flock cannot be used"
    ) as raised:
        make_schemas("postgresql://shepherd:secret@127.0.0.1:1/flock")
    assert "secret" not in str(raised.value)


def test_a_damaged_file_is_named(home: Home) -> None:
    (team_folder(home) / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"settings\.json is damaged: .* give the options of `sheepfold up` again"):
        TeamSettings.kept(home)
