"""Where runs of deployments work: a step that Prefect takes before each.

Without such a step Prefect copies a deployment's folder for every run that a worker starts, documents, home and all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect.runner.storage import LocalStorage

STEP = f"{__name__}.enter"


def enter(directory: str) -> dict[str, str]:
    """Work in a folder, so that relative addresses are meant from there; in a container that has it not, stay."""
    if Path(directory).is_dir():
        os.chdir(directory)
    return {"directory": str(Path.cwd())}


class Workplace(LocalStorage):
    """A folder that is worked in and not copied."""

    def to_pull_step(self) -> dict[str, Any]:
        """The step, as Prefect keeps it with a deployment."""
        return {STEP: {"directory": str(self.destination)}}
