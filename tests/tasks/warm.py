"""A machine that hands its extraction process on to the next run: starting one takes longer than a test's texts."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tasks.core.machine import Machine
from tasks.ingest.pool import ExtractionPool, ExtractJob
from tasks.readers.records import Extraction


class _KeptPool(ExtractionPool):
    """Knows whether a document is still in work."""

    def __init__(self, workers: int, limits: Any) -> None:
        super().__init__(workers, limits)
        self.submitted: list[Future[Extraction]] = []

    def submit(self, job: ExtractJob) -> Future[Extraction]:
        self.submitted.append(super().submit(job))
        return self.submitted[-1]


_kept: dict[tuple[Any, ...], _KeptPool] = {}  # one at most


class WarmMachine(Machine):
    """A machine of the tests.

    The process that it takes over was started under the same limits, environment and folder; what MLflow and Prefect
    keep in the environment is nothing to it. One that still has work when its run ends, as after an interruption, is
    killed as ever.
    """

    def pool(self) -> ExtractionPool:
        variables = {item for item in os.environ.items() if not item[0].startswith(("MLFLOW_", "PREFECT_", "PYTEST_"))}
        asked = (self.workers, self.limits, frozenset(variables), Path.cwd())
        if asked not in _kept:
            while _kept:
                _kept.popitem()[1].close()
            _kept[asked] = _KeptPool(self.workers, self.limits)
        self._pool = _kept[asked]
        return self._pool

    def close(self) -> None:
        pool = self._pool
        if isinstance(pool, _KeptPool) and pool in _kept.values():
            if all(future.done() for future in pool.submitted):
                pool.submitted.clear()
                self._pool = None
            else:
                _kept.clear()
        super().close()
