"""Duration of a scheduled retraining without changes, and a check that it computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.table import Row
from benchmarks.team_box import team_box

GOAL_SECONDS = 10.0
TIMES = 3
ALWAYS = {"promote", "track"}  # tasks that make no artefact


def rows(full: bool) -> Iterator[Row]:
    """Yield the median seconds of three flow runs, and the number of tasks that computed."""
    with team_box() as box:
        asked = {"preset": "tiny", "max_steps": 20}
        (first,) = box.wait([box.start("retrain/weekly", **asked)])
        again = [box.wait([box.start("retrain/weekly", **asked)])[0] for _ in range(TIMES)]
        failed = [run["name"] for run in (first, *again) if run["state_type"] != "COMPLETED"]
        if failed:
            raise RuntimeError(f"runs that did not complete: {', '.join(failed)}")
        computed = [
            name
            for run in again
            for name, state in box.task_states(run["id"]).items()
            if state != "Cached" and name not in ALWAYS
        ]
    seconds = sorted(run["total_run_time"] for run in again)
    yield Row(
        "retrain with nothing new, from the start of the flow run to its end, s",
        f"{' / '.join(f'{value:.1f}' for value in seconds)} s",
        f"{first['total_run_time']:.1f} s the first time",
        seconds[TIMES // 2],
        GOAL_SECONDS,
        True,
    )
    yield Row("the same: tasks that computed", str(len(computed)), "", float(len(computed)), 0.0, True)
