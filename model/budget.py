"""A training budget in minutes, held by the clock: the number of steps is planned anew as the machine's speed changes.

A plan says how many steps the rest of the time has room for. The place on the learning rate schedule is the share of
the budget that is used: the share at the last plan, and from there in equal parts up to the last step. Plans are made
at steps that depend on plans alone, and are recorded in the history, so that a resumed run continues the recorded one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .config import TrainConfig

BUSY = 1.5  # times the expected seconds of a step, from which the machine is called busy
SETTLED = 0.05  # share of the budget after which the speed is known well enough for that
INTERVALS = 20  # at least so many plans in the rest of a training, each of which corrects the ones before

SECONDS, SHARE, STEPS = "budget/seconds", "budget/share", "budget/steps"  # columns of the history

Planned = tuple[float, float, int]  # seconds, share, steps


@dataclass(frozen=True)
class Plan:
    """The rest of a training, as planned after a step.

    Attributes:
        step: the step.
        share: share of the budget used by then.
        steps: number of the last step.
    """

    step: int
    share: float
    steps: int

    @property
    def next(self) -> int:
        """The step after which to plan again; soon at first, because the first plans know the speed least."""
        return self.step + max(1, min(self.step, (self.steps - self.step) // INTERVALS))

    def share_before(self, step: int) -> float:
        """Return the share of the budget used before a later step, from 0 to 1."""
        return self.share + (1 - self.share) * (step - 1 - self.step) / max(1, self.steps - self.step)


class Budget:
    """The steps of a training: all of `max_steps`, or as many as `minutes` have room for.

    Args:
        config: gives minutes, max_steps (the first plan where there are minutes) and most_steps.
        clock: seconds since any point in time.
        began: time of the clock from which the minutes count; None means now.

    Attributes:
        plan: the present plan.
        reserve: seconds to keep for the work after the last step.
        pace: seconds of a step, evaluations included, in the last part of the steps; 0 before the first plan.
    """

    def __init__(
        self, config: TrainConfig, clock: Callable[[], float] = time.monotonic, began: float | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._began = clock() if began is None else began
        self._plans: list[tuple[int, float]] = [(0, self.seconds)]  # steps and seconds of plans
        self.plan = Plan(0, 0.0, config.max_steps)
        self.reserve = self.pace = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training so far, without those that a kill has lost."""
        return self._clock() - self._began

    def resume(self, history: Sequence[dict[str, Any]]) -> None:
        """Continue the plan and the clock of a recorded history."""
        if not (self._config.minutes and history):
            return
        start = self.seconds  # of this process, which no pace should hold
        self._began -= history[-1][SECONDS]
        for row in history:
            if STEPS in row:
                self.plan = Plan(row["step"], row[SHARE], row[STEPS])
                self._mark(row["step"], row[SECONDS] + start)

    def place(self, step: int) -> float:
        """Return the place of a step on the learning rate schedule, in steps of the first plan, from 0."""
        if not self._config.minutes:
            return step - 1
        return self.plan.share_before(step) * self._config.max_steps

    def _mark(self, step: int, seconds: float) -> None:
        """Keep the plans of the last part of the steps, which an evaluation among them does not dominate."""
        if step == 1:
            self._plans.clear()  # the first step takes longer than others, many times as long with several processes
        self._plans.append((step, seconds))
        while len(self._plans) > 2 and step - self._plans[1][0] >= self.plan.steps / INTERVALS:
            self._plans.pop(0)

    def busy(self) -> str:
        """Return a sentence if steps take much longer than the first plan expected; else an empty text."""
        expected = 60 * self._config.minutes / self._config.max_steps
        is_known = self.plan.step > max(1, self.plan.steps / INTERVALS) and self.plan.share >= SETTLED
        if not is_known or self.pace < BUSY * expected:
            return ""
        return (
            f"a step takes {self.pace:.2f} s instead of the expected {expected:.2f} s, because other programs use "
            f"this machine: the training ends on time with about {self.plan.steps:,} instead of "
            f"{self._config.max_steps:,} steps"
        )

    def after(self, step: int, agree: Callable[[Planned], Planned]) -> dict[str, float]:
        """Return the columns of a finished step, after planning the next ones where it is time.

        Args:
            step: number of the step.
            agree: returns the first rank's value on every rank, because their clocks differ.
        """
        if not self._config.minutes:
            return {}
        seconds = self.seconds
        if step < self.plan.next:
            return {SECONDS: seconds}
        usable = max(60 * self._config.minutes - self.reserve, 1e-9)
        earlier, then = self._plans[0]
        self.pace = (seconds - then) / (step - earlier)
        steps = step + max(0, round((usable - seconds) / max(self.pace, 1e-9)))
        steps = min(steps, max(step, self._config.most_steps or steps))
        share = seconds / max(seconds + self.pace * (steps - step), 1e-9)
        seconds, share, steps = agree((seconds, share, steps))
        self.plan = Plan(step, share, steps)
        self._mark(step, seconds)
        return {SECONDS: seconds, SHARE: share, STEPS: steps}
