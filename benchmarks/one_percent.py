"""What one per cent of new documents costs: CPU time of `prepare` (which ingests first) beside that of the cold corpus.

    python -m benchmarks.one_percent [--full]

Both are the whole command as a person types it, with all its processes. A run with nothing new is measured between the
others: it is what every run costs, however small the change, and it is told beside the share.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.growth import write_files
from benchmarks.table import Row, report

GOAL = 0.05
DOCUMENTS, FULL_DOCUMENTS = 5_000, 20_000
ROUNDS = 3


def cpu_of_prepare(source: Path, home: Path) -> float:
    """CPU seconds of the command and of all processes that it waited for.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "flows.cli", "prepare", str(source), "--home", str(home), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_percent_rows(full: bool = False) -> Iterator[Row]:
    """The rows of the table: the share of the cold CPU time, and what of it every run costs."""
    n_documents = FULL_DOCUMENTS if full else DOCUMENTS
    n_new = n_documents // 100
    with tempfile.TemporaryDirectory(prefix="sheepfold-percent-") as place:
        source, home = Path(place) / "files", Path(place) / "home"
        write_files(source, n_documents)
        cold = cpu_of_prepare(source, home)
        idle, grown = [], []
        for turn in range(ROUNDS):
            idle.append(cpu_of_prepare(source, home))
            write_files(source, n_new, first=n_documents + turn * n_new)
            grown.append(cpu_of_prepare(source, home))
    nothing, more = median(idle), median(grown)
    yield Row(
        f"1 % new documents: ingest and prepare, beside {n_documents:,} documents cold",
        f"{more:.1f} s CPU for {n_new}",
        f"{cold:.1f} s CPU",
        more / cold,
        GOAL,
        at_most=True,
    )
    yield Row(
        "of these: a run with nothing new, which is start-up and a look at every file",
        f"{nothing:.1f} s CPU",
        f"{cold:.1f} s CPU",
        nothing / cold,
    )
    yield Row(
        "1 % new documents without what every run costs, on both sides",
        f"{more - nothing:.2f} s CPU",
        f"{cold - nothing:.1f} s CPU",
        (more - nothing) / (cold - nothing),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help=f"{FULL_DOCUMENTS:,} documents instead of {DOCUMENTS:,}")
    sys.exit(0 if report(one_percent_rows(parser.parse_args().full)) else 1)
