"""The copy of unfinished work in a bucket: it is taken while the owner goes on, whatever happens in the folder."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from busy_folders import when_listed

from storage.bucket import Bucket
from storage.mirror import Mirror
from storage.store import LocalStore
from storage.walk import walk

PREFIX = ".work/train/k/scratch/"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Unfinished work with one checkpoint."""
    return with_checkpoint(tmp_path / "scratch", "step-1")


def with_checkpoint(scratch: Path, name: str) -> Path:
    (scratch / name).mkdir(parents=True)
    (scratch / name / "weights").write_text(name)
    return scratch


def names(bucket: Bucket) -> list[str]:
    return [info.name.removeprefix(PREFIX) for info in bucket.objects(PREFIX)]


@pytest.fixture
def bucket(s3_address: str) -> Bucket:
    return Bucket(s3_address)


def test_a_checkpoint_that_is_replaced_while_the_folder_is_listed_is_in_the_copy_until_the_new_one_is(
    bucket: Bucket, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(bucket, PREFIX, scratch)
    mirror.send()
    assert names(bucket) == ["step-1/weights"]
    copies = []

    def replace() -> None:
        shutil.rmtree(scratch / "step-1")
        with_checkpoint(scratch, "step-2")

    upload = Bucket.upload

    def note_and_upload(self: Bucket, name: str, path: Path) -> None:
        copies.append(names(bucket))
        upload(self, name, path)

    monkeypatch.setattr(Bucket, "upload", note_and_upload)
    when_listed(monkeypatch, scratch / "step-1", replace)
    mirror.send()
    assert copies == [["step-1/weights"]]
    assert names(bucket) == ["step-2/weights"]


def test_a_fault_of_the_disk_does_not_end_the_copying(
    bucket: Bucket, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent, upload = Event(), Bucket.upload

    def upload_and_tell(self: Bucket, name: str, path: Path) -> None:
        upload(self, name, path)
        sent.set()

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Bucket, "upload", upload_and_tell)
    when_listed(monkeypatch, scratch / "step-1", fail)
    with Mirror(bucket, PREFIX, scratch).kept(seconds=0.001):
        assert sent.wait(60)
    assert names(bucket) == ["step-1/weights"]
    assert "is kept on this machine only: [Errno 5]" in caplog.text


def test_unfinished_work_is_looked_at_while_its_owner_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "store")
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
