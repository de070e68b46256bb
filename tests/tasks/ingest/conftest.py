"""Fixtures for the tests of ingestion: the corpus beside the repository, where there is one, and OCR."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.readers.ocr import engine_version

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real and hostile documents."""
    if not CORPUS.is_dir():
        pytest.skip("the development corpus is not beside the repository")
    return CORPUS


@pytest.fixture
def tesseract(monkeypatch: pytest.MonkeyPatch) -> str:
    """Tesseract's version, on one thread as in the workers; skips where it is not installed."""
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    version = engine_version()
    if version is None:
        pytest.skip("Tesseract is not installed")
    return version
