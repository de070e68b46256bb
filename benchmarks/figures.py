"""The measured figures of docs/developers/figures.md, made by `make figures`: the tables of short benchmarks.

Takes some minutes on two cores. The page says on which machine and with which versions it was made; a figure in
README.md is one of this page.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "developers" / "figures.md"
RUNS = (
    ("Reading PDFs", "ingest --only pdf --rounds 3"),
    ("Tokenising", "prepare --only bpe --rounds 2 --megabytes 30"),
    ("Training", "train --only small"),
    ("Generation", "generate --only equal --rounds 2"),
)


def processor() -> str:
    """Return the name of the processor, where the system tells it."""
    file = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def main() -> int:
    """Write the page; returns 1 if a benchmark could not be run."""
    used = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "prefect", "mlflow"))
    parts = [
        "# Measured figures",
        f"Made by `make figures` on {datetime.now(UTC):%Y-%m-%d}: {processor()}, {os.cpu_count()} cores, Python "
        f"{sys.version.split()[0]}, {used}. `found` is the median of neighbouring turns, ours over theirs; a goal that "
        "is missed says NO.",
    ]
    failed = False
    for title, arguments in RUNS:
        print(f"python -m benchmarks.{arguments}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{arguments.split()[0]}", *arguments.split()[1:]]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
        failed = failed or len(lines) < 3
        parts += [f"## {title}", f"`python -m benchmarks.{arguments}`", "\n".join(lines)]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
