"""What a flow is told of passwords and limits: never a password, and every limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.context import open_run
from flows.options import IngestOptions
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
