"""Cost of ingestion for growing numbers of small files: CPU time, memory and task runs of the whole command."""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

FILES_PER_FOLDER = 500
COMMAND = [sys.executable, "-m", "flows.cli", "ingest"]
SAMPLE_SECONDS = 0.2  # interval of sampling the memory of the processes

_BEGINNINGS = ("ba", "co", "di", "fe", "gu", "la", "mo", "ne", "ri", "su", "ta", "vo")
_ENDS = ("n", "ld", "rk", "st", "ver", "min", "tal", "gon", "lis", "pen", "rat", "tem", "ding", "sh")
_WORDS = [beginning + end for beginning in _BEGINNINGS for end in _ENDS]


@dataclass(frozen=True)
class Growth:
    """Cost of the first ingestion of a corpus, without start-up."""

    n_files: int
    cpu_seconds_per_file: float
    peak_bytes: int
    task_runs: int


@dataclass(frozen=True)
class Unchanged:
    """Seconds of the whole command: on an unchanged corpus, with one added file, and on one cached file."""

    start_up: float
    unchanged: float
    one_added: float


def write_files(folder: Path, n_files: int, first: int = 0) -> None:
    """Write different small files of words, the same in every run."""
    long_ago = time.time() - 3600  # recently written files are hashed again, because they may still change
    for number in range(first, first + n_files):
        drawn = random.Random(number)
        place = folder / f"{number // FILES_PER_FOLDER:04d}"
        place.mkdir(parents=True, exist_ok=True)
        words = drawn.choices(_WORDS, k=drawn.randint(60, 240))
        path = place / f"{number:06d}.txt"
        path.write_text(f"File {number}. " + " ".join(words) + ".\n")
        os.utime(path, (long_ago, long_ago))


@dataclass
class Cost:
    """Cost of a command with all its processes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


def run_ingest(source: Path, home: Path) -> Cost:
    """Run the command line.

    Raises:
        RuntimeError: if it fails.
    """
    cost = Cost()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, str(source), "--home", str(home), "--workers", "2", "--json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with _watching(process.pid, cost):
        error = process.communicate()[1]
    cost.seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode:
        raise RuntimeError(f"{' '.join(COMMAND)} ended with exit code {process.returncode}: {error[-2000:]}")
    return cost


@contextmanager
def _watching(root: int, cost: Cost) -> Iterator[None]:
    """Record the peak memory of any process below `root`."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            cost.peak_bytes = max([cost.peak_bytes, *map(_peak, _family(root))])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _family(root: int) -> set[int]:
    """Return a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    family = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return family
        family |= more


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def _task_runs(home: Path) -> int:
    """Return the number of task runs in the database of the embedded Prefect server."""
    with sqlite3.connect(home / "prefect" / "prefect.db") as connection:
        return int(connection.execute("select count(*) from task_run").fetchone()[0])


@contextmanager
def _scratch() -> Iterator[tuple[Path, Path]]:
    """Yield two new folders, for files and for a home."""
    with tempfile.TemporaryDirectory(prefix="sheepfold-growth-") as place:
        yield Path(place) / "files", Path(place) / "home"


def start_up(cached: bool) -> Cost:
    """Run the command on one file, cached or not."""
    with _scratch() as (files, home):
        write_files(files, 1)
        first = run_ingest(files, home)
        return run_ingest(files, home) if cached else first


def grow(n_files: int, rounds: int = 1) -> Growth:
    """Ingest small files into an empty home; returns medians.

    The start-up costs as much as thousands of files, so it is measured in the same rounds; few files need many rounds.
    """
    idle, per_file, peaks, task_runs = [], [], [], 0
    for _ in range(rounds):
        idle.append(start_up(cached=False).cpu_seconds)
        with _scratch() as (files, home):
            write_files(files, n_files)
            cost = run_ingest(files, home)
            per_file.append(cost.cpu_seconds)
            peaks.append(cost.peak_bytes)
            task_runs = _task_runs(home)
    seconds = (median(per_file) - median(idle)) / n_files
    return Growth(n_files, seconds, max(peaks), task_runs)


def unchanged(n_files: int, rounds: int = 3) -> Unchanged:
    """Ingest a corpus again, and with one added file; returns medians."""
    again, added, idle = [], [], []
    with _scratch() as (files, home):
        write_files(files, n_files)
        run_ingest(files, home)
        for turn in range(rounds):
            idle.append(start_up(cached=True).seconds)
            again.append(run_ingest(files, home).seconds)
            write_files(files, 1, first=n_files + turn)
            added.append(run_ingest(files, home).seconds)
    middle = rounds // 2
    return Unchanged(sorted(idle)[middle], sorted(again)[middle], sorted(added)[middle])
