"""What is asked of Prefect's server over HTTP."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from flows.team import prefect_server
from flows.team.api import Busy, NoAnswer, ask
from flows.team.prefect_server import PrefectServer


class Server(http.server.HTTPServer):
    """Gives the answers that it was given, one after the other, and notes what it was asked with."""

    answers: list[int]
    users: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        self.server.users.append(self.headers.get("authorization"))
        self.send_response(self.server.answers.pop(0))
        self.end_headers()
        self.wfile.write(b'{"id": 1}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.answers, made.users = [], []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def at(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_busy_server_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "BUSY_SECONDS", (0.0, 0.0))
    server.answers = [503, 503, 200]
    assert PrefectServer(at(server)).ask("flows/filter", {}) == {"id": 1}


def test_one_that_stays_busy_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "BUSY_SECONDS", (0.0,))
    server.answers = [503, 503]
    with pytest.raises(Busy, match="answers 503"):
        PrefectServer(at(server)).ask("flows/filter", {})


def test_a_refusal_is_told_at_once(server: Server) -> None:
    server.answers = [401]
    with pytest.raises(NoAnswer, match="answers 401"):
        PrefectServer(at(server)).ask("flows/filter", {})


def test_name_and_password_go_with_the_question(server: Server) -> None:
    server.answers = [200, 200]
    ask(f"{at(server)}/x", {}, user="me:mine")
    ask(f"{at(server)}/x", {})
    assert server.users == ["Basic bWU6bWluZQ==", None]
