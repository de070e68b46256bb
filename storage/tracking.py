"""MLflow tracking: one run per training attempt.

Each point is written once, also after a kill. MLflow is imported inside functions, because the import takes seconds and
most commands do not need it.
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

from storage.errors import Unreachable, UserError
from storage.home import Home, kept_variables
from storage.locks import owner_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger("sheepfold")

EXPERIMENT = "sheepfold"
TRAIN_KEY_TAG = "sheepfold.train_key"
CORPUS_TAG = "sheepfold.corpus"
ATTEMPT_TAG = "sheepfold.attempt"
REFRESHES_TAG = "sheepfold.refreshes"
FAULT_SHARE = 0.03  # upper bound of the share of training time spent on requests to an MLflow that does not respond
SYSTEM_PREFIX = "system/"  # prefix of the metrics of the machine
SYSTEM_SECONDS = 10.0  # interval of the machine's metrics
ENDING_SECONDS = 5.0  # time limit for writing the last of them
TABLES_TAG = "mlflow.loggedArtifacts"
DIGEST_LENGTH = 36  # longest dataset digest that MLflow's tables hold

# messages of MLflow's client about responses that are not MLflow's JSON, such as those of its Host header check
_REFUSAL = re.compile("error code 4[0-9][0-9] |request to endpoint was successful but")

# defaults: MLflow without telemetry, pickles, detection of projects, log lines and progress bars
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

Point = tuple[str, int, float]  # metric, step, value


def quieten() -> None:
    """Set defaults of MLflow in the environment, which it reads at its import."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def client(home: Home) -> MlflowClient:
    """Return a client of the home's tracking server and registry."""
    quieten()
    import mlflow
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    home.create()
    for name, value in home.login().items():
        os.environ.setdefault(name, value)
    create_database(home.tracking_uri)
    # MLflow also writes its address into the environment, where another home of this process would read it
    with kept_variables("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        mlflow.set_tracking_uri(home.tracking_uri)
        mlflow.set_registry_uri(home.tracking_uri)
    return MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)


def create_database(address: str) -> None:
    """Create MLflow's SQLite file atomically: MLflow cannot open a file with half of its tables."""
    if not address.startswith("sqlite:"):
        return
    from sqlalchemy.engine import make_url

    name = make_url(address).database
    if not name or name == ":memory:" or Path(name).exists():
        return
    quieten()
    from mlflow import MlflowClient

    path = Path(name)
    with owner_lock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # created by another process meanwhile
            return
        for leftover in path.parent.glob(f".{path.name}.unfinished*"):
            leftover.unlink()
        # a new name each time: MLflow caches connections by address
        unfinished = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex[:8]}")
        MlflowClient(f"sqlite:///{unfinished}").search_experiments()
        unfinished.rename(path)


def pages_under(address: str) -> str | None:
    """Return the base address of MLflow's web pages, or None for a database without a server."""
    return f"{address.rstrip('/')}/#" if address.startswith(("http://", "https://")) else None


class Tracking:
    """Runs, metrics and datasets in the MLflow of one home.

    Raises:
        Unreachable: if MLflow's server does not answer.
        UserError: if it refuses the user, the password or the host name.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.client = client(home)  # before other imports of MLflow: it sets what MLflow reads at import
        from mlflow.exceptions import MlflowException, RestException

        try:
            self.experiment_id = self._experiment()
        except RestException:
            raise
        except MlflowException as error:
            if not home.tracking_uri.startswith(("http://", "https://")):
                raise
            if _REFUSAL.search(str(error)):
                raise UserError(
                    f"MLflow at {home.tracking_uri} refuses access ({error}): check MLFLOW_TRACKING_URI, the login in "
                    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and the host names that the server allows "
                    "(--allowed-hosts of `sheepfold up`, MLFLOW_SERVER_ALLOWED_HOSTS of another server)"
                ) from error
            raise Unreachable(
                f"MLflow does not respond at {home.tracking_uri} ({error}): start it, or correct MLFLOW_TRACKING_URI, "
                "and run the same command again; finished stages are kept"
            ) from error

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            location = self.home.artifacts or None
            if location is None and self.home.tracking_uri.startswith("sqlite:"):
                # MLflow's default is relative to the current folder
                location = self.home.mlflow_artifacts.as_uri()
            try:
                # with this tag MLflow's pages open on training runs instead of on chats
                tags = {"mlflow.experimentKind": "custom_model_development"}
                return str(self.client.create_experiment(EXPERIMENT, artifact_location=location, tags=tags))
            except MlflowException:
                found = self.client.get_experiment_by_name(EXPERIMENT)  # another process was faster
                if found is None:
                    raise
        return str(found.experiment_id)

    def runs(self, train_key: str) -> list[str]:
        """Return the ids of all runs of a training, one per attempt, oldest first."""
        return self._tagged(TRAIN_KEY_TAG, train_key)

    def _tagged(self, tag: str, value: str) -> list[str]:
        found = self.client.search_runs(
            [self.experiment_id],
            filter_string=f"tags.`{tag}` = '{value}'",
            order_by=["attributes.start_time ASC"],
        )
        return [str(run.info.run_id) for run in found]

    def _create_run(self, train_key: str, attempt: str, name: str, tags: Mapping[str, str]) -> str:
        earlier = self.runs(train_key)
        own = {TRAIN_KEY_TAG: train_key, ATTEMPT_TAG: attempt, **({REFRESHES_TAG: earlier[-1]} if earlier else {})}
        self.client.create_run(self.experiment_id, run_name=name, tags={**tags, **own, "mlflow.source.type": "PROJECT"})
        first, *again = self._tagged(ATTEMPT_TAG, attempt)
        for run_id in again:  # MLflow's client repeats a request whose response was lost
            self.client.delete_run(run_id)
        return first

    def deleted_train_keys(self) -> set[str]:
        """Return the keys of trainings whose runs were all deleted."""
        from mlflow.entities import ViewType
        from mlflow.store.tracking import SEARCH_MAX_RESULTS_THRESHOLD

        deleted = self.client.search_runs(
            [self.experiment_id], run_view_type=ViewType.DELETED_ONLY, max_results=SEARCH_MAX_RESULTS_THRESHOLD
        )
        keys = {run.data.tags[TRAIN_KEY_TAG] for run in deleted if TRAIN_KEY_TAG in run.data.tags}
        return {key for key in keys if not self.runs(key)}

    def ensure_run(
        self, train_key: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str], attempt: str = ""
    ) -> str:
        """Return the run of a training attempt; create it with its parameters if it does not exist.

        A run that failed or was killed is marked as running again.

        Args:
            attempt: identifies one of several trainings with the same key; empty for the first one.
        """
        from mlflow.entities import Param, RunTag

        known = self._tagged(ATTEMPT_TAG, attempt) if attempt else self.runs(train_key)
        run_id = known[0] if known else self._create_run(train_key, attempt or train_key, name, tags)
        run = self.client.get_run(run_id)
        if run.info.status in ("FAILED", "KILLED"):
            self.client.update_run(run_id, status="RUNNING")
        missing = [] if run.data.params else [Param(key, str(value)) for key, value in params.items()]
        changed = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
        self.client.log_batch(run_id, params=missing, tags=changed)
        return run_id

    def last_steps(self, run_id: str) -> dict[str, int]:
        """Return the last step of each metric of a run in MLflow."""
        metrics = [key for key in self.latest_metrics(run_id) if not key.startswith(SYSTEM_PREFIX)]
        return {key: max(steps) for key, steps in self._held_steps(run_id, metrics).items()}

    def _held_steps(self, run_id: str, metrics: Iterable[str]) -> dict[str, set[int]]:
        return {key: {point.step for point in self.client.get_metric_history(run_id, key)} for key in metrics}

    def page_of_run(self, run_id: str) -> str | None:
        """Return the address of a run's page, or None without a server."""
        pages = pages_under(self.home.tracking_uri)
        return None if pages is None else f"{pages}/experiments/{self.experiment_id}/runs/{run_id}"

    def latest_metrics(self, run_id: str) -> dict[str, float]:
        """Return the last value of each metric of a run."""
        return dict(self.client.get_run(run_id).data.metrics)

    def log_points(self, run_id: str, points: Iterable[Point]) -> None:
        """Write points; MLflow's client splits them into batches."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(run_id, metrics=[Metric(key, value, now, step) for key, step, value in points])

    def log_missing(self, run_id: str, points: Iterable[Point]) -> None:
        """Write the points that MLflow lacks, also in the middle of a curve."""
        wanted = list(points)
        # only for these metrics, because each is a request and an evaluated run has many others
        asked = self.latest_metrics(run_id).keys() & {point[0] for point in wanted}
        held = self._held_steps(run_id, asked)
        self.log_points(run_id, [point for point in wanted if point[1] not in held.get(point[0], ())])

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """Set a run's final status, if it differs."""
        if self.client.get_run(run_id).info.status != status:
            self.client.set_terminated(run_id, status=status)

    def has_file(self, run_id: str, name: str) -> bool:
        """Return True if a run has an artefact of that name in MLflow."""
        return any(entry.path == name for entry in self.client.list_artifacts(run_id))

    def remove_files(self, run_id: str, endings: tuple[str, ...]) -> list[str]:
        """Delete the artefacts of a run in MLflow whose names have one of these endings; returns their names."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        repository = get_artifact_repository(self.client.get_run(run_id).info.artifact_uri)
        names = [entry.path for entry in self.client.list_artifacts(run_id) if entry.path.endswith(endings)]
        for name in names:
            repository.delete_artifacts(name)
        return names

    def log_table(self, run_id: str, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Upload a table that MLflow's pages show, replacing one of the same name.

        Args:
            name: file name, ending in `.json`.
        """
        self.client.log_text(run_id, json.dumps({"columns": list(columns), "data": rows}, ensure_ascii=False), name)
        tables = json.loads(self.client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in tables:
            self.client.set_tag(run_id, TABLES_TAG, json.dumps([*tables, entry]))

    @contextmanager
    def system_metrics(self, run_id: str, seconds: float = SYSTEM_SECONDS) -> Iterator[None]:
        """Log metrics of processors, memory, disk and network to a run while the context is open.

        Steps continue after an interruption.
        """
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        uri = self.home.tracking_uri
        monitor = SystemMetricsMonitor(run_id, sampling_interval=seconds, resume_logging=True, tracking_uri=uri)
        monitor.start()
        try:
            yield
        finally:
            # in a thread with a time limit: the network may be gone
            ending = threading.Thread(target=monitor.finish, name="end of system metrics", daemon=True)
            ending.start()
            ending.join(ENDING_SECONDS)

    def log_dataset(self, run_id: str, name: str, digest: str, location: str, context: str) -> None:
        """Log a dataset as input of a run; MLflow stores each name and digest once."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(name, digest[:DIGEST_LENGTH], source_type="local", source=json.dumps({"uri": location}))
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
        """Log metrics of a run, tied to a logged model and a dataset, each once.

        Args:
            model_id: id of the logged model, or empty.
            step: last step of the training.
            name, digest, location: the dataset of the measurement.
        """
        from mlflow.entities import Metric

        self.log_dataset(run_id, name, digest, location, "evaluation")
        digest = digest[:DIGEST_LENGTH]
        if model_id:
            points = self.client.get_logged_model(model_id).metrics or []
            held = {(point.key, point.value) for point in points if point.dataset_digest == digest}
        else:
            held = set(self.latest_metrics(run_id).items())
        now, model = int(time.time() * 1000), model_id or None
        entries = [
            Metric(key, value, now, step, model_id=model, dataset_name=name, dataset_digest=digest, run_id=run_id)
            for key, value in metrics.items()
            if (key, value) not in held
        ]
        self.client.log_batch(run_id, metrics=entries)


class PointBuffer:
    """Buffers points and writes each once, also after a resume; keeps them while MLflow does not respond.

    Args:
        tracking: MLflow of the home.
        run_id: the training's run.
        seconds: longest time that a point is buffered.
    """

    def __init__(self, tracking: Tracking, run_id: str, seconds: float) -> None:
        self._tracking = tracking
        self._run_id = run_id
        self._seconds = seconds
        self._points: list[Point] = []
        self._written: dict[str, int] | None = None  # last step of each metric in MLflow; None if it is not known
        self._flushed = time.monotonic()
        self._not_before = self._flushed
        self._failed = False

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Buffer the metrics of one step."""
        self._points.extend((key, step, float(value)) for key, value in metrics.items())
        if time.monotonic() - self._flushed > self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write the buffered points; after a failed attempt not before a pause."""
        began = time.monotonic()
        if began < self._not_before:
            return
        if not self._attempt(self._write):
            self._not_before = time.monotonic() + (time.monotonic() - began) / FAULT_SHARE
        self._flushed = time.monotonic()

    def _write(self) -> None:
        """Write the points that MLflow lacks; after a resume or a failed write its last steps are read first."""
        written, self._written = self._written, None
        if written is None:
            written = self._tracking.last_steps(self._run_id)
        new = [(metric, step, value) for metric, step, value in self._points if step > written.get(metric, -1)]
        self._tracking.log_points(self._run_id, new)
        self._written, self._points = written, []

    def end(self, status: str) -> None:
        """Write the buffered points and mark the run as FAILED or KILLED, if MLflow responds."""
        self.flush()
        self._attempt(lambda: self._tracking.finish(self._run_id, status))

    def _attempt(self, action: Callable[[], None]) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            action()
        except MlflowException as error:
            if not self._failed:
                logger.warning(
                    "MLflow does not accept the training's metrics (%s): check its server; the training continues, and "
                    "missing points are written when it responds",
                    error,
                )
            self._failed = True
            return False
        return True
