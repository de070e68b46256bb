"""A champion that was trained on documents of the evaluation set, as the split was changed: what flows do with it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from tiny_run import direct_run, home_at, run_prepare, run_whole, tiny_settings, with_tracking, write_texts

from flows.evaluate import evaluate
from flows.options import EvaluateOptions, RetrainOptions
from flows.promote import promote_model
from flows.retrain import retrain
from storage.catalog import read_state
from storage.home import Home
from storage.registry import CHAMPION, Registry, find_version
from storage.store import open_store
from storage.tracking import Tracking
from tasks.core.settings import parse_assignments
from tasks.registry.base import BaseError
from tasks.upkeep.forget import forget

OTHER_SPLIT = "curate.salt=other"
pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("read") / "texts")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Home:
    """A home with a champion of the present split; read only."""
    home = with_tracking(home_at(tmp_path_factory.mktemp("read") / "home"))
    ran = run_whole(home, source)
    assert ran.checkpoint is not None and ran.evaluation is not None
    with direct_run(home) as run:
        promote_model(run, ran.checkpoint, ran.evaluation)
    return home


@pytest.fixture
def home(trained: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A copy of it, to be changed."""
    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(trained.path, tmp_path / "home")
    return home_at(tmp_path / "home")


def figures(home: Home) -> dict[str, float]:
    """Return the latest value of each metric of the champion in MLflow."""
    tracking = Tracking(home)
    champion = find_version(Registry(tracking, "default").versions(), CHAMPION, "default")
    assert champion is not None
    points = tracking.client.get_logged_model(champion.model_id).metrics or []
    return {point.key: point.value for point in sorted(points, key=lambda point: point.timestamp)}


def measured(home: Home) -> list[str]:
    """Keys of the evaluations that are the corpus's own."""
    return [ref.key for ref in read_state(open_store(home.store), "default")["evaluate"]]


def test_figures_that_flatter_the_champion_are_told_and_stand_beside_its_own(home: Home, source: Path) -> None:
    usual, own = figures(home), measured(home)
    run_prepare(home, source, tiny_settings(OTHER_SPLIT))
    found: dict[str, Any] = evaluate(EvaluateOptions(drift=True, home=str(home.path)))
    assert "champion was trained on some of these documents, so its figures are too good" in found["notes"]
    assert "its drift is unknown, because it is measured against these figures" in found["notes"]
    assert not any(name.startswith("drift/") for name in found["metrics"])
    now = figures(home)
    assert now.pop("read-evalset/bits_per_byte") == found["metrics"]["val/bits_per_byte"]
    assert {name: value for name, value in now.items() if not name.startswith("read-evalset/")} == usual
    assert measured(home) == own
    (page,) = home.reports_of("default").glob("evaluation*.html")
    assert page.name != "evaluation.html" and "some of which it was trained on" in page.read_text()


@pytest.mark.full
def test_a_training_that_would_go_on_from_it_is_refused_before_it_begins(home: Home, source: Path) -> None:
    settings = parse_assignments(
        [OTHER_SPLIT, "curate.validation_share=0.3", "train.max_steps=4", "train.batch_size=4"]
    )
    options = RetrainOptions(source=str(source), base="champion", settings=settings, home=str(home.path))
    with pytest.raises(
        BaseError, match=r"train\.base=champion was trained on documents of the evaluation set .* unset"
    ):
        retrain(options)
    assert len(list(Path(home.store).glob("train/*"))) == 1


@pytest.mark.full
def test_an_evaluation_before_the_run_that_a_forgotten_document_asks_for_tells_no_drift(home: Home) -> None:
    forget(home, open_store(home.store), "text-03.txt", "", "default", dry_run=False)
    found: dict[str, Any] = evaluate(EvaluateOptions(drift=True, home=str(home.path)))
    assert any("were forgotten since" in note and "drift cannot be measured" in note for note in found["notes"])
    assert figures(home)["val/bits_per_byte"] == found["metrics"]["val/bits_per_byte"]
