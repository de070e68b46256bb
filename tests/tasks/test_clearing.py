"""What is cleared up is what the next run does not miss."""

from __future__ import annotations

from pathlib import Path

from ingest_run import home_at, prose, write
from tiny_run import run_prepare

from flows.clearing import clear_up, sizes_of
from flows.direct import verify_home


def test_after_clearing_up_an_unchanged_corpus_computes_nothing_and_a_former_state_of_it_is_gone(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "in", {f"{number:02}.txt": prose(number) for number in range(12)})
    home = home_at(tmp_path / "home")
    run_prepare(home, source)
    write(source, {"new.txt": prose(50)})
    run_prepare(home, source)
    assert clear_up(str(home.path), 7, dry_run=False)["removed"] == []
    said = clear_up(str(home.path), -1, dry_run=True)
    done = clear_up(str(home.path), -1, dry_run=False)
    assert said["removed"] == done["removed"]
    # the evaluation set and the tokeniser come from the former state, so what they were made from stays
    assert {name.partition("/")[0] for name in done["removed"]} == {"dataset"}
    assert sizes_of(str(home.path))["dataset"]["artefacts"] == 1
    assert all(not check["problems"] for check in verify_home(str(home.path), "default")["checks"])
    assert run_prepare(home, source).computed() == {}
