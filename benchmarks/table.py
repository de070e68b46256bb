"""The table that a benchmark prints: what was measured on both sides, and whether the goal is reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        goal: the number that `found` is held against; None if it is only told.
        at_most: whether the goal is an upper bound.
    """

    what: str
    ours: str
    theirs: str
    found: float
    goal: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """True if the goal is met, or there is none."""
        return self.goal is None or (self.found <= self.goal if self.at_most else self.found >= self.goal)

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{'<=' if self.at_most else '>='} {self.goal:,g}"
        verdict = "" if self.goal is None else ("yes" if self.reached else "NO")
        return f"| {self.what} | {self.ours} | {self.theirs} | {self.found:,.4g} | {goal} | {verdict} |"


def report(found: Iterable[Row]) -> bool:
    """Print the table as it grows; True if every goal is reached."""
    print("| what | ours | theirs | found | goal | reached |")
    print("|---|---|---|---|---|---|", flush=True)
    verdicts = []
    for row in found:
        print(row, flush=True)
        verdicts.append(row.reached)
    return all(verdicts)
