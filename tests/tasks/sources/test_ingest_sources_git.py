"""Git repositories as sources: the files of a commit, fetched only when needed, with nothing executed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from listed import digests_of, rows_of

from storage.errors import UserError
from tasks.sources import git as git_source
from tasks.sources.address import WalkSettings, resolve_sources
from tasks.sources.folder import Filters
from tasks.sources.listing import HashMemo

IDENTITY = {
    f"GIT_{role}_{field}": "someone@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
}


def git(repository: Path, *arguments: str, data: bytes = b"") -> str:
    environment = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=data, env=environment).stdout.decode().strip()


def commit(repository: Path, **files: str) -> str:
    for name, text in files.items():
        path = repository / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "--message", "change", "--allow-empty")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path) -> Path:
    """A repository with one commit on `main`."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, a="first", docs__b="in docs")
    return folder


@pytest.fixture
def listed(tmp_path):
    """Lists sources; the rows by path."""

    def rows(*sources: str, **settings):
        found = rows_of(resolve_sources(sources, tmp_path), WalkSettings(**settings).filters(), tmp_path / "cache")
        assert len({row.path for row in found}) == len(found)
        return {row.path: row for row in found}

    return rows


@pytest.fixture
def fetches(monkeypatch) -> list[str]:
    """The addresses that were fetched from."""
    seen = []
    original = git_source._fetch_refs
    monkeypatch.setattr(
        git_source,
        "_fetch_refs",
        lambda mirror, address, *refs: (seen.append(address), original(mirror, address, *refs))[1],
    )
    return seen


def test_files_are_those_of_the_commit_and_not_of_the_working_folder(project, listed):
    head = git(project, "rev-parse", "HEAD")
    (project / "a").write_text("not committed")
    (project / "new").write_text("not committed")
    rows = listed(f"git+{project}")
    assert {path: Path(row.location).read_text() for path, row in rows.items()} == {"a": "first", "docs/b": "in docs"}
    assert {row.source for row in rows.values()} == {f"git+{project}@{head}"}


def test_a_branch_a_tag_a_commit_and_its_abbreviation_are_found(project, listed):
    first = git(project, "rev-parse", "HEAD")
    git(project, "tag", "--annotate", "v1", "--message", "one")
    git(project, "checkout", "--quiet", "-b", "feature/x")
    commit(project, a="second")
    git(project, "checkout", "--quiet", "main")
    texts = {
        rev: Path(listed(f"git+{project}@{rev}")["a"].location).read_text() for rev in ("main", "v1", first, first[:9])
    }
    assert set(texts.values()) == {"first"}
    assert Path(listed(f"git+{project}@feature/x")["a"].location).read_text() == "second"


def test_a_branch_is_followed_and_a_commit_is_fetched_once(project, listed, fetches):
    first = git(project, "rev-parse", "HEAD")
    listed(f"git+{project}@{first}")
    listed(f"git+{project}@{first}")
    assert len(fetches) == 1
    listed(f"git+{project}@main")
    commit(project, a="second")
    assert Path(listed(f"git+{project}@main")["a"].location).read_text() == "second"
    assert Path(listed(f"git+{project}@{first}")["a"].location).read_text() == "first"
    assert len(fetches) == 3


def test_a_commit_that_no_branch_holds_is_found_if_the_repository_hands_it_out(project, listed):
    git(project, "config", "uploadpack.allowAnySHA1InWant", "true")
    lost = commit(project, a="lost")
    git(project, "reset", "--quiet", "--hard", "HEAD~1")
    assert Path(listed(f"git+{project}@{lost}")["a"].location).read_text() == "lost"


def test_a_rewritten_branch_is_followed(project, listed):
    listed(f"git+{project}@main")
    git(project, "commit", "--quiet", "--amend", "--message", "other")
    commit(project, a="rewritten")
    assert Path(listed(f"git+{project}@main")["a"].location).read_text() == "rewritten"


def test_a_bare_repository_is_a_source_by_its_path(project, listed, tmp_path):
    git(project, "clone", "--quiet", "--bare", str(project), str(tmp_path / "copy.git"))
    assert [str(source) for source in resolve_sources(["copy.git"], tmp_path)] == [f"git+{tmp_path}/copy.git@HEAD"]
    assert set(listed("copy.git")) == set(listed("copy.git@main")) == {"a", "docs/b"}


def test_a_folder_of_a_repository_keeps_its_path(project, listed):
    assert set(listed(f"git+{project}#subdir=docs")) == {"docs/b"}
    rows = listed(f"git+{project}@main", f"git+{project}#subdir=docs")
    assert set(rows) == {"project/docs/b", "project-2/a", "project-2/docs/b"}


def test_an_unchanged_revision_is_neither_written_nor_hashed_again(project, listed, tmp_path, monkeypatch):
    from tasks.sources import listing

    monkeypatch.setattr(listing, "DISTRUST_NS", -3600 * 10**9)
    memo = HashMemo(tmp_path / "memo.db")
    first = listed(f"git+{project}@main")
    digests_of(first.values(), memo)
    second = listed(f"git+{project}@main")
    assert second == first
    monkeypatch.setattr(listing, "open_regular", None)
    assert all(isinstance(digest, str) for digest in digests_of(second.values(), memo))


def test_submodules_and_links_are_rows_with_a_reason(project, listed):
    head = git(project, "rev-parse", "HEAD")
    (project / "link").symlink_to("/etc/passwd")
    git(project, "update-index", "--add", "--cacheinfo", f"160000,{head},libs/sub")
    git(project, "add", "link")
    git(project, "commit", "--quiet", "--message", "both")
    rows = listed(f"git+{project}")
    assert {path: (row.status, row.reason) for path, row in rows.items()} == {
        "a": ("", ""),
        "docs/b": ("", ""),
        "libs/sub": ("skipped", "git submodule, not fetched"),
        "link": ("skipped", "symbolic link, not followed"),
    }


def test_contents_are_byte_for_byte_and_a_tracked_file_counts_though_a_gitignore_names_it(project, listed):
    (project / "bytes").write_bytes(b"$Format:%H$\n\x00\xff\n")
    commit(project)
    commit(project, **{".gitattributes": "* text eol=crlf export-ignore export-subst\n", ".gitignore": "*\n"})
    rows = listed(f"git+{project}")
    assert Path(rows["bytes"].location).read_bytes() == b"$Format:%H$\n\x00\xff\n"
    assert set(rows) == {".gitattributes", ".gitignore", "a", "bytes", "docs/b"}


def test_names_that_are_not_utf8_and_empty_files_are_kept(project, listed):
    Path(project, os.fsdecode(b"caf\xe9\n")).write_text("")
    commit(project)
    assert listed(f"git+{project}")["caf%E9\n"].state.size == 0


def test_hooks_and_filters_of_a_repository_do_not_run(project, listed, tmp_path):
    touched = tmp_path / "touched"
    for hook in ("post-checkout", "pre-receive", "reference-transaction", "post-upload-pack"):
        path = project / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {touched}\n")
        path.chmod(0o755)
    commit(project, **{".gitattributes": "* filter=evil\n"})
    git(project, "config", "filter.evil.smudge", f"touch {touched}")
    git(project, "config", "core.fsmonitor", f"touch {touched}")
    touched.unlink(missing_ok=True)
    listed(f"git+{project}")
    assert not touched.exists()


def tree(repository: Path, *entries: tuple[bytes, bytes, str]) -> str:
    data = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(blob) for mode, name, blob in entries)
    return git(repository, "hash-object", "-w", "-t", "tree", "--stdin", "--literally", data=data)


@pytest.mark.parametrize("name", [b"../../evil", b"..", b"x/../../../evil", b"/evil"])
def test_a_tree_that_climbs_out_is_refused(project, listed, tmp_path, name):
    blob = git(project, "hash-object", "-w", "--stdin", data=b"evil")
    head = git(project, "commit-tree", tree(project, (b"100644", name, blob)), "-m", "evil")
    git(project, "update-ref", "refs/heads/bad", head)
    with pytest.raises(UserError, match="damaged"):
        listed(f"git+{project}@bad")
    assert list(tmp_path.rglob("evil")) == []


def test_no_file_is_written_through_a_link_of_the_tree(project, listed, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = git(project, "hash-object", "-w", "--stdin", data=os.fsencode(outside))
    blob = git(project, "hash-object", "-w", "--stdin", data=b"evil")
    inner = tree(project, (b"100644", b"evil", blob))
    both = tree(project, (b"120000", b"x", link), (b"40000", b"x", inner))
    git(project, "update-ref", "refs/heads/evil", git(project, "commit-tree", both, "-m", "evil"))
    listed(f"git+{project}@evil")
    assert list(outside.iterdir()) == []


def test_a_tree_without_end_is_refused(project, listed, monkeypatch):
    monkeypatch.setattr(git_source, "MAX_FILES", 1000)
    blob = git(project, "hash-object", "-w", "--stdin", data=b"x")
    entries = tree(project, *((b"100644", b"%d" % number, blob) for number in range(10)))
    for _ in range(12):
        entries = tree(project, *((b"40000", b"%d" % number, entries) for number in range(10)))
    git(project, "update-ref", "refs/heads/bomb", git(project, "commit-tree", entries, "-m", "bomb"))
    with pytest.raises(UserError, match="more than 1,000 files"):
        listed(f"git+{project}@bomb")


def test_what_does_not_exist_is_named_with_what_does(project, listed):
    with pytest.raises(UserError, match=r"no branch, tag or commit 'nope' \(branches: main\)"):
        listed(f"git+{project}@nope")
    with pytest.raises(UserError, match=r"no branch, tag or commit '0123456789'"):
        listed(f"git+{project}@0123456789")
    with pytest.raises(UserError, match="no folder 'nope'"):
        listed(f"git+{project}#subdir=nope")


def test_a_repository_that_cannot_be_fetched_says_what_git_says(tmp_path, listed):
    (tmp_path / "broken.git/objects").mkdir(parents=True)
    (tmp_path / "broken.git/HEAD").write_text("junk")
    with pytest.raises(UserError, match=r"cannot fetch .*broken\.git: .*not appear to be a git repository"):
        listed("broken.git")


def test_an_export_that_was_interrupted_is_written_again(project, listed, tmp_path, monkeypatch):
    original = git_source._copy_blob
    monkeypatch.setattr(git_source, "_copy_blob", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        listed(f"git+{project}")
    monkeypatch.setattr(git_source, "_copy_blob", original)
    assert set(listed(f"git+{project}")) == {"a", "docs/b"}


def test_a_command_that_hangs_is_ended_with_its_children(project):
    git(project, "config", "alias.hang", "!sleep 1000 & echo started && sleep 1000")
    with (
        pytest.raises(UserError, match="did not end within"),
        git_source._running(project / ".git", 0.5, "hang") as (_, answers),
    ):
        assert answers.readline() == b"started\n"
        # the child that runs in the background holds the other end of the pipe as long as it lives
        assert answers.read() == b""


def test_without_the_git_program_the_error_says_so(project, listed, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the git program"):
        listed(f"git+{project}")


def test_the_surroundings_of_the_caller_do_not_redirect_git(project, listed, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere"))
    assert set(listed(f"git+{project}@main")) == {"a", "docs/b"}


def list_once(cache: Path, *sources: str) -> str:
    """Lists sources; the texts of the files `a`."""
    rows = rows_of(resolve_sources(sources), WalkSettings().filters(), cache)
    return " ".join(Path(row.location).read_text() for row in rows if row.path.endswith("a"))


def exports(cache: Path) -> dict[str, Path]:
    """The exports by the text of their file `a`."""
    return {(tree / "a").read_text(): tree.parent for tree in cache.glob("git/*/*/tree")}


def grow_old(cache: Path) -> None:
    """As if all exports had been used two days earlier, in the order in which they were."""
    for export in exports(cache).values():
        used = export.stat().st_mtime - 2 * 24 * 3600
        os.utime(export, (used, used))


def test_of_the_commits_of_a_followed_branch_the_two_used_last_stay(project, tmp_path):
    cache = tmp_path / "cache"
    for text in ("first", "second", "third"):
        commit(project, a=text)
        grow_old(cache)
        assert list_once(cache, f"git+{project}@main") == text
    assert set(exports(cache)) == {"second", "third"}
    commit(project, a="first")
    assert list_once(cache, f"git+{project}@main") == "first"


def test_commits_used_within_the_day_stay(project, tmp_path):
    cache = tmp_path / "cache"
    for text in ("first", "second", "third"):
        commit(project, a=text)
        list_once(cache, f"git+{project}@main")
    assert set(exports(cache)) == {"first", "second", "third"}


def test_several_commits_that_are_sources_at_once_stay_all_and_are_not_written_again(project, tmp_path):
    cache = tmp_path / "cache"
    sources = [f"git+{project}@main"]
    for number, text in enumerate(("second", "third", "fourth")):
        git(project, "tag", f"v{number}")
        sources.append(f"git+{project}@v{number}")
        commit(project, a=text)
    list_once(cache, *sources)
    before = {text: (export / "tree").stat().st_ino for text, export in exports(cache).items()}
    assert len(before) == 4
    grow_old(cache)
    list_once(cache, *sources)
    assert {text: (export / "tree").stat().st_ino for text, export in exports(cache).items()} == before


def test_a_source_is_called_the_same_at_all_commits(project):
    seen = set()
    for subdir in ("", "docs"):
        source = git_source.GitSource(str(project), subdir=subdir)
        at = next(row.source for row in source.rows("", Filters(), frozenset(), project.parent / "cache") if row)
        seen.add(at)
        assert git_source.without_commit(at) == str(git_source.GitSource(str(project), "X", subdir)).replace("@X", "")
    assert len(seen) == 2
    assert git_source.without_commit("/home/me@example/notes") == "/home/me@example/notes"
