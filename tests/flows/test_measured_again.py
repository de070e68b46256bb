"""A champion that is measured again: by the settings that it was judged by, so that its figures compare with those."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from tiny_run import direct_run, home_at, run_prepare, run_whole, tiny_settings, with_tracking, write_texts

from flows.evaluate import evaluate, evaluate_model
from flows.options import EvaluateOptions
from flows.promote import promote_model
from storage.catalog import read_state
from storage.store import Store, open_store

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


def measured_otherwise(store: Store, stride: int) -> set[str]:
    """Keys of evaluations by another stride."""
    return {found.key for found in store.manifests("evaluate") if found.settings["stride"] != stride}


@pytest.mark.full
def test_it_is_measured_as_it_was_when_it_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    home = with_tracking(home_at(tmp_path / "home"))
    settings = tiny_settings("evaluate.stride=8", "evaluate.ngram_order=3")
    ran = run_whole(home, write_texts(tmp_path / "texts"))
    assert ran.checkpoint is not None
    with direct_run(home) as run:
        made, _ = evaluate_model(run, ran.checkpoint, ran.prepared.evalset, settings.evaluate)
        promote_model(run, ran.checkpoint, made, settings)
    run_prepare(home, write_texts(tmp_path / "texts", range(12, 14)))
    store = open_store(home.store)
    before = measured_otherwise(store, 8)
    found: dict[str, Any] = evaluate(EvaluateOptions(drift=True, home=str(home.path)))
    assert read_state(store, "default")["evaluate"] == [made]
    assert "drift/bits_per_byte" in found["metrics"]
    assert found["metrics"]["val/ngram_order"] == 3
    assert measured_otherwise(store, 8) == before
    assert {stage["stage"] for stage in found["stages"]}.isdisjoint({"trace_index", "memorised", "contamination"})
