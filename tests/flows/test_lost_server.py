"""A Prefect server that is away: for a moment while a subflow begins, or when a command starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from flows.context import reach_server


def refused() -> None:
    """Ask an address at which nobody listens, as Prefect's client does when its server was killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    httpx.get(f"http://127.0.0.1:{port}/api/task_runs", trust_env=False)


def request(failing: Callable[[], bool], calls: list[int]) -> str:
    calls.append(len(calls))
    if failing():
        refused()
    return "answer"


def test_what_was_refused_is_asked_for_again() -> None:
    calls: list[int] = []
    assert reach_server(partial(request, lambda: len(calls) < 3, calls)) == "answer"
    assert len(calls) == 3


def test_what_has_begun_is_not_begun_again() -> None:
    calls: list[int] = []
    with pytest.raises(httpx.ConnectError):
        reach_server(partial(request, lambda: True, calls), has_begun=lambda: bool(calls))
    assert len(calls) == 1


def test_a_server_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.context.SERVER_SECONDS", 0.0)
    with pytest.raises(httpx.ConnectError):
        reach_server(partial(request, lambda: True, []))


def test_a_command_whose_server_does_not_run_says_so_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "promote", "--home", str(tmp_path)],
        env={**os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sheepfold: Prefect: Failed to reach API at http://127.0.0.1:9/api")
    assert "Traceback" not in done.stderr
