"""A home in which three models were promoted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from registered import BETTER, WORSE, Promoted, promote
from tiny_run import Ran, copy_of_store, home_at, run_whole, tiny_settings

from storage.home import Home


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands take the home's database, whatever MLflow wrote into the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


@pytest.fixture(scope="session")
def promoted(tiny: Ran, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    home = copy_of_store(tiny, tmp_path_factory.mktemp("lost") / "home")
    made = [run_whole(home, tiny_source, tiny_settings(*assignments)) for assignments in ((), WORSE, BETTER)]
    for ran in made:
        shutil.copyfile(home.path / "mlflow.db", home.path / "older.db")
        promote(home, ran)
    return Promoted(home, made[-1])


@pytest.fixture
def home(promoted: Promoted, tmp_path: Path) -> Iterator[Home]:
    """A copy of that home, to be spoiled."""
    target = home_at(tmp_path / "home")
    for name in ("store", "mlflow.db", "older.db", "mlflow-artifacts"):
        source = promoted.home.path / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, target.path / name, **({"dirs_exist_ok": True} if source.is_dir() else {}))
    yield target
