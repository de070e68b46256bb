"""Runs that are queued again after a crash end at some time, and errors of MLflow's server say what to do."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from flows.context import MAX_ATTEMPTS, check_attempts
from storage.errors import Unreachable, UserError
from storage.home import Home
from storage.tracking import Tracking


def test_a_run_that_started_too_often_fails_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MAX_ATTEMPTS))
    check_attempts()
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MAX_ATTEMPTS + 1))
    with pytest.raises(UserError, match="this run was started 6 times and never finished"):
        check_attempts()


@pytest.mark.parametrize(
    ("status", "words", "remedy"),
    [
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "MLFLOW_SERVER_ALLOWED_HOSTS"),
        (401, b"You are not authenticated.", "MLFLOW_TRACKING_PASSWORD"),
        (200, b"<html>Welcome</html>", "MLFLOW_TRACKING_URI"),
    ],
)
def test_a_server_that_refuses_is_reported_with_a_remedy(
    tmp_path: Path, status: int, words: bytes, remedy: str
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(words)

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=remedy) as raised:
            Tracking(Home(tmp_path, "", f"http://127.0.0.1:{server.server_port}"))
        server.shutdown()
    assert not isinstance(raised.value, Unreachable)
