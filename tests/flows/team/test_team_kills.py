"""SIGKILL of a team's servers and workers, and of its database, at random moments of a run of a deployment.

Each kill falls into a training of its own. supervisord starts again what was killed; every run completes, as itself,
and in the end the store holds the bits, and the registry the versions, of trainings that nobody disturbed.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from postgres_server import Postgres, postgres_server
from team_box import Box, new_box, waited
from test_servers import free_port

from flows.team.programs import MLFLOW, PREFECT, WORKER, processes
from storage.errors import Unreachable
from storage.home import Home
from storage.registry import Registry
from storage.tracking import Tracking
from tasks.core.machine import Machine
from tasks.core.settings import parse_assignments
from tests.flows.runs import store_contents
from tests.tasks.tiny_run import SETTINGS, TinyMachine, home_at, run_whole, tiny_settings, write_texts

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(sys.platform != "linux", reason="finds all processes of a server through /proc"),
]

KILLS = (WORKER, PREFECT, MLFLOW, WORKER, PREFECT)
DATABASE_KILLS = 2
STEPS = 200


def asked(number: int) -> list[str]:
    """Settings of the so manieth training."""
    return [f"train.max_steps={STEPS}", f"train.seed={number}"]


@dataclass
class Trainings:
    """Short trainings through a deployment, each with a seed of its own.

    Attributes:
        tasks: how many steps of work one has that nobody disturbs.
        runs: the ids of their flow runs.
    """

    box: Box
    source: Path
    tasks: int = 0
    runs: list[str] = field(default_factory=list)

    def begin(self) -> str:
        """Start the next; returns its id once it runs."""
        settings = parse_assignments([*SETTINGS, *asked(len(self.runs))])
        run = self.box.start("retrain/weekly", source=str(self.source), settings=settings)
        self.runs.append(run)
        self.box.wait(run, "Running", "Completed")
        return run

    def finish(self, run: str) -> None:
        """Wait for its good end; a server may refuse for a moment when its database was away."""

        def completed() -> bool:
            with suppress(Unreachable):
                return bool(self.box.wait(run, "Completed"))
            return False

        waited(completed, f"run {run} to complete")

    def undisturbed(self) -> None:
        """One that nobody disturbs, to know how many steps it has."""
        run = self.begin()
        self.finish(run)
        self.tasks = self.begun(run)

    def begun(self, run: str) -> int:
        """Steps of a run that have begun."""
        return int(self.box.ask("task_runs/count", {"flow_runs": {"id": {"any_": [run]}}}))

    def state(self, run: str) -> str:
        """Name of a run's state."""
        return str(self.box.ask(f"flow_runs/{run}")["state_name"])

    def disturbed(self, what: str, moment: float, kill: Callable[[], None]) -> None:
        """One into which a kill falls, at this share of its steps; what was killed is brought up."""
        run = self.begin()
        wanted = int(moment * self.tasks)
        waited(lambda: self.begun(run) >= wanted or self.state(run) == "Completed", f"{wanted} steps of run {run}")
        print(f"{time.strftime('%T')} {what} killed, {moment:.0%} of {self.tasks} steps begun: {self.state(run)}")
        kill()
        self.finish(run)

    def check(self, folder: Path) -> None:
        """Nothing is lost and nothing is there twice."""
        home = home_at(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TinyMachine, "device", Machine.device)  # as many threads as a worker's: bits depend on it
            for number in range(len(self.runs)):
                run_whole(home, self.source, tiny_settings(*asked(number)))
        expected, found = store_contents(home.path), store_contents(self.box.home.path)
        assert {name: found.get(name) for name in expected} == expected
        assert _of(found, "train") == _of(expected, "train")
        assert not [path for path in (self.box.home.path / "store" / ".work").rglob("*") if path.is_file()]
        address = self.box.run("status")["mlflow_tracking_uri"]
        tracking = Tracking(Home(self.box.home.path, "", address))
        versions = Registry(tracking, "default").versions()
        assert {version.checkpoint.key for version in versions} == _of(expected, "train")
        assert len(versions) == len(self.runs)
        aliases = Counter(alias for version in versions for alias in version.aliases)
        assert aliases["champion"] == 1 and set(aliases.values()) == {1}
        runs = tracking.client.search_runs([tracking.experiment_id])
        assert {run.info.status for run in runs} == {"FINISHED"}
        assert {run.info.run_id for run in runs} == {version.run_id for version in versions}
        for run in runs:
            points = tracking.client.get_metric_history(run.info.run_id, "train/loss")
            steps = [point.step for point in points]
            assert steps and sorted(steps) == sorted(set(steps))
        flow_runs = self.box.ask("flow_runs/filter", {})
        assert {run["id"] for run in flow_runs if run["deployment_id"]} == set(self.runs)


def kill_all_of(box: Box, program: str) -> None:
    """Kill a program and all that it started."""
    for process in processes(box.home, program):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _of(contents: dict[str, Any], stage: str) -> set[str]:
    """Keys of a stage."""
    return {name.partition("/")[2] for name in contents if name.startswith(f"{stage}/")}


@contextmanager
def trainings(folder: Path, *options: str) -> Iterator[Trainings]:
    """A box that is up, with one finished training."""
    source = write_texts(folder / "documents")
    with contextmanager(new_box)(folder) as box:
        box.run("up", "--prefect-port", str(free_port()), "--mlflow-port", str(free_port()), *options)
        found = Trainings(box, source)
        found.undisturbed()
        yield found


def test_a_team_whose_servers_and_workers_are_killed_loses_nothing_and_doubles_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    moments = random.Random(8)
    order = moments.sample(KILLS, len(KILLS))
    with trainings(tmp_path / "team") as trained:
        for service in order:
            trained.disturbed(service, moments.random(), partial(kill_all_of, trained.box, service))
        trained.check(tmp_path / "alone")
    record_property("kills", len(KILLS))


def test_a_team_whose_database_is_killed_loses_nothing_and_doubles_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("psycopg2", reason="MLflow reaches PostgreSQL through psycopg2")
    moments = random.Random(8)

    def fail(database: Postgres) -> None:
        database.kill()
        database.start()

    with (
        postgres_server(free_port()) as database,
        trainings(tmp_path / "team", "--postgres", database.address) as trained,
    ):
        for _ in range(DATABASE_KILLS):
            trained.disturbed("database", moments.random(), partial(fail, database))
        trained.check(tmp_path / "alone")
    record_property("kills", DATABASE_KILLS)
