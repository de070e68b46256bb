"""Verdicts of gates: one for each gate, as rows of a table and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from storage.schemas import VERDICTS
from storage.tables import read_rows, write_table

VERDICTS_FILE = "gates.parquet"
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Verdict:
    """What one gate says of a model.

    Attributes:
        gate: name of the gate.
        verdict: `skipped` where there is nothing to measure, or no limit.
        number: what was measured; None where nothing was, NaN where it could not be and that holds the model back.
        limit: what it was held against; None where there is no limit.
        sentence: both in words.
    """

    gate: str
    verdict: Outcome
    number: float | None
    limit: float | None
    sentence: str

    def words(self) -> str:
        """Verdict, number and limit, as a tag holds them."""
        if self.number is None or math.isnan(self.number) or self.limit is None:
            return self.verdict
        return f"{self.verdict}: {self.number:.6g} (limit {self.limit:.6g})"

    def document(self) -> dict[str, Any]:
        """For machines; JSON knows no endless numbers."""
        values = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The gates that were not passed."""
    return [item for item in verdicts if item.verdict == "failed"]


def write_verdicts(folder: Path, verdicts: Sequence[Verdict]) -> int:
    """Write the table; returns the number of its rows."""
    return write_table(folder / VERDICTS_FILE, VERDICTS, map(asdict, verdicts))


def read_verdicts(folder: Path) -> list[Verdict]:
    """The verdicts of a table, in the order of the gates."""
    return [Verdict(**row) for row in read_rows(folder / VERDICTS_FILE)]
