"""Owner locks between processes: one owner at a time, and none that outlives its process."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import UserError
from storage.locks import owner_lock, read_owner

OWNER = """
import sys
from pathlib import Path
from storage.locks import owner_lock
with owner_lock(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""

Owner = subprocess.Popen[str]
OURS = f"process {os.getpid()} on {socket.gethostname()}"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "train-0123.lock"


@pytest.fixture
def start_owner(lock: Path) -> Iterator[Callable[[], Owner]]:
    """Starts another process that holds the lock until its input ends."""
    owners: list[Owner] = []

    def start() -> Owner:
        command = [sys.executable, "-c", OWNER, str(lock)]
        owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        owners.append(owner)
        assert owner.stdout is not None and owner.stdout.readline() == "mine\n"
        return owner

    yield start
    for owner in owners:
        owner.kill()
        owner.wait()
        for pipe in (owner.stdin, owner.stdout):
            assert pipe is not None
            pipe.close()


def never(message: str) -> None:
    raise AssertionError(message)


def test_a_second_process_waits_for_the_owner_and_then_gets_the_lock(
    lock: Path, start_owner: Callable[[], Owner]
) -> None:
    owner = start_owner()
    told: list[str] = []

    def let_go(message: str) -> None:
        told.append(message)
        assert owner.poll() is None  # we wait, and the owner lives
        assert owner.stdin is not None
        owner.stdin.close()  # its input ends, and so it does

    with owner_lock(lock, on_wait=let_go):
        assert owner.wait(10) == 0
        assert read_owner(lock) == OURS
    assert len(told) == 1
    assert re.fullmatch(rf"waiting for process {owner.pid} on \S+, which works on train-0123", told[0])


def test_the_lock_of_a_killed_owner_is_free_at_once(lock: Path, start_owner: Callable[[], Owner]) -> None:
    owner = start_owner()
    owner.send_signal(signal.SIGKILL)
    owner.wait(10)
    assert lock.exists()  # the file stays behind; it is the kernel that freed the lock
    with owner_lock(lock, on_wait=never):
        pass


def test_a_longer_record_of_a_former_owner_is_wiped(lock: Path) -> None:
    lock.parent.mkdir()
    lock.write_text("x" * 10_000)
    with owner_lock(lock, on_wait=never):
        assert read_owner(lock) == OURS


@pytest.mark.parametrize("text", [None, b""])
def test_an_owner_that_left_no_record_yet_is_another_process(lock: Path, text: bytes | None) -> None:
    if text is not None:
        lock.parent.mkdir()
        lock.write_bytes(text)
    assert read_owner(lock) == "another process"


def test_the_lock_is_gone_after_its_owner_raised(lock: Path) -> None:
    with pytest.raises(RuntimeError, match="stage failed"), owner_lock(lock):
        raise RuntimeError("stage failed")
    assert not lock.exists()
    with owner_lock(lock, on_wait=never):
        pass


def test_a_lock_whose_name_cannot_be_removed_does_not_block_its_own_process(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="input/output"), owner_lock(lock):
        patch.setattr(Path, "unlink", refuse)
    with owner_lock(lock, on_wait=never):
        pass


def test_a_lock_on_a_file_that_its_last_owner_unlinked_is_not_taken_for_the_lock(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last owner unlinks the name between our open and our lock: what we hold then guards nothing."""
    flock = fcntl.flock
    opened: list[int] = []

    def late_flock(descriptor: int, operation: int) -> None:
        opened.append(os.fstat(descriptor).st_ino)
        if len(opened) == 1:
            lock.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    with owner_lock(lock, on_wait=never):
        assert len(opened) == 2
        assert lock.stat().st_ino == opened[1]


def test_a_file_system_without_locks_is_refused(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(UserError, match=f"the file system of {lock.parent} has no file locks"), owner_lock(lock):
        pass


def test_threads_that_count_under_the_lock_lose_no_count(lock: Path, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(25):
            with owner_lock(lock):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "100"
