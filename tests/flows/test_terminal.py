"""The view of a run in a terminal: live lines go, lines of flows and the result stay; a pipe gets the result alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pictures import Person
from flows.report import result_text
from tasks.core.progress import TerminalHandler

pytestmark = [pytest.mark.prefect]
TEXT = "the shepherd counts the sheep at dusk and closes the fold before the rain comes over the hill tonight "


@pytest.fixture
def person(tmp_path: Path, prefect_server: str) -> Person:
    """Somebody with two documents, in a folder of their own."""
    made = Person(tmp_path)
    made.variables["PREFECT_API_URL"] = prefect_server
    (tmp_path / "documents").mkdir()
    for number in range(2):
        (tmp_path / "documents" / f"{number}.txt").write_text(TEXT * 3 + str(number))
    return made


@pytest.mark.full
def test_a_terminal_keeps_a_line_for_each_flow_and_the_result(person: Person) -> None:
    lines = person.types("ingest", "documents")
    assert lines[0].lstrip().startswith("ingest 8 stages, ")
    assert any(line.startswith("- 2 files were found") for line in lines)
    assert "all stages and pages" in lines[-1] or "all stages and pages" in lines[-2]
    again = person.types("ingest", "documents")
    assert ", 8 cached, " in again[0]
    assert "- 8 stages, all cached: nothing was computed." in again


@pytest.mark.full
def test_a_pipe_gets_the_result_and_nothing_else(person: Person) -> None:
    command = [sys.executable, "-m", "flows.cli", "ingest", "documents"]
    done = subprocess.run(command, env=person.variables, cwd=person.folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("- 2 files were found")


def test_warnings_are_printed_where_output_is_piped_and_information_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    handler = TerminalHandler()
    assert handler.level == logging.WARNING  # standard error is no terminal here
    assert not handler.filter(logging.LogRecord("prefect.flow_runs", logging.ERROR, "", 0, "", (), None))


def test_a_result_says_what_to_do_next_and_where_to_look() -> None:
    page = {"topic": "evaluation", "lead": "Version 1 needs 2 bits.", "advice": ["Train longer."], "file": "/p/e.html"}
    stages = [{"stage": "train", "computed": 1, "seconds": 9.0}, {"stage": "dedup", "computed": 0, "seconds": 0.0}]
    metrics = {"val/bits_per_byte": 2.0, "val/loss": 1.0}
    model = {"name": "sheepfold", "version": "1", "alias": "champion", "reason": "it is the first model"}
    found: dict[str, Any] = {"pages": [page], "stages": stages, "metrics": metrics, "model": model, "completions": None}
    expected = {"asked": {"bits_per_byte": 2.1, "low": 1.9, "high": 2.3}}
    said = result_text(
        {**found, "forecast": expected, "report": "/p/report.md", "tracking": "mlflow ui", "notes": ["clear up"]}
    )
    for part in (
        "- Version 1 needs 2 bits.",
        "1 of 2 stages cached; the others took 9.0 s: train 9.0 s.",
        "this model             2.0000        2.72   1.0000",
        "expected                 2.10 (1.90 to 2.30)",
        "models:/sheepfold/1 is champion: it is the first model.",
        "Next\n  - Train longer.",
        "/p/e.html",
        "mlflow ui",
        "note: clear up",
    ):
        assert part in said
