"""A run of a deployment while Prefect's server is away for a moment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from test_team_box import free_port

ASK = """
import flows.context
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    print(client.hello().status_code)
"""


class Answers(BaseHTTPRequestHandler):
    """A server that says yes to everything."""

    def do_GET(self) -> None:
        """Say yes."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


def ask(port: int, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASK],
        env={
            **os.environ,
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_waits_for_a_server_that_is_away() -> None:
    port = free_port()
    with ask(port, PREFECT__FLOW_RUN_ID="2a2d1f4e-0000-4000-8000-000000000000") as process:
        assert process.stderr is not None
        said = ""
        while "waiting for it" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        with HTTPServer(("127.0.0.1", port), Answers) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            answer, complaints = process.communicate(timeout=120)
            server.shutdown()
    assert process.returncode == 0, complaints
    assert answer.strip() == "200"


def test_a_command_is_told_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # never listening
        process = ask(held.getsockname()[1])
        _, complaints = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ConnectError" in complaints
    assert "waiting for it" not in complaints
