"""Extraction on a local Ray cluster of four workers compared with one of one worker.

    python -m benchmarks.ray_ingest

A stub in place of the engines waits a fixed time per document, so that the processors of this machine are not the
limit. Measured is the work of a flow with segments (Prefect's task runs, Ray, commits to a shared store), after a first
round in which Ray starts its processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.table import Row, report
from storage.home import Home
from tasks.core.machine import Machine
from tasks.ingest.journal import finish_document, part_file, write_lines
from tasks.ingest.pool import ExtractJob
from tasks.readers.records import Extraction, ExtractOptions, PageText

WORKERS = 4
SEGMENTS = 16
DOCUMENTS = 8  # of a segment
SECONDS = 0.75  # of a document: a segment takes 6 s, less than the recommended 10 s per task
GOAL = 3.6
RUNNER = "SHEEPFOLD_TASK_RUNNER"


class StubPool:
    """A pool in place of the extraction processes: each document takes the same time and no processor."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, job: ExtractJob) -> Future[Extraction]:
        """Return the document after the fixed time."""
        return self._threads.submit(_wait, job)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _wait(job: ExtractJob) -> Extraction:
    time.sleep(SECONDS)
    write_lines(part_file(job.out, 0), [PageText(1, job.sha256, "text", "decoder")])
    return finish_document(part_file(job.out, 0), job.out, Extraction("ok", kind="text", media_type="text/plain"))


class StubMachine(Machine):
    """A machine with the stub as its pool."""

    def pool(self) -> Any:
        """Return the stub."""
        if self._pool is None:
            self._pool = StubPool(self.workers)  # type: ignore[assignment]
        return self._pool


@contextmanager
def cluster(workers: int) -> Iterator[None]:
    """Start a Ray cluster of nodes with one processor each; the flow itself reserves none."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(workers):
            nodes.add_node(num_cpus=1)
        ray.init(nodes.address, log_to_driver=False, namespace="prefect")
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


@contextmanager
def on_ray() -> Iterator[None]:
    """Run flows of this process on Ray while the context is open."""
    before = os.environ.get(RUNNER)
    os.environ[RUNNER] = "ray"
    try:
        yield
    finally:
        if before is None:
            del os.environ[RUNNER]
        else:
            os.environ[RUNNER] = before


def seconds_of(home: Home, segments: int) -> float:
    """Return the wall time of extracting segments in a flow on the cluster."""
    from prefect import flow

    from tasks.core.executor import task_runner
    from tasks.core.run import Run
    from tasks.core.stage import Call
    from tasks.ingest.extract import SegmentSettings, SourceFiles, document_id, extract
    from tasks.ingest.journal import Content

    @flow(name="ray-ingest", task_runner=task_runner(1), persist_result=False)
    def ingest() -> float:
        with StubMachine(workers=1) as machine:
            calls = []
            for segment in range(segments):
                names = [document_id(f"{home.path}-{segment}-{number}") for number in range(DOCUMENTS)]
                files = SourceFiles(dict.fromkeys(names, os.devnull), dict.fromkeys(names, 0))
                contents = tuple(sorted(Content(name, ".txt") for name in names))
                calls.append(Call(SegmentSettings(ExtractOptions(), contents), {"files": files}, DOCUMENTS))
            started = time.perf_counter()
            extract.map(Run(home, machine), calls)
            return time.perf_counter() - started

    return ingest()


def ray_rows(full: bool = False) -> Iterator[Row]:
    """Yield the row of the table; needs a Prefect API, configured or started on demand."""
    from flows.embedded import prefect_api

    found = {}
    with on_ray(), tempfile.TemporaryDirectory() as folder, prefect_api(Home.from_environment(folder)):
        for workers in (1, WORKERS):
            first, timed = (Home.from_environment(Path(folder) / f"{workers}-{name}").create() for name in "ab")
            with cluster(workers):
                seconds_of(first, workers)
                found[workers] = seconds_of(timed, SEGMENTS)
    yield Row(
        f"ingest on {WORKERS} Ray workers, {SEGMENTS * DOCUMENTS} documents of {SECONDS} s",
        f"{found[WORKERS]:.1f} s",
        f"{found[1]:.1f} s on one",
        found[1] / found[WORKERS],
        GOAL,
    )


if __name__ == "__main__":
    sys.exit(0 if report(ray_rows()) else 1)
