"""The flow runs of a team's day without pauses: 300 runs, eight generations at once, on SQLite and on PostgreSQL.

A day has 96 quarters of an hour. Each runs `ingest/watch`, some an evaluation and a retraining, those in office hours
eight generations at once. A quarter starts when the runs of the last one have ended. Measured are the runs that do not
complete, and the time to open the pages at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from benchmarks.team_box import TeamBox, free_port, team_box

AT_ONCE = 8
PAGE_SECONDS = 5.0  # limit of the time until a page shows its content
SERVERS = Path("/usr/lib/postgresql")
CHAMPION = {"preset": "tiny", "max_steps": 20}


@dataclass
class Day:
    """Result of a day.

    Attributes:
        states: number of runs by name of their last state.
        seconds: seconds from the first start to the last end.
        pages: seconds until each page showed its content.
        unanswered: requests about runs to which Prefect's server did not respond.
    """

    states: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    pages: dict[str, float] = field(default_factory=dict)
    unanswered: int = 0

    @property
    def failed(self) -> int:
        """Number of runs that did not complete."""
        return self.states.total() - self.states["Completed"]


def pattern(full: bool) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield the deployments to start in each quarter: 300 runs in total, or about a tenth of it."""
    for quarter in range(96) if full else range(12):
        now: list[tuple[str, dict[str, Any]]] = [("ingest/watch", {"announce_share": 0})]
        if quarter % (4 if full else 6) == 1:
            now.append(("evaluate/champion", {}))
        if quarter % (48 if full else 12) == 2:
            now.append(("retrain/weekly", CHAMPION))
        if (full and 32 <= quarter < 76 and quarter % 2 == 0) or (not full and quarter in (4, 8)):
            now += [("generate/batch", {"max_new_tokens": 8, "seed": seed}) for seed in range(AT_ONCE)]
        if quarter == 6:
            now.append(("cleanup/nightly", {}))
        yield now


def live_through(box: TeamBox, full: bool) -> Day:
    """Run a day on a team's servers, then open their pages."""
    day = Day()
    (box.folder / "prompts.txt").write_text("the\nimport\n")
    started = time.perf_counter()
    first = box.wait([box.start("retrain/weekly", **CHAMPION)])  # a champion for the generations
    day.states.update(run["state_name"] for run in first)
    for now in pattern(full):
        ended = box.wait([box.start(name, **parameters) for name, parameters in now])
        day.states.update(run["state_name"] for run in ended)
    day.seconds, day.unanswered = time.perf_counter() - started, len(box.unanswered)
    day.pages = dict(open_pages(box, first[0], ended[-1]))
    return day


def open_pages(box: TeamBox, run: dict[str, Any], newest: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the seconds from the request of each page to its content, in a headless browser with an empty cache.

    Args:
        run: the run whose page is opened.
        newest: the first run of the list.
    """
    from playwright.sync_api import sync_playwright

    prefect, mlflow = box.settings.prefect_url, box.settings.mlflow_url
    pages = {
        "Prefect's runs": (f"{prefect}/runs", newest["name"]),
        "Prefect's page of a run": (f"{prefect}/runs/flow-run/{run['id']}", run["name"]),
        "MLflow's runs": (f"{mlflow}/#/experiments/1/runs", "sheepfold"),
        "MLflow's model": (f"{mlflow}/#/models/sheepfold", "Version 1"),
    }
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, (address, words) in pages.items():
            page = browser.new_context().new_page()
            started = time.perf_counter()
            page.goto(address)
            page.get_by_text(words).first.wait_for(timeout=60_000)
            yield name, time.perf_counter() - started
        browser.close()


def sqlite_rows(full: bool) -> Iterator[Row]:
    """Yield rows of failed runs and page loads on SQLite."""
    with team_box() as box:
        yield from _rows("SQLite", live_through(box, full))


def postgres_rows(full: bool) -> Iterator[Row]:
    """Yield rows of failed runs and page loads on PostgreSQL."""
    with postgres_server() as address:
        if not address:
            yield Row("a day on PostgreSQL", "not measured: no PostgreSQL here", "", float("nan"))
            return
        with team_box(address) as box:
            yield from _rows("PostgreSQL", live_through(box, full))


def _rows(database: str, day: Day) -> Iterator[Row]:
    total = day.states.total()
    shown = ", ".join(f"{count} {name}" for name, count in day.states.most_common())
    what = f"{total} flow runs on {database}, {AT_ONCE} generations at once: runs that failed"
    yield Row(what, shown, f"{day.seconds / total:.1f} s a run", float(day.failed), 0.0, True)
    yield Row(f"questions about them without an answer, {database}", str(day.unanswered), "", float(day.unanswered))
    for name, seconds in day.pages.items():
        yield Row(f"{name} after them, s", f"{seconds:.2f} s", database, seconds, PAGE_SECONDS, True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the address of a new database; empty if PostgreSQL is not installed."""
    programs = {name: _program(name) for name in ("initdb", "postgres", "pg_isready")}
    if not all(programs.values()):
        yield ""
        return
    owner: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="sheepfold-postgres-") as name:
        if owner:
            shutil.chown(name, "postgres", "postgres")
        data, port = f"{name}/data", str(free_port())
        subprocess.run(
            [programs["initdb"], "-D", data, "-U", "shepherd", "-A", "trust"],
            check=True,
            capture_output=True,
            cwd="/",
            **owner,
        )
        line = [programs["postgres"], "-D", data, "-h", "127.0.0.1", "-p", port, "-k", name]
        server = subprocess.Popen(line, cwd="/", stderr=subprocess.DEVNULL, **owner)
        try:
            while subprocess.run(
                [programs["pg_isready"], "-h", "127.0.0.1", "-p", port], capture_output=True
            ).returncode:
                time.sleep(0.1)
            yield f"postgresql://shepherd@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait()


def _program(name: str) -> str:
    return shutil.which(name) or next((str(path) for path in sorted(SERVERS.glob(f"*/bin/{name}"))), "")
