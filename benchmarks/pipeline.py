"""Cost of a system that keeps running: `python -m benchmarks.pipeline [--full] [ROW ...]`.

Each part of the table is measured by a function of a module of its own, which is told whether to measure in full. All
runs are those of a person or a team, commands or `sheepfold up` and deployments, in folders that are gone in the end.
Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator

from benchmarks.table import Row, report
from flows.embedded import ends_in_order

# name of a part: the module and its function that measure it
ROWS = {
    "nothing-new": ("benchmarks.pipeline_nothing_new", "rows"),
    "one-percent": ("benchmarks.one_percent", "one_percent_rows"),
    "ray": ("benchmarks.ray_ingest", "ray_rows"),
    "orchestration": ("benchmarks.orchestration", "ten_minute_rows"),
    "day-sqlite": ("benchmarks.pipeline_day", "sqlite_rows"),
    "day-postgres": ("benchmarks.pipeline_day", "postgres_rows"),
}


def measured(names: list[str], full: bool) -> Iterator[Row]:
    """The rows asked for, each as soon as it is known."""
    for name in names:
        module, function = ROWS[name]
        yield from getattr(importlib.import_module(module), function)(full)


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--full", action="store_true", help="as much as the goals name, instead of a tenth")
    asked = parser.parse_args()
    unknown = sorted(set(asked.rows) - set(ROWS))
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    with ends_in_order():  # a benchmark that is ended takes its servers with it
        return 0 if report(measured(asked.rows or list(ROWS), asked.full)) else 1


if __name__ == "__main__":
    sys.exit(main())
