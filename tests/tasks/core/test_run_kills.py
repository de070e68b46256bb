"""SIGKILL at random moments, many times: of whole runs with their trainer, and of the processes that read files.

However often it was killed, a run that is begun again comes to the keys, the bits and the curve of one left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import run_kill_child
from extraction import extract_document, load
from tiny_run import Ran, direct_run, home_at, text_of

from storage.home import Home
from tasks.ingest.pool import ExtractionPool, ExtractJob, StartKilledError
from tasks.readers.records import ExtractOptions, Limits
from tasks.registry.models import ensure_training_run
from tests.flows.runs import store_contents
from tests.zygote import Zygote

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

RUN_KILLS, WORKER_KILLS = 15, 20


def test_a_run_killed_at_random_moments_ends_with_the_artefacts_and_the_curve_of_one_left_alone(
    tiny: Ran, tiny_source: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    expected = store_contents(tiny.run.home.path)
    moments, kills, ended, code = random.Random(8), 0, 0, 0
    with Zygote(run_kill_child.__file__) as zygote:
        started = time.monotonic()
        zygote.start("run", home=str(tmp_path / "alone"), source=str(tiny_source))
        assert zygote.wait() == 0
        seconds = time.monotonic() - started
        assert store_contents(tmp_path / "alone") == expected
        while kills < RUN_KILLS or code:  # every run that was begun is brought to its end
            home = tmp_path / f"run-{ended}"
            child = zygote.start("run", home=str(home), source=str(tiny_source))
            time.sleep(moments.uniform(0, seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            code = zygote.wait()
            assert code in (0, -signal.SIGKILL)
            kills += code != 0
            if code == 0:
                assert store_contents(home) == expected
                assert _points(tiny, home_at(home)) == {1}
                ended += 1
    record_property("kills", kills)


def _points(tiny: Ran, home: Home) -> set[int]:
    """Return the numbers of copies in MLflow of the points of a home's only training."""
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        run_id = ensure_training_run(run, tiny.checkpoint)
        tracking = run.tracking
        (found,) = tracking.client.search_runs([tracking.experiment_id])
        names = [name for name in found.data.metrics if not name.startswith("system/")]
        points = [(name, point.step) for name in names for point in tracking.client.get_metric_history(run_id, name)]
    assert found.info.status == "FINISHED"
    return set(Counter(points).values())


def _workers() -> list[int]:
    """The processes of the pool."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"tasks.ingest.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_processes_that_read_files_are_killed_and_every_file_has_its_outcome(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A file whose own, fresh process was killed fails with a reason; asked again, it is read like all others.

    Processes that are killed again and again while they start are given up, in words, and no file is blamed.
    """
    jobs = []
    for number in range(200):
        path = tmp_path / f"{number}.txt"
        path.write_text(text_of(number, n_words=2000))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        jobs.append(ExtractJob(path, digest, ".txt", path.with_suffix(".out")))
    expected = [extract_document(job.path.read_bytes(), ".txt", ExtractOptions()) for job in jobs]
    moments, kills, over = random.Random(8), 0, threading.Event()

    def kill() -> None:
        nonlocal kills
        while not over.is_set() and kills < WORKER_KILLS:
            for worker in moments.sample(found, 1) if (found := sorted(_workers())) else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    kills += 1
            over.wait(moments.uniform(0, 0.3))

    with contextlib.closing(ExtractionPool(2, Limits())) as pool:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while kills < WORKER_KILLS:
                futures = [pool.submit(job) for job in jobs]
                for future, job, wanted in zip(futures, jobs, expected, strict=True):
                    with contextlib.suppress(StartKilledError):
                        future.result()
                        outcome = load(job.out)
                        assert outcome == wanted or (outcome.status == "failed" and "killed" in outcome.reason), outcome
        finally:
            over.set()
            killer.join()
        again = [pool.submit(job) for job in jobs]
        for future in again:
            future.result()
    assert [load(job.out) for job in jobs] == expected
    record_property("kills", kills)
