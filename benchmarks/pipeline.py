"""Cost of regular operation: `python -m benchmarks.pipeline [--full] [ROW ...]`.

Each part of the table is measured by a function of another module. All runs are commands, or deployments under
`sheepfold up`, in temporary folders. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator

from benchmarks.table import Row, report
from flows.embedded import ends_in_order

# name of a part: module and function that measure it
ROWS = {
    "nothing-new": ("benchmarks.pipeline_nothing_new", "rows"),
    "one-percent": ("benchmarks.one_percent", "one_percent_rows"),
    "ray": ("benchmarks.ray_ingest", "ray_rows"),
    "orchestration": ("benchmarks.orchestration", "ten_minute_rows"),
    "day-sqlite": ("benchmarks.pipeline_day", "sqlite_rows"),
    "day-postgres": ("benchmarks.pipeline_day", "postgres_rows"),
}


def measured(names: list[str], full: bool) -> Iterator[Row]:
    """Yield the requested rows, each when it was measured."""
    for name in names:
        module, function = ROWS[name]
        yield from getattr(importlib.import_module(module), function)(full)


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--full", action="store_true", help="measure at the size of the goals, not a tenth of it")
    asked = parser.parse_args()
    unknown = sorted(set(asked.rows) - set(ROWS))
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    with ends_in_order():  # so that the servers are stopped if the benchmark is terminated
        return 0 if report(measured(asked.rows or list(ROWS), asked.full)) else 1


if __name__ == "__main__":
    sys.exit(main())
