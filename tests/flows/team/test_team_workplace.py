"""Runs of deployments work beside the home, and nothing is copied for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_team_box import free_port
from test_team_servers import new_box

from flows.team.workplace import enter


def test_a_run_works_in_the_folder_where_it_is_and_stays_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert enter(str(tmp_path / "none")) == {"directory": "/"}
    assert enter(str(tmp_path)) == {"directory": str(tmp_path)}
    assert Path.cwd() == tmp_path


@pytest.mark.full
def test_a_run_takes_relative_addresses_from_beside_the_home_and_copies_nothing(
    tmp_path: Path, sample_folder: Path
) -> None:
    for box in new_box(tmp_path):
        shutil.copytree(sample_folder / "text", tmp_path / "documents")
        temporary = tmp_path / "temporary"  # where Prefect makes a folder for each run
        temporary.mkdir()
        box.variables["TMPDIR"] = str(temporary)
        box.run("up", "--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        box.wait(box.start("ingest/watch", source="documents"), "Completed")
        assert box.run("sql", "select count(*) n from files")[0]["n"] == len(list((tmp_path / "documents").iterdir()))
        assert "Downloading flow code" not in (tmp_path / "home" / "team" / "logs" / "worker.log").read_text()
        assert not list(temporary.rglob("*.txt"))
