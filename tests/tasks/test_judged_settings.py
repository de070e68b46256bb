"""By which settings a model was judged: what it is measured by again."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.actions import promote_model, version_of
from flows.measuring import judged_by
from tasks.session import artifact
from tiny_run import Ran, copy_of_store, direct_session, tiny_settings

from flows import pipeline
from tasks.settings import EvaluationSettings


@pytest.mark.parametrize(
    "assignments",
    [
        ("evaluate.ngram_order=0", "evaluate.trace=true"),
        ("evaluate.stride=16", "evaluate.ngram_order=2", "evaluate.ngram_tokens=500"),
    ],
    ids=["no n-grams", "strides"],
)
def test_they_are_those_of_its_last_judgement(
    tiny: Ran, empty_tracking: Path, tmp_path: Path, assignments: tuple[str, ...]
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    (home.path / "mlflow.db").write_bytes(empty_tracking.read_bytes())
    settings, checkpoint = tiny_settings(*assignments), artifact(tiny.checkpoint)
    with direct_session(home) as session:
        assert judged_by(session.store, "default", version_of(session, checkpoint)) == EvaluationSettings()
        promote_model(session, checkpoint, artifact(tiny.evaluation))
        made, _ = pipeline.evaluate_model(session, checkpoint, tiny.prepared.evalset, settings.evaluate)
        promote_model(session, checkpoint, artifact(made), settings)
        assert judged_by(session.store, "default", version_of(session, checkpoint)) == settings.evaluate
