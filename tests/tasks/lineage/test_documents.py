"""Documents are found by what people call them, and never others: in a corpus of several sources, by any path."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import home_at, ingest, prose, write

from storage.errors import UserError
from storage.store import Store, open_store
from tasks.lineage.documents import find_targets
from tasks.lineage.why import explain


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders, of which one has a folder of its own name, and a file that is a source by itself."""
    names = ("a/x.txt", "a/a/x.txt", "a/50%.txt", "b/x.txt", "alone.txt")
    files: dict[str, str | bytes] = {name: prose(number) for number, name in enumerate(names)}
    return write(tmp_path_factory.mktemp("sources").resolve(), files)


@pytest.fixture(scope="module")
def store(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    home = home_at(tmp_path_factory.mktemp("named") / "home")
    ingest(home, "\n".join(str(sources / name) for name in ("a", "b", "alone.txt")))
    return open_store(home.store)


def found(store: Store, name: str) -> list[str]:
    return [target.path for target in find_targets(store, "default", name)]


def test_a_file_and_a_folder_of_one_of_several_sources_go_by_where_they_lie(store: Store, sources: Path) -> None:
    assert found(store, str(sources / "a" / "a")) == ["a/a/x.txt"]
    assert found(store, str(sources / "a" / "x.txt")) == ["a/x.txt"]
    assert found(store, str(sources / "a")) == ["a/50%25.txt", "a/a/x.txt", "a/x.txt"]
    assert found(store, str(sources / "alone.txt")) == found(store, "alone.txt") == ["alone.txt"]
    (file,) = explain(store, str(sources / "b" / "x.txt"), "default")["files"]
    assert file["path"] == "b/x.txt"


def test_a_path_with_dots_through_a_link_and_with_a_percent_sign_is_understood(
    store: Store, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(sources / "a")
    monkeypatch.chdir(sources / "b")
    for name in ("../a/50%.txt", str(tmp_path / "link" / "50%.txt"), "a/50%25.txt"):
        assert found(store, name) == ["a/50%25.txt"], name


def test_a_path_that_means_one_document_in_the_corpus_and_another_here_is_refused(
    store: Store, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources / "a")
    with pytest.raises(UserError, match=r"a/x\.txt.*a/a/x\.txt.*absolute path"):
        found(store, "a/x.txt")
    monkeypatch.chdir(sources)
    assert found(store, "a/x.txt") == ["a/x.txt"]


def test_why_a_folder_lists_its_documents(store: Store) -> None:
    told = explain(store, "a", "default")
    assert [row["path"] for row in told["files"]] == ["a/50%25.txt", "a/a/x.txt", "a/x.txt"]
    assert "note" not in told and len(told["documents"]) == 3
