"""A team's servers for a benchmark, running while a context is open, with runs of its deployments over HTTP."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from flows.team.programs import ask_prefect
from flows.team.settings import TeamSettings
from storage.home import Home
from tasks.sources.sample import build_sample

ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class TeamBox:
    """Running servers of a team.

    Attributes:
        documents: folder that the deployments read.
        unanswered: requests about runs without a response of the server; they were repeated.
    """

    folder: Path
    documents: Path
    settings: TeamSettings
    prefect: Callable[..., Any]
    unanswered: list[str] = field(default_factory=list)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run of a deployment; returns its id."""
        found = self.prefect(f"deployments/name/{deployment}")
        return str(self.prefect(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})["id"])

    def wait(self, runs: Iterable[str]) -> list[dict[str, Any]]:
        """Return the runs after all of them have ended."""
        ended = []
        for run in runs:
            while (found := self._run(run)).get("state_type") not in ENDS:
                time.sleep(0.2)
            ended.append(found)
        return ended

    def _run(self, run: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.prefect(f"flow_runs/{run}")
        except httpx.HTTPError as error:
            self.unanswered.append(str(error))
            return {}
        return found

    def task_states(self, run: str) -> dict[str, str]:
        """Return the states of a run's tasks by name, without trailing digits."""
        query = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
        found = self.prefect("task_runs/filter", query)
        return {task["name"].rpartition("-")[0]: task["state_name"] for task in found}


def free_port() -> int:
    """Return a free port below the kernel's ephemeral range."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def team_box(postgres: str = "") -> Iterator[TeamBox]:
    """Start a team's servers for the texts of the sample corpus.

    Args:
        postgres: address of its database; empty for SQLite.

    Raises:
        RuntimeError: if they do not start.
    """
    with tempfile.TemporaryDirectory(prefix="sheepfold-box-") as name:
        folder = Path(name)
        build_sample(folder / "sample")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
        variables = {**kept, "SHEEPFOLD_HOME": str(folder / "home")}

        def command(*arguments: str) -> None:
            line = [sys.executable, "-m", "flows.cli", *arguments]
            done = subprocess.run(line, env=variables, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"sheepfold {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")

        ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
        try:
            command("up", str(folder / "sample" / "text"), "--postgres", postgres, *ports)
            home = Home.from_environment(folder / "home")
            settings = TeamSettings.kept(home)
            prefect = partial(ask_prefect, settings.client_variables(home))
            yield TeamBox(folder, folder / "sample" / "text", settings, prefect)
        finally:
            command("down")
