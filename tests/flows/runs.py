"""Real runs of the command line in homes of their own, and the processes that belong to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app

CLOCK_FILES = ("telemetry.parquet", "journal.json")  # of a training: how long its steps took, and when it was resumed
MARK = "SHEEPFOLD_TEST_MARK"


def environment(home: Path) -> dict[str, str]:
    """Variables of a command in a home, marked so that all its processes can be found, wherever they moved."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return {**kept, "SHEEPFOLD_HOME": str(home), MARK: uuid.uuid4().hex}


def marked_processes(mark: str) -> list[int]:
    """Living processes that inherited a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it ended while we looked
        if f"{MARK}={mark}".encode() in variables and state != "Z":
            found.append(int(entry.name))
    return found


def kill_all(mark: str) -> int:
    """SIGKILL every process of a run, also those started meanwhile; returns how many."""
    killed = 0
    while processes := marked_processes(mark):
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
    return killed


@dataclass
class Command:
    """A `sheepfold` command in a home.

    Attributes:
        said: what it wrote to standard error.
    """

    home: Path
    arguments: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    said: str = ""

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        """Start it in a process session of its own."""
        self.variables = environment(self.home)
        with log.open("wb") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *self.arguments],
                env=self.variables,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def finish(self) -> dict[str, Any] | list[Any]:
        """Run it to its end; it must succeed, and leave no process behind."""
        self.variables = environment(self.home)
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *self.arguments, "--json"],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        self.said = done.stderr
        assert done.returncode == 0, done.stderr[-4000:]
        assert marked_processes(self.variables[MARK]) == []
        return json.loads(done.stdout)  # type: ignore[no-any-return]


def invoke(home: Path, *arguments: str) -> Result:
    """A `sheepfold` command in this process: what is typed and what is printed, without the seconds of its imports.

    A fault of ours is raised as it is; a mistake of the person's is an exit code and a sentence.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEEPFOLD_HOME", str(home))
        for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
            patch.setenv(name, "")
        done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def answer(home: Path, *arguments: str) -> Any:
    """The document that a command in this process prints; it must succeed."""
    done = invoke(home, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def store_contents(home: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Return digests and sha256 of files of all artefacts in a home's store, without the files that hold times."""
    contents = {}
    for path in sorted((home / "store").glob("*/*/manifest.json")):
        manifest = json.loads(path.read_text())
        files = {entry["name"]: entry["sha256"] for entry in manifest["files"] if entry["name"] not in CLOCK_FILES}
        contents[f"{manifest['stage']}/{manifest['key']}"] = (manifest["digest"], files)
    return contents
