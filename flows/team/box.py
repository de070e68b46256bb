"""Bring a team's servers up on this box, and down.

Up: what runs is left alone and what is missing is started, servers first; each is waited for until it answers, and one
that does not is named together with the end of its log. Whatever ends this half-way, a Ctrl-C or a server that fails,
takes with it what it had started. Down: workers first, so that their runs can put themselves away and be queued again,
then the servers.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from flows.team import postgres
from flows.team.api import answers
from flows.team.deployments import team_deployments, write_file
from flows.team.mlflow_server import agree_on_password
from flows.team.prefect_server import PrefectServer
from flows.team.processes import Process, end, family, spawn
from flows.team.services import MLFLOW, PREFECT, WORKER_NAMES, Service, services
from flows.team.settings import TeamFolder, TeamSettings, write_private
from storage.errors import UserError
from storage.home import Home
from storage.locks import owner_lock

HEALTH_SECONDS = 600.0  # a first start makes databases, maybe on a busy machine; one that ended is noticed at once
POLL_SECONDS = 0.2
TAIL_LINES = 20

Say = Callable[[str], None]


class ServerFailed(UserError):
    """A server that did not come up."""


@dataclass(frozen=True)
class Up:
    """What bringing the box up came to.

    Attributes:
        started: processes that were missing.
        made: pools, deployments and automations that were missing or of another version.
    """

    started: list[str]
    made: dict[str, list[str]]


def read_state(folder: TeamFolder) -> dict[str, Process]:
    """The processes that were started and not ended, by name."""
    try:
        found = json.loads(folder.state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # nothing was started, or whoever wrote it was killed: processes are known by their marks as well
    return {name: Process(**item) for name, item in found.items()}


def _write_state(folder: TeamFolder, state: dict[str, Process]) -> None:
    listed = {name: {"pid": process.pid, "started": process.started} for name, process in state.items()}
    write_private(folder.state, json.dumps(listed, indent=1))


def bring_up(home: Home, settings: TeamSettings, say: Say) -> Up:
    """Start what is missing, and make pools, deployments and automations.

    Raises:
        UserError: if the settings cannot be, contradict what runs, or a server does not come up.
    """
    settings.check()
    folder = TeamFolder(home.create()).create()
    with owner_lock(folder.lock, on_wait=say):
        state = read_state(folder)
        alive = {name: process for name, process in state.items() if process.alive}
        if alive:
            _check_unchanged(folder, settings, ", ".join(alive))
        if settings.auth:
            folder.keep_secrets()
        wanted = services(folder, settings)
        missing = [service for service in wanted if service.name not in alive]
        _clear_strays(home, [service.name for service in missing])
        for service in missing:
            _check_port(service, settings)
        if missing:
            _prepare(home, settings, say)
        folder.keep_settings(settings)
        folder.write_addresses(settings)
        started: list[str] = []
        try:
            made = _bring_up(folder, settings, wanted, alive, started, say)
        except BaseException:
            for name in reversed(started):
                say(f"ending {name}")
                end(str(home.path), name, alive.pop(name), grace=2.0)
            _write_state(folder, alive)
            raise
    return Up(started, made)


def _check_unchanged(folder: TeamFolder, settings: TeamSettings, running: str) -> None:
    """Refuse what servers that run would not know of.

    Args:
        running: their names.
    """
    if settings.of_servers() != folder.settings().of_servers():
        other = "settings"
    elif settings.auth and (variables := folder.changed_secrets()):
        other = f"values of {' and '.join(variables)}"
    else:
        return
    raise UserError(
        f"{running} of {folder.home.path} run(s) with other {other}: `sheepfold down` first, then `up` again"
    )


def _bring_up(
    folder: TeamFolder,
    settings: TeamSettings,
    wanted: list[Service],
    alive: dict[str, Process],
    started: list[str],
    say: Say,
) -> dict[str, list[str]]:
    """Start and wait; `alive` and `started` grow as it goes, so that the caller can take it back."""
    servers = [service for service in wanted if service.health]
    for service in servers:
        _start(folder, service, alive, started, say)
    for service in servers:
        _wait_healthy(folder, service, alive[service.name])
    if settings.auth:
        agree_on_password(settings.mlflow_url, folder.secrets(), folder.mlflow_users)
    prefect = PrefectServer.of(folder, settings)
    made = _register(folder, settings, prefect, wanted[-1].environment(), say)
    for service in wanted:
        if not service.health:
            _start(folder, service, alive, started, say)
    for service in wanted:
        if service.name in started and not service.health:
            _wait_online(folder, prefect, service, alive[service.name])
    if PREFECT in started:
        for name in prefect.queue_lost_again():
            say(f"the run {name} was lost and is queued again")
    for name in prefect.await_silent_runs():
        say(f"nothing was heard of the run {name} for a while; it is queued again unless it gives a sign of life")
    return made


def _start(folder: TeamFolder, service: Service, alive: dict[str, Process], started: list[str], say: Say) -> None:
    if service.name in alive:
        return
    say(f"starting {service.name}")
    started.append(service.name)
    alive[service.name] = Process(0, "")  # taken back by its marks, should we end between its start and the next line
    log = folder.logs / f"{service.name}.log"
    alive[service.name] = spawn(service.command, service.environment(), str(folder.home.path), service.name, log)
    _write_state(folder, alive)


def _clear_strays(home: Home, names: list[str]) -> None:
    """End what a killed server left behind, before another of its kind starts: a port, a database are theirs alone.

    Flow runs of a killed worker go on where they are; they need no worker to end well.
    """
    for name in names:
        if name not in WORKER_NAMES:
            end(str(home.path), name, None)


def _check_port(service: Service, settings: TeamSettings) -> None:
    if not service.port:
        return
    family_of = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family_of) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, service.port))
        except OSError as error:
            raise UserError(
                f"{service.name} cannot listen on {settings.host} port {service.port} ({error.strerror}): choose "
                f"another by --{service.name}-port, or end what listens there"
            ) from None


def _prepare(home: Home, settings: TeamSettings, say: Say) -> None:
    """Make the databases' places, before two processes could try at once."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    home.mlflow_artifacts.mkdir(parents=True, exist_ok=True)
    if settings.postgres:
        postgres.prepare(settings.postgres)
    elif not (home.path / "mlflow.db").exists():
        from storage.tracking import Tracking

        say("making MLflow's database")
        Tracking(Home(home.path, home.store, f"sqlite:///{home.path / 'mlflow.db'}"))


def _wait_healthy(folder: TeamFolder, service: Service, process: Process) -> None:
    _wait(folder, service, process, lambda: answers(service.health), f"does not answer at {service.health}")


def _wait_online(folder: TeamFolder, prefect: PrefectServer, service: Service, process: Process) -> None:
    since = datetime.now(UTC)  # its report of before it was started does not count
    pool = WORKER_NAMES[service.name]
    ready = partial(prefect.worker_reported, pool, service.name, since)
    _wait(folder, service, process, ready, "has not reported to Prefect")


def _wait(folder: TeamFolder, service: Service, process: Process, ready: Callable[[], bool], problem: str) -> None:
    until = time.monotonic() + HEALTH_SECONDS
    while not ready():
        if not process.alive:
            problem = "ended while it started"
        elif time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            continue
        log = folder.logs / f"{service.name}.log"
        raise ServerFailed(f"{service.name} {problem}; the end of {log}:\n{tail(log)}")


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(there is none)"
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "(it is empty)"


def _register(
    folder: TeamFolder, settings: TeamSettings, prefect: PrefectServer, variables: dict[str, str], say: Say
) -> dict[str, list[str]]:
    """Pools, deployments and automations; nobody is asked to make what is there already."""
    wanted = team_deployments(folder.home, settings)
    new = folder.deployments.with_suffix(".new.yaml")  # the last one says what people changed since
    write_file(new, wanted)
    made = {}
    if not prefect.has(wanted):
        say("making work pools, deployments and automations")
        before = [folder.deployments] if folder.deployments.exists() else []
        made = _make_deployments(folder, [new, *before], variables)
    new.replace(folder.deployments)
    return made


def _make_deployments(folder: TeamFolder, files: list[Path], variables: dict[str, str]) -> dict[str, list[str]]:
    """Let `flows.team.register` do it."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.team.register", *map(str, files)],
        env=variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    (folder.logs / "register.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise ServerFailed(
            f"Prefect refused the deployments; the end of its answer:\n{tail(folder.logs / 'register.log')}"
        )
    made: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return {kind: names for kind, names in made.items() if names}


def bring_down(home: Home, say: Say) -> list[str]:
    """End what `bring_up` started, and nothing else; returns what was ended."""
    folder = TeamFolder(home)
    if not folder.path.is_dir():
        return []
    with owner_lock(folder.lock, on_wait=say):
        state = read_state(folder)
        ended = []
        for name in (*reversed(WORKER_NAMES), MLFLOW, PREFECT):
            if name in family(str(home.path)):
                say(f"ending {name}")
            if end(str(home.path), name, state.get(name)):
                ended.append(name)
        folder.state.unlink(missing_ok=True)
    return ended
