"""The nightly cleanup as a flow run: what it joined and removed, and what it leaves in Prefect's pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from ingest_run import home_at, ingest, prose, write

import tasks.ingest.segments as segments

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


def test_a_night_joins_small_segments_and_the_next_one_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.cleanup import cleanup

    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(segments, "SEGMENT_FILES", 3)
    home = home_at(tmp_path / "home")
    ran = ingest(home, write(tmp_path / "in", {f"{number}.txt": prose(number) for number in range(9)}))
    monkeypatch.undo()
    first: dict[str, Any] = cleanup(home=str(home.path), at_least=3)
    assert [len(parts) for parts in first["compacted"]["joined"].values()] == [3]
    assert first["compacted"]["followed"] == ["default"]
    assert first["cleared"]["removed"] == []  # all of it was made a moment ago
    second: dict[str, Any] = cleanup(home=str(home.path), at_least=3, grace_days=0)
    assert second["compacted"]["joined"] == {}
    old = {f"refine/{ref.key}" for ref in ran.ingested.refined}
    assert old <= set(second["cleared"]["removed"])  # no dataset needs these texts
