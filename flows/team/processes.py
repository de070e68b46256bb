"""Processes of a team's servers: which are ours, and how they start and end.

A process is known by its number together with the moment it started, because numbers are used again, and by two
variables in its environment that everything it starts inherits. So what a killed server left behind is found as well,
wherever it moved, and nothing else is ever touched.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TEAM = "SHEEPFOLD_TEAM"  # variable that names the home whose servers a process belongs to
SERVICE = "SHEEPFOLD_SERVICE"  # variable that names the server
GRACE_SECONDS = 10.0  # from a signal to the next, harder one


@dataclass(frozen=True)
class Process:
    """A process that was started.

    Attributes:
        started: the moment it did, as `start_of` tells it.
    """

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; another one of the same number does not count."""
        return bool(self.started) and start_of(self.pid) == self.started


def start_of(pid: int) -> str:
    """When a living process started; empty if there is none (an ended one that nobody asked after is none)."""
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # ticks since the machine started, which no change of its clock moves
        return f"{boot}:{Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[19]}"
    except psutil.Error:
        return ""
    except OSError:
        return _start_by_clock(pid)  # no /proc on this system


def _start_by_clock(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def spawn(command: Sequence[str], variables: Mapping[str, str], team: str, service: str, log: Path) -> Process:
    """Start a server in a session of its own, so that a Ctrl-C at the terminal is none of its business.

    Args:
        variables: its environment.
        team: home it belongs to.
        log: where it writes; what stood there is kept beside as `.previous.log`.
    """
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with log.open("wb") as sink:
        started = subprocess.Popen(
            list(command),
            env={**variables, TEAM: team, SERVICE: service},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process(started.pid, start_of(started.pid))


def family(team: str) -> dict[str, list[psutil.Process]]:
    """Living processes that belong to a home's servers, by server."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            if variables.get(TEAM) == team and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(variables.get(SERVICE, ""), []).append(process)
        except (psutil.Error, OSError):
            continue  # it ended while we looked, or is somebody else's
    return found


def end(team: str, service: str, leader: Process | None, grace: float = GRACE_SECONDS) -> bool:
    """End a server and all that it started: its leader is asked first, then the others, then all are killed.

    Returns:
        Whether there was anything to end.
    """
    members = family(team).get(service, [])
    first = [member for member in members if leader is not None and leader.alive and member.pid == leader.pid]
    _ask(first)
    psutil.wait_procs(first, timeout=grace)
    rest = family(team).get(service, [])
    _ask(rest)
    psutil.wait_procs(rest, timeout=grace if rest else 0)
    while left := family(team).get(service, []):
        for member in left:
            _signal(member, signal.SIGKILL)
        psutil.wait_procs(left, timeout=grace)
    return bool(members)


def _ask(members: Sequence[psutil.Process]) -> None:
    for member in members:
        _signal(member, signal.SIGTERM)


def _signal(member: psutil.Process, number: signal.Signals) -> None:
    try:
        member.send_signal(number)  # psutil looks at the moment of its start before it does
    except psutil.Error:
        return
