"""Where the documents of the flow tests come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.sources.sample import build_sample

SHARED = Path(__file__).resolve().parents[3] / "shared" / "corpus"


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real and hostile documents where they are at hand, else the sample corpus."""
    if SHARED.is_dir():
        return SHARED
    folder = tmp_path_factory.mktemp("sample")
    build_sample(folder)
    return folder


@pytest.fixture(scope="session")
def sample_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample corpus."""
    folder = tmp_path_factory.mktemp("sample-corpus")
    build_sample(folder)
    return folder
