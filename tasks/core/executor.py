"""Execution of stages: as Prefect tasks inside a flow, on threads of this process outside of one.

Inside a flow each missing artefact is a task run, named after stage, number and corpus. It waits for the task runs of
its inputs, so that Prefect's graph shows every edge. The cached artefacts of a call share one task run in the state
`Cached`.

    SHEEPFOLD_TASK_RUNNER   `threads` (of the process that runs the flow), or `ray`
    SHEEPFOLD_RAY_ADDRESS   HOST:PORT (on a node), ray://HOST:PORT (from elsewhere); empty starts Ray locally
    SHEEPFOLD_RAY_CPUS      processors and extraction processes of each task
"""

from __future__ import annotations

import copyreg
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from storage.errors import UserError, lasting_fault
from storage.manifest import ArtifactRef
from tasks.core.progress import Listener
from tasks.core.stage import Request, Stage, StageResult

if TYPE_CHECKING:
    from prefect import Task
    from prefect.task_runners import TaskRunner

    from tasks.core.run import Run

logger = logging.getLogger("sheepfold")

RETRIES = 3
BACKOFF_SECONDS = 2  # doubled with each retry
RUNNERS = ("threads", "ray")
T = TypeVar("T")


def in_flow() -> bool:
    """Return True inside a Prefect flow; imports nothing."""
    context = sys.modules.get("prefect.context")
    return context is not None and context.FlowRunContext.get() is not None


def carry_out(run: Run, stage: Stage, missing: Sequence[Request], many: bool) -> list[StageResult]:
    """Make missing artefacts.

    Args:
        missing: Requests to make, in order.
        many: The requests are units of one call.
    """
    if in_flow():
        return _as_tasks(run, stage, missing, many)
    if len(missing) < 2:
        return [stage.make(run, request) for request in missing]
    with ThreadPoolExecutor(run.machine.workers) as threads:
        return list(threads.map(lambda request: stage.make(run, request), missing))


def _as_tasks(run: Run, stage: Stage, missing: Sequence[Request], many: bool) -> list[StageResult]:
    made = _task(stage)
    if not many:
        named = made.with_options(task_run_name=f"{stage.name} · {run.corpus}")
        states = [named(**_arguments(run, request), return_state=True) for request in missing]
    else:
        futures = []
        with _ray_options():
            for number, request in enumerate(missing, 1):
                named = made.with_options(task_run_name=f"{stage.name} {number}/{len(missing)} · {run.corpus}")
                futures.append(named.submit(**_arguments(run, request)))
        for future in futures:
            future.wait()
        states = [future.state for future in futures]
    for state in states:
        state.result()  # raises what the task raised
    return [_outcome(run, request, state) for request, state in zip(missing, states, strict=True)]


def _arguments(run: Run, request: Request) -> dict[str, Any]:
    """Return the arguments of a task with its edges; quoted, so that Prefect does not traverse and copy them."""
    from prefect.utilities.annotations import quote

    given = {"run": run, "request": request, "settings": request.settings, **request.inputs, **request.unkeyed}
    return {**{name: quote(value) for name, value in given.items()}, "wait_for": _edges(run, request.dependencies())}


def _edges(run: Run, refs: Iterable[ArtifactRef]) -> list[Any]:
    """Return an edge from each task run of this flow run that returned one of the artefacts."""
    from prefect.runtime import flow_run

    found = (run.task_runs.get((ref.stage, ref.key)) for ref in refs)
    # the graph of a flow run has no nodes of other flow runs
    return [_edge(source) for source, place in dict.fromkeys(filter(None, found)) if str(place) == flow_run.id]


def _edge(task_run: UUID) -> Any:
    """Return a state for `wait_for` that makes Prefect draw an edge from a task run."""
    from prefect.client.schemas.objects import StateDetails, StateType
    from prefect.states import State

    return State(type=StateType.COMPLETED, data=True, state_details=StateDetails(task_run_id=task_run))


def show_cached(
    run: Run, stage: Stage, refs: Sequence[ArtifactRef], many: bool = True, inputs: Iterable[ArtifactRef] = ()
) -> None:
    """Show cached artefacts as one task run in the state `Cached`; does nothing outside a flow."""
    if not refs or not in_flow():
        return
    from prefect.states import Completed

    def cached() -> Any:
        shown = f"{stage.name}/{refs[0].key[:12]}" if len(refs) == 1 else f"{len(refs)} artefacts of {stage.name}"
        # not a list: Prefect identifies results by `id()`, so a later object with the same id would get an edge
        data = refs[0] if len(refs) == 1 else None
        return Completed(name="Cached", message=f"found {shown} in the store", data=data)

    name = f"{stage.name} · {len(refs)} in the store · {run.corpus}" if many else f"{stage.name} · {run.corpus}"
    made = _without_results(cached, name=stage.name, task_run_name=name)
    state = made(return_state=True, wait_for=_edges(run, inputs))
    run.task_runs.update({(ref.stage, ref.key): _ids(state) for ref in refs})


def _outcome(run: Run, request: Request, state: Any) -> StageResult:
    # fresh: a task in another process may have made it after this process listed the store
    made = run.store.find(request.stage.name, request.key, fresh=True)
    if made is None:
        raise RuntimeError(
            f"the task of stage {request.stage.name} ended, but its artefact is not in the store {run.store.address}: "
            "let all machines use the same store"
        )
    run.task_runs[made.stage, made.key] = _ids(state)
    return StageResult(made, cached=state.name == "Cached")


def _ids(state: Any) -> tuple[UUID, UUID]:
    return state.state_details.task_run_id, state.state_details.flow_run_id


def _task(stage: Stage) -> Task[..., Any]:
    """Return the Prefect task of a stage."""
    from prefect.states import Completed
    from prefect.tasks import exponential_backoff

    def call(run: Run, request: Request, settings: Any, **inputs: Any) -> Any:
        # a copy in another process has its own machine, which is closed with the task
        with run.machine if run.is_copy else nullcontext():
            outcome = stage.make(run, request, _progress_artifact(stage.name))
        shown = f"{stage.name}/{outcome.ref.key[:12]}"
        if outcome.cached:
            return Completed(name="Cached", message=f"found {shown} in the store", data=outcome.ref)
        return Completed(message=f"made {shown} in {outcome.seconds:.1f} s", data=outcome.ref)

    return _without_results(
        call,
        name=stage.name,
        description=stage.__doc__,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(backoff_factor=BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=lambda _, __, state: is_transient(state.result(raise_on_failure=False)),
    )


def _without_results(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    """Return a Prefect task that keeps no result: the store is the only cache."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(cache_policy=NO_CACHE, persist_result=False, **options)(function)


def act(run: Run, name: str, function: Callable[[], T], after: Iterable[ArtifactRef] = ()) -> T:
    """Call a function that makes no artefact; inside a flow as a task run.

    Args:
        after: Artefacts whose task runs it waits for.
    """
    if not in_flow():
        return function()
    made = _without_results(function, name=name, task_run_name=f"{name} · {run.corpus}")
    result: T = made(wait_for=_edges(run, after))
    return result


def is_transient(error: BaseException | None) -> bool:
    """Return True for errors worth a retry: I/O and connection errors, except a full disk and wrong input."""
    if lasting_fault(error) is not None or isinstance(
        error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError | FileExistsError
    ):
        return False
    return isinstance(error, OSError)


def _progress_artifact(name: str) -> Listener:
    """Return a listener that updates a Prefect progress artefact, created at the first report."""
    import httpx
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact: list[Any] = []

    def listen(percent: float) -> None:
        percent = min(100.0, percent)
        try:
            if not artifact:
                artifact.append(create_progress_artifact(progress=percent, description=f"{name}: work done"))
            else:
                update_progress_artifact(artifact[0], progress=percent)
        except httpx.HTTPError as error:  # not a reason to fail hours of work
            logger.warning("%s: Prefect's server does not accept the progress (%s): check its log", name, error)

    return listen


def on_ray() -> bool:
    """Return True if tasks run on Ray.

    Raises:
        UserError: if the setting is not a known runner, or Ray is not installed.
    """
    chosen = os.environ.get("SHEEPFOLD_TASK_RUNNER") or "threads"
    if chosen not in RUNNERS:
        raise UserError(f"SHEEPFOLD_TASK_RUNNER is {chosen!r}: give one of {', '.join(RUNNERS)}")
    if chosen == "ray" and find_spec("prefect_ray") is None:
        raise UserError("SHEEPFOLD_TASK_RUNNER is 'ray', which is not installed: pip install 'sheepfold[ray]'")
    return chosen == "ray"


def ray_cpus() -> int:
    """Return the processors of each task on Ray.

    Raises:
        UserError: if the setting is not a whole number from 1.
    """
    given = os.environ.get("SHEEPFOLD_RAY_CPUS") or "1"
    if not given.isdecimal() or not int(given):
        raise UserError(f"SHEEPFOLD_RAY_CPUS is {given!r}: give a whole number from 1")
    return int(given)


def task_runner(workers: int) -> TaskRunner[Any]:
    """Return the task runner of a flow: as many threads as workers, or the Ray cluster of the settings."""
    if not on_ray():
        from prefect.task_runners import ThreadPoolTaskRunner

        return ThreadPoolTaskRunner(max_workers=workers)
    from prefect.utilities.annotations import quote
    from prefect_ray import RayTaskRunner

    # without this, pickle turns a quoted value into a tuple
    copyreg.pickle(quote, lambda quoted: (quote, (quoted.unwrap(),)))
    address = os.environ.get("SHEEPFOLD_RAY_ADDRESS") or None
    runner: TaskRunner[Any] = RayTaskRunner(address=address, init_kwargs={"log_to_driver": False})
    return runner


def _ray_options() -> AbstractContextManager[Any]:
    """Return a context in which tasks submitted to Ray reserve their processors."""
    if not on_ray():
        return nullcontext()
    from prefect_ray.context import remote_options

    options: AbstractContextManager[Any] = remote_options(num_cpus=ray_cpus())
    return options
