"""Folders in which something happens at a known moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def when_listed(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], object]) -> None:
    """Do something at the moment in which a folder is first about to be listed."""
    scandir, left = os.scandir, [act]

    def listed(path: Any = ".") -> Any:
        if left and str(path) == str(folder):
            left.pop()()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
