"""What a team's servers are asked to be: what is refused, what is kept, and who may read it."""

from __future__ import annotations

import asyncio
import inspect
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request
from postgres_server import postgres_server
from prefect.utilities.processutils import command_from_string
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from test_servers import service as serving
from test_team_box import free_port
from typer.testing import CliRunner

from flows.cli import app
from flows.team.api import Unauthorised, ask
from flows.team.box import Up
from flows.team.deployments import team_deployments
from flows.team.mlflow_server import agree_on_password
from flows.team.postgres import MLFLOW_SCHEMA, PREFECT_SCHEMA, mlflow_address, prefect_variables, prepare, shown
from flows.team.services import MLFLOW, PREFECT, services
from flows.team.settings import GIVEN, TeamFolder, TeamSettings
from storage.errors import UserError
from storage.home import Home

ADDRESS = "postgresql://shepherd:p%40ss@db:5432/flock"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TeamFolder:
    for name in (*GIVEN.values(), "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    made = TeamFolder(Home.from_environment(tmp_path / "home").create()).create()
    made.keep_secrets()
    return made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TeamSettings(prefect_port=5000), "both servers cannot listen on port 5000"),
        (TeamSettings(host="0.0.0.0"), "give --auth too"),
        (TeamSettings(allowed_hosts="flock, http://x"), "--allowed-hosts has 'http://x'; it takes names"),
        (TeamSettings(allowed_hosts="*"), "--allowed-hosts has '\\*'"),
        (TeamSettings(postgres=f"{ADDRESS}?channel_binding=require"), "--postgres has the option channel_binding"),
        (TeamSettings(postgres="mysql://x"), "--postgres has mysql; it takes postgresql://"),
    ],
)
def test_what_cannot_be_or_opens_the_box_to_everyone_is_refused(settings: TeamSettings, said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings.check()


def test_a_box_that_asks_for_passwords_may_listen_everywhere_and_is_reached_on_loopback() -> None:
    settings = TeamSettings(host="0.0.0.0", auth=True)
    settings.check()
    assert settings.prefect_api == "http://127.0.0.1:4200/api"


def test_settings_are_kept_for_the_next_time(folder: TeamFolder) -> None:
    assert folder.settings() == TeamSettings()
    settings = TeamSettings(prefect_port=4444, postgres=ADDRESS, source="/docs\n/more")
    folder.keep_settings(settings)
    assert folder.settings() == settings


def test_what_may_hold_a_password_is_for_its_owner_alone(folder: TeamFolder) -> None:
    settings = TeamSettings(auth=True, postgres=ADDRESS)
    folder.keep_settings(settings)
    folder.write_addresses(settings)
    known = folder.secrets()
    holding = [
        path
        for path in folder.path.rglob("*")
        if path.is_file() and any(secret in path.read_text() for secret in (known.mlflow_password, "p%40ss"))
    ]
    assert {path.name for path in holding} == {"settings.json", "environment", "secrets.json", "tracking.json"}
    assert {path.stat().st_mode & 0o777 for path in holding} == {0o600}


def test_secrets_are_made_up_once(folder: TeamFolder) -> None:
    first = folder.secrets()
    assert len(first.mlflow_password) >= 24 and first.prefect.startswith("admin:")
    folder.keep_secrets()
    assert folder.secrets() == first


def test_what_the_environment_gives_holds_from_the_start_of_the_servers_on(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder.secrets()
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:mine")
    assert folder.secrets() == first  # nobody but `up` looks there
    folder.keep_secrets()
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING")
    folder.keep_secrets()
    assert folder.secrets() == replace(first, prefect="me:mine")


def test_a_password_that_mlflow_would_not_take_is_refused_and_not_kept(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder.secrets()
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "elevenchars")
    with pytest.raises(UserError, match="MLFLOW_AUTH_ADMIN_PASSWORD has fewer than 12 characters"):
        folder.keep_secrets()
    assert folder.secrets() == first


def test_secrets_that_were_lost_are_not_made_up_by_whoever_asks_for_them(folder: TeamFolder) -> None:
    (folder.path / "secrets.json").unlink()
    with pytest.raises(UserError, match=r"secrets.json is not there, .* `sheepfold down` first, then `up`"):
        folder.secrets()


def test_no_password_stands_in_a_command_line(folder: TeamFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.team.services.importlib.util.find_spec", lambda name: object())
    known = folder.secrets()
    for service in services(folder, TeamSettings(auth=True, postgres=ADDRESS)):
        line = " ".join(service.command)
        assert not any(secret in line for secret in (known.prefect, known.mlflow_password, "p%40ss"))


def test_a_worker_is_told_to_run_the_python_that_deployed_wherever_it_stands(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/our tools/python")
    for deployment in team_deployments(folder.home, TeamSettings()):
        line = command_from_string(deployment["work_pool"]["job_variables"]["command"])  # as a worker reads it
        assert line == ["/opt/our tools/python", "-m", "prefect.engine"]


def test_prefects_server_has_a_connection_to_sqlite_for_everyone_who_asks_for_one() -> None:
    """Those who wait for the lock of the file would else hold all that there are, and who has it needs another one."""
    address = make_url("sqlite+aiosqlite:////srv/sheepfold/prefect/prefect.db")
    assert address.get_dialect().get_pool_class(address) is NullPool


def known_to_mlflow(folder: TeamFolder, settings: TeamSettings) -> Callable[[str], bool]:
    """Whether MLflow answers a page that was reached under a name, by MLflow's own judgement."""
    given = next(one for one in services(folder, settings) if one.name == MLFLOW).variables
    hosts = given["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    origins = given["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")

    def known(host: str) -> bool:
        answered = is_allowed_host_header(hosts, host)
        assert answered != should_block_cors_request(f"http://{host}", "POST", origins)
        return answered

    return known


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3"])
def test_mlflow_answers_under_the_names_of_its_machine(
    folder: TeamFolder, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.team.services.socket.gethostname", lambda: "Flock")
    monkeypatch.setattr("flows.team.services.socket.getfqdn", lambda: "flock.example.org")
    card = [SimpleNamespace(family=socket.AF_INET, address="10.1.2.3")]
    monkeypatch.setattr("flows.team.services.psutil.net_if_addrs", lambda: {"eth0": card})
    known = known_to_mlflow(folder, TeamSettings(host=host, auth=True, mlflow_port=5001))
    for name in ("flock:5001", "flock.example.org:5001", "10.1.2.3:5001", "localhost:5001", "127.0.0.1:5001"):
        assert known(name), name
    for name in ("evil.example.org:5001", "flock.example.org.evil.org:5001", "10.1.2.3.evil.org:5001"):
        assert not known(name), name


def test_mlflow_on_loopback_answers_there_and_under_the_names_it_is_given(folder: TeamFolder) -> None:
    known = known_to_mlflow(folder, TeamSettings(allowed_hosts="mlflow.example.org, flock:80"))
    for name in ("localhost:5999", "[::1]:5000", "mlflow.example.org", "mlflow.example.org:5000", "flock:80"):
        assert known(name), name
    for name in (f"{socket.gethostname()}:5000", "flock:81", "evil.example.org"):
        assert not known(name), name


def test_the_address_of_the_database_comes_from_the_environment_and_reaches_no_run(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TeamSettings] = []
    monkeypatch.setattr("flows.team.box.bring_up", lambda home, settings, say: asked.append(settings) or Up([], {}))
    monkeypatch.setenv("SHEEPFOLD_POSTGRES", ADDRESS)
    done = CliRunner().invoke(app, ["up", str(folder.path), "--home", str(folder.home.path)])
    assert done.exit_code == 0 and [settings.postgres for settings in asked] == [ADDRESS]
    assert "p%40ss" not in done.output
    for service in services(folder, TeamSettings(postgres=ADDRESS)):
        holds = any("p%40ss" in value for value in service.environment().values())
        assert holds == (service.name in (PREFECT, MLFLOW)), service.name


def test_a_home_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = CliRunner().invoke(app, ["up", str(tmp_path), "--home", str(tmp_path / "file")])
    assert done.exit_code == 1 and not isinstance(done.exception, NotADirectoryError)
    assert f"{tmp_path / 'file'}" in done.output and "work in another folder" in done.output


def test_nobody_else_may_read_the_names_that_mlflow_keeps(folder: TeamFolder) -> None:
    services(folder, TeamSettings(auth=True))
    assert stat.S_IMODE(folder.mlflow_users.stat().st_mode) == 0o600


@pytest.mark.full
def test_mlflow_that_listens_everywhere_answers_under_the_name_of_its_machine(folder: TeamFolder) -> None:
    settings = TeamSettings(host="0.0.0.0", auth=True, mlflow_port=free_port())
    server = next(one for one in services(folder, settings) if one.name == MLFLOW)

    def status(host: str) -> int:
        connection = HTTPConnection("127.0.0.1", settings.mlflow_port, timeout=60)
        connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host})
        return connection.getresponse().status

    with serving(list(server.command), server.environment(), folder.path, server.health):
        assert status(f"{socket.gethostname()}:{settings.mlflow_port}") == 401  # and not 403: it asks for the password
        assert status(f"evil.example.org:{settings.mlflow_port}") == 403


@contextmanager
def running_mlflow(folder: TeamFolder, settings: TeamSettings) -> Iterator[None]:
    server = next(one for one in services(folder, settings) if one.name == MLFLOW)
    with serving(list(server.command), server.environment(), folder.path, server.health):
        yield


@pytest.mark.full
def test_mlflows_admin_whom_it_made_long_ago_gets_the_password_that_is_given(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TeamSettings(auth=True, mlflow_port=free_port())
    with running_mlflow(folder, settings):
        agree_on_password(settings.mlflow_url, folder.secrets(), folder.mlflow_users)
    first = folder.secrets().mlflow_password
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "another-password")
    folder.keep_secrets()
    with running_mlflow(folder, settings):
        agree_on_password(settings.mlflow_url, folder.secrets(), folder.mlflow_users)
        address = f"{settings.mlflow_url}/api/2.0/mlflow/users/current"
        assert ask(address, user="admin:another-password")["user"]["username"] == "admin"
        with pytest.raises(Unauthorised):
            ask(address, user=f"admin:{first}")
        strange = replace(folder.secrets(), mlflow_password="of somebody else", mlflow_before="and before")
        with pytest.raises(UserError, match="MLflow's admin admin has neither the password that is kept nor"):
            agree_on_password(settings.mlflow_url, strange, folder.mlflow_users)


def test_the_servers_do_not_read_what_the_persons_shell_talks_to(
    folder: TeamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_PROFILE"):
        monkeypatch.setenv(name, "http://elsewhere")
    for service in services(folder, TeamSettings()):
        assert "http://elsewhere" not in service.environment().values()


def test_a_shell_reads_the_file_of_addresses(folder: TeamFolder) -> None:
    folder.write_addresses(TeamSettings(auth=True))
    script = f". {folder.environment}; echo $PREFECT_API_URL $MLFLOW_TRACKING_URI; echo $PREFECT_API_AUTH_STRING"
    lines = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == ["http://127.0.0.1:4200/api http://127.0.0.1:5000", folder.secrets().prefect]


def test_the_registry_of_a_home_on_postgres_is_the_teams_server(folder: TeamFolder) -> None:
    folder.write_addresses(TeamSettings(postgres=ADDRESS))
    home = Home.from_environment(folder.home.path)
    assert (home.tracking_uri, home.login()) == ("http://127.0.0.1:5000", {})
    folder.write_addresses(TeamSettings(postgres=ADDRESS, auth=True))
    assert home.login()["MLFLOW_TRACKING_PASSWORD"] == folder.secrets().mlflow_password
    folder.write_addresses(TeamSettings())
    assert Home.from_environment(folder.home.path).tracking_uri.startswith("sqlite:")


def test_each_server_has_its_driver_and_its_schema() -> None:
    assert prefect_variables(ADDRESS) == {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://shepherd:p%40ss@db:5432/flock",
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": PREFECT_SCHEMA,
    }
    assert mlflow_address(ADDRESS) == (
        f"postgresql+psycopg2://shepherd:p%40ss@db:5432/flock?options=-csearch_path%3D{MLFLOW_SCHEMA}"
    )


def test_prefects_driver_is_given_no_option_that_it_does_not_take() -> None:
    asked = "sslmode=verify-full&sslrootcert=/srv/ca.crt&sslcert=/srv/me.crt&sslkey=/srv/me.key"
    given = prefect_variables(f"postgresql://shepherd@/flock?host=/run/postgresql&{asked}")
    address = make_url(given["PREFECT_SERVER_DATABASE_CONNECTION_URL"])
    _, arguments = create_async_engine(address).dialect.create_connect_args(address)
    assert arguments["host"] == "/run/postgresql"
    assert set(arguments) <= set(inspect.signature(asyncpg.connect).parameters) | {"prepared_statement_cache_size"}
    assert {name: value for name, value in given.items() if name.startswith("PG")} == {
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": "/srv/ca.crt",
        "PGSSLCERT": "/srv/me.crt",
        "PGSSLKEY": "/srv/me.key",
    }


def test_an_address_that_asks_for_tls_is_one_that_both_drivers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    encrypted = text("select ssl from pg_stat_ssl where pid = pg_backend_pid()")

    async def as_prefect(address: str) -> object:
        async with create_async_engine(address).connect() as connection:
            return (await connection.execute(encrypted)).scalar_one()

    with postgres_server(free_port()) as database:
        prepare(database.over_tls)
        with create_engine(mlflow_address(database.over_tls)).connect() as connection:
            assert connection.execute(encrypted).scalar_one() is True
        given = prefect_variables(database.over_tls)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert asyncio.run(as_prefect(given["PREFECT_SERVER_DATABASE_CONNECTION_URL"])) is True
        monkeypatch.setenv("PGSSLROOTCERT", "/nowhere")
        with pytest.raises(FileNotFoundError):
            asyncio.run(as_prefect(given["PREFECT_SERVER_DATABASE_CONNECTION_URL"]))


UNCLEAR = [f"postgresql://shepherd:se{mark}cret@db:5432/flock" for mark in "/#?@["] + ["postgresql://shepherd:secret/x"]


@pytest.mark.parametrize("address", UNCLEAR)
def test_an_address_whose_password_cannot_be_told_from_the_rest_is_refused_and_never_shown(address: str) -> None:
    said = r"--postgres is no postgresql://.* in a name or password, write / as %2F"
    with pytest.raises(UserError, match=said) as told:
        TeamSettings(postgres=address).check()
    assert "cret" not in str(told.value)
    assert shown(address) == "***"


def test_an_address_is_shown_without_its_password() -> None:
    assert shown(ADDRESS) == "postgresql://shepherd:***@db:5432/flock"
    assert shown("postgresql://db/flock") == "postgresql://db/flock"


def test_a_database_that_does_not_answer_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.team.postgres.importlib.util.find_spec", lambda name: object())
    with pytest.raises(
        UserError, match=r"PostgreSQL at postgresql://shepherd:\*\*\*@127.0.0.1:1/flock cannot be used"
    ) as told:
        prepare("postgresql://shepherd:secret@127.0.0.1:1/flock")
    assert "secret" not in str(told.value)


def test_a_damaged_file_is_named(folder: TeamFolder) -> None:
    (folder.path / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"settings\.json is damaged .* give the options of `sheepfold up` again"):
        folder.settings()
