"""MLflow tracking: a projection of the store that people browse.

A training has one run, found by its key, however often it was killed. Points are written in batches and each only
once: what MLflow already holds is asked for before anything is written again. MLflow is imported late, because it
costs seconds and most commands do not need it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.environment import kept_variables
from storage.errors import Unreachable, UserError
from storage.home import Home
from storage.locks import owner_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger("sheepfold")

EXPERIMENT = "sheepfold"
KEY_TAG = "sheepfold.train_key"
BATCH_POINTS = 1_000
FAULT_SHARE = 0.03  # of a training's time, at most, is spent on an MLflow that does not answer
SYSTEM_PREFIX = "system/"  # of the metrics that MLflow shows on a page of their own
SYSTEM_SECONDS = 10.0  # between two looks at the machine
ENDING_SECONDS = 5.0  # that the last of them may take
TABLES_TAG = "mlflow.loggedArtifacts"

DIGEST_LENGTH = 36  # characters of a dataset's digest that MLflow's tables hold

# How MLflow's client tells of an answer that is not MLflow's usual one, such as the plain text of its own doorkeeper.
_REFUSAL = re.compile(r"API request to endpoint (?:was successful|\S+ failed with error code (4\d\d))\b")
_REMEDIES = {
    "401": "give the name and password that it takes by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "403": "let it answer under this name (--allowed-hosts of `sheepfold up`, MLFLOW_SERVER_ALLOWED_HOSTS of another "
    "server), or let its user do this",
}

Point = tuple[str, int, float]  # metric, step, value


def quiet_mlflow() -> None:
    """Keep MLflow from phoning home and from reading project files that are not ours."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    # a progress bar for every database migration and artefact copy would drown ours
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


def client(home: Home) -> MlflowClient:
    """A client of the home's tracking server and registry."""
    quiet_mlflow()
    import mlflow
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    home.create()
    for name, value in home.login().items():
        os.environ.setdefault(name, value)
    _create_database(home.tracking_uri)
    # MLflow puts its address there, too, where another home of this process would take it for the person's word
    with kept_variables("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        # the fluent calls of log_model need the address too
        mlflow.set_tracking_uri(home.tracking_uri)
        mlflow.set_registry_uri(home.tracking_uri)
    return MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)


def _create_database(address: str) -> None:
    """Put MLflow's SQLite file there whole: killed while it makes its tables, it never gets on with what is there."""
    if not address.startswith("sqlite:"):
        return
    from mlflow import MlflowClient
    from sqlalchemy.engine import make_url

    name = make_url(address).database
    if not name or name == ":memory:" or Path(name).exists():
        return
    path = Path(name)
    with owner_lock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # made by the owner we waited for
            return
        for leftover in path.parent.glob(f".{path.name}.unfinished*"):
            leftover.unlink()
        # a name of its own for each try: MLflow keeps connections by address, and one to a file that is gone is no use
        unfinished = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex[:8]}")
        MlflowClient(f"sqlite:///{unfinished}").search_experiments()
        unfinished.rename(path)


def pages_under(address: str) -> str | None:
    """Address under which MLflow shows its pages; None for a database, which shows none."""
    return f"{address.rstrip('/')}/#" if address.startswith(("http://", "https://")) else None


class Tracking:
    """The tracking side of one home.

    Raises:
        Unreachable: MLflow's server does not answer.
        UserError: it answers, and refuses the name, the password or the address that it was asked under.
    """

    def __init__(self, home: Home) -> None:
        from mlflow.exceptions import MlflowException, RestException

        self.home = home
        self.client = client(home)
        try:
            self.experiment_id = self._experiment()
        except RestException:  # it answered, that it will not
            raise
        except MlflowException as error:
            if not home.tracking_uri.startswith(("http://", "https://")):
                raise
            if refusal := _REFUSAL.match(str(error)):
                remedy = _REMEDIES.get(refusal[1], "correct MLFLOW_TRACKING_URI, which leads to something else")
                raise UserError(f"MLflow at {home.tracking_uri} refuses ({error}): {remedy}") from error
            raise Unreachable(
                f"MLflow does not answer at {home.tracking_uri} ({error}): start it, or correct MLFLOW_TRACKING_URI, "
                "and run the same command again; what is finished stays"
            ) from error

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            location = self.home.artifacts or None
            if location is None and self.home.tracking_uri.startswith("sqlite:"):
                # MLflow would write its default, which is relative to the folder of whoever came first
                location = self.home.mlflow_artifacts.as_uri()
            try:
                # the kind lets MLflow's pages open on training runs instead of on chats
                tags = {"mlflow.experimentKind": "custom_model_development"}
                return str(self.client.create_experiment(EXPERIMENT, artifact_location=location, tags=tags))
            except MlflowException:
                found = self.client.get_experiment_by_name(EXPERIMENT)  # another process was faster
                if found is None:
                    raise
        return str(found.experiment_id)

    def find_run(self, train_key: str) -> str | None:
        """Id of the run of a training, or None."""
        return next(iter(self._runs(train_key)), None)

    def _runs(self, train_key: str) -> list[str]:
        """Ids of the runs of a training, the oldest first; they are several until `_create_run` is through."""
        found = self.client.search_runs(
            [self.experiment_id],
            filter_string=f"tags.`{KEY_TAG}` = '{train_key}'",
            order_by=["attributes.start_time ASC"],
        )
        return [str(run.info.run_id) for run in found]

    def _create_run(self, train_key: str, name: str, tags: Mapping[str, str]) -> str:
        """Make the run of a training; returns its id.

        MLflow's client asks again when an answer is lost, and then the run is there twice.
        """
        self.client.create_run(
            self.experiment_id, run_name=name, tags={KEY_TAG: train_key, **tags, "mlflow.source.type": "PROJECT"}
        )
        first, *again = self._runs(train_key)
        for run_id in again:
            self.client.delete_run(run_id)
        return first

    def train_keys(self) -> set[str]:
        """Keys of the trainings that have a run; a run that was deleted counts for none."""
        return self._train_keys(deleted=False)

    def deleted_train_keys(self) -> set[str]:
        """Keys of the trainings whose run was deleted, and that have no other one."""
        deleted = self._train_keys(deleted=True)  # first: a run that is restored meanwhile is a run
        return deleted - self.train_keys()

    def _train_keys(self, deleted: bool) -> set[str]:
        from mlflow.entities import ViewType

        view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        keys: set[str] = set()
        page: str | None = ""
        while page is not None:
            runs = self.client.search_runs([self.experiment_id], run_view_type=view, page_token=page or None)
            keys |= {run.data.tags[KEY_TAG] for run in runs if KEY_TAG in run.data.tags}
            page = runs.token or None
        return keys

    def ensure_run(self, train_key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """The run of a training, made when it is not there; parameters are written when it is made.

        Returns:
            The run's id; a run that failed or was killed is marked running again.
        """
        run_id = self.find_run(train_key) or self._create_run(train_key, name, tags)
        run = self.client.get_run(run_id)
        if run.info.status in ("FAILED", "KILLED"):
            self.client.update_run(run_id, status="RUNNING")
        if not run.data.params:
            from mlflow.entities import Param

            entries = [Param(key, str(value)) for key, value in params.items()]
            self.client.log_batch(run_id, params=entries)
        changed = {key: value for key, value in tags.items() if run.data.tags.get(key) != value}
        if changed:
            from mlflow.entities import RunTag

            self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in changed.items()])
        return run_id

    def last_steps(self, run_id: str) -> dict[str, int]:
        """Last step that MLflow holds of each metric of a run."""
        metrics = [key for key in self.latest_metrics(run_id) if not key.startswith(SYSTEM_PREFIX)]
        return {key: max(steps) for key, steps in self._held_steps(run_id, metrics).items()}

    def _held_steps(self, run_id: str, metrics: Iterable[str]) -> dict[str, set[int]]:
        return {key: {point.step for point in self.client.get_metric_history(run_id, key)} for key in metrics}

    @property
    def pages(self) -> str | None:
        """Address under which MLflow's server shows its pages; None where there is no server."""
        return pages_under(self.home.tracking_uri)

    def page_of_run(self, run_id: str) -> str | None:
        """Address of a run's page."""
        return None if self.pages is None else f"{self.pages}/experiments/{self.experiment_id}/runs/{run_id}"

    def tags(self, run_id: str, beginnings: tuple[str, ...]) -> dict[str, str]:
        """Tags of a run whose names begin so."""
        found = self.client.get_run(run_id).data.tags
        return {name: value for name, value in sorted(found.items()) if name.startswith(beginnings)}

    def latest_metrics(self, run_id: str) -> dict[str, float]:
        """Last value of each metric of a run."""
        return dict(self.client.get_run(run_id).data.metrics)

    def log_points(self, run_id: str, points: Iterable[Point]) -> None:
        """Write points in batches."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(key, value, now, step) for key, step, value in points]
        for start in range(0, len(metrics), BATCH_POINTS):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH_POINTS])

    def log_missing(self, run_id: str, points: Iterable[Point]) -> None:
        """Write those points that MLflow does not hold yet, gaps in the middle of a curve among them."""
        wanted = list(points)
        # one question each: an evaluated run has many figures more than a training's curve
        asked = self.latest_metrics(run_id).keys() & {point[0] for point in wanted}
        held = self._held_steps(run_id, asked)
        self.log_points(run_id, [point for point in wanted if point[1] not in held.get(point[0], ())])

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """Set a run's status, unless it has it already."""
        if self.client.get_run(run_id).info.status != status:
            self.client.set_terminated(run_id, status=status)

    def log_file(self, run_id: str, path: Path) -> None:
        """Put a file beside a run; one of the same name is replaced."""
        self.client.log_artifact(run_id, str(path))

    def has_file(self, run_id: str, name: str) -> bool:
        """Whether a file of that name lies beside a run."""
        return any(entry.path == name for entry in self.client.list_artifacts(run_id))

    def remove_files(self, run_id: str, endings: tuple[str, ...]) -> list[str]:
        """Take files beside a run away whose names end so; returns their names."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        repository = get_artifact_repository(self.client.get_run(run_id).info.artifact_uri)
        names = [entry.path for entry in self.client.list_artifacts(run_id) if entry.path.endswith(endings)]
        for name in names:
            repository.delete_artifacts(name)
        return names

    def log_table(self, run_id: str, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Put a table beside a run, where MLflow's pages show it; one of the same name is replaced.

        Args:
            name: of its file, ending in `.json`.
        """
        self.client.log_text(run_id, json.dumps({"columns": list(columns), "data": rows}, ensure_ascii=False), name)
        tables = json.loads(self.client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in tables:
            self.client.set_tag(run_id, TABLES_TAG, json.dumps([*tables, entry]))

    @contextmanager
    def system_metrics(self, run_id: str, seconds: float = SYSTEM_SECONDS) -> Iterator[None]:
        """Inside, MLflow looks at processors, memory, disk and network every few seconds and notes it beside a run.

        After an interruption the numbers go on where they ended. They are a look from outside: without psutil, or with
        an MLflow that does not answer, there are none, and everything else goes on.
        """
        monitor = self._monitor(run_id, seconds)
        if monitor is None:
            yield
            return
        monitor.start()
        try:
            yield
        finally:
            # its last words go over a network that may be gone
            ending = threading.Thread(target=monitor.finish, name="end of system metrics", daemon=True)
            ending.start()
            ending.join(ENDING_SECONDS)

    def _monitor(self, run_id: str, seconds: float) -> Any:
        """MLflow's monitor of the machine; None where there cannot be one."""
        from mlflow.exceptions import MlflowException

        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
        except ImportError as error:
            logger.info("no system metrics in MLflow: %s; `pip install psutil` adds them", error)
            return None

        class Monitor(SystemMetricsMonitor):
            """Leaves out the first reading of the processors' load, which is always 0."""

            read_before = False

            def aggregate_metrics(self) -> dict[str, float]:
                metrics: dict[str, float] = super().aggregate_metrics()
                if not self.read_before:
                    metrics.pop("cpu_utilization_percentage", None)
                self.read_before = True
                return metrics

        try:
            return Monitor(run_id, sampling_interval=seconds, resume_logging=True, tracking_uri=self.home.tracking_uri)
        except MlflowException as error:
            logger.warning("no system metrics in MLflow (%s); the training goes on", error)
            return None

    def log_datasets(self, run_id: str, name: str, digest: str, location: str, context: str) -> None:
        """Tie a dataset to a run, once."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = self.client.get_run(run_id).inputs.dataset_inputs
        if any(entry.dataset.digest == digest[:DIGEST_LENGTH] and entry.dataset.name == name for entry in inputs):
            return
        dataset = Dataset(
            name=name,
            digest=digest[:DIGEST_LENGTH],
            source_type="local",
            source=json.dumps({"uri": location}),
        )
        entry = DatasetInput(dataset, tags=[InputTag("mlflow.data.context", context)])
        self.client.log_inputs(run_id, datasets=[entry])

    def log_figures(
        self,
        run_id: str,
        model_id: str,
        metrics: Mapping[str, float],
        step: int,
        name: str,
        digest: str,
        location: str,
    ) -> None:
        """Tie figures to a run, a logged model and the dataset that they were measured on, each once.

        Args:
            model_id: of the logged model, whose page shows them; empty where there is none.
            step: of the training, at whose curve's end they stand.
            name, digest, location: of the dataset.
        """
        from mlflow.entities import Metric

        self.log_datasets(run_id, name, digest, location, "evaluation")
        digest = digest[:DIGEST_LENGTH]
        if model_id:
            points = self.client.get_logged_model(model_id).metrics or []
            held = {(point.key, point.value) for point in points if point.dataset_digest == digest}
        else:
            held = set(self.latest_metrics(run_id).items())
        now = int(time.time() * 1000)
        entries = [
            Metric(
                key,
                value,
                now,
                step,
                model_id=model_id or None,
                dataset_name=name,
                dataset_digest=digest,
                run_id=run_id,
            )
            for key, value in metrics.items()
            if (key, value) not in held
        ]
        if entries:
            self.client.log_batch(run_id, metrics=entries)


class PointBuffer:
    """Collects points and writes them now and then, each once, even after a resume.

    MLflow is a projection: while it does not answer, points wait and the training goes on. Writing them takes it 13 ms,
    however few they are.

    Args:
        tracking: where to.
        run_id: the training's run.
        seconds: longest time a point waits.
    """

    def __init__(self, tracking: Tracking, run_id: str, seconds: float) -> None:
        self._tracking = tracking
        self._run_id = run_id
        self._seconds = seconds
        self._points: list[Point] = []
        self._written = tracking.last_steps(run_id)
        self._flushed = time.monotonic()
        self._failed = False
        self._not_before = self._flushed

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of one step; those MLflow holds from before a kill are left out."""
        self._points.extend(
            (key, step, float(value)) for key, value in metrics.items() if step > self._written.get(key, -1)
        )
        if time.monotonic() - self._flushed > self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write what waits, as far as MLflow takes it."""
        began = time.monotonic()
        if began < self._not_before:
            return
        # what failed may have been written in part
        write = self._tracking.log_missing if self._failed else self._tracking.log_points
        if self._attempt(lambda: write(self._run_id, self._points)):
            self._points = []
        else:
            self._not_before = time.monotonic() + (time.monotonic() - began) / FAULT_SHARE
        self._flushed = time.monotonic()

    def fail(self) -> None:
        """Write what waits and mark the run as failed, as far as MLflow takes it."""
        self._end("FAILED")

    def stop(self) -> None:
        """Write what waits and mark the run as killed, to be gone on with, as far as MLflow takes it."""
        self._end("KILLED")

    def _end(self, status: str) -> None:
        self.flush()
        self._attempt(lambda: self._tracking.finish(self._run_id, status))

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Whether MLflow did it; the first time that it does not is told."""
        from mlflow.exceptions import MlflowException

        try:
            action()
        except MlflowException as error:
            if not self._failed:
                logger.warning(
                    "MLflow does not take the training's curve (%s); the training goes on, and the curve is completed "
                    "later",
                    error,
                )
            self._failed = True
            return False
        return True
