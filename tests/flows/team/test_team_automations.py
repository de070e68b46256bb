"""Lost runs: what finds them, and where queueing them again ends."""

from __future__ import annotations

import asyncio
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from prefect.events.schemas.events import Resource
from prefect.states import exception_to_failed_state

from flows.context import MOST_BEGINNINGS, flow_run_begins
from flows.team.automations import BEGIN_SECONDS, HEARTBEAT_SECONDS, MISSED, NAMES, automations
from flows.team.register import _plain
from storage.errors import Unreachable, UserError
from storage.home import Home
from storage.tracking import Tracking


def test_every_automation_is_one_that_the_server_is_asked_for() -> None:
    assert tuple(item.name for item in automations()) == NAMES


def test_a_run_is_given_time_before_it_counts_as_lost() -> None:
    stopped, never_began, *_ = automations()
    assert stopped.trigger.within.total_seconds() == MISSED * HEARTBEAT_SECONDS >= 3 * 30
    assert never_began.trigger.within.total_seconds() == BEGIN_SECONDS


def test_only_runs_of_the_deployments_are_watched() -> None:
    for item in automations():
        assert item.trigger.match_related.root["prefect.resource.id"] == "prefect.tag.sheepfold"


def queued_again(error: Exception) -> bool:
    """Whether a run that failed with it is queued again."""
    state = asyncio.run(exception_to_failed_state(error, message="Flow run encountered an exception:"))
    told = {"prefect.resource.id": "prefect.flow-run.1", "prefect.state-message": str(state.message)}
    return bool(automations()[-1].trigger.match.matches(Resource(told)))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectError("All connection attempts failed"), True),
        (httpx.ReadError("gone"), True),
        (UserError("no such file"), False),
    ],
)
def test_a_run_that_failed_without_prefects_server_is_queued_again_and_one_that_failed_by_itself_is_not(
    error: Exception, expected: bool
) -> None:
    assert queued_again(error) == expected


class Cutting(BaseHTTPRequestHandler):
    """Ends in the middle of every answer."""

    def do_GET(self) -> None:
        """Promise more than there is."""
        self.send_response(200)
        self.send_header("Content-Length", "652")
        self.end_headers()


class Refusing(BaseHTTPRequestHandler):
    """Answers, that it will not."""

    status = 404
    words = b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run"}'

    def do_GET(self) -> None:
        """Refuse in MLflow's way."""
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.words)


class RefusingTheHost(Refusing):
    """MLflow where it was not told of the name that it is asked under."""

    status = 403
    words = b"Invalid Host header - possible DNS rebinding attack detected"


class RefusingThePassword(Refusing):
    """MLflow that knows another password."""

    status = 401
    words = b"You are not authenticated."


class AnotherServer(Refusing):
    """Answers everything, and is no MLflow."""

    status = 200
    words = b"<html>Welcome</html>"


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(Cutting, True), (Refusing, False), (RefusingTheHost, False), (RefusingThePassword, False)],
)
def test_a_run_that_mlflow_was_away_for_is_queued_again_and_one_that_it_refused_something_is_not(
    handler: type[BaseHTTPRequestHandler], expected: bool
) -> None:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(MlflowException) as raised:
            MlflowClient(f"http://127.0.0.1:{server.server_port}").get_run("1")
        server.shutdown()
    assert queued_again(raised.value) == expected


def test_a_run_that_began_while_mlflow_was_away_is_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and never listening: whoever asks is refused
        with pytest.raises(Unreachable) as raised:
            Tracking(Home(tmp_path, "", f"http://127.0.0.1:{held.getsockname()[1]}"))
    assert queued_again(raised.value)


@pytest.mark.parametrize(
    ("handler", "remedy"),
    [
        (RefusingTheHost, "MLFLOW_SERVER_ALLOWED_HOSTS"),
        (RefusingThePassword, "MLFLOW_TRACKING_PASSWORD"),
        (AnotherServer, "MLFLOW_TRACKING_URI"),
    ],
)
def test_a_run_that_mlflow_refused_from_its_beginning_says_what_to_do_and_is_not_queued_again(
    tmp_path: Path, handler: type[BaseHTTPRequestHandler], remedy: str
) -> None:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=remedy) as raised:
            Tracking(Home(tmp_path, "", f"http://127.0.0.1:{server.server_port}"))
        server.shutdown()
    assert not isinstance(raised.value, Unreachable)
    assert not queued_again(raised.value)


def test_an_automation_that_comes_back_from_the_server_is_the_same() -> None:
    for item in automations():
        document = item.model_dump(mode="json")
        document["trigger"]["expect"] = document["trigger"]["expect"][::-1]  # sets have no order
        assert _plain(type(item).model_validate(document)) == _plain(item)


def test_a_run_that_was_begun_too_often_is_ended_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_BEGINNINGS))
    flow_run_begins()
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_BEGINNINGS + 1))
    with pytest.raises(UserError, match="this run was begun 6 times and never came to its end"):
        flow_run_begins()
