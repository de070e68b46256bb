"""Objects as sources: copied when they changed, and keys that no path could be.

A local filesystem of pyarrow stands for the bucket, which makes no difference to the code; where reads are counted, an
S3 server on loopback does.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import boto3
import pytest
from proxy import PASS, Proxy
from pyarrow import fs
from s3 import BUCKET

from storage.errors import UserError
from tasks.sources.hashing import HashMemo
from tasks.sources.ignore import Patterns
from tasks.sources.objects import ObjectRoot
from tasks.sources.resolve import Walked, WalkSettings, list_sources, resolve_sources, walk_sources
from tasks.sources.walk import Filters, FolderRoot, walk_roots

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
def root(bucket, tmp_path):
    """Makes the root of a prefix."""

    def make(base: str = "docs", include: Patterns | None = None) -> ObjectRoot:
        filesystem = fs.SubTreeFileSystem(str(bucket), fs.LocalFileSystem())
        return ObjectRoot(filesystem, base, tmp_path / "cache", f"s3://bucket/{base}", include)

    return make


def texts(root: ObjectRoot, filters: Filters | None = None) -> dict[str, str]:
    return {row.path: row.absolute.read_text() for row in walk_roots([root], (), filters or Filters()).files}


def test_objects_below_the_prefix_are_rows_with_a_copy(root):
    rows = walk_roots([root()]).files
    assert [(row.path, row.size, row.source) for row in rows] == [
        ("a.txt", 3, "s3://bucket/docs"),
        ("deep/b.PDF", 3, "s3://bucket/docs"),
    ]
    assert [row.absolute.suffix for row in rows] == [".txt", ".PDF"]
    assert texts(root()) == {"a.txt": "one", "deep/b.PDF": "two"}


def test_an_unchanged_object_is_not_read_again_and_its_row_is_the_same(root, bucket):
    first = walk_roots([root()])
    put(bucket / "docs/a.txt", "eno")  # size and time as they were: nobody can tell
    assert walk_roots([root()]) == first
    assert texts(root())["a.txt"] == "one"


@pytest.mark.parametrize(("text", "when"), [("other", LONG_AGO), ("eno", LONG_AGO + 1)], ids=["size", "time"])
def test_a_changed_object_is_copied_again(root, bucket, text, when):
    texts(root())
    put(bucket / "docs/a.txt", text, when)
    assert texts(root())["a.txt"] == text


def test_an_object_written_just_now_is_copied_again(root, bucket):
    now = time.time()
    put(bucket / "docs/a.txt", "one", now)
    texts(root())
    put(bucket / "docs/a.txt", "eno", now)
    assert texts(root())["a.txt"] == "eno"


def test_the_copy_of_an_object_that_is_gone_goes_too(root, bucket, tmp_path):
    texts(root())
    (bucket / "docs/a.txt").unlink()
    assert texts(root()) == {"deep/b.PDF": "two"}
    assert len(list((tmp_path / "cache").glob("*/*"))) == 1


def test_an_object_that_patterns_leave_out_is_not_copied(root, bucket, tmp_path):
    put(bucket / "docs/drafts/x.txt", "x")
    put(bucket / "docs/drafts/y.txt", "y")
    walk = walk_roots([root()], (), Filters(include=Patterns(["*.txt"]), exclude=Patterns(["drafts/"])))
    assert ([row.path for row in walk.files], walk.n_ignored) == (["a.txt"], 2)
    assert len(list((tmp_path / "cache").glob("*/*"))) == 1


def test_a_pattern_of_the_source_is_tied_to_the_prefix(root):
    assert set(texts(root("docs", Patterns(["/*.txt"])))) == {"a.txt"}


def test_tool_folders_are_one_skipped_row_each(root, bucket):
    put(bucket / "docs/node_modules/x/y.js", "x")
    put(bucket / "docs/node_modules/z.js", "z")
    rows = {row.path: row for row in walk_roots([root()]).files}
    assert set(rows) == {"a.txt", "deep/b.PDF", "node_modules"}
    assert rows["node_modules"].reason == "excluded folder"


def test_a_single_object_is_a_source(root):
    assert texts(root("docs/a.txt"), Filters(include=Patterns(["*.pdf"]))) == {"a.txt": "one"}


def test_paths_begin_with_the_prefix_where_there_are_several_sources(root, bucket):
    paths = [row.path for row in walk_roots([FolderRoot(bucket / "other"), root()]).files]
    assert paths == ["docs/a.txt", "docs/deep/b.PDF", "other/c.txt"]


def test_keys_that_are_no_paths_are_copied_beside_the_others(root, monkeypatch, tmp_path):
    listing = ObjectRoot._list
    odd = ["../../escape.txt", "/absolute", "a.txt/b", "x//y", "." + "long" * 200 + ".txt"]
    monkeypatch.setattr(ObjectRoot, "_list", lambda self: [(key, listing(self)[0][1]) for key in odd])
    rows = walk_roots([root()]).files
    assert {row.path for row in rows} == set(odd)
    assert {row.absolute.read_text() for row in rows} == {"one"}
    assert all(row.absolute.resolve().is_relative_to(tmp_path / "cache") for row in rows)


def test_an_object_that_cannot_be_fetched_is_a_failed_row_and_the_others_are_not(root, monkeypatch):
    listing = ObjectRoot._list
    gone = fs.FileInfo("docs/gone.txt", type=fs.FileType.File, size=3)
    monkeypatch.setattr(ObjectRoot, "_list", lambda self: [*listing(self), ("gone.txt", gone)])
    rows = {row.path: row for row in walk_roots([root()]).files}
    assert [rows[path].status for path in ("a.txt", "gone.txt")] == ["", "failed"]
    assert "cannot be fetched" in rows["gone.txt"].reason


def test_a_prefix_that_does_not_exist_is_named(root):
    with pytest.raises(UserError, match="s3://bucket/nowhere does not exist"):
        walk_roots([root("nowhere")])


def test_an_option_that_pyarrow_does_not_know_is_named(tmp_path):
    sources = resolve_sources(["s3://bucket/docs?nonsense=1"], tmp_path)
    with pytest.raises(UserError, match=r"cannot open s3://bucket/docs\?nonsense=1: .*nonsense"):
        list_sources(sources, WalkSettings().filters(), tmp_path / "cache")


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

        def walk(self, fetch: bool = True, scheme: str = "", limit: int = 100) -> Walked:
            reads.clear()
            sources = resolve_sources([f"{scheme}{s3_address}?endpoint_override={host}&scheme=http"])
            memo = HashMemo(tmp_path / "memo.db")
            return walk_sources(sources, WalkSettings(), limit, tmp_path / "cache", memo, fetch=fetch)

    yield S3()
    proxy.close()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_object_over_the_limit_is_rejected_by_the_listing_and_never_read(s3):
    s3.put(a="one", large="x" * 101)
    walked = s3.walk()
    assert s3.reads == ["a"]
    assert [(row.path, row.size, row.status) for row in walked.files] == [("a", 3, ""), ("large", 101, "rejected")]
    assert "101 bytes; the limit is 100 (extract.max_file_bytes)" in walked.files[1].reason
    assert walked.digests == [sha256("one"), None]


def test_a_corpus_in_a_bucket_has_no_limit(s3):
    s3.put(large="x" * 101)
    assert (s3.walk(scheme="documents:").digests, s3.reads) == ([sha256("x" * 101)], ["large"])


def test_a_plan_reads_no_object_and_counts_those_never_seen_as_new_content(s3):
    s3.put(a="one", b="two", large="x" * 101)
    walked = s3.walk(fetch=False)
    assert s3.reads == []
    assert [row.size for row in walked.files] == [3, 3, 101]
    assert (walked.n_pending, walked.locations, walked.digests[2]) == (2, {}, None)
    assert len({*walked.digests, sha256("one"), sha256("two")}) == 5
    assert s3.walk(fetch=False) == walked


def test_a_plan_knows_objects_of_earlier_runs_and_what_changed_since(s3):
    s3.put(a="one", b="two")
    s3.walk()
    assert sorted(s3.reads) == ["a", "b"]
    planned = s3.walk(fetch=False)
    assert (s3.reads, planned.n_pending, planned.digests) == ([], 0, [sha256("one"), sha256("two")])
    s3.put(a="other", c="three")
    planned = s3.walk(fetch=False)
    assert (s3.reads, planned.n_pending, planned.digests[1]) == ([], 2, sha256("two"))
    assert set(planned.locations) == {sha256("two")}
    assert s3.walk().digests == [sha256("other"), sha256("two"), sha256("three")]


def test_a_plan_deletes_no_copy(root, bucket, tmp_path):
    texts(root())
    (bucket / "docs/a.txt").unlink()
    assert [row.path for row in walk_roots([root()], (), Filters(fetch=False)).files] == ["deep/b.PDF"]
    assert len(list((tmp_path / "cache").glob("*/*"))) == 2
