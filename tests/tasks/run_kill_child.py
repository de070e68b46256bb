"""Whole runs in processes that can be killed: the children of `test_run_kills`, see `tests.zygote`."""

from __future__ import annotations

from pathlib import Path

import mlflow  # noqa: F401 - here, so that no child has to
import torch
from tiny_run import home_at, run_whole, tiny_settings

from tests.zygote import serve


def run(home: str, source: str) -> None:
    """Files to completions, with a checkpoint after each step."""
    torch.set_num_threads(1)
    run_whole(home_at(Path(home)), Path(source), tiny_settings("execution.checkpoint_minutes=0"))


if __name__ == "__main__":
    serve({"run": run})
