"""Real kills: at each call by which a checkpoint changes the disk, and at random moments of a training.

strace does the first kind of killing. A process that gets SIGKILL on entry to a call does not carry it out, so the
state after a call is seen when the next one is killed, and the last one's when nothing is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kill_child
import pytest

from model.checkpoint import best_checkpoint, load_checkpoint, newest_to_continue, save_checkpoint
from tests.zygote import Zygote

CALLS = """
write pwrite64 writev copy_file_range sendfile truncate ftruncate fallocate fsync fdatasync chmod fchmod msync
rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mkdir mkdirat rmdir
"""
TRACED = "trace=" + ",".join(f"?{call}" for call in CALLS.split())  # ?: not every kind of machine has every call
KILLS, STEPS = 8, 50


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(kill_child.__file__) as started:
        yield started


def _traced(zygote: Zygote, log: Path, inject: list[str], function: str, **arguments: Any) -> int:
    """Calls a function of `kill_child` in a child, under strace from its gate on; returns its exit code."""
    gate = log.with_name("gate")
    if not gate.exists():
        os.mkfifo(gate)
    child = zygote.start(function, gate=str(gate), **arguments)
    command = ["strace", "-f", "-o", str(log), "-e", TRACED, *inject, "-p", str(child)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr
        said = tracer.stderr.readline()
        assert "attached" in said
        gate.write_bytes(b"")
        code = zygote.wait()
        tracer.communicate()
    return code


def _calls(log: Path) -> list[tuple[str, int]]:
    """Each call with the how manieth of its kind it is; strace counts them in each thread anew."""
    found = re.findall(r"^(\d+) +(\w+)\(", log.read_text(errors="replace"), flags=re.MULTILINE)
    assert len({thread for thread, _ in found}) == 1
    seen: Counter[str] = Counter()
    points = []
    for _, call in found:
        seen[call] += 1
        points.append((call, seen[call]))
    return points


def _folder_of_three(folder: Path) -> Path:
    """Steps 1 (the best), 2 and 3."""
    for step in (1, 2, 3):
        save_checkpoint(folder, dataclasses.replace(kill_child.state_at(step), best_step=1))
    return folder


def _assert_whole(folder: Path) -> int:
    """The newest checkpoint is whole, the best one too, and the next save succeeds; returns the newest step."""
    place = newest_to_continue(folder)
    assert place is not None
    found, step = load_checkpoint(place), int(place.name[-8:])
    expected = kill_child.state_at(step)
    assert found.step == step and found.weights["w"].equal(expected.weights["w"])
    assert found.history == expected.history
    assert found.best_step == (4 if step == 4 else 1)
    best = best_checkpoint(folder, found.best_step)
    save_checkpoint(folder, dataclasses.replace(kill_child.state_at(5), best_step=found.best_step))
    assert {entry.name for entry in folder.iterdir()} == {best.name, place.name, "step-00000005"}
    return step


def _killed_at_each_call(
    tmp_path: Path, zygote: Zygote, prepared: Path, function: str, **arguments: Any
) -> tuple[list[tuple[str, int]], list[int]]:
    """Kills the function at each of its calls in turn; returns the calls, and the newest step after each kill."""
    counted = shutil.copytree(prepared, tmp_path / "counted")
    assert _traced(zygote, tmp_path / "log", [], function, folder=str(counted), **arguments) == 0
    points = _calls(tmp_path / "log")
    newest = []
    for call, number in points:
        folder = shutil.copytree(prepared, tmp_path / f"{call}-{number}")
        inject = ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
        code = _traced(zygote, tmp_path / "log", inject, function, folder=str(folder), **arguments)
        try:
            assert code == -signal.SIGKILL
            newest.append(_assert_whole(folder))
        except BaseException as error:
            error.add_note(f"killed at {call} number {number} of {points}")
            raise
        shutil.rmtree(folder)
    return points, newest


def test_a_save_killed_at_any_call_leaves_the_newest_and_the_best_checkpoint_whole(
    tmp_path: Path, zygote: Zygote, strace: None
) -> None:
    prepared = _folder_of_three(tmp_path / "prepared")
    points, newest = _killed_at_each_call(tmp_path, zygote, prepared, "save", step=4)
    kinds = Counter(call for call, _ in points)
    assert kinds["rename"] == 3 and kinds["fsync"] == 6, points  # it appears, and two others go
    assert newest == sorted(newest) and set(newest) == {3, 4}


def test_a_load_killed_at_any_call_loses_nothing_that_is_whole(tmp_path: Path, zygote: Zygote, strace: None) -> None:
    prepared = _folder_of_three(tmp_path / "prepared")
    for name in ("step-00000004", ".unfinished-step-00000004", ".unfinished-old-step-00000002"):
        (prepared / name).mkdir()
        (prepared / name / "model.safetensors").write_bytes(b"torn")
    _, newest = _killed_at_each_call(tmp_path, zygote, prepared, "load")
    assert set(newest) == {3}


CONFIGS: dict[str, dict[str, Any]] = {
    "accumulated": {"grad_accum": 2, "eval_every": 7},
    "fp16": {"precision": "fp16", "eval_every": 3, "patience": 6},
    "bf16": {"precision": "bf16", "optimizer": "adam_l2", "schedule": "noam"},
    "muon": {"optimizer": "muon", "schedule": "wsd", "grad_accum": 2},
}


def _outcome(folder: Path) -> tuple[bytes, str]:
    return (folder / "weights.safetensors").read_bytes(), (folder / "history.json").read_text()


def _newest(folder: Path) -> str:
    return max((place.name for place in (folder / "checkpoints").glob("step-*")), default="")


@pytest.mark.faults
@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_killed_at_random_moments_ends_with_the_bits_of_one_left_alone(
    name: str, tmp_path: Path, zygote: Zygote, record_property: Callable[[str, object], None]
) -> None:
    config = {"max_steps": STEPS, "batch_size": 4, "lr": 3e-3, "seed": 5, **CONFIGS[name]}
    alone = tmp_path / "alone"
    alone.mkdir()
    started = time.monotonic()
    zygote.start("train", folder=str(alone), config=config)
    assert zygote.wait() == 0
    step_seconds = (time.monotonic() - started) / STEPS
    moments = random.Random(name)
    kills = ended = code = 0
    while kills < KILLS or code:  # every run that was begun is brought to its end
        folder = tmp_path / f"run-{ended}"
        folder.mkdir(exist_ok=True)
        before = _newest(folder)
        child = zygote.start("train", folder=str(folder), config=config)
        if moments.random() < 0.7:  # the others are killed anywhere, while they load what there is among it
            while _newest(folder) == before and Path(f"/proc/{child}").exists():
                time.sleep(0.001)
        time.sleep(moments.uniform(0, 2 * step_seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = zygote.wait()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            assert _outcome(folder) == _outcome(alone)
            ended += 1
    record_property("kills", kills)
