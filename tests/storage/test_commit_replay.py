"""Commits in which the power fails: whatever of what was not forced to the disk is lost, the store is whole.

What happens on a real file system is between two extremes, all of which are tried: nothing reaches the disk that no
fsync forces, and everything does (see `crash_replay`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import commit_child
import crash_replay
import pytest
from commit_child import KEY, MADE, STAGE

from storage.store import Store

OLD, NEW, OTHER = "the old text ", "the new text ", "another text "

Check = Callable[[Path, bool], None]  # of a store, and whether the action had come to its end


def _replay(tmp_path: Path, action: str, check: Check) -> int:
    """Check the store after each failure of the power; returns how many different ones there were."""
    root, before = tmp_path / "store", tmp_path / "before"
    commit_child.prepare(root, action, OLD)
    if root.is_dir():
        copytree(root, before)
    log = crash_replay.record(tmp_path / "log", commit_child.command(action, root, NEW))
    count = 0
    for moment, tree, ended in crash_replay.states(root, before, log):
        count += 1
        folder = crash_replay.write(tree, tmp_path / "left")
        try:
            check(folder, ended)
        except BaseException as error:
            error.add_note(f"{action}: the power failed after {moment}, and there was left: {sorted(tree)}")
            raise
        rmtree(folder)
    return count


@pytest.fixture(autouse=True)
def traced(strace: None) -> None:
    """strace is there."""


def test_a_first_commit_leaves_no_artefact_or_the_whole_one_and_when_it_returned_the_whole_one(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.artifact_text(root) in ({NEW} if ended else {None, NEW})
        commit_child.commit(root, NEW)
        assert commit_child.artifact_text(root) == NEW

    assert _replay(tmp_path, "commit", check) > 50


def test_a_refresh_leaves_the_old_artefact_the_new_one_or_none_and_loses_none_to_the_next_run(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.artifact_text(root) in ({NEW} if ended else {None, OLD, NEW})
        commit_child.commit(root, OTHER)
        assert commit_child.artifact_text(root) in ({NEW} if ended else {OLD, NEW})

    assert _replay(tmp_path, "refresh", check) > 50


def test_a_ref_stands_at_the_old_value_or_the_new_one_and_when_it_was_written_at_the_new_one(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.ref_text(root) in ({NEW} if ended else {OLD, NEW})

    assert _replay(tmp_path, "ref", check) > 3


def test_the_first_ref_of_a_store_is_there_when_it_was_written(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.ref_text(root) in ({NEW} if ended else {None, NEW})

    root = tmp_path / "store"
    root.mkdir()
    log = crash_replay.record(tmp_path / "log", commit_child.command("ref", root, NEW))
    for number, (_, tree, ended) in enumerate(crash_replay.states(root, tmp_path / "nothing", log)):
        check(crash_replay.write(tree, tmp_path / str(number)), ended)


def test_a_ref_that_was_taken_away_does_not_come_back(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.ref_text(root) in ({None} if ended else {None, OLD})

    assert _replay(tmp_path, "unref", check) > 1


def test_a_forgotten_document_is_noted_when_that_was_said_and_none_that_was_noted_is_lost(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.forgotten(root) in ([{OLD, NEW}] if ended else [{OLD}, {OLD, NEW}])

    assert _replay(tmp_path, "tombstone", check) > 3


def test_clearing_up_leaves_whole_artefacts_with_what_they_were_made_from(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.whole(root) in ([set()] if ended else [set(), {STAGE}, {STAGE, MADE}])
        commit_child.sweep(root, NEW)
        assert Store(root).keys(STAGE) == Store(root).keys(MADE) == []

    assert _replay(tmp_path, "sweep", check) > 10


def test_an_artefact_that_is_taken_out_is_there_or_recorded(tmp_path: Path) -> None:
    def check(root: Path, ended: bool) -> None:
        assert commit_child.whole(root) in ([{MADE}] if ended else [{MADE}, {MADE, STAGE}])
        commit_child.remove(root, NEW)
        assert Store(root).removed_manifest(STAGE, KEY) is not None

    assert _replay(tmp_path, "remove", check) > 5
