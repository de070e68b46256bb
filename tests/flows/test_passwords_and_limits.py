"""Parameters of a flow: all limits, and never a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.compare import ablate, compare
from flows.context import PipelineFlow, open_run
from flows.evaluate import evaluate
from flows.options import AblateOptions, CompareOptions, EvaluateOptions, IngestOptions, Options
from storage.home import Home
from tasks.core.machine import Machine
from tasks.readers.records import Limits


@pytest.mark.parametrize("command", ["ingest", "prepare", "train", "run"])
def test_a_password_as_a_setting_is_refused_before_anything_keeps_it(tmp_path: Path, command: str) -> None:
    given = ["--home", str(tmp_path / "home"), "--set", 'passwords.pdf=["sesame-open-7391"]']
    done = CliRunner().invoke(app, [command, str(tmp_path), *given])
    assert done.exit_code != 0
    assert "passwords.file" in done.output
    assert "sesame" not in done.output
    assert not (tmp_path / "home").exists()


def test_limits_of_the_settings_are_those_of_the_extraction_pool(tmp_path: Path) -> None:
    options = IngestOptions(source=".", home=str(tmp_path / "home"), workers=1)
    with open_run(options, Limits(page_seconds=7)) as run:
        assert run.machine.pool()._limits == Limits(page_seconds=7)


class Opened(Exception):
    """A flow opened its run."""


@pytest.mark.parametrize(
    ("flow", "options"),
    [
        (compare, CompareOptions(a="champion", b="previous", on="train")),
        (evaluate, EvaluateOptions(on="train")),
        (ablate, AblateOptions(without="text")),
    ],
    ids=["compare", "evaluate", "ablate"],
)
def test_measurements_keep_to_the_memory_of_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: PipelineFlow[Any], options: Options
) -> None:
    def opened(home: Home, machine: Machine, *_: object) -> None:
        raise Opened(f"queries may take {machine.query_bytes} bytes")

    monkeypatch.setattr("flows.context.Run", opened)
    monkeypatch.setenv("SHEEPFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHEEPFOLD_LIMITS__QUERY_MEMORY_BYTES", str(2**28))
    with pytest.raises(Opened, match=f" {2**28} "):
        flow.function(options)
