"""A team under test: `sheepfold up` in a home of its own, asked over HTTP and killed by process id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import MARK, environment, kill_all

from flows.team.programs import ask_prefect
from flows.team.settings import TeamFolder
from storage.home import Home


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
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """Ask Prefect's API."""
        folder = TeamFolder(self.home)
        return ask_prefect(folder.client_variables(folder.settings()), path, body, method)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run of a deployment and return its id."""
        found = self.ask(f"deployments/name/{deployment}")
        made = self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def wait(self, run: str, *states: str) -> dict[str, Any]:
        """Return the run once it is in one of the states."""
        while True:
            found: dict[str, Any] = self.ask(f"flow_runs/{run}")
            if found["state_name"] in states:
                return found
            assert found["state_name"] not in ("Failed", "Cancelled"), found["state"]["message"]
            time.sleep(0.5)

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
        while True:
            services = self.run("status")["services"]
            if all(item["healthy"] for item in services.values()) and all(
                services[name]["pid"] != before for name, before in changed
            ):
                return
            time.sleep(0.5)


def new_box(folder: Path) -> Iterator[Box]:
    variables = environment(folder / "home")
    box = Box(folder, variables)
    try:
        yield box
    finally:
        subprocess.run([sys.executable, "-m", "flows.cli", "down"], env=variables, cwd=folder, check=False)
        kill_all(variables[MARK])
