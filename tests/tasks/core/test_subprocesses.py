"""Work in a subprocess: the same results as in place, errors that say where they come from, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import subprocess_work

from storage.errors import UserError
from tasks.core import subprocesses
from tasks.core.subprocesses import LARGE_BYTES, WORTH_A_PROCESS, Subprocesses

IN_PLACE, IN_A_PROCESS = 0, WORTH_A_PROCESS


@pytest.fixture(autouse=True)
def samples_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process finds the sample functions where this one does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(subprocess_work.__file__).parent))


class Told:
    """Reports to `progress`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def call(function: Any, size: int = IN_A_PROCESS, told: Any = None, **arguments: Any) -> Any:
    """One call to processes that are ended after it."""
    processes = Subprocesses(2)
    try:
        return processes.call(function, told or Told(), size, **arguments)
    finally:
        processes.close()


@pytest.fixture
def kept() -> Iterator[Subprocesses]:
    """One process at a time, kept until the test is over."""
    processes = Subprocesses(1)
    yield processes
    processes.close()


def wait_until(condition: Any) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("size", [IN_PLACE, IN_A_PROCESS], ids=["in-place", "in-a-process"])
def test_results_are_the_same_in_place_and_in_a_process(size: int) -> None:
    told = Told()
    value = {"text": "ü\u2028\U0001f411", "numbers": [1, 2.5, None, True], "deep": {"a": []}}
    assert call(subprocess_work.echo, size, told, value=value, times=3) == {"value": value, "times": 3}
    assert told.calls == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("size", [IN_PLACE, IN_A_PROCESS], ids=["in-place", "in-a-process"])
def test_arguments_arrive_as_what_the_function_is_annotated_with(size: int) -> None:
    fold, odd = subprocess_work.Fold("Ü", (1, 2)), Path(os.fsdecode(b"caf\xe9"))
    shown = [repr(fold), repr([odd]), repr({"a": odd})]
    assert call(subprocess_work.describe, size, fold=fold, places=[odd], by_name={"a": odd}) == shown


def test_little_work_is_done_in_this_process_and_much_in_another() -> None:
    assert call(subprocess_work.process_id, WORTH_A_PROCESS - 1) == os.getpid()
    assert call(subprocess_work.process_id, WORTH_A_PROCESS) not in (os.getpid(), None)


def test_little_work_that_adds_up_to_much_is_done_in_another_process(kept: Subprocesses) -> None:
    half = WORTH_A_PROCESS // 2
    first, second = (kept.call(subprocess_work.process_id, Told(), half) for _ in range(2))
    assert first == os.getpid() != second


def test_a_large_call_ends_its_process(kept: Subprocesses) -> None:
    large, next_one = (kept.call(subprocess_work.process_id, Told(), size) for size in (LARGE_BYTES, IN_A_PROCESS))
    assert not is_alive(large)
    assert is_alive(next_one)


def test_a_long_result_and_long_arguments_arrive_whole() -> None:
    text = "0123456789" * 300_000
    assert call(subprocess_work.echo, value=text, times=1)["value"] == text


def test_an_error_carries_the_traceback_of_the_process() -> None:
    with pytest.raises(RuntimeError) as caught:
        call(subprocess_work.fail, message="the fold is empty")
    assert "fail failed:" in str(caught.value)
    assert "ValueError: the fold is empty" in str(caught.value)
    assert "subprocess_work.py" in str(caught.value)


def test_an_error_in_place_is_itself() -> None:
    with pytest.raises(ValueError, match="the fold is empty"):
        call(subprocess_work.fail, IN_PLACE, message="the fold is empty")


@pytest.mark.parametrize(("how", "status"), [("exit", "7"), ("kill", "-9")])
def test_a_process_that_ends_without_a_result_is_an_error_that_gives_its_status(how: str, status: str) -> None:
    with pytest.raises(RuntimeError, match=rf"vanish ended with status {status} and no result"):
        call(subprocess_work.vanish, how=how)


def test_what_a_library_prints_does_not_get_between_the_messages(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(subprocess_work.chatter) == "done"
    assert "not a message" in capfd.readouterr().err


def test_in_a_process_pandas_cannot_be_imported_and_may_be_asked_for() -> None:
    assert call(subprocess_work.look_for, module="pandas") == {"place": None, "imported": False}
    assert call(subprocess_work.look_for, module="json")["imported"]


def test_a_process_is_kept_for_the_next_call(kept: Subprocesses) -> None:
    first, second = (kept.call(subprocess_work.process_id, Told(), IN_A_PROCESS) for _ in range(2))
    assert first == second != os.getpid()
    assert is_alive(first)
    kept.close()
    assert not is_alive(first)


def test_after_an_error_a_fresh_process_serves_the_next_call(kept: Subprocesses) -> None:
    first = kept.call(subprocess_work.process_id, Told(), IN_A_PROCESS)
    with pytest.raises(RuntimeError):
        kept.call(subprocess_work.fail, Told(), IN_A_PROCESS, message="no")
    assert not is_alive(first)
    assert kept.call(subprocess_work.echo, Told(), IN_A_PROCESS, value=1, times=0) == {"value": 1, "times": 0}


def test_a_process_that_was_killed_between_two_calls_is_replaced(kept: Subprocesses) -> None:
    first = kept.call(subprocess_work.process_id, Told(), IN_A_PROCESS)
    os.kill(first, signal.SIGKILL)
    assert kept.call(subprocess_work.process_id, Told(), IN_A_PROCESS) not in (first, os.getpid())


def test_a_call_whose_process_is_killed_is_made_once_more_in_a_fresh_one(kept: Subprocesses, tmp_path: Path) -> None:
    note, told = tmp_path / "pid", Told()
    second = kept.call(subprocess_work.vanish_once, told, IN_A_PROCESS, note=str(note))
    assert second not in (int(note.read_text()), os.getpid())
    assert told.calls == [(1, 1)]
    assert kept.call(subprocess_work.process_id, Told(), IN_A_PROCESS) == second


def test_a_call_that_kills_its_process_each_time_is_made_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="ended with status -9 and no result"):
        call(subprocess_work.log_and_vanish, log=str(log))
    assert len(set(log.read_text().split())) == 2


def test_an_error_of_the_function_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="ValueError: logged"):
        call(subprocess_work.log_and_fail, log=str(log))
    assert len(log.read_text().split()) == 1


def test_what_the_person_can_mend_is_told_as_such_and_not_as_a_traceback() -> None:
    with pytest.raises(UserError, match=r"^name another file$"):
        call(subprocess_work.refuse, message="name another file")


def test_no_process_is_left_after_the_end_or_an_error(tmp_path: Path) -> None:
    pid = call(subprocess_work.process_id)
    note = tmp_path / "pid"
    with pytest.raises(RuntimeError):
        call(subprocess_work.note_and_fail, note=str(note))
    assert not is_alive(pid)
    assert not is_alive(int(note.read_text()))


def test_an_interrupt_while_waiting_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(subprocess_work.note_and_hang, told=interrupt, note=str(note))
    assert not is_alive(int(note.read_text()))


def test_a_parent_that_is_killed_takes_its_process_with_it(tmp_path: Path) -> None:
    """An orphan would write into the folder of the next run."""
    note = tmp_path / "pid"
    script = (
        "import sys, subprocess_work\n"
        "from tasks.core.subprocesses import Subprocesses, WORTH_A_PROCESS\n"
        "call = Subprocesses(1).call\n"
        "call(subprocess_work.note_and_hang, lambda done, total: None, WORTH_A_PROCESS, note=sys.argv[1])\n"
    )
    root = Path(subprocesses.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ["PYTHONPATH"]])}
    parent = subprocess.Popen([sys.executable, "-c", script, str(note)], env=environment)
    try:
        assert wait_until(lambda: note.is_file() and note.read_text())
        child = int(note.read_text())
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert wait_until(lambda: not is_alive(child))
    finally:
        parent.kill()
        parent.wait()


def test_so_many_run_at_once_as_are_allowed_and_no_more(kept: Subprocesses, tmp_path: Path) -> None:
    """Each notes when it begins and ends; with one slot no two overlap."""
    from concurrent.futures import ThreadPoolExecutor

    log = tmp_path / "log"
    with ThreadPoolExecutor(3) as threads:
        jobs = [
            threads.submit(kept.call, subprocess_work.log_both_ends, Told(), IN_A_PROCESS, log=str(log)) for _ in "abc"
        ]
        assert [job.result() for job in jobs] == ["done"] * 3
    assert log.read_text().split() == ["begin", "end"] * 3


def test_a_folder_of_documents_is_not_searched_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a document was run')\n")
    monkeypatch.chdir(tmp_path)
    assert call(subprocess_work.echo, value=1, times=0) == {"value": 1, "times": 0}
