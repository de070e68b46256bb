"""Provide a Prefect API to a command: the configured server, else that of the home's team, else an embedded one.

Prefect can start a server by itself, but that one outlives a killed command and takes twice as long. The embedded
server is a child process that serves a socket of the command, keeps its database in the home, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from storage.home import Home, kept_variables

EMBEDDED = "SHEEPFOLD_EMBEDDED_API"  # set while the server is embedded, so that no link leads to its pages
PARENT_LOOK_SECONDS = 0.25
STOP_SECONDS = 5.0

# Of the process that runs the flow: nothing may leave the machine; records go to the flow run's log, ours among them,
# and the terminal shows what the command itself prints.
COMMAND = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "sheepfold",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
# Of the server: nothing is served that one command does not need.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
}


def configured_api_url() -> str | None:
    """Return the address of a configured Prefect server: by environment variable or in the active profile."""
    url = os.environ.get("PREFECT_API_URL")
    if url:
        return url
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    try:
        profiles = tomllib.loads((home / "profiles.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # no profiles, or damaged ones, which Prefect itself reports
    name = os.environ.get("PREFECT_PROFILE") or profiles.get("active", "")
    found = profiles.get("profiles", {}).get(name, {}).get("PREFECT_API_URL")
    return str(found) if found else None


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run the embedded server; requests to its address wait in the socket's queue until it is up."""
    folder.mkdir(parents=True, exist_ok=True)
    dropped = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= QUIET | {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
    }
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.embedded", str(os.getpid()), str(listener.fileno())],
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command, which then ends the server in good order
        )
    try:
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def prefect_api(home: Home) -> Iterator[None]:
    """Let flows of this process reach a Prefect API; before its first import if its log is to be quiet."""
    for name, value in COMMAND.items():
        os.environ.setdefault(name, value)
    if configured_api_url() is not None:
        yield
        return
    from flows.team.programs import running_team

    team = running_team(home)  # its server has the home's database open, and its pages should show this run
    if team:
        with _variables(team):
            yield
        return
    with (
        _server(home.prefect) as url,
        _variables({"PREFECT_HOME": str(home.prefect), "PREFECT_API_URL": url, EMBEDDED: "1"}),
    ):
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        # the server ends with its only flow, and each flow would wait a second for its heartbeat
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            try:
                yield
            finally:  # what Prefect has queued: events carry the task states that the UI shows
                APILogWorker.drain_all(timeout=STOP_SECONDS)
                EventsWorker.drain_all(timeout=STOP_SECONDS)


@contextmanager
def _variables(given: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of the context, and the settings that Prefect reads of them once."""
    with kept_variables(*given):
        os.environ |= given
        from prefect import settings

        own = {getattr(settings, name): value for name, value in given.items() if name.startswith("PREFECT_")}
        with settings.temporary_settings(own):
            yield


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Let SIGTERM end this command with exit status 143, after server, processes and checkpoint are closed.

    Inside a flow Prefect handles SIGTERM, then calls the handler that it found. Without one the process would end at
    once, and as the first process of a container not at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    os._exit(1)


def _serve(parent: int, listener: int) -> None:
    # a service manager tells every process of a command to end; the command still needs its server for a while
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    from storage.locks import owner_lock

    application: Any = create_app(ephemeral=True, final=True)
    config = uvicorn.Config(
        application, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=2
    )

    class Server(uvicorn.Server):
        """A server that the command alone can end, and that makes or changes its tables alone.

        Two commands may begin at once in a new home, and Prefect's migrations do not wait for each other.
        """

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with owner_lock(Path(os.environ["PREFECT_HOME"]) / "tables.lock"):
                await super().startup(sockets)

        def handle_exit(self, sig: int, frame: Any) -> None:
            if sig != signal.SIGTERM:
                super().handle_exit(sig, frame)

    with contextlib.suppress(KeyboardInterrupt):  # how it ends, once all is put away
        Server(config).run(sockets=[socket.socket(fileno=listener)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
