"""Digests: right, remembered only when safe, and never dependent on the memo."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from listed import digests_of, rows_of

from tasks.sources import listing
from tasks.sources.folder import Filters, FolderSource, WalkedFile, open_regular
from tasks.sources.listing import HashMemo


def walk(folder: Path) -> list[WalkedFile]:
    """Everything under a folder."""
    return rows_of([FolderSource(folder)], Filters(), folder.parent / "cache")


@pytest.fixture
def opened(monkeypatch):
    """The files that were opened to be hashed."""
    paths = []
    original = listing.open_regular
    monkeypatch.setattr(listing, "open_regular", lambda path: (paths.append(path), original(path))[1])
    return paths


@pytest.fixture
def settled(monkeypatch):
    """As if the files had been written long before: nobody can set a file's ctime."""
    monkeypatch.setattr(listing, "DISTRUST_NS", -3600 * 10**9)


def make(folder: Path, **files: str) -> list:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return walk(folder)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_unchanged_file_is_not_opened_again(tmp_path, opened, settled):
    files = make(tmp_path / "in", a="one", b="two")
    first = digests_of(files, HashMemo(tmp_path / "memo.db"))
    opened.clear()
    assert digests_of(files, HashMemo(tmp_path / "memo.db")) == first
    assert opened == []


def test_only_the_changed_file_is_read_even_if_size_and_mtime_were_restored(tmp_path, opened, settled):
    memo = HashMemo(tmp_path / "memo.db")
    digests_of(make(tmp_path / "in", a="one", b="two"), memo)
    changed = tmp_path / "in" / "a"
    before = changed.stat()
    deadline = time.monotonic() + 5
    while changed.stat().st_ctime_ns == before.st_ctime_ns and time.monotonic() < deadline:
        changed.write_text("eno")
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    opened.clear()
    assert digests_of(walk(tmp_path / "in"), memo) == [sha256("eno"), sha256("two")]
    assert opened == [changed]


def test_what_is_remembered_is_the_state_that_was_read_not_the_one_that_was_walked(tmp_path, opened, settled):
    stale = make(tmp_path / "in", a="one")
    memo = HashMemo(tmp_path / "memo.db")
    (tmp_path / "in" / "a").write_text("and more")
    assert digests_of(stale, memo) == [sha256("and more")]
    opened.clear()
    assert digests_of(walk(tmp_path / "in"), memo) == [sha256("and more")]
    assert opened == []


def test_a_known_file_that_cannot_be_opened_keeps_its_digest(tmp_path, settled):
    files = make(tmp_path / "in", a="one")
    memo = HashMemo(tmp_path / "memo.db")
    digests_of(files, memo)
    (tmp_path / "in" / "a").unlink()
    assert digests_of(files, memo) == [sha256("one")]


def test_digests_stand_beside_their_rows_and_rows_with_a_status_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "BATCH_FILES", 2)
    make(tmp_path / "in", a="one", c="three", d="four")
    (tmp_path / "in" / "b").symlink_to("a")
    files = walk(tmp_path / "in")
    assert [file.path for file in files] == ["a", "b", "c", "d"]
    assert digests_of(files, HashMemo(tmp_path / "memo.db")) == [
        sha256("one"),
        None,
        sha256("three"),
        sha256("four"),
    ]


def test_more_files_than_one_query_may_ask_for_are_all_found(tmp_path, opened, settled, monkeypatch):
    monkeypatch.setattr(listing, "BATCH_FILES", 3)
    files = make(tmp_path / "in", **{f"f{number}": str(number) for number in range(10)})
    memo = HashMemo(tmp_path / "memo.db")
    first = digests_of(files, memo)
    opened.clear()
    assert digests_of(files, memo) == first
    assert opened == []


def test_a_name_that_is_not_utf8_is_remembered(tmp_path, opened, settled):
    files = make(tmp_path / "in", **{os.fsdecode(b"caf\xe9"): "one"})
    memo = HashMemo(tmp_path / "memo.db")
    digests_of(files, memo)
    opened.clear()
    assert digests_of(files, memo) == [sha256("one")]
    assert opened == []


def test_a_file_written_just_now_is_read_again_next_time(tmp_path, opened):
    files = make(tmp_path / "in", a="one")
    memo = HashMemo(tmp_path / "memo.db")
    digests_of(files, memo)
    digests_of(files, memo)
    assert len(opened) == 2


def test_a_file_that_cannot_be_read_is_an_error_and_the_others_are_not(tmp_path):
    files = make(tmp_path / "in", gone="x", kept="y")
    (tmp_path / "in" / "gone").unlink()
    gone, kept = digests_of(files, HashMemo(tmp_path / "memo.db"))
    assert isinstance(gone, FileNotFoundError)
    assert kept == sha256("y")


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough" * 200], ids=["empty", "junk"])
def test_a_damaged_memo_is_replaced(tmp_path, content, opened, settled):
    (tmp_path / "memo.db").write_bytes(content)
    files = make(tmp_path / "in", a="one")
    for _ in range(2):
        assert digests_of(files, HashMemo(tmp_path / "memo.db")) == [sha256("one")]
    assert len(opened) == 1


def test_a_memo_damaged_in_the_middle_costs_only_a_rehash(tmp_path, settled):
    files = make(tmp_path / "in", **{f"f{number}": str(number) for number in range(200)})
    path = tmp_path / "memo.db"
    first = digests_of(files, HashMemo(path))
    size = path.stat().st_size
    with path.open("r+b") as memo:
        memo.seek(4096)
        memo.write(b"\xff" * (size - 4096))
    assert digests_of(files, HashMemo(path)) == first
    assert digests_of(files, HashMemo(path)) == first


def test_a_memo_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    files = make(tmp_path / "in", a="one")
    assert digests_of(files, HashMemo(tmp_path / "file" / "memo.db")) == [sha256("one")]


def test_several_processes_may_use_the_memo_at_once(tmp_path):
    make(tmp_path / "in", **{f"f{number}": str(number) for number in range(100)})
    script = (
        "import sys, pathlib\n"
        "from tasks.sources import listing\n"
        "from tasks.sources.folder import Filters, FolderSource\n"
        "listing.DISTRUST_NS, listing.BATCH_FILES = -10**13, 5\n"
        "memo = listing.HashMemo(pathlib.Path(sys.argv[2]))\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "files = listing.walk_sources([FolderSource(folder)], Filters(), folder)\n"
        "found = [digest for _, digest in listing.digest_files(files, memo)]\n"
        "assert len(found) == 100 and all(isinstance(digest, str) for digest in found)\n"
    )
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", script, str(tmp_path / "in"), str(tmp_path / "memo.db")]
    processes = [subprocess.Popen(command, cwd=root) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4


def test_a_pipe_that_took_a_files_place_is_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_regular(tmp_path / "pipe")
