"""By which settings a model was judged: what it is measured by again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_run, tiny_settings

from flows.evaluate import evaluate_model, promotion_settings
from flows.promote import promote_model
from tasks.core.settings import EvaluationSettings
from tasks.registry.models import version_of


@pytest.mark.parametrize(
    "assignments",
    [
        ("evaluate.ngram_order=0", "evaluate.trace=true"),
        ("evaluate.stride=16", "evaluate.ngram_order=2", "evaluate.ngram_tokens=500"),
    ],
    ids=["no n-grams", "strides"],
)
def test_they_are_those_of_its_last_judgement(tiny: Ran, tmp_path: Path, assignments: tuple[str, ...]) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    settings, checkpoint = tiny_settings(*assignments), tiny.checkpoint
    with direct_run(home) as run:
        assert promotion_settings(run.store, "default", version_of(run, checkpoint)) == (EvaluationSettings(), None)
        promote_model(run, checkpoint, tiny.evaluation)
        made, _ = evaluate_model(run, checkpoint, tiny.prepared.evalset, settings.evaluate)
        promote_model(run, checkpoint, made, settings)
        assert promotion_settings(run.store, "default", version_of(run, checkpoint)) == (settings.evaluate, None)
