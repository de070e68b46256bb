"""A forgotten file of a repository, member of an archive or row of a table is gone, and its neighbours stay."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from forgotten_texts import SECRET, holders_of, secret_text
from ingest_run import ingest, prose, write
from tiny_run import home_at

from storage.store import open_store
from tasks.upkeep.forget import forget


def test_a_file_of_a_repository_goes_by_its_path_also_when_later_commits_lack_it(tmp_path: Path) -> None:
    project = write(tmp_path / "project", {"secret.txt": secret_text(3), **{f"{n}.txt": prose(n) for n in range(6)}})
    person = [part for name in ("name", "email") for part in ("-c", f"user.{name}=someone")]

    def git(*arguments: str) -> None:
        subprocess.run(["git", *person, *arguments], cwd=project, check=True, capture_output=True)

    home = home_at(tmp_path / "home")
    git("init", "--quiet")
    for change in ("it is there", "it is gone"):
        git("add", "--all")
        git("commit", "--quiet", "--message", change)
        ingest(home, f"git+{project}")
        (project / "secret.txt").unlink(missing_ok=True)
    done = forget(home, open_store(home.store), "secret.txt", "", "default", dry_run=False)
    assert [item["path"] for item in done["documents"]] == ["secret.txt"]
    assert [path for path in holders_of(home, SECRET) if not path.startswith("cache/git/")] == []


@pytest.mark.full
def test_a_member_of_an_archive_goes_and_its_neighbours_are_not_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {f"{number:02}.txt": prose(number) for number in range(6)})
    with zipfile.ZipFile(folder / "box.zip", "w") as box:
        box.writestr("secret.txt", secret_text(5))
        box.writestr("other.txt", prose(60))
    home = home_at(tmp_path / "home")
    ingest(home, folder)
    forget(home, open_store(home.store), "box.zip/secret.txt", "", "default", dry_run=False)
    ran = ingest(home, folder)
    assert ran.reports["extract"].computed == 0
    assert ran.files()["box.zip/secret.txt"]["reason_code"] == "forgotten"
    assert "box.zip/other.txt" in ran.texts()
    assert holders_of(home, SECRET) == []
    assert ingest(home, folder).computed() == {}


@pytest.mark.full
def test_a_row_of_a_corpus_of_documents_goes_and_is_not_imported_again(tmp_path: Path) -> None:
    rows = [{"text": prose(number)} for number in range(6)] + [{"text": secret_text(7)}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    folder = write(tmp_path / "in", {"rows.jsonl": lines})
    home = home_at(tmp_path / "home")
    first = ingest(home, f"documents:{folder}")
    (path,) = [path for path, text in first.texts().items() if SECRET in text]
    forget(home, open_store(home.store), path, "", "default", dry_run=False)
    assert holders_of(home, SECRET) == []
    again = ingest(home, f"documents:{folder}")
    assert again.files()[path]["reason_code"] == "forgotten"
    assert len(again.texts()) == 6
    assert holders_of(home, SECRET) == []
