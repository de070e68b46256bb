"""Requests side by side on a Ray cluster of several nodes: where they run, what comes back, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flows.actions import promote_model
from ray_stages import Place, place
from tasks.cluster import on_ray, ray_runner
from tasks.resources import Resources
from tasks.session import Call, PrefectSession, artifact
from tiny_run import Ran, TinyResources, direct_session, home_at, run_in, run_whole, tiny_settings, write_texts

from flows import pipeline
from storage.errors import UserError
from storage.home import Home
from tasks.ingest.sources.resolve import resolve_sources
from tasks.registry.promote import Promotion

NODES = 2


@pytest.fixture
def on_cluster(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of several nodes with a processor each, and the settings that lead tasks to it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("prefect_ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("SHEEPFOLD_TASK_RUNNER", "ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, namespace="prefect")
    yield
    ray.shutdown()
    cluster.shutdown()


def in_flow(home: Home, function: Callable[[PrefectSession], Any]) -> Any:
    """What a function gives in a session of a flow whose tasks run on the cluster."""
    from prefect import flow

    @flow(name="test", task_runner=ray_runner(), persist_result=False)
    def run() -> Any:
        with Resources(home, workers=3) as resources:
            return function(PrefectSession(home, resources))

    return run()


@pytest.mark.full
@pytest.mark.prefect
def test_segments_are_extracted_on_all_nodes_and_come_out_as_in_one_process(
    on_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 3)
    source = write_texts(tmp_path / "source")

    def ingest(session: PrefectSession) -> tuple[Any, list[Any], dict[str, int]]:
        ingested = pipeline.ingest(session, resolve_sources([str(source)]), tiny_settings())
        places = session.run_each(place, [Call(Place(number), {}, 1) for number in range(3 * NODES)])
        again = session.run_each(place, [Call(Place(number), {}, 1) for number in range(3 * NODES)])
        assert again == places
        return ingested, places, {name: report.computed for name, report in session.reports.items()}

    there = home_at(tmp_path / "there")
    ingested, places, computed = in_flow(there, ingest)
    assert computed["extract"] == 12 and computed["place"] == 3 * NODES
    with direct_session(home_at(tmp_path / "here")) as session:
        here = pipeline.ingest(session, resolve_sources([str(source)]), tiny_settings())
        assert artifact(ingested.snapshot) == artifact(here.snapshot)
        folders = [PrefectSession(there).store.folder(ref) for ref in places]
    told = [(folder / "node.txt").read_text().split() for folder in folders]
    assert len({node for node, _ in told}) == NODES
    assert {workers for _, workers in told} == {"1"}  # as many processes as the task holds processors


@pytest.mark.full
@pytest.mark.prefect
def test_a_run_on_a_cluster_with_all_files_on_s3_promotes_the_model_of_a_run_on_a_laptop(
    s3_address: str, on_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 3)
    monkeypatch.setattr(Resources, "device", TinyResources.device)  # bits depend on the number of threads
    source = write_texts(tmp_path / "source")

    def whole(session: PrefectSession) -> tuple[Ran, Promotion]:
        ran = run_in(session, source, tiny_settings())
        assert ran.checkpoint is not None
        return ran, promote_model(session, ran.checkpoint, artifact(ran.evaluation))[0]

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


def test_only_the_files_of_a_request_and_nothing_that_lives_go_along(tmp_path: Path) -> None:
    with Resources(home_at(tmp_path), workers=3) as resources:
        resources.paths = {"a": "/a", "b": "/b"}
        resources.sizes = {"a": 1, "b": 2}
        assert resources.apart is resources.apart
        found = resources.elsewhere(2, {"b", "c"})
        assert (found.paths, found.sizes, found.workers) == ({"b": "/b"}, {"b": 2}, 2)
        assert found.apart is not resources.apart
        found.close()
        assert resources.paths == {"a": "/a", "b": "/b"} and resources.workers == 3
