"""One finished tiny run that tests read and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import Ran, home_at, run_whole, write_texts


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Ran:
    """Files to completions over twelve texts; read only."""
    return run_whole(home_at(tmp_path_factory.mktemp("tiny") / "home"), tiny_source)
