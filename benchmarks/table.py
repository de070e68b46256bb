"""The table that a benchmark prints: figures of both sides, and the goal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        goal: the number that `found` is compared with; None without a goal.
        at_most: True if the goal is an upper bound.
    """

    what: str
    ours: str
    theirs: str
    found: float
    goal: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """True if the goal is reached, or there is none."""
        return self.goal is None or (self.found <= self.goal if self.at_most else self.found >= self.goal)

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{'<=' if self.at_most else '>='} {self.goal:,g}"
        verdict = "" if self.goal is None else ("yes" if self.reached else "NO")
        return f"| {self.what} | {self.ours} | {self.theirs} | {self.found:,.4g} | {goal} | {verdict} |"


def report(found: Iterable[Row]) -> bool:
    """Print the rows as they are measured; returns True if every goal is reached."""
    print("| row | ours | theirs | found | goal | reached |")
    print("|---|---|---|---|---|---|", flush=True)
    verdicts = []
    for row in found:
        print(row, flush=True)
        verdicts.append(row.reached)
    return all(verdicts)
