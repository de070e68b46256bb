"""Which processes are ours, and that nothing else is ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.team.processes import Process, end, family, spawn, start_of

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def team(tmp_path: Path) -> Iterator[str]:
    """A name of a home, whose processes are gone in the end."""
    yield str(tmp_path)
    for members in family(str(tmp_path)).values():
        for member in members:
            member.kill()


def start(team: str, service: str, code: str) -> Process:
    """A server that says `up`."""
    log = Path(team) / f"{service}.log"
    process = spawn([sys.executable, "-c", code], dict(os.environ), team, service, log)
    while "up" not in log.read_text() and process.alive:
        time.sleep(0.01)
    return process


def test_a_process_is_known_by_the_moment_it_started(team: str) -> None:
    process = start(team, "one", SLEEPER)
    assert process.alive
    assert not Process(process.pid, process.started + "0").alive  # another process of the same number
    assert not Process(process.pid, "").alive


def test_an_ended_process_is_not_alive_though_nobody_asked_after_it(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
    assert start_of(child.pid) == ""
    child.wait()


def test_what_a_server_started_is_ended_with_it_wherever_it_moved(team: str) -> None:
    process = start(team, "one", PARENT)
    assert len(family(team)["one"]) == 2
    assert end(team, "one", process)
    assert family(team) == {}


def test_what_a_killed_server_left_behind_is_ended(team: str) -> None:
    process = start(team, "one", PARENT)
    psutil.Process(process.pid).kill()
    psutil.Process(process.pid).wait()
    assert len(family(team)["one"]) == 1
    assert end(team, "one", process)
    assert family(team) == {}


def test_a_server_that_does_not_listen_is_ended_by_force(team: str) -> None:
    process = start(team, "one", DEAF)
    assert end(team, "one", process, grace=0.2)
    assert not process.alive


def test_nothing_else_is_ended(team: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other_home, other_service = start(str(tmp_path / "other"), "one", SLEEPER), start(team, "two", SLEEPER)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    assert not end(team, "one", Process(stranger.pid, start_of(stranger.pid)))
    assert other_home.alive and other_service.alive and stranger.poll() is None
    assert end(str(tmp_path / "other"), "one", other_home)
    stranger.kill()
    stranger.wait()


def test_the_log_before_the_last_is_kept(team: str) -> None:
    end(team, "one", start(team, "one", "print('up first')"))
    end(team, "one", start(team, "one", "print('up second')"))
    assert (Path(team) / "one.log").read_text() == "up second\n"
    assert (Path(team) / "one.previous.log").read_text() == "up first\n"
