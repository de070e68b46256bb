"""Requests side by side on a Ray cluster of several nodes: where they run, what comes back, and what is refused."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray_stages import Place, place
from tiny_run import Ran, TinyMachine, direct_run, home_at, run_in, run_whole, tiny_settings, write_texts

from flows.ingest import ingest_documents
from flows.promote import promote_model
from storage.errors import UserError
from storage.home import Home
from tasks.core.executor import on_ray, task_runner
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Call
from tasks.ingest.extract import SourceFiles
from tasks.ingest.journal import Content
from tasks.registry.promote import Promotion

NODES = 2


@pytest.fixture
def on_cluster(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of several nodes with a processor each, and the settings that lead tasks to it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("prefect_ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("SHEEPFOLD_TASK_RUNNER", "ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[1])]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, namespace="prefect")
    yield
    ray.shutdown()
    cluster.shutdown()


def in_flow(home: Home, function: Callable[[Run], Any]) -> Any:
    """Call a function inside a flow whose tasks run on Ray; returns its result."""
    from prefect import flow

    @flow(name="test", task_runner=task_runner(3), persist_result=False)
    def whole() -> Any:
        with Machine(workers=3) as machine:
            return function(Run(home, machine))

    return whole()


@pytest.mark.full
@pytest.mark.prefect
def test_segments_are_extracted_on_all_nodes_and_come_out_as_in_one_process(
    on_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 3)
    source = write_texts(tmp_path / "source")

    def ingest(run: Run) -> tuple[Any, list[Any], dict[str, int]]:
        ingested = ingest_documents(run, str(source), tiny_settings())
        calls = [Call(Place(number), {}) for number in range(3 * NODES)]
        places = place.map(run, calls)
        assert place.map(run, calls) == places
        return ingested, places, {name: report.computed for name, report in run.reports.items()}

    there = home_at(tmp_path / "there")
    ingested, places, computed = in_flow(there, ingest)
    assert computed["extract"] == 12 and computed["place"] == 3 * NODES
    with direct_run(home_at(tmp_path / "here")) as run:
        here = ingest_documents(run, str(source), tiny_settings())
        assert ingested.snapshot == here.snapshot
        folders = [Run(there).store.folder(ref) for ref in places]
    told = [(folder / "node.txt").read_text().split() for folder in folders]
    assert len({node for node, _ in told}) == NODES
    assert {workers for _, workers in told} == {"1"}  # as many processes as the task holds processors


@pytest.mark.full
@pytest.mark.prefect
def test_a_run_on_a_cluster_with_all_files_on_s3_promotes_the_model_of_a_run_on_a_laptop(
    s3_address: str, on_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 3)
    monkeypatch.setattr(Machine, "device", TinyMachine.device)  # bits depend on the number of threads
    source = write_texts(tmp_path / "source")

    def whole(run: Run) -> tuple[Ran, Promotion]:
        ran = run_in(run, source, tiny_settings())
        assert ran.checkpoint is not None
        return ran, promote_model(run, ran.checkpoint, ran.evaluation)[0]

    home = replace(home_at(tmp_path / "there"), store=s3_address, artifacts=f"{s3_address}-artifacts")
    ran, promoted = in_flow(home, whole)
    laptop = run_whole(home_at(tmp_path / "here"), source)
    assert (ran.checkpoint, ran.evaluation, ran.completions) == (
        laptop.checkpoint,
        laptop.evaluation,
        laptop.completions,
    )
    assert promoted.alias == "champion" and promoted.version.checkpoint == laptop.checkpoint
    assert not (home.path / "store").exists()


def test_a_runner_that_does_not_exist_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHEEPFOLD_TASK_RUNNER", raising=False)
    assert not on_ray()
    monkeypatch.setenv("SHEEPFOLD_TASK_RUNNER", "dask")
    with pytest.raises(UserError, match="SHEEPFOLD_TASK_RUNNER is 'dask': give one of threads, ray"):
        on_ray()


def test_only_the_files_of_a_request_and_nothing_that_lives_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEEPFOLD_RAY_CPUS", "2")
    files = SourceFiles({"a": "/a", "b": "/b"}, {"a": 1, "b": 2}).of([Content("b", ".txt")])
    assert (files.paths, files.sizes) == ({"b": "/b"}, {"b": 2})
    with Machine(workers=3) as machine:
        assert machine.subprocesses is machine.subprocesses
        found = copy.deepcopy(Run(home_at(tmp_path), machine))
        assert found.is_copy and found.machine.workers == 2
        assert found.machine.subprocesses is not machine.subprocesses
        found.machine.close()
        assert machine.workers == 3
