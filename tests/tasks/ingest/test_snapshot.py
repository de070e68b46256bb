"""The snapshot: which licence holds where, and what of a listing counts as content."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingest_run import Ingestion, home_at, ingest, prose, settings_of, write
from tiny_run import direct_run

from flows.ingest import ingest_documents
from storage.home import Home
from storage.tables import read_rows
from tasks.ingest import extract as extract_module
from tasks.ingest.journal import read_document
from tasks.readers.records import Extraction

MIT = """Copyright (c) 2020 A. Shepherd

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, subject to the
following conditions: The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.
"""
GPL = """GNU GENERAL PUBLIC LICENSE
Version 3, 29 June 2007

Everyone is permitted to copy and distribute verbatim copies of this license document, but changing it is not allowed.
"""
FREE = "This is free and unencumbered software released into the public domain.\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """MIT above, GPL nearer to some."""
    return write(
        tmp_path / "in",
        {
            "outside.txt": prose(0),
            "project/LICENSE": MIT,
            "project/readme.txt": prose(1),
            "project/src/deep/one.txt": prose(2),
            "project/vendor/COPYING": GPL,
            "project/vendor/two.txt": prose(3),
            "project/vendor/lib/three.txt": prose(4),
        },
    )


def licences(ran: Ingestion) -> dict[str, str | None]:
    """The licence of every path but the licences' own."""
    rows = ran.files()
    return {path: row["licence"] for path, row in rows.items() if not path.endswith(("LICENSE", "COPYING"))}


def digest(ran: Ingestion) -> str:
    return ran.ingested.snapshot.digest


def zipped(files: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return file.getvalue()


def test_the_licence_of_the_nearest_folder_above_holds(home: Home, tree: Path) -> None:
    assert licences(ingest(home, tree)) == {
        "outside.txt": None,
        "project/readme.txt": "MIT",
        "project/src/deep/one.txt": "MIT",
        "project/vendor/two.txt": "GPL-3.0-only",
        "project/vendor/lib/three.txt": "GPL-3.0-only",
    }


def test_a_licence_reaches_the_documents_and_the_policy(home: Home, tree: Path) -> None:
    ran = ingest(home, tree, "policy.licences=MIT,unknown")
    assert {path: code for path, code in ran.codes().items() if "vendor" in path and "COPYING" not in path} == {
        "project/vendor/two.txt": "licence",
        "project/vendor/lib/three.txt": "licence",
    }
    found = {row["doc_id"]: row["licence"] for row in ran.query("select doc_id, licence from documents")}
    assert found[ran.doc_id("project/readme.txt")] == "MIT"
    assert found[ran.doc_id("outside.txt")] is None


def test_a_document_s_own_licence_comes_before_its_folder_s(home: Home, tree: Path) -> None:
    write(tree, {"project/own.py": f"# SPDX-License-Identifier: Apache-2.0\nprint('{prose(9, 20).splitlines()[0]}')\n"})
    ran = ingest(home, tree)
    assert ran.selection()["project/own.py"]["licence"] == "Apache-2.0"
    assert ran.files()["project/own.py"]["licence"] == "MIT"


@pytest.mark.full
def test_inside_an_archive_the_nearest_folder_counts_too_and_the_archive_s_own_folder_after_it(
    home: Home, tmp_path: Path
) -> None:
    members = {"a/LICENSE": GPL, "a/one.txt": prose(1), "b/two.txt": prose(2)}
    source = write(
        tmp_path / "in",
        {"x/LICENSE": MIT, "x/box.zip": zipped(members), "y/other.zip": zipped({**members, "c": prose(4)})},
    )
    found = ingest(home, source).files()
    assert {path: found[path]["licence"] for path in ("x/box.zip/a/one.txt", "x/box.zip/b/two.txt")} == {
        "x/box.zip/a/one.txt": "GPL-3.0-only",
        "x/box.zip/b/two.txt": "MIT",
    }
    assert (found["y/other.zip/a/one.txt"]["licence"], found["y/other.zip/b/two.txt"]["licence"]) == (
        "GPL-3.0-only",
        None,
    )


def test_a_licence_at_the_top_of_an_archive_holds_in_it_and_not_beside_it(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"box.zip": zipped({"LICENSE": MIT, "one.txt": prose(1)}), "beside.txt": prose(2)})
    found = ingest(home, source).files()
    assert found["box.zip/one.txt"]["licence"] == "MIT"
    assert found["beside.txt"]["licence"] is None


@pytest.mark.full
def test_a_folder_in_one_source_lends_its_licence_to_no_other_source(home: Home, tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"LICENSE": MIT, "a.txt": prose(1)})
    other = write(tmp_path / "other", {"b.txt": prose(2)})
    with direct_run(home) as run:
        found = ingest_documents(run, f"{one}\n{other}", settings_of())
        rows = read_rows(run.store.folder(found.snapshot) / "files.parquet")
    assert {Path(row["path"]).name: row["licence"] for row in rows}["b.txt"] is None
    assert {Path(row["path"]).name: row["licence"] for row in rows}["a.txt"] == "MIT"


@pytest.mark.full
def test_a_licence_file_that_states_none_lends_none_and_the_next_above_holds(home: Home, tree: Path) -> None:
    write(tree, {"project/src/LICENSE": "See the file in the folder above for what you may do with all of this.\n"})
    assert licences(ingest(home, tree))["project/src/deep/one.txt"] == "MIT"


@pytest.mark.full
def test_of_two_licence_files_in_a_folder_the_same_one_counts_whatever_they_are_called(
    home: Home, tmp_path: Path
) -> None:
    found = []
    for first, second in ((MIT, FREE), (FREE, MIT)):
        source = write(tmp_path / f"in-{len(found)}", {"LICENSE-1": first, "LICENSE-2": second, "a.txt": prose(1)})
        found.append(ingest(home_at(tmp_path / f"home-{len(found)}"), source).files()["a.txt"]["licence"])
    assert found == ["MIT", "MIT"]


def test_moving_a_folder_under_another_licence_changes_licences_and_the_digest_and_extracts_nothing(
    home: Home, tree: Path
) -> None:
    before = ingest(home, tree)
    (tree / "project" / "vendor" / "lib").rename(tree / "project" / "lib")
    after = ingest(home, tree)
    assert after.files()["project/lib/three.txt"]["licence"] == "MIT"
    assert digest(after) != digest(before)
    assert {"snapshot", "curate"} <= after.computed().keys()
    assert not {"extract", "normalise", "measure", "refine"} & after.computed().keys()
    assert after.selection()["project/lib/three.txt"]["licence"] == "MIT"


@pytest.mark.full
def test_renaming_files_under_the_same_licence_changes_no_digest(home: Home, tree: Path) -> None:
    before = ingest(home, tree)
    (tree / "project" / "readme.txt").rename(tree / "project" / "src" / "read-me.txt")
    (tree / "outside.txt").rename(tree / "Outside.txt")
    after = ingest(home, tree)
    assert digest(after) == digest(before)
    assert after.computed() == {"snapshot": 1}


@pytest.mark.full
def test_a_licence_file_at_a_second_path_holds_there_too(home: Home, tree: Path) -> None:
    """The same bytes are one document, but each folder has the file."""
    write(tree, {"another/LICENSE": MIT, "another/six.txt": prose(6)})
    found = ingest(home, tree).files()
    assert {found[f"{folder}/LICENSE"]["status"] for folder in ("another", "project")} == {"ok", "duplicate"}
    assert found["another/six.txt"]["licence"] == "MIT"


def test_a_container_that_was_given_up_is_at_its_second_path_a_duplicate_of_what_its_members_are(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = zipped({"one.txt": prose(1), "two.txt": prose(2)})
    source = write(tmp_path / "in", {"a.zip": box, "b.zip": box, "c.txt": prose(3)})

    def give_up(out: Path) -> Iterator[Extraction]:
        for found in read_document(out):
            if found.kind == "archive":
                found.status, found.reason_code, found.reason = "failed", "crashed", "the extraction process died"
            yield found

    monkeypatch.setattr(extract_module, "read_document", give_up)
    rows = ingest(home, source).files()
    assert {path: row["status"] for path, row in rows.items()} == {
        "a.zip": "failed",
        "a.zip/one.txt": "ok",
        "a.zip/two.txt": "ok",
        "b.zip": "duplicate",
        "c.txt": "ok",
    }


def test_every_path_has_a_status_and_every_status_but_ok_a_reason(home: Home, tree: Path) -> None:
    write(tree, {"nothing.txt": "", "noise.bin": bytes(range(256)) * 9, "again.txt": prose(0)})
    (tree / "link.txt").symlink_to("outside.txt")
    os.mkfifo(tree / "pipe")
    rows = ingest(home, tree).files()
    assert {"nothing.txt", "noise.bin", "again.txt", "link.txt", "pipe"} <= rows.keys()
    assert [path for path, row in rows.items() if not row["status"]] == []
    assert [
        path for path, row in rows.items() if row["status"] != "ok" and not (row["reason"] and row["reason_code"])
    ] == []
