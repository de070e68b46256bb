"""Bringing a box up and down, with small servers in the place of the large ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.team import box
from flows.team.box import bring_down, bring_up, read_state
from flows.team.processes import family
from flows.team.services import MLFLOW, PREFECT, Service
from flows.team.settings import GIVEN, TeamFolder, TeamSettings
from storage.errors import UserError
from storage.home import Home

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2])); self.end_headers(); self.wfile.write(b"true")
    def do_POST(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"[]")
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def settings() -> TeamSettings:
    return TeamSettings(prefect_port=free_port(), mlflow_port=free_port())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose servers are small, and gone in the end."""
    for name in GIVEN.values():
        monkeypatch.delenv(name, raising=False)
    place = Home.from_environment(tmp_path / "home")
    monkeypatch.setattr(box, "_prepare", lambda *_: None)
    monkeypatch.setattr(box, "_register", lambda *_: {})
    monkeypatch.setattr(box, "services", small(200, 200))
    yield place
    bring_down(place, print)


def small(*answers: int) -> object:
    """Servers that give these answers; a negative one ends at once with words on its way."""

    def build(_: TeamFolder, settings: TeamSettings) -> list[Service]:
        made, ports = [], (settings.prefect_port, settings.mlflow_port)
        for name, port, answer in zip((PREFECT, MLFLOW), ports, answers, strict=True):
            code = SERVER if answer > 0 else "raise SystemExit('out of straw')"
            command = (sys.executable, "-c", code, str(port), str(answer))
            made.append(Service(name, command, {}, f"http://127.0.0.1:{port}/health", port))
        return made

    return build


def pids(home: Home) -> dict[str, int]:
    return {name: process.pid for name, process in read_state(TeamFolder(home)).items() if process.alive}


def test_up_starts_what_is_missing_and_a_second_up_nothing(home: Home, settings: TeamSettings) -> None:
    assert bring_up(home, settings, print).started == [PREFECT, MLFLOW]
    first = pids(home)
    assert bring_up(home, settings, print).started == []
    assert pids(home) == first
    os.kill(first[MLFLOW], signal.SIGKILL)
    os.waitpid(first[MLFLOW], 0)
    assert bring_up(home, settings, print).started == [MLFLOW]
    assert pids(home)[PREFECT] == first[PREFECT]


def test_down_ends_all_and_a_second_down_nothing(home: Home, settings: TeamSettings) -> None:
    bring_up(home, settings, print)
    assert bring_down(home, print) == [MLFLOW, PREFECT]
    assert family(str(home.path)) == {}
    assert bring_down(home, print) == []


def test_down_finds_servers_whose_state_was_lost(home: Home, settings: TeamSettings) -> None:
    bring_up(home, settings, print)
    TeamFolder(home).state.unlink()
    assert bring_down(home, print) == [MLFLOW, PREFECT]


def test_up_ends_what_a_server_left_behind_before_it_starts_another(home: Home, settings: TeamSettings) -> None:
    bring_up(home, settings, print)
    before = pids(home)
    TeamFolder(home).state.unlink()
    assert bring_up(home, settings, print).started == [PREFECT, MLFLOW]
    assert not set(before.values()) & set(pids(home).values())


def test_other_settings_are_refused_while_servers_run(home: Home, settings: TeamSettings) -> None:
    bring_up(home, settings, print)
    with pytest.raises(UserError, match=r"prefect, mlflow of .* with other settings: `sheepfold down` first"):
        bring_up(home, TeamSettings(prefect_port=free_port(), mlflow_port=free_port()), print)


def test_passwords_that_the_environment_gave_once_are_those_of_every_later_up(
    home: Home, settings: TeamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, auth=True)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:mine")
    bring_up(home, settings, print)
    assert bring_up(home, settings, print).started == []
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING")
    assert bring_up(home, settings, print).started == []
    assert "PREFECT_API_AUTH_STRING=me:mine\n" in TeamFolder(home).environment.read_text()


def test_another_password_is_refused_while_servers_run_and_taken_after_down(
    home: Home, settings: TeamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, auth=True)
    bring_up(home, settings, print)
    first = TeamFolder(home).secrets()
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "another-password")
    told = r"prefect, mlflow of .* run\(s\) with other values of MLFLOW_AUTH_ADMIN_PASSWORD: `sheepfold down` first"
    with pytest.raises(UserError, match=told):
        bring_up(home, settings, print)
    assert TeamFolder(home).secrets() == first
    bring_down(home, print)
    bring_up(home, settings, print)
    assert TeamFolder(home).secrets().mlflow_password == "another-password"


def test_the_folder_that_is_read_may_change_while_servers_run(home: Home, settings: TeamSettings) -> None:
    bring_up(home, settings, print)
    assert bring_up(home, replace(settings, source="/elsewhere"), print).started == []
    assert TeamFolder(home).settings().source == "/elsewhere"


def test_a_server_that_ends_is_named_with_the_end_of_its_log_and_takes_the_others_with_it(
    home: Home, settings: TeamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "services", small(200, -1))
    with pytest.raises(
        UserError, match=r"(?s)mlflow ended while it started; the end of .*mlflow\.log:\n  out of straw"
    ):
        bring_up(home, settings, print)
    assert family(str(home.path)) == {}
    assert pids(home) == {}


def test_a_server_that_is_not_well_is_named(
    home: Home, settings: TeamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "services", small(503, 200))
    monkeypatch.setattr(box, "HEALTH_SECONDS", 0.5)
    with pytest.raises(UserError, match="prefect does not answer at http"):
        bring_up(home, settings, print)
    assert family(str(home.path)) == {}


def test_what_ran_before_stays_when_the_rest_fails(
    home: Home, settings: TeamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(home, settings, print)
    before = pids(home)
    os.kill(before[MLFLOW], signal.SIGKILL)
    os.waitpid(before[MLFLOW], 0)
    monkeypatch.setattr(box, "services", small(200, -1))
    with pytest.raises(UserError, match="mlflow ended"):
        bring_up(home, settings, print)
    assert pids(home) == {PREFECT: before[PREFECT]}


def test_a_port_that_is_taken_is_told_before_anything_starts(home: Home, settings: TeamSettings) -> None:
    told = rf"mlflow cannot listen on 127.0.0.1 port {settings.mlflow_port}"
    with socket.create_server(("127.0.0.1", settings.mlflow_port)), pytest.raises(UserError, match=told):
        bring_up(home, settings, print)
    assert family(str(home.path)) == {}


INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
sys.path.insert(0, sys.argv[1])
import pytest
from test_team_box import box, bring_up, small, Home, TeamSettings
from flows.embedded import ends_in_order
box._prepare = lambda *_: None
box.services = small(503, 200)
with ends_in_order():
    settings = TeamSettings(prefect_port=int(sys.argv[3]), mlflow_port=int(sys.argv[4]))
    bring_up(Home.from_environment(sys.argv[2]), settings, print)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_leaves_nothing(
    home: Home, settings: TeamSettings, number: signal.Signals
) -> None:
    arguments = [str(Path(__file__).parent), str(home.path), str(settings.prefect_port), str(settings.mlflow_port)]
    command = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *arguments], stderr=subprocess.PIPE)
    while len(family(str(home.path))) < 2:
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(number)
    command.communicate()
    assert command.returncode not in (0, None)
    assert family(str(home.path)) == {}
