"""Input that `why --text` and `lm-eval` refuse."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import invoke


@pytest.mark.parametrize("arguments", [[], ["0", "--text", "a text"]], ids=["neither", "both"])
def test_why_asks_for_a_thing_or_a_text(tmp_path: Path, arguments: list[str]) -> None:
    done = invoke(tmp_path / "home", "why", *arguments)
    assert done.exit_code == 1
    assert "give either a THING or --text TEXT" in done.stderr


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="the harness is installed")
def test_a_missing_harness_is_told_with_what_to_do(tmp_path: Path) -> None:
    done = invoke(tmp_path / "home", "lm-eval", "--tasks", "flock")
    assert done.exit_code == 1
    assert "lm-evaluation-harness is not installed" in done.stderr
    assert "sheepfold[lm-eval]" in done.stderr
