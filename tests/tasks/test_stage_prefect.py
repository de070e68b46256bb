"""Stages as Prefect tasks: what the UI shows of a cached artefact, and which failures are tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from stage_samples import Calls, TextSettings, copy_of, letters
from tasks.session import Call, PrefectSession, artifact

from storage.home import Home
from tasks.stage import RETRIES, Invocation, Stage, Work

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]

LOOKS = 200  # how often the server is asked for states, which it writes down a little later


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("SHEEPFOLD_STORE", raising=False)
    return Home.from_environment(tmp_path / "home")


@pytest.fixture
def impatient() -> Stage:
    """The letters stage, whose task waits for nothing between two tries."""
    stage = copy_of(letters)
    stage.task = stage.task.with_options(retry_delay_seconds=0, retry_jitter_factor=0)
    return stage


def in_flow(function: Callable[[], Any]) -> tuple[Any, UUID]:
    """Call a function in a flow; its state and the flow run's id."""
    from prefect import flow

    state = flow(name="test", persist_result=False)(function)(return_state=True)
    return state, state.state_details.flow_run_id


def task_runs(flow_run_id: UUID, count: int) -> list[Any]:
    """The flow run's task runs as the server knows them, once all have ended."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    with get_client(sync_client=True) as client:
        for _ in range(LOOKS):
            runs = client.read_task_runs(flow_run_filter=chosen)
            if len(runs) == count and all(run.state is not None and run.state.is_final() for run in runs):
                return sorted(runs, key=lambda run: run.start_time)
            time.sleep(0.05)
    raise AssertionError(f"expected {count} ended task runs, the server has {[(run.name, run.state) for run in runs]}")


def states(runs: list[Any]) -> list[tuple[str, str]]:
    return [(run.state.name, run.state.type.value) for run in runs]


def test_a_task_that_finds_its_artefact_ends_as_completed_under_the_name_cached(home: Home) -> None:
    session = PrefectSession(home, Calls())
    state, flow_run = in_flow(lambda: [session.run(letters, TextSettings("x")) for _ in range(2)])
    refs = state.result()
    assert refs[0] == refs[1]
    assert session.resources.seen == ["x"]
    runs = task_runs(flow_run, 2)
    assert states(runs) == [("Completed", "COMPLETED"), ("Cached", "COMPLETED")]
    assert runs[0].state.message.startswith("made letters/")
    assert runs[1].state.message.startswith("found letters/")


def test_a_submitted_task_that_finds_its_artefact_ends_as_cached_too(home: Home) -> None:
    session = PrefectSession(home, Calls())
    letters.run(session.store, TextSettings("x"), {}, resources=session.resources)
    invocation = Invocation(letters, session.store, TextSettings("x"), {}, session.resources, refresh=False)

    def submit() -> None:
        letters.task.submit(invocation).wait()

    _, flow_run = in_flow(submit)
    assert states(task_runs(flow_run, 1)) == [("Cached", "COMPLETED")]
    assert invocation.outcome is not None and invocation.outcome.cached


def test_of_many_requests_only_the_missing_ones_become_tasks(home: Home) -> None:
    session = PrefectSession(home, Calls())
    letters.run(session.store, TextSettings("b"), {}, resources=session.resources)
    calls = [Call(TextSettings(text), {}, 1) for text in "abc"]
    state, flow_run = in_flow(lambda: session.run_each(letters, calls))
    texts = [(session.store.folder(artifact(ref)) / "text").read_text() for ref in state.result()]
    assert texts == list("abc")
    assert states(task_runs(flow_run, 2)) == [("Completed", "COMPLETED")] * 2


def failing(errors: list[Exception]) -> Calls:
    """Resources that raise one error after the other, and then let the stage go on."""

    def before(work: Work) -> None:
        if errors:
            raise errors.pop(0)

    return Calls(before=before)


def test_a_fault_that_passes_is_retried_until_the_stage_succeeds(home: Home, impatient: Stage) -> None:
    session = PrefectSession(home, failing([OSError("disk"), ConnectionResetError("network")]))
    state, flow_run = in_flow(lambda: session.run(impatient, TextSettings("x")))
    ref = artifact(state.result())
    assert (session.store.folder(ref) / "text").read_text() == "x"
    assert session.resources.seen == ["x"] * 3
    (run,) = task_runs(flow_run, 1)
    assert run.state.type.value == "COMPLETED" and run.run_count == 3


def test_a_fault_that_does_not_pass_is_raised_after_the_last_retry(home: Home, impatient: Stage) -> None:
    session = PrefectSession(home, failing([OSError(f"disk, try {number}") for number in range(1, 10)]))
    state, flow_run = in_flow(lambda: session.run(impatient, TextSettings("x")))
    with pytest.raises(OSError, match=f"disk, try {RETRIES + 1}"):
        state.result()
    assert states(task_runs(flow_run, 1)) == [("Failed", "FAILED")]


@pytest.mark.parametrize("error", [ValueError("a setting"), FileNotFoundError("an input"), RuntimeError("a bug")])
def test_an_error_that_trying_again_cannot_help_is_raised_at_once(
    home: Home, impatient: Stage, error: Exception
) -> None:
    session = PrefectSession(home, failing([error]))
    state, flow_run = in_flow(lambda: session.run(impatient, TextSettings("x")))
    with pytest.raises(type(error), match=str(error)):
        state.result()
    assert session.resources.seen == ["x"]
    assert states(task_runs(flow_run, 1)) == [("Failed", "FAILED")]


def test_an_error_in_one_of_many_tasks_is_raised(home: Home) -> None:
    session = PrefectSession(home, failing([ValueError("one of three")]))
    calls = [Call(TextSettings(text), {}, 1) for text in "abc"]
    state, _ = in_flow(lambda: session.run_each(letters, calls))
    with pytest.raises(ValueError, match="one of three"):
        state.result()


def test_progress_of_a_stage_is_a_progress_artefact_of_its_task_run(home: Home) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    session = PrefectSession(home, Calls(before=lambda work: work.progress.update(3, 3)))
    _, flow_run = in_flow(lambda: session.run(letters, TextSettings("x")))
    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        (found,) = client.read_artifacts(artifact_filter=chosen)
    assert (found.type, found.data) == ("progress", 100.0)


def test_a_stage_whose_progress_prefect_does_not_take_goes_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    import prefect.artifacts

    def refuse(**_: object) -> None:
        raise httpx.ConnectError("the server restarts")

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse)
    session = PrefectSession(home, Calls(before=lambda work: work.progress.update(3, 3)))
    state, _ = in_flow(lambda: session.run(letters, TextSettings("x")))
    assert artifact(state.result()).stage == "letters"


def test_no_result_of_a_stage_is_stored_by_prefect(home: Home) -> None:
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

    def stored() -> set[Path]:
        return set(Path(PREFECT_LOCAL_STORAGE_PATH.value()).rglob("*"))

    before = stored()
    session, calls = PrefectSession(home, Calls()), [Call(TextSettings("y"), {}, 1)]
    for _ in range(2):
        state, _ = in_flow(lambda: [session.run(letters, TextSettings("x")), *session.run_each(letters, calls)])
        assert state.is_completed()
    assert session.resources.seen == ["x", "y"]
    assert stored() == before
