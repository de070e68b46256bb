"""Recursive listings of folders in which other processes work."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from busy_folders import when_listed

from storage.atomic import walk
from storage.store import Store


def with_checkpoint(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "weights").write_text(name)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    with_checkpoint(folder, "step-1")
    return folder


def test_unfinished_work_is_looked_at_while_its_owner_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    with store.workspace("train", "k") as work:
        with_checkpoint(work.scratch, "step-1")
        when_listed(monkeypatch, work.scratch / "step-1", lambda: shutil.rmtree(work.scratch / "step-1"))
        (found,) = store.unfinished(owned=True)
    assert (found.stage, found.key) == ("train", "k")


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def replaced_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("act", [removed, replaced_by_a_file])
def test_a_walk_passes_over_a_folder_that_is_none_any_more(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    with_checkpoint(scratch, "step-2")
    when_listed(monkeypatch, scratch / "step-1", lambda: act(scratch / "step-1"))
    found = [path.relative_to(scratch).as_posix() for path, _ in walk(scratch)]
    assert sorted(found) == ["step-1", "step-2", "step-2/weights"]


def test_a_walk_takes_what_it_cannot_read_for_no_empty_folder(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    when_listed(monkeypatch, scratch / "step-1", fail)
    with pytest.raises(OSError, match="Errno 5"):
        list(walk(scratch))
