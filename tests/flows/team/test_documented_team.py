"""The commands of docs/guides/team.md, run one after the other as they are shown, with real servers.

Folders, ports and the address of the database are ours; trainings are made short, and runs of deployments are waited
for. Each line is typed into a shell of its own, in which the page's first lines hold.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from postgres_server import Postgres, postgres_server
from team_box import Box, new_box, waited
from test_servers import free_port

from flows.team.settings import ENVIRONMENT, team_folder
from tests.documented import shown

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PAGE = "docs/guides/team.md"
LINES = [line for block in shown() if block.page == PAGE for line in block.lines]
RUNS = "prefect deployment run "


@dataclass
class Lead:
    """A reader of the page, who runs its commands.

    Attributes:
        box: with three models in its home: a champion, the one before it, and a challenger.
        ports: of the servers.
    """

    box: Box
    ports: str

    def adapted(self, line: str) -> str:
        """The line for this machine and this minute."""
        for place in ("documents", "prompts.csv"):
            line = line.replace(f"/srv/{place}", str(self.box.folder / place))
        line = line.replace("/srv/sheepfold", str(self.box.home.path))
        if "sheepfold up" in line:
            line = re.sub("(?<=--serve-port )[0-9]+", str(free_port()), line) + self.ports
        if line.startswith(RUNS):
            line = line.replace(" --watch", "").replace("minutes=30", "preset=tiny") + " --watch"
        if line.startswith(f"{RUNS}retrain"):
            line += " --param max_steps=5"
        return line

    def shell(self, line: str) -> list[str]:
        """Return the command of a shell that runs the line."""
        clients = team_folder(self.box.home) / ENVIRONMENT
        programs = f"export PATH={Path(sys.executable).parent}:$PATH"
        return ["bash", "-c", f"{programs}; if [ -f {clients} ]; then . {clients}; fi; {line}"]

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line; servers that it needs are up."""
        if not line.startswith(("sheepfold up", "sheepfold down", "export ")) and not self.up():
            self.box.run("up")
        return subprocess.run(
            self.shell(line), env=self.box.variables, cwd=self.box.folder, capture_output=True, text=True, check=False
        )

    def up(self) -> bool:
        """Return True if all servers and workers run."""
        services = self.box.run("status")["services"]
        return bool(services) and all(service["alive"] for service in services.values())


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Iterator[Lead]:
    """Somebody at the beginning of the page."""
    for box in new_box(tmp_path_factory.mktemp("lead")):
        texts = sorted((sample_folder / "text").iterdir())[:25]
        (box.folder / "documents").mkdir()
        for path in texts:
            shutil.copyfile(path, box.folder / "documents" / path.name)
        (box.folder / "prompts.csv").write_text("prompt\nThe sheep\n")
        for steps in (5, 60, 2):
            box.run("run", "documents", "--preset", "tiny", "--max-steps", str(steps))
        yield Lead(box, f" --prefect-port {free_port()} --mlflow-port {free_port()}")


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    pytest.importorskip("psycopg2", reason="MLflow reaches PostgreSQL through psycopg2")
    with postgres_server(free_port()) as found:
        yield found


@pytest.mark.parametrize("line", LINES)
def test_a_shown_command_does_what_it_says(lead: Lead, line: str, request: Any) -> None:
    if found := re.fullmatch(r'pip install "sheepfold\[(\w+)\]"', line):
        assert found[1] in metadata("sheepfold").get_all("Provides-Extra", [])
        return
    line = lead.adapted(line)
    if "postgresql://" in line:
        line = re.sub(r"postgresql://\S+", request.getfixturevalue("database").address, line)
    if line.startswith("mlflow models serve"):
        assert_serves(lead, line)
        return
    done = lead.type(line)
    assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
    if "sheepfold up" in line:
        assert lead.up()
    if line == "sheepfold down":
        assert not lead.up()


def assert_serves(lead: Lead, line: str) -> None:
    """A served model answers."""
    port = free_port()
    line = f"exec {re.sub(r'-p [0-9]+', f'-p {port}', line)}"
    log = lead.box.folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            lead.shell(line),
            env=lead.box.variables,
            cwd=lead.box.folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            b'{"inputs": ["The sheep"], "params": {"max_new_tokens": 4}}',
            {"Content-Type": "application/json"},
        )

        def answer() -> bytes | None:
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return bytes(answer.read())
            except urllib.error.URLError:  # it starts
                assert process.poll() is None, log.read_text()[-3000:]
                return None

        assert b"predictions" in waited(answer, "the served model")
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)
