"""Patterns: what git means by them, in linear time, and what they leave out of a walk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from listed import rows_of

from storage.errors import UserError
from tasks.sources.address import WalkSettings
from tasks.sources.folder import MAX_PATTERN_LINES, FolderSource, read_patterns
from tasks.sources.ignore import Patterns
from tasks.sources.listing import walk_sources


def write(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def listed(folder: Path, **settings) -> list[str]:
    rows = rows_of([FolderSource(folder)], WalkSettings(**settings).filters(), folder.parent / "cache")
    return [row.path for row in rows]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.log", "a/b.log", True),
        ("*.log", "a/b.logs", None),
        ("/*.log", "a/b.log", None),
        ("a/*.log", "a/b.log", True),
        ("a/*.log", "a/c/b.log", None),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b/**/c", "a/b/x/b/y/c", True),
        ("**/b/c", "x/b/c", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a", None),
        ("!a", "a", False),
        (r"\!a", "!a", True),
        (r"\#a", "#a", True),
        ("#a", "#a", None),
        ("a ", "a", True),
        ("a\\ ", "a ", True),
        ("[a-c]?", "bx", True),
        ("[!a-c]?", "bx", None),
        ("[]x]", "]", True),
        ("[[:digit:]]", "7", True),
        ("a[b", "a[b", None),
        ("a*b*c", "aXbYbZc", True),
        ("a*b*c", "aXcYb", None),
        ("*", "anything", True),
        ("caf?", "caf\udce9", True),
        ("caf?", "café", None),
        ("[z-a]", "z", True),
        ("a[!b]c", "a/c", None),
        ("a[b/c]", "a/c", None),
        ("[[:punct:]]x", "!x", True),
        ("/***/b", "b", True),
    ],
)
def test_a_pattern_takes_what_git_says(pattern, path, expected):
    assert Patterns([pattern]).verdict(path) is expected


def test_a_folder_pattern_takes_folders_only():
    patterns = Patterns(["build/"])
    assert patterns.verdict("x/build", is_folder=True) is True
    assert patterns.verdict("x/build") is None


def test_the_last_line_that_matches_decides_whether_it_is_tied_to_a_folder_or_not():
    assert Patterns(["*.md", "!docs/*.md", "docs/z.md"]).verdict("docs/a.md") is False
    assert Patterns(["*.md", "!docs/*.md", "docs/z.md"]).verdict("docs/z.md") is True
    assert Patterns(["!docs/*.md", "*.md"]).verdict("docs/a.md") is True


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "*b", "a" * 255),
        ("**/a/" * 50 + "b", "/".join("a" * 2000)),
        ("/" + "*a*/" * 50 + "b", "/".join(["a" * 40] * 90)),
        ("**/*a*a*a*b/**/*a*a*b", "/".join(["a" * 250] * 16)),
    ],
    ids=["stars", "folders", "both", "stars in folders"],
)
def test_patterns_made_to_backtrack_end(pattern, path):
    assert Patterns([pattern]).verdict(path) is None


def test_a_work_tree_is_walked_as_git_lists_it(tmp_path):
    root = write(
        tmp_path / "code", "a.py", "a.log", "keep.log", "build/x.o", "src/a.py", "src/out/b.txt", "src/out/keep.txt",
        "src/deep/build/y.o", "docs/é.tmp", "docs/a b", "only/x/y.txt", "only/x/z.md", "lib/.hidden",
    )  # fmt: skip
    (root / ".gitignore").write_text("*.log\n!keep.log\nbuild/\n/only/*\n!/only/x\n# comment\n*.tmp\r\n")
    (root / "src/.gitignore").write_text("out/*\n!out/keep.txt\n!build/\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    command = ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-standard"]
    expected = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")[:-1]
    assert [path for path in listed(root) if path != ".git"] == sorted(expected)
    assert "src/deep/build/y.o" in expected


def test_a_gitignore_outside_of_a_work_tree_or_above_the_source_is_an_ordinary_file(tmp_path):
    root = write(tmp_path / "plain", "a.log", "sub/b.log")
    (root / ".gitignore").write_text("*.log\n")
    assert listed(root) == [".gitignore", "a.log", "sub/b.log"]
    write(root, ".git/config")
    assert listed(root / "sub") == ["b.log"]
    assert listed(root) == [".git", ".gitignore"]
    assert "a.log" in listed(root, respect_gitignore=False)


def test_a_repository_within_another_one_has_rules_of_its_own(tmp_path):
    root = write(tmp_path / "outer", ".git/config", "a.log", "inner/.git/config", "inner/b.log", "inner/c.tmp")
    (root / ".gitignore").write_text("*.log\n")
    (root / "inner/.gitignore").write_text("*.tmp\n")
    assert "inner/b.log" in listed(root)
    assert "inner/c.tmp" not in listed(root)


def test_a_gitignore_that_is_a_pipe_or_far_too_long_is_not_followed(tmp_path):
    (tmp_path / "long").write_text("*.txt\n" * (MAX_PATTERN_LINES + 1))
    (tmp_path / "link").symlink_to("long")
    assert [read_patterns(tmp_path / name) for name in ("long", "link", "nowhere")] == [None] * 3
    pipe = tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    assert read_patterns(pipe) is None


def test_what_is_left_out_is_counted_and_a_folder_counts_once(tmp_path):
    root = write(tmp_path / "in", "a.txt", "b.bin", "deep/c.bin", "drafts/d.txt", "drafts/e.txt")
    found = walk_sources([FolderSource(root)], WalkSettings(exclude="*.bin, drafts/").filters(), tmp_path / "cache")
    assert [row and row.path for row in found].count(None) == 3
    assert listed(root, exclude="*.bin, drafts/") == ["a.txt"]


def test_include_takes_files_by_name_and_folders_whole(tmp_path):
    root = write(tmp_path / "in", "a.md", "b.txt", "docs/c.txt", "docs/private/d.txt", "src/docs/e.txt", "src/f.md")
    assert listed(root, include="*.md\n/docs/\n!/docs/private/") == ["a.md", "docs/c.txt", "src/f.md"]


def test_tool_folders_have_their_row_whatever_the_patterns_say(tmp_path):
    root = write(tmp_path / "in", "a.md", ".git/config", "node_modules/x.md")
    assert listed(root, include="*.md", exclude="node_modules") == [".git", "a.md", "node_modules"]


def test_a_malformed_pattern_of_the_settings_is_named(tmp_path):
    with pytest.raises(UserError, match=r"include 'a\[b'.*malformed pattern"):
        listed(tmp_path, include="a[b")
