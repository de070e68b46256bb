"""The nightly cleanup as a flow run: what it joined and removed, and what it leaves in Prefect's pages."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from ingest_run import Ingestion, home_at, ingest, prose, write

import tasks.ingest.segments as segments
from storage.home import Home
from storage.store import MANIFEST_NAME

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return home_at(tmp_path / "home")


@pytest.fixture
def ran(home: Home, tmp_path: Path) -> Ingestion:
    """Ingest three segments that can be joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_FILES", 3)
        return ingest(home, write(tmp_path / "in", {f"{number}.txt": prose(number) for number in range(9)}))


@pytest.mark.full
def test_a_night_joins_small_segments_and_a_later_one_removes_them(home: Home, ran: Ingestion, tmp_path: Path) -> None:
    from flows.options import CleanupOptions
    from flows.upkeep import cleanup

    first: dict[str, Any] = cleanup(CleanupOptions(home=str(home.path), at_least=3))
    assert [len(parts) for parts in first["compacted"]["joined"].values()] == [3]
    assert first["cleared"]["removed"] == []  # all of it was made a moment ago
    ingest(home, tmp_path / "in")
    days_ago = time.time() - 3 * 24 * 3600
    for manifest in Path(home.store).glob(f"*/*/{MANIFEST_NAME}"):
        os.utime(manifest, (days_ago, days_ago))
    kept: dict[str, Any] = cleanup(CleanupOptions(home=str(home.path), at_least=3, grace_days=4))
    assert (kept["compacted"]["joined"], kept["compacted"]["removed"]) == ({}, [])
    gone: dict[str, Any] = cleanup(CleanupOptions(home=str(home.path), at_least=3, grace_days=2))
    assert {f"extract/{ref.key}" for ref in ran.ingested.segments.refs} == set(gone["compacted"]["removed"])
    assert {f"refine/{ref.key}" for ref in ran.ingested.refined} <= set(gone["cleared"]["removed"])  # no dataset
