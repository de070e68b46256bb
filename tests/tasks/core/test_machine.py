"""Cores that a run may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core import machine


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 8), ("150000 100000", 2), ("6400000 100000", 8)])
def test_a_container_has_the_cores_of_its_quota(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    assert machine.usable_cores() == 8
    machine.CPU_QUOTA.write_text(f"{quota}\n")
    assert machine.usable_cores() == expected
