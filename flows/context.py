"""Declaration of Prefect flows.

`@flow(Options)` declares a flow by its option model: the function takes the model, Prefect and the command line take
its fields. `@subflow` shows a part of a flow as a flow run. Prefect is imported when a flow is run, so that plans and
interactive prompts start without it.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypeVar

from flows.embedded import EMBEDDED, prefect_api
from flows.options import CorpusOptions, IngestOptions, Options, take_parameters
from storage.errors import UserError
from storage.home import Home, check_corpus_name
from tasks.core.executor import in_flow, task_runner
from tasks.core.machine import Machine
from tasks.core.progress import show_stages
from tasks.core.run import Run
from tasks.readers.records import Limits

if TYPE_CHECKING:
    from prefect import Flow

AnyOptions = TypeVar("AnyOptions", bound=Options)
P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 5  # starts of a flow run: an automation queues lost runs again, also one that kills its worker each time
SERVER_SECONDS = 240.0  # longest wait for Prefect's server, as in its own clients


@dataclass
class PipelineFlow(Generic[AnyOptions]):
    """A flow whose parameters are the fields of an option model."""

    function: Callable[[AnyOptions], dict[str, Any]]
    options: type[AnyOptions]

    @cached_property
    def prefect(self) -> Flow[..., dict[str, Any]]:
        """The Prefect flow."""
        from prefect import flow as prefect_flow

        def body(**parameters: Any) -> dict[str, Any]:
            return self.function(self.options(**parameters))

        fields = self.options.model_fields
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else field.default,
                annotation=Annotated[field.annotation, field],
            )
            for name, field in fields.items()
        ]
        take_parameters(body, parameters)
        body.__module__ = self.function.__module__
        lines = "\n".join(f"    {name}: {field.description}" for name, field in fields.items())
        body.__doc__ = f"{inspect.getdoc(self.function)}\n\nArgs:\n{lines}"
        return prefect_flow(name=self.function.__name__, flow_run_name=_run_name, persist_result=False)(body)

    def __call__(self, options: AnyOptions) -> dict[str, Any]:
        """Run the flow here: as a subflow inside a flow, else under the server that `prefect_api` provides."""
        if isinstance(options, CorpusOptions):
            check_corpus_name(options.corpus)  # before a server is started for nothing
        home = Home.from_environment(options.home).create()
        with nullcontext() if in_flow() else prefect_api(home):
            result: dict[str, Any] = self.prefect(**{**options.given(), "home": str(home.path)})
        return result


def flow(options: type[AnyOptions]) -> Callable[[Callable[[AnyOptions], dict[str, Any]]], PipelineFlow[AnyOptions]]:
    """Declare a function of an option model as a flow with the function's name."""
    return lambda function: PipelineFlow(function, options)


def reach_server(request: Callable[[], R], has_begun: Callable[[], bool] = lambda: False) -> R:
    """Return the result of a request to Prefect's server; a refused connection is retried for `SERVER_SECONDS`.

    Prefect's clients retry only after a first connection, and every request here has a new client.

    Args:
        has_begun: Returns True after a response of the server; later errors are raised.
    """
    import httpx

    until = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            return request()
        except httpx.ConnectError:
            if has_begun() or time.monotonic() > until:
                raise
        time.sleep(1)


def _run_name() -> str:
    """Return a flow run's name: flow, corpus, time."""
    from prefect.runtime import flow_run

    corpus = flow_run.parameters.get("corpus")
    return " · ".join(filter(None, [flow_run.flow_name, corpus, f"{datetime.now():%Y-%m-%d %H:%M:%S}"]))


def subflow(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run a function, whose first argument is the run, as a subflow if it is called in a flow of another name.

    In Prefect's graph each subflow depends on the one before it.
    """
    return lambda function: _subflow(name, function)


def _subflow(name: str, function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not in_flow():
            return function(*args, **kwargs)
        run = args[0]
        assert isinstance(run, Run)
        known, began = set(run.reports), time.monotonic()
        result = run_inside(run, *args, **kwargs)
        new = [line for stage, line in run.reports.items() if stage not in known]
        show_stages(name, new, time.monotonic() - began)
        return result

    def run_inside(run: Run, *args: P.args, **kwargs: P.kwargs) -> R:
        from prefect import flow as prefect_flow
        from prefect.context import FlowRunContext

        outer = FlowRunContext.get()
        assert outer is not None and outer.flow is not None
        if outer.flow.name == name:
            return function(*args, **kwargs)
        begun: list[bool] = []
        result: list[R] = []

        def body() -> Any:
            begun.append(True)
            inner = FlowRunContext.get()
            assert inner is not None
            picklable = outer.flow.with_options(name=name)  # Ray pickles the flow with each task; this body cannot be
            with inner.model_copy(update={"task_runner": outer.task_runner, "flow": picklable}):
                result.append(function(*args, **kwargs))
            return _Finished()  # Prefect records the flow run that returned this object

        made = prefect_flow(
            name=name,
            flow_run_name=f"{name} · {run.corpus}",
            description=inspect.getdoc(function),
            persist_result=False,
        )(body)
        before = [] if run.last_subflow is None else [run.last_subflow]
        run.last_subflow = reach_server(lambda: made(wait_for=before), lambda: bool(begun))
        return result[0]

    return call


class _Finished:
    """Result of a subflow; passed to the next one, so that Prefect draws an edge."""


def check_attempts() -> None:
    """Check the number of starts of the flow run.

    Raises:
        UserError: if it exceeds `MAX_ATTEMPTS`; the run fails, and a failed run is not queued again.
    """
    from prefect.runtime import flow_run

    if flow_run.run_count > MAX_ATTEMPTS:
        raise UserError(
            f"this run was started {flow_run.run_count} times and never finished: find the cause in its log and its "
            "worker's log, often lack of memory or an unreachable server, and start a new run"
        )


@contextmanager
def open_run(options: CorpusOptions, limits: Limits | None = None) -> Iterator[Run]:
    """Open a `Run` for the running flow, or for a command outside of one; its processes end with the context.

    Raises:
        UserError: if the name of the corpus is not allowed, a stage to refresh does not exist, or the flow run was
            started too often.
    """
    check_corpus_name(options.corpus)
    home = Home.from_environment(options.home).create()
    refresh = options.stages_to_refresh()
    workers = getattr(options, "workers", None) or 0
    deterministic = bool(getattr(options, "deterministic", None))
    retry_failed = isinstance(options, IngestOptions) and bool(options.retry_failed)
    with Machine(workers, deterministic, limits) as machine:
        run = Run(home, machine, options.corpus, refresh, retry_failed)
        if not in_flow():
            yield run
            return
        from prefect.context import FlowRunContext

        check_attempts()
        run.tags = _tags(options.corpus)
        context = FlowRunContext.get()
        assert context is not None
        with task_runner(machine.workers) as runner, context.model_copy(update={"task_runner": runner}):
            yield run


def _tags(corpus: str) -> dict[str, str]:
    """Return tags for MLflow runs that identify the flow run."""
    from prefect.runtime import deployment, flow_run

    from storage.tracking import CORPUS_TAG

    return {
        "prefect.flow_run_id": str(flow_run.id or ""),
        "prefect.flow_run_name": str(flow_run.name or ""),
        "prefect.deployment": reach_server(lambda: str(deployment.name or "")),
        "prefect.ui_url": "" if os.environ.get(EMBEDDED) else str(flow_run.ui_url or ""),
        CORPUS_TAG: corpus,
    }
