"""Objects as sources: copied when they changed, and keys that no path could be.

A local filesystem of pyarrow stands for the bucket, which makes no difference to the code; where reads are counted, an
S3 server on loopback does.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from listed import rows_of
from proxy import PASS, Proxy
from pyarrow import fs
from s3 import BUCKET

from storage.errors import UserError
from tasks.sources import objects
from tasks.sources.address import WalkSettings, resolve_sources
from tasks.sources.folder import Filters, FolderSource, WalkedFile
from tasks.sources.ignore import Patterns
from tasks.sources.listing import HashMemo, Listed, list_sources, walk_sources
from tasks.sources.objects import ObjectSource

LONG_AGO = 1_600_000_000


def put(path: Path, text: str, when: float = LONG_AGO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when, when))


@pytest.fixture
def bucket(tmp_path) -> Path:
    """A folder that stands for a bucket."""
    for name, text in {"docs/a.txt": "one", "docs/deep/b.PDF": "two", "other/c.txt": "no"}.items():
        put(tmp_path / "bucket" / name, text)
    return tmp_path / "bucket"


@pytest.fixture
def walk(bucket, tmp_path, monkeypatch):
    """Walks a prefix."""

    def open_bucket(address: str) -> tuple[fs.FileSystem, str]:
        return fs.SubTreeFileSystem(str(bucket), fs.LocalFileSystem()), address.removeprefix("s3://bucket/")

    def walked(
        base: str = "docs", filters: Filters | None = None, *others: FolderSource, **options: Any
    ) -> list[WalkedFile]:
        source = ObjectSource(f"s3://bucket/{base}", **options)
        return rows_of([*others, source], filters or Filters(), tmp_path / "cache")

    monkeypatch.setattr(objects, "open_bucket", open_bucket)
    return walked


@pytest.fixture
def copies(tmp_path):
    """Lists the copies."""
    return lambda: list((tmp_path / "cache").glob("s3/*/*/*"))


def texts(rows: list[WalkedFile]) -> dict[str, str]:
    return {row.path: Path(row.location).read_text() for row in rows}


def test_objects_below_the_prefix_are_rows_with_a_copy(walk):
    rows = walk()
    assert [(row.path, row.state.size, row.source) for row in rows] == [
        ("a.txt", 3, "s3://bucket/docs"),
        ("deep/b.PDF", 3, "s3://bucket/docs"),
    ]
    assert [Path(row.location).suffix for row in rows] == [".txt", ".PDF"]
    assert texts(walk()) == {"a.txt": "one", "deep/b.PDF": "two"}


def test_an_unchanged_object_is_not_read_again_and_its_row_is_the_same(walk, bucket):
    first = walk()
    put(bucket / "docs/a.txt", "eno")  # size and time as they were: nobody can tell
    assert walk() == first
    assert texts(walk())["a.txt"] == "one"


@pytest.mark.parametrize(("text", "when"), [("other", LONG_AGO), ("eno", LONG_AGO + 1)], ids=["size", "time"])
def test_a_changed_object_is_copied_again(walk, bucket, text, when):
    texts(walk())
    put(bucket / "docs/a.txt", text, when)
    assert texts(walk())["a.txt"] == text


def test_an_object_written_just_now_is_copied_again(walk, bucket):
    now = time.time()
    put(bucket / "docs/a.txt", "one", now)
    texts(walk())
    put(bucket / "docs/a.txt", "eno", now)
    assert texts(walk())["a.txt"] == "eno"


def test_the_copy_of_an_object_that_is_gone_goes_too(walk, bucket, copies):
    texts(walk())
    (bucket / "docs/a.txt").unlink()
    assert texts(walk()) == {"deep/b.PDF": "two"}
    assert len(copies()) == 1


def test_an_object_that_patterns_leave_out_is_not_copied(walk, bucket, copies):
    put(bucket / "docs/drafts/x.txt", "x")
    put(bucket / "docs/drafts/y.txt", "y")
    assert texts(walk("docs", Filters(include=Patterns(["*.txt"]), exclude=Patterns(["drafts/"])))) == {"a.txt": "one"}
    assert len(copies()) == 1


def test_a_pattern_of_the_source_is_tied_to_the_prefix(walk):
    assert set(texts(walk(include=("/*.txt",)))) == {"a.txt"}


def test_tool_folders_are_one_skipped_row_each(walk, bucket):
    put(bucket / "docs/node_modules/x/y.js", "x")
    put(bucket / "docs/node_modules/z.js", "z")
    rows = {row.path: row for row in walk()}
    assert set(rows) == {"a.txt", "deep/b.PDF", "node_modules"}
    assert rows["node_modules"].reason == "excluded folder"


def test_a_single_object_is_a_source(walk):
    rows = walk("docs/a.txt", Filters(include=Patterns(["*.pdf"])))
    assert texts(rows) == {"a.txt": "one"}
    assert [Path(row.location).suffix for row in rows] == [".txt"]  # it decides how the file is read


def test_a_copy_has_the_suffix_of_its_object(walk, bucket):
    names = {"a.c++", "a.h++", "a.tar.gz", "a.F90"}
    for name in names:
        put(bucket / "code" / name, "x")
    assert {row.path: Path(row.location).suffix for row in walk("code")} == {n: Path(n).suffix for n in names}


def test_paths_begin_with_the_prefix_where_there_are_several_sources(walk, bucket):
    paths = [row.path for row in walk("docs", None, FolderSource(bucket / "other"))]
    assert paths == ["docs/a.txt", "docs/deep/b.PDF", "other/c.txt"]


def test_keys_that_are_no_paths_are_copied_beside_the_others(walk, monkeypatch, tmp_path):
    listing = objects._list
    odd = ["../../escape.txt", "/absolute", "a.txt/b", "x//y", "." + "long" * 200 + ".txt"]
    monkeypatch.setattr(objects, "_list", lambda *where: [(key, listing(*where)[0][1]) for key in odd])
    rows = walk()
    assert {row.path for row in rows} == set(odd)
    assert {Path(row.location).read_text() for row in rows} == {"one"}
    assert all(Path(row.location).resolve().is_relative_to(tmp_path / "cache") for row in rows)


def test_an_object_that_cannot_be_fetched_is_a_failed_row_and_the_others_are_not(walk, monkeypatch):
    listing = objects._list
    gone = fs.FileInfo("docs/gone.txt", type=fs.FileType.File, size=3)
    monkeypatch.setattr(objects, "_list", lambda *where: [*listing(*where), ("gone.txt", gone)])
    rows = {row.path: row for row in walk()}
    assert [rows[path].status for path in ("a.txt", "gone.txt")] == ["", "failed"]
    assert "cannot be fetched" in rows["gone.txt"].reason


def test_a_prefix_that_does_not_exist_is_named(walk):
    with pytest.raises(UserError, match="s3://bucket/nowhere does not exist"):
        walk("nowhere")


def test_an_option_that_pyarrow_does_not_know_is_named(tmp_path):
    sources = resolve_sources(["s3://bucket/docs?nonsense=1"], tmp_path)
    with pytest.raises(UserError, match=r"cannot open s3://bucket/docs\?nonsense=1: .*nonsense"):
        list(walk_sources(sources, WalkSettings().filters(), tmp_path / "cache"))


@pytest.fixture
def s3(s3_endpoint, s3_address, monkeypatch, tmp_path):
    """Puts objects on S3, and walks them; which keys were read is noted in `reads`."""
    proxy, reads = Proxy(s3_endpoint), []

    def note(method: str, path: str) -> str:
        if method == "GET" and "list-type" not in path:
            reads.append(path.partition("?")[0].rpartition("/")[2])
        return PASS

    proxy.decide = note
    prefix = s3_address.rpartition("/")[2]
    host = proxy.endpoint.removeprefix("http://")
    client = boto3.session.Session().client("s3")

    class S3:
        def __init__(self) -> None:
            self.reads = reads

        def put(self, **texts: str) -> None:
            for name, text in texts.items():
                client.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=text.encode())

        def walk(self, fetch: bool = True, scheme: str = "", limit: int = 100) -> Listed:
            reads.clear()
            sources = resolve_sources([f"{scheme}{s3_address}?endpoint_override={host}&scheme=http"])
            memo = HashMemo(tmp_path / "memo.db")
            return list_sources(sources, WalkSettings(), limit, tmp_path / "cache", memo, fetch=fetch)

    yield S3()
    proxy.close()


def digests(walked: Listed) -> list[str | None]:
    return [file.sha256 for file in walked.files]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_object_over_the_limit_is_rejected_by_the_listing_and_never_read(s3):
    s3.put(a="one", large="x" * 101)
    walked = s3.walk()
    assert s3.reads == ["a"]
    assert [(row.path, row.size, row.status) for row in walked.files] == [("a", 3, ""), ("large", 101, "rejected")]
    assert "101 bytes; the limit is 100 (extract.max_file_bytes)" in walked.files[1].reason
    assert digests(walked) == [sha256("one"), None]


def test_a_corpus_in_a_bucket_has_no_limit(s3):
    s3.put(large="x" * 101)
    assert (digests(s3.walk(scheme="documents:")), s3.reads) == ([sha256("x" * 101)], ["large"])


def test_a_plan_reads_no_object_and_counts_those_never_seen_as_new_content(s3):
    s3.put(a="one", b="two", large="x" * 101)
    walked = s3.walk(fetch=False)
    assert s3.reads == []
    assert [row.size for row in walked.files] == [3, 3, 101]
    assert (walked.n_pending, walked.locations, digests(walked)[2]) == (2, {}, None)
    assert len({*digests(walked), sha256("one"), sha256("two")}) == 5
    assert s3.walk(fetch=False) == walked


def test_a_plan_knows_objects_of_earlier_runs_and_what_changed_since(s3):
    s3.put(a="one", b="two")
    s3.walk()
    assert sorted(s3.reads) == ["a", "b"]
    planned = s3.walk(fetch=False)
    assert (s3.reads, planned.n_pending, digests(planned)) == ([], 0, [sha256("one"), sha256("two")])
    s3.put(a="other", c="three")
    planned = s3.walk(fetch=False)
    assert (s3.reads, planned.n_pending, digests(planned)[1]) == ([], 2, sha256("two"))
    assert set(planned.locations) == {sha256("two")}
    assert digests(s3.walk()) == [sha256("other"), sha256("two"), sha256("three")]


def test_a_plan_deletes_no_copy(walk, bucket, copies):
    texts(walk())
    (bucket / "docs/a.txt").unlink()
    assert [row.path for row in walk("docs", Filters(fetch=False))] == ["deep/b.PDF"]
    assert len(copies()) == 2
