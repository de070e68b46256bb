"""The pictures of docs/images, made by `make pictures`: a run on the sample corpus and the pages that it leaves.

A terminal's output, curves and diagrams are drawn as SVG; the pages of the evaluation, of Prefect and of MLflow are
photographed by a headless Chromium. Nothing is retouched but the path of the scratch folder.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from markupsafe import escape

from storage.home import Home
from storage.manifest import ArtifactRef
from storage.store import open_store
from tasks.report.training import collect_training, training_pictures

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DIAGRAMS = ("system", "block", "attention", "increments", "training", "feedback", "generation")
MOST_BYTES = 300_000
COLUMNS = 100  # of the terminal
CELL = 26  # side of a square of the attention map, in pixels
INK, PROMPT = "#e6e6e6", "#8ee6c8"  # of the output, and of the command
SETTLE_MS = 8_000
WINDOW = {"width": 1280, "height": 900}


class Person:
    """Somebody who types commands in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".sheepfold"
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        left_out = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "SHEEPFOLD_STORE")
        self.variables = {name: value for name, value in os.environ.items() if name not in left_out}
        self.variables |= {"SHEEPFOLD_HOME": str(self.home), "PATH": programs, "COLUMNS": str(COLUMNS), "TERM": "xterm"}

    def asks(self, *arguments: str) -> Any:
        """Return the document that a command prints."""
        command = [sys.executable, "-m", "flows.cli", *arguments, "--json"]
        done = subprocess.run(command, env=self.variables, cwd=self.folder, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def types(self, *arguments: str) -> list[str]:
        """Run a command in a terminal; returns the lines that stay on the screen."""
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "flows.cli", *arguments]
        with subprocess.Popen(command, env=self.variables, cwd=self.folder, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            written = bytearray()
            reader = threading.Thread(target=lambda: written.extend(_read_all(ours)))
            reader.start()
        reader.join()
        if process.returncode:
            raise RuntimeError(f"sheepfold {' '.join(arguments)} ended with {process.returncode}:\n{written.decode()}")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r\n", "\n")
        text = text.replace(str(self.folder.resolve()), "/home/shepherd/flock")
        lines = [line.rstrip() for line in text.replace("\r", "\n").split("\n") if "━" not in line]  # a live line
        while "" in lines[: (first := next(i for i, line in enumerate(lines) if line.startswith("- ")))]:
            lines.remove("")  # what the live view left
        return [*lines[:first], "", *lines[first:]]


def _read_all(file: int) -> bytes:
    """Read a terminal until the last process with it open has ended."""
    found = bytearray()
    try:
        while piece := os.read(file, 1 << 16):
            found += piece
    except OSError:  # Linux tells the end of a terminal so
        pass
    os.close(file)
    return bytes(found)


def draw(folder: Path, minutes: str, with_pages: bool = True) -> list[Path]:
    """Run, and write all pictures into a folder; returns their files.

    Args:
        minutes: Budget of the training.
        with_pages: Also photograph pages, which needs Chromium and starts the servers of a team.

    Raises:
        ValueError: A picture is larger than MOST_BYTES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {}
    with TemporaryDirectory() as scratch:
        person = Person(Path(scratch))
        person.asks("sample", "documents")
        command = ("run", "documents", "--minutes", minutes)
        pictures["terminal.svg"] = terminal(f"$ sheepfold {' '.join(command)}", person.types(*command)).encode()
        pictures |= {f"{name}.svg": text.encode() for name, text in model_pictures(person).items()}
        if with_pages:
            pictures |= photographs(person, command)
    files = []
    for name, picture in pictures.items():
        file = folder / name
        file.write_bytes(picture)
        files.append(file)
        if len(picture) > MOST_BYTES:
            raise ValueError(f"{file} has {len(picture):,} bytes, expected {MOST_BYTES:,} at most")
    return files


def model_pictures(person: Person) -> dict[str, str]:
    """Return curves of the champion's training, diagrams of its network, and a map of its attention."""
    store = open_store(Home.from_environment(str(person.home)).store)
    manifest = max(store.manifests("train"), key=lambda found: found.created)
    pictures = dict(training_pictures(collect_training(store, ArtifactRef("train", manifest.key, manifest.digest))))
    drawn = person.folder / "diagrams"
    person.asks("inspect", "--diagrams", str(drawn))
    pictures |= {name: (drawn / f"{name}.svg").read_text(encoding="utf-8") for name in DIAGRAMS}
    seen = person.asks("inspect", "--prompt", "import os")
    pictures["attention-map"] = attention_map([token["text"] for token in seen["tokens"]], seen["attention"][-1][0])
    return pictures


def photographs(person: Person, command: Sequence[str]) -> dict[str, bytes]:
    """Return pictures of the evaluation's page, of a flow run in Prefect, and of the version in MLflow.

    The run is one of the deployment, after a document was added: Prefect's graph shows what was cached.
    """
    from flows.team.programs import ask_prefect
    from flows.team.settings import TeamSettings

    home = Home.from_environment(str(person.home))
    shutil.copyfile(__file__, person.folder / "documents" / "new.py")
    ports = {name: str(_free_port()) for name in ("--prefect-port", "--mlflow-port")}
    person.asks("up", "documents", "--no-schedules", *(word for pair in ports.items() for word in pair))
    try:
        team = TeamSettings.kept(home).client_variables(home)
        watched = ["prefect", "deployment", "run", "retrain/weekly", "--watch", "--param", f"minutes={command[-1]}"]
        subprocess.run(watched, env=person.variables | team, cwd=person.folder, check=True, stdout=subprocess.DEVNULL)
        newest = {"sort": "START_TIME_DESC", "flow_runs": {"parent_task_run_id": {"is_null_": True}}, "limit": 1}
        (run,) = ask_prefect(team, "flow_runs/filter", newest)
        status = person.asks("status")
        version = f"{status['mlflow_tracking_uri']}/#/models/sheepfold/versions/{status['champion']['version']}"
        prefect = f"{team['PREFECT_API_URL'].removesuffix('/api')}/runs/flow-run/{run['id']}"
        evaluation = (home.reports_of("default") / "evaluation.html").as_uri()
        with browser() as window:
            return {
                "evaluation.png": photograph(window, evaluation, "bits per byte", (100, 0, 1180, 890)),
                "prefect.png": photograph(window, prefect, "Completed", (264, 0, 1280, 500)),
                "mlflow.png": photograph(window, version, "bits per byte", (0, 0, 945, 760)),
            }
    finally:
        person.asks("down")


@contextmanager
def browser() -> Iterator[Any]:
    """Open a window of a headless Chromium."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise FileNotFoundError("no Chromium found, which takes the pictures of pages: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        window = chromium.new_page(viewport=WINDOW)
        window.set_default_timeout(120_000)
        yield window
        chromium.close()


def photograph(window: Any, address: str, text: str, box: tuple[int, int, int, int]) -> bytes:
    """Return a part of a page as a PNG of 128 colours, some seconds after it shows a text.

    Args:
        box: Left, top, right and bottom, in pixels.
    """
    from PIL import Image

    window.goto(address)
    window.get_by_text(text).first.wait_for()
    window.wait_for_timeout(SETTLE_MS)  # graphs are drawn on a canvas, which says nothing when it is done
    taken = Image.open(io.BytesIO(window.screenshot())).convert("RGB").crop(box)
    packed = io.BytesIO()
    taken.quantize(128).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def terminal(command: str, lines: Sequence[str]) -> str:
    """Return the lines of a terminal as an SVG document."""
    shown = [command, *(line[at : at + COLUMNS] for line in lines for at in range(0, max(1, len(line)), COLUMNS))]
    while not shown[-1]:
        shown.pop()
    height, width = 18 * len(shown) + 34, int(COLUMNS * 7.85) + 40
    texts = "".join(
        f'<text x="20" y="{18 * number + 30}" fill="{INK if number else PROMPT}" xml:space="preserve">'
        f"{escape(line)}</text>"
        for number, line in enumerate(shown)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-size="13" '
        f'font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" role="img" '
        f'aria-label="Terminal with the output of a run"><rect width="100%" height="100%" rx="8" fill="#1d2228"/>'
        f"{texts}</svg>\n"
    )


def attention_map(labels: list[str], weights: list[list[float]]) -> str:
    """Return the attention weights (T, T) of one head as an SVG document; rows are queries, columns are keys."""
    start, side = 110, 110 + CELL * len(labels)
    cells = [
        f'<rect x="{start + CELL * column}" y="{start + CELL * row}" width="{CELL - 1}" height="{CELL - 1}" '
        f'fill="#2f5f9e" fill-opacity="{weight:.3f}"><title>{weight:.3f}</title></rect>'
        for row, line in enumerate(weights)
        for column, weight in enumerate(line[: row + 1])
    ]
    texts = []
    for place, label in enumerate(map(escape, labels)):
        middle = start + CELL * place + CELL // 2
        texts.append(f'<text x="{start - 8}" y="{middle + 4}" text-anchor="end">{label}</text>')
        texts.append(f'<text transform="translate({middle + 4} {start - 8}) rotate(-90)">{label}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" width="{side}" font-size="12" '
        f'font-family="monospace" role="img" aria-label="Attention weights of one head">'
        f'<rect width="{side}" height="{side}" fill="#fff"/>{"".join([*cells, *texts])}</svg>'
    )


def main() -> None:
    """Write the pictures, and print their files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES, help="where to (default: docs/images)")
    parser.add_argument("--minutes", default="5", help="budget of the training (default: 5)")
    asked = parser.parse_args()
    for file in draw(asked.folder, asked.minutes):
        print(f"{file.stat().st_size:>8,} bytes  {file}")


if __name__ == "__main__":
    main()
