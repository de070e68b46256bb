"""A flow whose tasks meet a Prefect server that was away for a moment."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from flows.context import flow
from flows.options import Options

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


def refused() -> None:
    """Ask an address at which nobody listens, as Prefect's client does when its server was killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    try:
        httpx.get(f"http://127.0.0.1:{port}/api/admin/version", trust_env=False)
    except httpx.ConnectError as error:
        raise RuntimeError("Failed to reach API") from error


def failing(times: int) -> tuple[Any, list[int]]:
    calls: list[int] = []

    @flow(Options)
    def wandering(options: Options) -> dict[str, Any]:
        calls.append(len(calls))
        if len(calls) <= times:
            refused()
        return {"calls": len(calls)}

    return wandering, calls


def test_a_flow_goes_on_when_the_server_is_back() -> None:
    wandering, _ = failing(2)
    assert wandering(Options()) == {"calls": 3}


def test_a_flow_whose_connections_are_refused_again_and_again_fails() -> None:
    wandering, calls = failing(100)
    with pytest.raises(RuntimeError, match="Failed to reach API"):
        wandering(Options())
    assert len(calls) == 5


def test_another_error_is_not_tried_again() -> None:
    calls: list[str | None] = []

    @flow(Options)
    def broken(options: Options) -> dict[str, Any]:
        calls.append(options.home)
        raise ValueError("no server has to do with it")

    with pytest.raises(ValueError, match="no server"):
        broken(Options())
    assert len(calls) == 1
