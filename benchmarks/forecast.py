"""The law of forecasts, fitted to measured trainings.

    python -m benchmarks.forecast [FILE...]

Reads the trainings of `trainings.csv`, prints the constants of `tasks.training.law`, and how far the law is off on each
corpus when it is fitted to the others. Given files of `benchmarks.recipe --out`, writes the trainings first: those of
`ours`, such as those by `--recipe '{"train.max_steps": 500}'`, on corpora of which the 5-gram model is in the
files too.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tasks.training.law import ALPHA, BETA, worth

TRAININGS = Path(__file__).with_name("trainings.csv")


@dataclass(frozen=True)
class Point:
    """A training.

    Attributes:
        corpus: name of its corpus.
        body, ids, tokens, read: see `tasks.training.law.expected_ratio`.
        bits_per_byte: of the network, in windows that do not overlap, as `evaluate` has them.
        reference: bits per byte of the first orders of the 5-gram model of the same text.
    """

    corpus: str
    body: int
    ids: int
    tokens: int
    read: int
    bits_per_byte: float
    reference: float

    @property
    def ratio(self) -> float:
        """Bits per byte relative to the reference."""
        return self.bits_per_byte / self.reference

    def terms(self) -> tuple[float, float, float]:
        """Return what the constants of the law multiply."""
        return 1.0, self.body**-ALPHA, worth(self.read, self.tokens, self.ids) ** -BETA


def trainings() -> list[Point]:
    """Return the trainings that the law is fitted to."""
    with TRAININGS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {"corpus": str, "bits_per_byte": float, "reference": float}
    return [Point(**{name: kinds.get(name, int)(value) for name, value in row.items()}) for row in rows]


def points_of(files: Iterable[Path]) -> list[Point]:
    """Return the trainings in the files of which the 5-gram model with as many ids is there too."""
    rows = [json.loads(line) for file in files for line in file.open()]
    references = {_text_of(row): row["counts"]["reference"] for row in rows if row["arm"] == "5-gram"}
    known = [row for row in rows if row["arm"] == "ours" and _text_of(row) in references]
    found = [Point(row["corpus"], **row["counts"], reference=references[_text_of(row)]) for row in known]
    return sorted(found, key=lambda point: (point.corpus, point.body, point.read))


def _text_of(row: dict[str, Any]) -> tuple[str, int]:
    return row["corpus"], row["recipe"].get("tokenizer.vocab_size", 0)


def fit(points: Sequence[Point]) -> np.ndarray:
    """Return (3,) constants of least squared relative error."""
    terms = np.array([point.terms() for point in points]) / np.array([[point.ratio] for point in points])
    return np.linalg.lstsq(terms, np.ones(len(points)), rcond=None)[0]


def errors(points: Sequence[Point], constants: np.ndarray) -> np.ndarray:
    """Return (n,) logarithms of measured over expected ratios."""
    expected = np.array([point.terms() for point in points]) @ constants
    return np.log([point.ratio for point in points]) - np.log(expected)


def left_out(points: Sequence[Point]) -> np.ndarray:
    """Return (n,) errors of each training by the law that is fitted to the other corpora."""
    found = np.empty(len(points))
    for corpus in {point.corpus for point in points}:
        own = np.array([point.corpus == corpus for point in points])
        others = [point for point in points if point.corpus != corpus]
        found[own] = errors([point for point in points if point.corpus == corpus], fit(others))
    return found


def main() -> None:
    """Print the constants and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    if files := parser.parse_args().files:
        with TRAININGS.open("w", newline="") as file:
            writer = csv.DictWriter(file, [item.name for item in fields(Point)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(point) for point in points_of(files))
    points = trainings()
    print(f"{len(points)} trainings: E, A, B = {', '.join(f'{constant:.5g}' for constant in fit(points))}")
    for name in ("body", "ids", "tokens", "read"):
        values = [getattr(point, name) for point in points]
        print(f"{name}: {min(values):,} to {max(values):,}")
    print("| corpus | body | ids | tokens | read | bits per byte | reference | ratio | by the law of the others |")
    print("|---|---|---|---|---|---|---|---|---|")
    off = left_out(points)
    for point, error in zip(points, off, strict=True):
        cells = [point.corpus, *(f"{count:,}" for count in (point.body, point.ids, point.tokens, point.read))]
        cells += [f"{value:.4f}" for value in (point.bits_per_byte, point.reference, point.ratio)]
        print(f"| {' | '.join(cells)} | {math.expm1(error):+.1%} |")
    print(f"spread: {math.sqrt(np.mean(np.square(off))):.4f}")


if __name__ == "__main__":
    main()
