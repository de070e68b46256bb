"""Commits that are killed, or fail, at each of the calls by which they change the disk; the store is whole every time.

strace does the killing. A process that gets SIGKILL on entry to a call does not carry it out, so the state after a call
is seen when the next one is killed, and the last one's when nothing is. Between two such calls nothing on the disk
changes. The interpreter's own start makes none of these calls (bytecode is not written), which is checked.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import commit_child
import pytest

from storage.locks import owner_lock

CALLS = """
write pwrite64 writev copy_file_range sendfile truncate ftruncate fallocate fsync fdatasync flock chmod fchmod
rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mkdir mkdirat rmdir
"""
TRACED = "trace=" + ",".join(f"?{call}" for call in CALLS.split())  # ?: not every kind of machine has every call
# Python asks again, or needs no second answer, where these fail: a folder that is there, a file that is gone
FORGIVEN = {"mkdir", "mkdirat", "unlink", "unlinkat", "rmdir"}
OLD, NEW, OTHER = "the old text ", "the new text ", "another text "

LATER = ("unref", "tombstone", "sweep", "remove")  # whose kills are tried by `make test-faults`

Point = tuple[str, int]  # a call, and the how manieth of its kind


def _strace(log: Path, arguments: list[str], command: list[str]) -> int:
    process = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(log), "-e", TRACED, *arguments, *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode


def _calls(log: Path) -> list[str]:
    return re.findall(r"^\d+ +(\w+)\(", log.read_text(errors="replace"), flags=re.MULTILINE)


def _prepared(folder: Path, action: str) -> Path:
    """A fresh store in which the action has something to replace, except for a first commit."""
    root = folder / "store"
    commit_child.prepare(root, action, OLD)
    return root


def _kill_points(folder: Path, action: str) -> list[Point]:
    folder.mkdir(parents=True)
    root = _prepared(folder, action)
    assert _strace(folder / "log", [], commit_child.command(action, root, NEW)) == 0
    seen: collections.Counter[str] = collections.Counter()
    points = []
    for call in _calls(folder / "log"):
        seen[call] += 1
        points.append((call, seen[call]))
    return points


@contextmanager
def _noted(where: str) -> Iterator[None]:
    """An error tells where the fault was."""
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


def _for_each(tmp_path: Path, action: str, fault: str, check: Callable[[Path, Point, int], None]) -> list[Point]:
    """Inject the fault at each point in turn, each time in a fresh store, and check what is left."""
    points = _kill_points(tmp_path / "count", action)

    def inject(index: int) -> None:
        call, number = points[index]
        folder = tmp_path / f"{index:03}-{call}-{number}"
        folder.mkdir()
        root = _prepared(folder, action)
        arguments = ["-e", f"inject={call}:{fault}:when={number}"]
        code = _strace(folder / "log", arguments, commit_child.command(action, root, NEW))
        with _noted(f"{action}: {fault} at {call} number {number}, call {index + 1} of {len(points)}"):
            check(root, points[index], code)
        shutil.rmtree(folder)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(inject, index) for index in range(len(points))]:
            future.result()
    return points


def _renames(points: list[Point]) -> int:
    return sum(call.startswith("rename") for call, _ in points)


def _fsyncs(points: list[Point]) -> int:
    return sum(call in ("fsync", "fdatasync") for call, _ in points)


def _assert_whole_after_kill(root: Path, code: int, action: str, allowed: set[str | None]) -> None:
    assert code == -signal.SIGKILL
    assert commit_child.artifact_text(root) in allowed
    lock = root / ".locks" / f"{commit_child.STAGE}-{commit_child.KEY}.lock"
    with owner_lock(lock, on_wait=commit_child.refuse_to_wait):
        pass
    commit_child.ACTIONS[action](root, NEW)
    assert commit_child.artifact_text(root) == NEW


@pytest.mark.full
def test_a_commit_killed_at_any_call_leaves_no_artefact_or_the_whole_one_and_can_be_run_again(tmp_path: Path) -> None:
    def check(root: Path, point: Point, code: int) -> None:
        _assert_whole_after_kill(root, code, "commit", {None, NEW})

    points = _for_each(tmp_path, "commit", "signal=SIGKILL", check)
    # the rename of the folder; before it every file and folder is forced to the disk
    assert _renames(points) == 1 and _fsyncs(points) == 8, points
    assert len(points) >= 30, points


@dataclass(frozen=True)
class Killed:
    """A store as the kill of a refresh left it."""

    point: Point
    code: int
    root: Path


@pytest.fixture(scope="module")
def killed_refreshes(tmp_path_factory: pytest.TempPathFactory) -> list[Killed]:
    """A refresh killed at each call in turn; to be copied before anything is done with one."""
    folder = tmp_path_factory.mktemp("refreshes")
    found: list[Killed] = []

    def keep(root: Path, point: Point, code: int) -> None:
        kept = shutil.copytree(root, folder / f"{point[0]}-{point[1]}", symlinks=True)
        found.append(Killed(point, code, kept))

    points = _for_each(folder / "runs", "refresh", "signal=SIGKILL", keep)
    assert _renames(points) == 2 and _fsyncs(points) >= 10, points
    return sorted(found, key=lambda killed: points.index(killed.point))


@pytest.mark.full
def test_a_refresh_killed_at_any_call_leaves_the_old_artefact_the_new_one_or_none_but_never_a_torn_one(
    tmp_path: Path, killed_refreshes: list[Killed]
) -> None:
    states = set()
    for number, killed in enumerate(killed_refreshes):
        root = shutil.copytree(killed.root, tmp_path / str(number), symlinks=True)
        with _noted(f"killed at {killed.point}"):
            states.add(commit_child.artifact_text(root))
            _assert_whole_after_kill(root, killed.code, "refresh", {None, OLD, NEW})
            work = root / ".work" / commit_child.STAGE / commit_child.KEY
            assert not work.exists(), f"left behind: {list(work.rglob('*'))}"
    assert states == {None, OLD, NEW}  # the kills did fall on both sides of the two renames that replace it


@pytest.mark.full
def test_a_refresh_killed_at_any_call_loses_no_artefact_to_the_run_after_it(
    tmp_path: Path, killed_refreshes: list[Killed]
) -> None:
    for number, killed in enumerate(killed_refreshes):
        root = shutil.copytree(killed.root, tmp_path / str(number), symlinks=True)
        with _noted(f"killed at {killed.point}"):
            commit_child.commit(root, OTHER)
            assert commit_child.artifact_text(root) in (OLD, NEW), "what was there is gone, and what was made too"


@pytest.mark.full
def test_a_ref_whose_move_is_killed_at_any_call_stands_at_the_old_value_or_the_new_one(tmp_path: Path) -> None:
    states = set()

    def check(root: Path, point: Point, code: int) -> None:
        assert code == -signal.SIGKILL
        states.add(commit_child.ref_text(root))
        commit_child.ref(root, NEW)
        assert commit_child.ref_text(root) == NEW

    points = _for_each(tmp_path, "ref", "signal=SIGKILL", check)
    assert _renames(points) == 1 and _fsyncs(points) == 4, points  # the folders' names, the file, its name
    assert states == {OLD, NEW}


@pytest.mark.full
@pytest.mark.parametrize(
    "action",
    ["commit", "refresh", "ref", *(pytest.param(name, marks=pytest.mark.faults) for name in LATER)],
)
def test_a_call_that_fails_surfaces_as_an_os_error_and_a_second_attempt_in_the_same_process_succeeds(
    tmp_path: Path, action: str
) -> None:
    def check(root: Path, point: Point, code: int) -> None:
        allowed = {commit_child.FAULT, 0} if point[0] in FORGIVEN else {commit_child.FAULT}
        assert code in allowed
        assert commit_child.is_done(root, action, NEW)

    _for_each(tmp_path, action, "error=EIO", check)


def test_a_refresh_whose_last_rename_fails_keeps_the_old_artefact(tmp_path: Path) -> None:
    root = _prepared(tmp_path, "refresh")
    command = [sys.executable, "-I", "-B", "-c", _REFRESH_ONCE, str(Path(commit_child.__file__).parent), str(root), NEW]
    assert _strace(tmp_path / "log", ["-e", "inject=?rename,?renameat,?renameat2:error=EIO:when=2"], command) == 0
    assert commit_child.artifact_text(root) == OLD


_REFRESH_ONCE = """
import sys, pathlib
sys.path[:0] = [sys.argv[1], str(pathlib.Path(sys.argv[1]).parents[1])]
import commit_child
try:
    commit_child.refresh(pathlib.Path(sys.argv[2]), sys.argv[3])
except OSError:
    sys.exit(0)
sys.exit("no fault surfaced")
"""
