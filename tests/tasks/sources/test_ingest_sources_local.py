"""Sources as they are written: what each string means, and precise errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from listed import rows_of

from storage.errors import UserError
from tasks.sources.address import WalkSettings, resolve_sources


def write(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def canonical(*sources: str, base: Path) -> list[str]:
    return [str(source) for source in resolve_sources(sources, base)]


def paths(*sources: str, base: Path, **settings) -> list[str]:
    rows = rows_of(resolve_sources(sources, base), WalkSettings(**settings).filters(), base / "cache")
    return [row.path for row in rows]


def test_relative_paths_count_from_the_base_and_each_source_is_there_once(tmp_path):
    write(tmp_path, "docs/a.txt", "b.txt")
    found = canonical("docs\n\n ./docs/ \n", "b.txt", f"file://{tmp_path}/docs", base=tmp_path)
    assert found == [str(tmp_path / "docs"), str(tmp_path / "b.txt")]
    assert canonical(*found, base=Path("/")) == found


def test_home_is_expanded(tmp_path, monkeypatch):
    write(tmp_path, "docs/a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert canonical("~/docs", base=Path("/")) == [str(tmp_path / "docs")]


def test_a_file_address_is_unquoted(tmp_path):
    write(tmp_path, "a b#c/x.txt")
    assert canonical(f"file://{tmp_path}/a%20b%23c", base=tmp_path) == [str(tmp_path / "a b#c")]


def test_a_pattern_lists_what_it_names_below_its_folder(tmp_path):
    write(tmp_path, "docs/a.pdf", "docs/b.txt", "docs/deep/c.pdf", "docs/deep/er/d.pdf", "e.pdf")
    assert paths("docs/**/*.pdf", base=tmp_path) == ["a.pdf", "deep/c.pdf", "deep/er/d.pdf"]
    assert paths("docs/*.pdf", base=tmp_path) == ["a.pdf"]
    assert paths("docs/d*/er", base=tmp_path) == ["deep/er/d.pdf"]
    found = canonical("docs/*.pdf", base=tmp_path)
    assert canonical(*found, base=Path("/")) == found == [f"{tmp_path}/docs/*.pdf"]


def test_patterns_for_one_folder_are_one_source(tmp_path):
    write(tmp_path, "docs/a.pdf", "docs/b.txt", "docs/c.png")
    assert paths("docs/*.pdf", "docs/*.txt", base=tmp_path) == ["a.pdf", "b.txt"]
    assert paths("docs/*.pdf", "docs", base=tmp_path) == ["a.pdf", "b.txt", "c.png"]


def test_a_pattern_and_the_settings_must_both_take_a_file(tmp_path):
    write(tmp_path, "docs/a.pdf", "docs/new/b.pdf", "docs/new/c.txt")
    assert paths("docs/**/*.pdf", base=tmp_path, include="new/") == ["new/b.pdf"]


def test_a_name_with_wildcards_that_exists_means_itself(tmp_path):
    write(tmp_path, "report[1].txt", "report1.txt")
    assert paths("report[1].txt", base=tmp_path) == ["report[1].txt"]


def test_a_file_that_is_named_is_listed_whatever_the_patterns_say(tmp_path):
    write(tmp_path, "a.txt")
    assert paths("a.txt", base=tmp_path, include="*.pdf", exclude="*.txt") == ["a.txt"]


def test_the_order_of_sources_does_not_matter_and_overlaps_are_listed_once(tmp_path):
    write(tmp_path, "top/sub/x.txt", "top/y.txt", "other/z.txt")
    found = paths("top/sub", "top", "other", base=tmp_path)
    assert found == paths("other", "top", "top/sub", base=tmp_path) == ["other/z.txt", "top/sub/x.txt", "top/y.txt"]


def test_a_named_folder_is_walked_even_if_another_source_ignores_it(tmp_path):
    write(tmp_path, "code/.git/config", "code/a.py", "code/build/b.txt")
    (tmp_path / "code/.gitignore").write_text("build/\n")
    assert "build/b.txt" in paths("code", "code/build", base=tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", r"'nowhere' does not exist"),
        ("nowhere/*.pdf", r"nowhere' does not exist"),
        ("dangling", r"'dangling' is a broken symbolic link"),
        ("docs/[.pdf", r"malformed pattern"),
        ("file://host/docs", r"file:///absolute/path"),
        ("https://example.org/x.git", r"write git\+https://example.org/x.git"),
        ("ftp://example.org/x", r"ftp:// is not supported"),
        ("git+nowhere@main", r"no repository at"),
        ("git+docs", r"is not a git repository"),
        ("git+ext::sh -c x", r"no repository at"),
        ("git+ext://sh", r"write git\+https"),
        ("git+ssh://-oProxyCommand=x/y", r"write git\+https"),
        ("git+https://me:secret@example.org/x.git", r"holds credentials"),
        ("git+https://secret@example.org/x.git", r"git\+https://...@example.org: the address holds credentials"),
        ("git+https://me:se/secret@example.org/x.git", r"holds credentials"),
        ("git+ssh://me:secret@example.org/x.git", r"holds credentials"),
        ("https://me:secret@example.org/x.git", r"holds credentials"),
        ("https://secret@example.org/x.git", r"holds credentials"),
        ("https://me:se/secret@example.org/x.git", r"holds credentials"),
        ("documents:https://me:secret@example.org/x.git", r"holds credentials"),
        ("ftp://me:secret@example.org/x", r"holds credentials"),
        ("file://me:secret@example.org/x", r"holds credentials"),
        ("me:secret@example.org/x.git", r"'me:\*\*\*@example.org/x.git' does not exist"),
        ("git+me:secret@example.org/x.git", r"'git\+me:\*\*\*@example.org/x.git': no repository at"),
        ("git+https://example.org/x.git@--upload-pack=x", r"is not a revision"),
        ("git+https://example.org/x.git@main#subdir=../x", r"is not a folder of a repository"),
        ("s3://", r"names no bucket"),
        ("s3://key:secret@bucket/x", r"holds credentials"),
        ("s3://key:secret@bucket/[x", r"holds credentials"),
        ("s3://bucket/../x", r"are not allowed"),
        (" \n ", r"no source given"),
    ],
)
def test_a_source_that_cannot_be_is_told_precisely(tmp_path, source, message):
    write(tmp_path, "docs/a.pdf")
    (tmp_path / "dangling").symlink_to("gone")
    with pytest.raises(UserError, match=message) as caught:
        resolve_sources([source], tmp_path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("git+https://example.org/a/b.git", "git+https://example.org/a/b.git@HEAD"),
        ("git+https://example.org/a/b.git@feature/x", "git+https://example.org/a/b.git@feature/x"),
        ("git+ssh://git@example.org/b.git@v1#subdir=docs/", "git+ssh://git@example.org/b.git@v1#subdir=docs"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/a/*.pdf?scheme=http", "s3://bucket/a/*.pdf?scheme=http"),
    ],
)
def test_addresses_of_servers_are_canonical_without_asking_them(tmp_path, source, expected):
    assert canonical(source, base=tmp_path) == [expected]
    assert canonical(expected, base=tmp_path) == [expected]
