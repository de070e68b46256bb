"""A champion that is measured again: by the settings that it was judged by, so that its figures compare with those."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from flows.actions import promote_model
from tasks.session import artifact
from tiny_run import direct_session, home_at, run_prepare, run_whole, tiny_settings, write_texts

from flows import pipeline
from storage.catalog import read_state
from storage.store import Store, open_store

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


def measured_otherwise(store: Store, stride: int) -> set[str]:
    """Keys of evaluations by another stride."""
    return {found.key for found in store.manifests("evaluate") if found.settings["stride"] != stride}


def test_it_is_measured_as_it_was_when_it_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.evaluate import evaluate

    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    home, settings = home_at(tmp_path / "home"), tiny_settings("evaluate.stride=8", "evaluate.ngram_order=3")
    ran = run_whole(home, write_texts(tmp_path / "texts"))
    assert ran.checkpoint is not None
    with direct_session(home) as session:
        made, _ = pipeline.evaluate_model(session, ran.checkpoint, ran.prepared.evalset, settings.evaluate)
        promote_model(session, ran.checkpoint, artifact(made), settings)
    run_prepare(home, write_texts(tmp_path / "texts", range(12, 14)))
    store = open_store(home.store)
    before = measured_otherwise(store, 8)
    found: dict[str, Any] = evaluate(drift=True, home=str(home.path))
    assert read_state(store, "default")["evaluate"] == [made]
    assert "drift/bits_per_byte" in found["metrics"]
    assert found["metrics"]["val/ngram_order"] == 3
    assert measured_otherwise(store, 8) == before
    assert {stage["stage"] for stage in found["stages"]}.isdisjoint({"trace_index", "echoes", "contamination"})
