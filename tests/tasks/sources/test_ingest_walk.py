"""Walking: everything gets a row, nothing is opened, nothing twice."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from listed import rows_of

from tasks.sources import folder as walk_module
from tasks.sources.address import WalkSettings, resolve_sources
from tasks.sources.folder import WalkedFile


def walk(sources: Sequence[Path], exclude: Sequence[Path] = ()) -> list[WalkedFile]:
    """Everything under some folders or files, as a person names them."""
    found = resolve_sources(map(str, sources))
    return rows_of(found, WalkSettings(respect_gitignore=False).filters(), Path("nothing is fetched"), exclude)


def rows_by_path(*sources, **options):
    return {row.path: row for row in walk(sources, **options)}


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_are_listed_sorted_with_paths_relative_to_their_source(tmp_path):
    for name in ("b.txt", "a/z.txt", "a.txt", "a/y/x.txt"):
        write(tmp_path / name, "12345")
    rows = walk([tmp_path])
    assert [row.path for row in rows] == sorted(["b.txt", "a/z.txt", "a.txt", "a/y/x.txt"])
    assert {(row.state.size, row.status, row.source) for row in rows} == {(5, "", str(tmp_path))}
    assert all(Path(row.location).is_file() and row.state.mtime_ns > 0 for row in rows)


def test_links_pipes_and_sockets_are_skipped_with_a_reason(tmp_path):
    write(tmp_path / "real.txt")
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        rows = rows_by_path(tmp_path)
    link = "symbolic link, not followed"
    assert {path: row.reason for path, row in rows.items()} == {
        "real.txt": "",
        "link.txt": link,
        "loop": link,
        "dangling": link,
        "pipe": "named pipe, not a file",
        "socket": "socket, not a file",
    }
    assert {row.status for path, row in rows.items() if path != "real.txt"} == {"skipped"}


def test_tool_folders_are_one_skipped_row_each(tmp_path):
    write(tmp_path / "deep/.git/config")
    write(tmp_path / "node_modules/a/b.js")
    write(tmp_path / "kept.git/readme")
    rows = rows_by_path(tmp_path)
    assert set(rows) == {"deep/.git", "node_modules", "kept.git/readme"}
    assert (rows["deep/.git"].status, rows["deep/.git"].reason) == ("skipped", "excluded folder")


def test_the_home_folder_has_no_row_at_all(tmp_path):
    write(tmp_path / "a.txt")
    write(tmp_path / "home/store/b.txt")
    assert set(rows_by_path(tmp_path, exclude=[tmp_path / "home"])) == {"a.txt"}


def test_an_unreadable_folder_is_one_failed_row(tmp_path, monkeypatch):
    write(tmp_path / "locked/secret.txt")
    write(tmp_path / "open.txt")
    scandir = os.scandir

    def refuse(folder):  # The tests may run as root, whom no permission stops.
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(walk_module.os, "scandir", refuse)
    rows = rows_by_path(tmp_path)
    assert set(rows) == {"locked", "open.txt"}
    assert rows["locked"].status == "failed"
    assert "Permission denied" in rows["locked"].reason


def test_names_that_are_not_utf8_are_percent_encoded_and_stay_distinct(tmp_path):
    for name in (b"caf\xe9.txt", b"caf%E9.txt", "café.txt".encode()):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("x")  # noqa: PTH118
    rows = rows_by_path(tmp_path)
    assert set(rows) == {"caf%E9.txt", "caf%25E9.txt", "café.txt"}
    assert all(Path(row.location).read_text() == "x" for row in rows.values())


def test_sources_of_the_same_name_get_distinct_paths_whatever_their_order(tmp_path):
    first, second = write(tmp_path / "a/docs/x.txt").parent, write(tmp_path / "b/docs/x.txt").parent
    file = write(tmp_path / "c/docs")
    paths = [row.path for row in walk([first, second, file])]
    assert paths == ["docs-2/x.txt", "docs-3", "docs/x.txt"]
    assert walk([file, second, first]) == walk([first, second, file])


def test_a_source_inside_an_excluded_folder_is_walked(tmp_path):
    write(tmp_path / ".venv/docs/x.txt")
    rows = walk([tmp_path, tmp_path / ".venv/docs"])
    assert [(Path(row.location).name, row.status) for row in rows] == [("x.txt", "")]


def test_a_folder_deeper_than_a_path_may_be_is_one_failed_row(tmp_path):
    write(tmp_path / "a.txt")
    name = "d" * 200
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    first, second = walk([tmp_path])
    assert (first.path, second.status) == ("a.txt", "failed")
    assert "File name too long" in second.reason


def test_a_row_carries_the_state_by_which_a_change_is_seen(tmp_path):
    file = write(tmp_path / "a.txt")
    (row,) = walk([tmp_path])
    status = file.stat()
    assert row.state == (
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )


def test_a_source_within_the_excluded_home_is_walked(tmp_path):
    write(tmp_path / "home/cache/b.txt")
    assert set(rows_by_path(tmp_path / "home/cache", exclude=[tmp_path / "home"])) == {"b.txt"}
