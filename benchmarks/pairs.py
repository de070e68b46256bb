"""Two sides of a comparison in separate processes that take turns.

The speed of machines drifts by tens of per cent within minutes, so the sides step alternately, and the ratio is the
median of the ratios of adjacent steps.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Step = Callable[[], float]


@dataclass
class Side:
    """Result of one side.

    Attributes:
        name: name of the side.
        seconds: seconds of each measured step.
        value: result of the last step, to check that both sides did the same work.
        peak_bytes: peak resident memory of the steps, less that before the first.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    value: float = 0.0
    peak_bytes: int = 0

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.seconds)


def take_turns(commands: dict[str, Sequence[str]], rounds: int, warmup: int = 2) -> dict[str, Side]:
    """Run one process per side; they step alternately, with the order swapped in each round.

    Args:
        commands: arguments of the module that calls `serve`, for each side.
        rounds: measured steps of each side.
        warmup: steps before the measured ones.
    """
    sides = {name: Side(name) for name in commands}
    workers = {
        name: subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    try:
        for worker in workers.values():
            _ask(worker, "")  # ready
        for turn in range(-warmup, rounds):
            for name in list(workers)[:: -1 if turn % 2 else 1]:
                answer = _ask(workers[name], "step\n")
                if turn >= 0:
                    sides[name].seconds.append(answer["seconds"])
                sides[name].value = answer["value"]
                sides[name].peak_bytes = answer["peak_bytes"]
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()
    return sides


def ratio(one: Side, other: Side) -> float:
    """Return the speed-up of `one`, the median over rounds."""
    return statistics.median(theirs / ours for ours, theirs in zip(one.seconds, other.seconds, strict=True))


def _ask(worker: subprocess.Popen[str], request: str) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(request)
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"{' '.join(map(str, worker.args))} ended with exit code {worker.wait()}")  # type: ignore[union-attr, arg-type]
    answer: dict[str, Any] = json.loads(line)
    return answer


def serve(step: Step) -> None:
    """Serve a side in its process: take a step per request, and report its seconds."""
    idle = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak after imports and set-up
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        value = step()
        seconds = time.perf_counter() - started
        peak = _resident("VmHWM") - idle
        print(json.dumps({"seconds": seconds, "value": value, "peak_bytes": peak}), flush=True)


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, f"/proc/self/status has no {name}"
    return int(found[1]) * 1024
