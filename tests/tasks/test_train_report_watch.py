"""Which clock values of a training go to MLflow."""

from __future__ import annotations

import pytest

from tasks.train_report.watch import ClockSteps, _clock_steps


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ([2.0, 1.0, 5.0], [0, 1, 2]),  # slow steps: all of them
        ([0.25] * 10, [0, 4, 8]),  # quick ones: one in a second
        ([30.0, 0.5, 0.25, 0.5, 0.25, 0.25], [0, 3]),  # the first is slow, because it compiles
    ],
)
def test_the_first_step_and_one_in_a_second_are_taken(seconds: list[float], taken: list[int]) -> None:
    steps = ClockSteps()
    assert [place for place, one in enumerate(seconds) if steps.takes(one)] == taken


def test_of_a_finished_training_the_last_step_is_one_too() -> None:
    assert _clock_steps((step, 0.25) for step in range(1, 8)) == {1, 5, 7}
    assert _clock_steps([(4, 0.25)]) == {4}
