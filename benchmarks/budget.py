"""Bits per byte against minutes: one folder, several budgets, beside the 5-gram model of the same tokens.

    python -m benchmarks.budget [--minutes 1,3,10] [--source FOLDER]

Each budget is a `sheepfold run` in one home, so documents are read once. Without a source it is the sample corpus that
`sheepfold sample` makes of the Python that runs this. Prints a Markdown table; `found` is the ratio of the bits per
byte, and below 1 the network is better.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pictures import Person
from benchmarks.table import Row, report


def rows(minutes: list[str], source: str) -> Iterator[Row]:
    """Yield a row for each budget."""
    with tempfile.TemporaryDirectory() as scratch:
        person = Person(Path(scratch))
        if not source:
            source = person.asks("sample", "documents")["folder"]
        for budget in minutes:
            ran = person.asks("run", source, "--minutes", budget)
            taken = {item["stage"]: item["seconds"] for item in ran["stages"]}
            ours, theirs = (ran["metrics"][f"val/{name}bits_per_byte"] for name in ("", "ngram_"))
            what = f"{budget} minutes ({ran['suggestion']['preset']}, trained {taken['train'] / 60:.1f} minutes)"
            yield Row(what, f"{ours:.3f} bits/byte", f"5-gram {theirs:.3f}", ours / theirs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget", description=__doc__)
    parser.add_argument("--minutes", default="1,3,10")
    parser.add_argument("--source", default="")
    asked = parser.parse_args()
    report(rows(asked.minutes.split(","), asked.source and str(Path(asked.source).resolve())))


if __name__ == "__main__":
    main()
