"""A team under test: `sheepfold up` in a home of its own, asked over HTTP and killed by process id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runs import MARK, environment, kill_all

from flows.team.programs import ask_prefect
from flows.team.settings import TeamSettings
from storage.home import Home

SECONDS = 700.0  # that a server, a worker or a short run may take on a busy machine
Found = TypeVar("Found")


def waited(look: Callable[[], Found | None], what: str, seconds: float = SECONDS) -> Found:
    """Return what is looked for as soon as it is there; fail with a sentence where it does not come."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.5)
    return found


@dataclass(frozen=True)
class Box:
    """A team under test."""

    folder: Path
    variables: dict[str, str]

    @property
    def home(self) -> Home:
        return Home.from_environment(self.folder / "home")

    def run(self, *arguments: str) -> Any:
        """Run a `sheepfold` command and return the document that it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments, "--json"],
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """Ask Prefect's API."""
        return ask_prefect(TeamSettings.kept(self.home).client_variables(self.home), path, body, method)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run of a deployment and return its id."""
        found = self.ask(f"deployments/name/{deployment}")
        made = self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def wait(self, run: str, *states: str) -> dict[str, Any]:
        """Return the run once it is in one of the states."""

        def there() -> dict[str, Any] | None:
            found: dict[str, Any] = self.ask(f"flow_runs/{run}")
            name = found["state_name"]
            assert name in states or name not in ("Failed", "Cancelled"), found["state"]["message"]
            return found if name in states else None

        return waited(there, f"run {run} to be {' or '.join(states)}")

    def pid(self, program: str) -> int:
        """Process id of a program; 0 if it does not run."""
        return int(self.run("status")["services"][program]["pid"] or 0)

    def kill(self, program: str) -> int:
        """Kill the leading process of a program and return its id."""
        pid = self.pid(program)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_healthy(self, *changed: tuple[str, int]) -> None:
        """Wait until every program is healthy, and those of `changed` have another process id."""

        def healthy() -> bool:
            services = self.run("status")["services"]
            return all(item["healthy"] for item in services.values()) and all(
                services[name]["pid"] != before for name, before in changed
            )

        waited(healthy, "all programs to be healthy")


def new_box(folder: Path) -> Iterator[Box]:
    variables = environment(folder / "home")
    box = Box(folder, variables)
    try:
        yield box
    finally:
        subprocess.run([sys.executable, "-m", "flows.cli", "down"], env=variables, cwd=folder, check=False)
        kill_all(variables[MARK])
