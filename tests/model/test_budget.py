"""A budget in minutes: it ends on time whatever the machine does, and a resumed run follows the recorded plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from model import ModelConfig, TrainConfig, Trainer
from model.budget import SECONDS, SHARE, STEPS, Budget
from model.callbacks import Callbacks, TrainingStopped
from model.data import SpanSource
from model.trainer import TrainResult

MINUTE = 60.0


class Clock(Callbacks):
    """A clock that a training moves: each step takes `cost(step)` seconds."""

    def __init__(self, cost: Callable[[int], float], begins: float = 0.0) -> None:
        self.cost, self.now = cost, begins

    def __call__(self) -> float:
        return self.now

    def step(self, step: int, max_steps: int, metrics: Mapping[str, float]) -> None:
        self.now += self.cost(step)

    def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
        pass


def spend(
    minutes: float, first_plan: int, cost: Callable[[int], float], reserve: float = 0.0, **fields: int
) -> tuple[float, Budget, int]:
    """Let steps take `cost(step)` seconds until the plan is done; returns the seconds, the budget and the steps."""
    clock = Clock(cost)
    budget = Budget(TrainConfig(max_steps=first_plan, minutes=minutes, **fields), clock)
    budget.reserve, step = reserve, 0
    while step < budget.plan.steps:
        step += 1
        clock.step(step, 0, {})
        budget.after(step, lambda value: value)
    return clock.now, budget, step


@pytest.mark.parametrize("first_plan", [10, 100, 600, 6000])
def test_the_time_is_kept_whatever_the_first_plan(first_plan: int) -> None:
    seconds, budget, steps = spend(1, first_plan, lambda step: 0.1)
    assert seconds == pytest.approx(MINUTE, rel=0.02)
    assert steps == pytest.approx(600, rel=0.02)
    assert budget.plan.share == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    "cost",
    [
        lambda step: 0.1 if step < 300 else 0.4,
        lambda step: 0.4 if step < 75 else 0.1,
        lambda step: 0.1 if step % 100 < 50 else 0.3,
        lambda step: 0.1 if step < 590 else 0.5,
    ],
    ids=["busy from the half", "busy until the half", "busy now and then", "busy at the end"],
)
def test_the_time_is_kept_on_a_machine_whose_load_changes(cost: Callable[[int], float]) -> None:
    assert spend(1, 600, cost)[0] == pytest.approx(MINUTE, rel=0.05)


def test_time_is_kept_for_the_evaluation_after_the_last_step() -> None:
    assert spend(1, 600, lambda step: 0.1, reserve=6.0)[2] == pytest.approx(540, abs=3)


def test_steps_are_bounded_on_a_machine_that_is_faster_than_expected() -> None:
    _, budget, steps = spend(1, 100, lambda step: 0.01, most_steps=250)
    assert steps == 250
    assert budget.place(250) == pytest.approx(100, rel=0.02)  # the whole schedule


def test_the_place_on_the_schedule_is_the_share_of_the_time() -> None:
    clock = Clock(lambda step: 0.1 if step <= 300 else 0.3)
    budget = Budget(TrainConfig(max_steps=600, minutes=1), clock)
    places = []
    while len(places) < budget.plan.steps:
        places.append(budget.place(len(places) + 1))
        clock.step(len(places), 0, {})
        budget.after(len(places), lambda value: value)
        assert places[-1] / 600 == pytest.approx(min(1, clock.now / MINUTE), abs=0.06)
    assert places == sorted(places)


def test_without_minutes_the_place_is_the_step() -> None:
    budget = Budget(TrainConfig(max_steps=7))
    assert [budget.place(step) for step in range(1, 8)] == [0, 1, 2, 3, 4, 5, 6]
    assert budget.after(3, lambda value: value) == {}


@pytest.fixture
def fit(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> Callable[..., TrainResult]:
    """Train for a quarter of a minute by a clock."""

    def run(folder: str, clock: Clock, stop: threading.Event | None = None) -> TrainResult:
        plan = TrainConfig(max_steps=20, minutes=0.25, batch_size=2, eval_every=5, lr=3e-3)
        source = build_source()
        trainer = Trainer(
            model_config, plan, source, source,
            checkpoint_dir=tmp_path / folder, callbacks=clock, clock=clock, stop=stop or threading.Event(),
        )  # fmt: skip
        return trainer.fit()

    return run


def test_a_stopped_run_resumes_by_the_recorded_plans_and_ends_with_the_same_weights(
    fit: Callable[..., TrainResult],
) -> None:
    def cost(step: int) -> float:  # of the step at which one run is stopped, nothing, because that time is lost
        return 0.0 if step == 22 else 0.25 if step < 25 else 0.5

    whole = fit("whole", Clock(cost))
    stop = threading.Event()

    def stops(step: int) -> float:
        if step == 21:
            stop.set()
        return cost(step)

    with pytest.raises(TrainingStopped):
        fit("parts", Clock(stops, begins=1000.0), stop)
    resumed = fit("parts", Clock(cost, begins=5000.0))
    assert resumed.resumed_from == 22
    assert resumed.history == whole.history
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert whole.history[-1][SECONDS] == pytest.approx(15, rel=0.05)


def test_the_history_says_what_was_planned_and_the_evaluation_is_after_the_last_step(
    fit: Callable[..., TrainResult],
) -> None:
    history = fit("whole", Clock(lambda step: 0.25)).history
    plans = [row for row in history if STEPS in row]
    assert plans[0]["step"] == 1
    assert plans[-1][STEPS] == history[-1]["step"] == pytest.approx(60, abs=1)
    assert plans[-1][SHARE] == pytest.approx(1, abs=0.02)
    assert "val/loss" in history[-1]


def test_equal_clocks_give_equal_weights(fit: Callable[..., TrainResult]) -> None:
    one, other = (fit(folder, Clock(lambda step: 0.25)).model.state_dict() for folder in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_busy_machine_is_named_once_with_what_it_costs(fit: Callable[..., TrainResult]) -> None:
    class Told(Clock):
        events: list[str] = []  # noqa: RUF012 - one instance

        def event(self, step: int, kind: str, message: str, sequences: Sequence[int] = ()) -> None:
            self.events.append(f"{kind}: {message}")

    fit("busy", told := Told(lambda step: 0.75 if step < 12 else 1.5))
    (event,) = (text for text in told.events if text.startswith("busy"))
    assert "instead of the expected 0.75 s, because other programs use this machine: the training ends on time" in event


def test_the_time_before_the_first_step_counts_and_is_not_taken_for_slow_steps() -> None:
    clock = Clock(lambda step: 0.1, begins=10.0)
    budget, step = Budget(TrainConfig(max_steps=600, minutes=1), clock, began=0.0), 0
    while step < budget.plan.steps:
        step += 1
        clock.step(step, 0, {})
        budget.after(step, lambda value: value)
        assert budget.busy() == ""
    assert clock.now == pytest.approx(MINUTE, rel=0.02)
    assert step == pytest.approx(500, rel=0.02)


def test_the_start_of_a_resumed_process_counts_and_is_not_taken_for_slow_steps() -> None:
    config = TrainConfig(max_steps=600, minutes=1)
    clock, history = Clock(lambda step: 0.1), []
    first = Budget(config, clock)
    for step in range(1, 101):
        clock.step(step, 0, {})
        history.append({"step": step, **first.after(step, lambda value: value)})
    clock = Clock(lambda step: 0.1, begins=1000.0)
    resumed = Budget(config, clock, began=992.0)
    resumed.resume(history)
    while step < resumed.plan.steps:
        step += 1
        clock.step(step, 0, {})
        resumed.after(step, lambda value: value)
        assert resumed.pace == 0 or resumed.pace == pytest.approx(0.1)
    assert resumed.seconds == pytest.approx(MINUTE, rel=0.02)


def test_ranks_with_other_clocks_follow_the_plans_of_the_first() -> None:
    config = TrainConfig(max_steps=50, minutes=1)
    clocks = Clock(lambda step: 0.1), Clock(lambda step: 0.4, begins=3.0)
    first, other = (Budget(config, clock, began=0.0) for clock in clocks)
    told: list[tuple[float, float, int]] = []
    for step in range(1, 200):
        for clock in clocks:
            clock.step(step, 0, {})
        first.after(step, lambda value: told.append(value) or value)  # type: ignore[func-returns-value]
        other.after(step, lambda value: told[-1])
        assert other.plan == first.plan


def test_a_long_first_step_is_not_taken_for_a_busy_machine() -> None:
    clock = Clock(lambda step: 2.0 if step == 1 else 0.1)
    budget = Budget(TrainConfig(max_steps=300, minutes=0.5), clock, began=0.0)
    for step in range(1, 40):
        clock.step(step, 0, {})
        budget.after(step, lambda value: value)
        assert budget.busy() == ""
    assert budget.plan.steps == pytest.approx(281, abs=10)
