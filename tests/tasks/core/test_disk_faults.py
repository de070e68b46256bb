"""A disk that is full, or may only be read: every stage stops with a sentence, loses nothing and goes on later.

The disk is a file system in memory, which only root may make; elsewhere these tests are skipped.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tiny_run import Ran, direct_run, home_at, run_whole, tiny_settings

from flows.evaluate import evaluate_model
from flows.generate import sample
from flows.ingest import ingest_documents
from flows.prepare import prepare_documents
from flows.promote import promote_model
from flows.train import train_model
from storage.errors import UserError, lasting_fault
from storage.home import Home
from storage.store import Store
from tasks.core.run import Run
from tests.flows.runs import answer, invoke, store_contents

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system in memory"),
]

SIZE = "256m"
LEFT_BYTES = (0, 16384, 262144)  # that are free when a step of the work begins

Stepped = TypeVar("Stepped")  # what a step of the work gives


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A small disk of our own."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


def fill(disk: Path, left: int) -> None:
    """Take all of a disk but some bytes."""
    found = os.statvfs(disk)
    with (disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, max(1, found.f_bavail * found.f_frsize - left))


def free(disk: Path) -> None:
    """Give it back."""
    (disk / "ballast").unlink(missing_ok=True)


@dataclass(frozen=True)
class Steps:
    """The stages of a whole run, one step of the work after the other, each in a run of its own."""

    home: Home
    source: Path
    disk: Path
    left: int
    told: dict[str, str] = field(default_factory=dict)

    def step(self, name: str, work: Callable[[Run], Stepped]) -> Stepped:
        """Try it on the full disk, and again when there is room; what was told the first time is noted."""
        fill(self.disk, self.left)
        try:
            with direct_run(self.home) as run:
                return work(run)
        except Exception as error:  # noqa: BLE001 - libraries say it in their own words, and all are to be told
            fault = lasting_fault(error)
            assert fault is not None, f"{name} with {self.left} bytes left: {error!r}"
            self.told[name] = str(fault)
        finally:
            free(self.disk)
        with direct_run(self.home) as run:
            return work(run)

    def whole(self) -> None:
        """Files to completions."""
        settings = tiny_settings()
        ingested = self.step("ingest", lambda run: ingest_documents(run, str(self.source), settings))
        prepared = self.step("prepare", lambda run: prepare_documents(run, settings, ingested))
        checkpoint = self.step("train", lambda run: train_model(run, settings, prepared))
        self.step("evaluate", lambda run: evaluate_model(run, checkpoint, prepared.evalset))
        self.step("generate", lambda run: sample(run, settings, checkpoint, prepared.evalset))


@pytest.mark.parametrize("left", LEFT_BYTES)
def test_a_disk_that_is_full_in_any_step_costs_nothing_but_the_wait(
    disk: Path, tiny: Ran, tiny_source: Path, left: int
) -> None:
    steps = Steps(home_at(disk / "home"), tiny_source, disk, left)
    steps.whole()
    assert all(words.startswith("the disk is full (") for words in steps.told.values()), steps.told
    if left == 0:
        assert list(steps.told) == ["ingest", "prepare", "train", "evaluate", "generate"]
    assert "train" in steps.told, "so much room was left that nothing was disturbed"
    assert store_contents(steps.home.path) == store_contents(tiny.run.home.path)
    work = Path(steps.home.store, ".work")
    assert not [path for path in work.rglob("*") if path.is_file()]


def test_a_disk_that_is_full_while_a_model_is_promoted_leaves_one_version_with_one_name(
    disk: Path, tiny: Ran, tiny_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_at(disk / "home")
    shutil.copytree(tiny.run.home.store, home.store, dirs_exist_ok=True)
    ran = run_whole(home, tiny_source)

    def promote() -> Any:
        assert ran.checkpoint is not None and ran.evaluation is not None
        with direct_run(home) as run:
            return promote_model(run, ran.checkpoint, ran.evaluation)[0]

    fill(disk, 0)
    with pytest.raises(Exception) as caught:
        promote()
    assert lasting_fault(caught.value) is not None
    free(disk)
    done = promote()
    assert (done.version.version, done.alias, done.version.aliases) == ("1", "champion", ("champion",))


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory, tiny: Ran, tiny_source: Path) -> Iterator[Home]:
    """A home with a finished run on a disk that can only be read."""
    with mounted(tmp_path_factory.mktemp("read-only") / "disk") as disk:
        home = home_at(disk / "home")
        shutil.copytree(tiny.run.home.store, home.store, dirs_exist_ok=True)
        run_whole(home, tiny_source)
        _mount("-o", "remount,ro", str(disk))
        yield home


@pytest.mark.parametrize(
    "arguments",
    [["sql", "select count(*) as n from documents"], ["status"], ["verify"], ["why", "text-00.txt"]],
    ids=lambda arguments: arguments[0],
)
def test_what_only_reads_works_on_a_home_that_can_only_be_read(read_only: Home, arguments: list[str]) -> None:
    assert answer(read_only.path, *arguments)


def test_a_run_says_that_the_home_cannot_be_written(read_only: Home, tiny_source: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        run_whole(read_only, tiny_source)


def test_what_writes_into_the_store_says_that_the_disk_can_only_be_read(read_only: Home) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)) as caught:
        Store(Path(read_only.store)).write_ref("corpus/other", {})
    assert str(lasting_fault(caught.value)).startswith("the disk can only be read (")


def test_a_command_says_so_in_one_sentence(read_only: Home) -> None:
    done = invoke(read_only.path, "forget", "text-00.txt")
    assert done.exit_code == 1
    assert done.stderr.startswith("sheepfold: ") and done.stderr.count("\n") == 1
    assert "can only be read" in done.stderr or "cannot be written" in done.stderr
