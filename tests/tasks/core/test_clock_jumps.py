"""A clock that jumps by years, forth and back, while a run is at work and between runs."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Ran, home_at, run_whole

from tests.flows.runs import store_contents

LIBRARIES = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")  # noqa: PTH207 - Path has none from the root on
pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed (apt install libfaketime)"),
]

RUN = """
import json, sys, time
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from pathlib import Path
from tasks.core.progress import StageProgress
from tiny_run import home_at, run_whole

home, source, clock = map(Path, sys.argv[3:])
years, shown = set(), StageProgress.update

def update(self, done, total, note=""):
    shown(self, done, total, note)
    if self.name == "train":
        clock.write_text("-8y" if done < 7 else "+8y" if done < 14 else "-2y")
    years.add(time.gmtime().tm_year)

StageProgress.update = update
ran = run_whole(home_at(home), source)
print(json.dumps({"years": len(years), "computed": ran.computed()}))
"""


def _at(clock: Path, *command: str) -> Any:
    """Return the output of a command whose clock follows a file."""
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))},
        "LD_PRELOAD": LIBRARIES[0],
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    done = subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout[done.stdout.index("{") :])


def test_a_clock_that_jumps_changes_no_result_and_makes_nothing_go_or_be_made_again(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home, clock, here = tmp_path / "home", tmp_path / "clock", Path(__file__).resolve()
    clock.write_text("-5y")
    arguments = map(str, (here.parents[1], here.parents[3], home, tiny_source, clock))
    told = _at(clock, "-c", RUN, *arguments)
    assert told["years"] >= 3, "the clock did not jump"
    assert store_contents(home) == store_contents(tiny.run.home.path)
    clock.write_text("+20y")
    _at(clock, "-m", "flows.cli", "gc", "--home", str(home), "--json")
    assert run_whole(home_at(home), tiny_source).computed() == {}
    assert store_contents(home) == store_contents(tiny.run.home.path)
