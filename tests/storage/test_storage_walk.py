"""Unfinished work is looked at while its owner goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.store import Store, Workspace


def with_checkpoint(work: Workspace) -> Path:
    folder = work.scratch / "step-1"
    folder.mkdir()
    (folder / "weights").write_text("weights")
    return folder


def when_listed(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], object]) -> None:
    """Do something at the moment in which a folder is first about to be listed."""
    scandir, left = os.scandir, [act]

    def listed(path: Any = ".") -> Any:
        if left and str(path) == str(folder):
            left.pop()()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def replaced_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("act", [removed, replaced_by_a_file])
def test_a_folder_that_is_none_any_more_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    with store.workspace("train", "k") as work:
        folder = with_checkpoint(work)
        (work.scratch / "note").write_text("half way")
        when_listed(monkeypatch, folder, lambda: act(folder))
        (found,) = store.unfinished(owned=True)
    assert (found.stage, found.key) == ("train", "k") and found.size > len("half way")


def test_what_cannot_be_read_is_not_taken_for_empty(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with store.workspace("train", "k") as work:
        when_listed(monkeypatch, with_checkpoint(work), fail)
        with pytest.raises(OSError, match="Errno 5"):
            store.unfinished(owned=True)
