"""Kill a run anywhere, run it again: the same keys, tables and weights, as if nothing had happened.

Five empty homes; in each the whole process tree is killed at a moment of its own, then the same command runs to its
end. A killed training goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import MARK, Command, kill_all, store_contents

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform != "linux", reason="finds all processes of a run through /proc"),
]

KILLS = 5
FILES = 30
STEPS = 200


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> Path:
    """Some files, spread evenly over the corpus in the order of their names."""
    folder = tmp_path_factory.mktemp("documents")
    files = sorted(path for path in corpus_folder.rglob("*") if path.is_file())
    chosen = [files[place * len(files) // FILES] for place in range(FILES)]
    for path in chosen:
        target = folder / path.relative_to(corpus_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, documents: Path) -> tuple[Path, float]:
    """A home in which nothing was killed, and how long its run took."""
    home = tmp_path_factory.mktemp("undisturbed")
    started = time.monotonic()
    Command(home, ["run", str(documents), "--max-steps", str(STEPS)]).finish()
    return home, time.monotonic() - started


def _training(home: Path) -> dict[str, object]:
    path = next((home / "store" / "train").glob("*/manifest.json"))
    manifest: dict[str, object] = json.loads(path.read_text())
    return manifest


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_ends_like_an_undisturbed_one(
    number: int,
    documents: Path,
    undisturbed: tuple[Path, float],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    reference, seconds = undisturbed
    # one moment in each fifth of the run, at random within it
    moment = (number + random.Random(number).random()) / KILLS * seconds
    command = Command(tmp_path / "home", ["run", str(documents), "--max-steps", str(STEPS)])
    process = command.start(tmp_path / "log")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    killed = kill_all(command.variables[MARK])
    process.wait()
    checkpoints = list((tmp_path / "home" / "store" / ".work" / "train").glob("*/scratch/checkpoints/step-*"))
    command.finish()
    print(f"kill {number} after {moment:.1f} s: {killed} processes, checkpoints {len(checkpoints)}")
    record_property("kills", int(killed > 0))
    assert store_contents(tmp_path / "home") == store_contents(reference)
    if checkpoints:
        counts = _training(tmp_path / "home")["counts"]
        assert isinstance(counts, dict)
        assert counts["resumed_from"] > 0
