"""Homes for the tests of the steps of work, and one finished tiny run that tests read and none changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_run import Ran, home_at, run_whole, with_tracking, write_texts

if TYPE_CHECKING:
    from storage.home import Home

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return home_at(tmp_path / "home")


@pytest.fixture
def extracted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were given to the extraction pool."""
    from tasks.ingest.pool import ExtractionPool

    names: list[str] = []
    submit = ExtractionPool.submit

    def note(pool: ExtractionPool, job: Any) -> Any:
        names.append(job.path.name)
        return submit(pool, job)

    monkeypatch.setattr(ExtractionPool, "submit", note)
    return names


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Ran:
    """Files to completions over twelve texts; read only."""
    return run_whole(with_tracking(home_at(tmp_path_factory.mktemp("tiny") / "home")), tiny_source)


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
    from tasks.readers.ocr import engine_version

    version = engine_version()
    if version is None:
        pytest.skip("Tesseract is not installed")
    return version
