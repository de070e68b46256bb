"""Stages as Prefect tasks: what the UI shows of a cached artefact, and which failures are tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from stage_samples import Calls, TextSettings, capitals, joined, letters

from storage.home import Home
from storage.manifest import RefSet
from tasks.core import executor
from tasks.core.executor import RETRIES
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Call, Work

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]

LOOKS = 200  # how often the server is asked for states, which it writes down a little later


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("SHEEPFOLD_STORE", raising=False)
    return Home.from_environment(tmp_path / "home")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks wait for nothing between two tries."""
    monkeypatch.setattr(executor, "BACKOFF_SECONDS", 0)


def new_run(home: Home, machine: Calls | None = None) -> Run:
    return Run(home, cast(Machine, machine or Calls()), "books")


def seen_by(run: Run) -> list[str]:
    return cast(Calls, run.machine).seen


def in_flow(function: Callable[[], Any], workers: int = 2) -> tuple[Any, UUID]:
    """Call a function in a flow; its state and the flow run's id."""
    from prefect import flow
    from prefect.task_runners import ThreadPoolTaskRunner

    runner = ThreadPoolTaskRunner(max_workers=workers)
    state = flow(name="test", task_runner=runner, persist_result=False)(function)(return_state=True)
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
    run = new_run(home)
    state, flow_run = in_flow(lambda: [letters(run, TextSettings("x")) for _ in range(2)])
    refs = state.result()
    assert refs[0] == refs[1]
    assert seen_by(run) == ["x"]
    runs = task_runs(flow_run, 2)
    assert states(runs) == [("Completed", "COMPLETED"), ("Cached", "COMPLETED")]
    assert runs[0].state.message.startswith("made letters/")
    assert runs[1].state.message.startswith("found letters/")


def test_task_runs_bear_the_stage_the_place_and_the_corpus_in_their_names(home: Home) -> None:
    run = new_run(home)
    calls = [Call(TextSettings(text), {}) for text in "abc"]
    _, flow_run = in_flow(lambda: [letters.map(run, calls), letters(run, TextSettings("single"))])
    names = sorted(item.name for item in task_runs(flow_run, 4))
    assert names == ["letters 1/3 · books", "letters 2/3 · books", "letters 3/3 · books", "letters · books"]


def test_of_many_requests_those_in_the_store_share_one_cached_task_run(home: Home) -> None:
    letters(new_run(home), TextSettings("b"))
    letters(new_run(home), TextSettings("c"))
    run = new_run(home)
    state, flow_run = in_flow(lambda: letters.map(run, [Call(TextSettings(text), {}) for text in "abcd"]))
    texts = [(run.store.folder(ref) / "text").read_text() for ref in state.result()]
    assert texts == list("abcd")
    found = {item.name: item.state.name for item in task_runs(flow_run, 3)}
    assert found == {
        "letters · 2 in the store · books": "Cached",
        "letters 1/2 · books": "Completed",
        "letters 2/2 · books": "Completed",
    }


def test_every_artefact_that_feeds_another_is_an_edge_of_the_graph(home: Home) -> None:
    letters(new_run(home), TextSettings("a"))
    run = new_run(home)

    def wire() -> None:
        made = letters.map(run, [Call(TextSettings(text), {}) for text in "ab"])
        raised = capitals.map(run, [Call(TextSettings(), {"source": ref}) for ref in made])
        first = letters(run, TextSettings("first"))
        joined(run, None, parts=RefSet(tuple(raised), "AB"), first=first)

    _, flow_run = in_flow(wire)
    runs = {item.name: item for item in task_runs(flow_run, 6)}
    names = {item.id: name for name, item in runs.items()}
    edges = {
        name: sorted(names[link.id] for links in item.task_inputs.values() for link in links)
        for name, item in runs.items()
    }
    assert edges == {
        "letters · 1 in the store · books": [],
        "letters 1/1 · books": [],
        "capitals 1/2 · books": ["letters · 1 in the store · books"],
        "capitals 2/2 · books": ["letters 1/1 · books"],
        "letters · books": [],
        "joined · books": ["capitals 1/2 · books", "capitals 2/2 · books", "letters · books"],
    }


def test_settings_read_from_an_artefact_are_an_edge_too(home: Home) -> None:
    run = new_run(home)

    def wire() -> None:
        first = letters(run, TextSettings("first"))
        letters(run, lambda: TextSettings((run.store.folder(first) / "text").read_text().upper()), after=[first])

    _, flow_run = in_flow(wire)
    first, second = task_runs(flow_run, 2)
    assert [link.id for links in second.task_inputs.values() for link in links] == [first.id]
    assert seen_by(run) == ["first", "FIRST"]


def test_as_many_units_are_made_at_once_as_the_runner_has_workers(home: Home) -> None:
    together = threading.Barrier(6)  # is passed only if six are at work at once
    run = new_run(home, Calls(before=lambda work: together.wait(60) and None))
    state, _ = in_flow(lambda: letters.map(run, [Call(TextSettings(text), {}) for text in "abcdef"]), workers=6)
    assert len(state.result()) == 6


def failing(errors: list[Exception]) -> Calls:
    """Resources that raise one error after the other, and then let the stage go on."""

    def before(work: Work) -> None:
        if errors:
            raise errors.pop(0)

    return Calls(before=before)


@pytest.mark.usefixtures("impatient")
def test_a_fault_that_passes_is_retried_until_the_stage_succeeds(home: Home) -> None:
    run = new_run(home, failing([OSError("disk"), ConnectionResetError("network")]))
    state, flow_run = in_flow(lambda: letters(run, TextSettings("x")))
    ref = state.result()
    assert (run.store.folder(ref) / "text").read_text() == "x"
    assert seen_by(run) == ["x"] * 3
    (task_run,) = task_runs(flow_run, 1)
    assert task_run.state.type.value == "COMPLETED" and task_run.run_count == 3


@pytest.mark.usefixtures("impatient")
def test_a_fault_that_does_not_pass_is_raised_after_the_last_retry(home: Home) -> None:
    run = new_run(home, failing([OSError(f"disk, try {number}") for number in range(1, 10)]))
    state, flow_run = in_flow(lambda: letters(run, TextSettings("x")))
    with pytest.raises(OSError, match=f"disk, try {RETRIES + 1}"):
        state.result()
    assert states(task_runs(flow_run, 1)) == [("Failed", "FAILED")]


@pytest.mark.parametrize("error", [ValueError("a setting"), FileNotFoundError("an input"), RuntimeError("a bug")])
def test_an_error_that_trying_again_cannot_help_is_raised_at_once(home: Home, error: Exception) -> None:
    run = new_run(home, failing([error]))
    state, flow_run = in_flow(lambda: letters(run, TextSettings("x")))
    with pytest.raises(type(error), match=str(error)):
        state.result()
    assert seen_by(run) == ["x"]
    assert states(task_runs(flow_run, 1)) == [("Failed", "FAILED")]


def test_an_error_in_one_of_many_tasks_is_raised(home: Home) -> None:
    run = new_run(home, failing([ValueError("one of three")]))
    calls = [Call(TextSettings(text), {}, 1) for text in "abc"]
    state, _ = in_flow(lambda: letters.map(run, calls))
    with pytest.raises(ValueError, match="one of three"):
        state.result()


def test_progress_of_a_stage_is_a_progress_artefact_of_its_task_run(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.core.progress.SECONDS", 0.0)  # as of a stage that takes long
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    run = new_run(home, Calls(before=lambda work: [work.progress.update(n, 3) for n in (1, 3)]))
    _, flow_run = in_flow(lambda: letters(run, TextSettings("x")))
    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        (found,) = client.read_artifacts(artifact_filter=chosen)
    assert (found.type, found.data) == ("progress", 100.0)


def test_prefect_hears_nothing_of_the_progress_of_a_short_stage(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    import prefect.artifacts

    told: list[object] = []
    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", lambda **given: told.append(given))

    def rise(work: Work) -> None:
        for done in range(1, 401):
            work.progress.update(done, done)

    run = new_run(home, Calls(before=rise))
    state, _ = in_flow(lambda: letters(run, TextSettings("x")))
    assert state.is_completed()
    assert told == []


def test_a_stage_whose_progress_prefect_does_not_take_goes_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    import prefect.artifacts

    def refuse(**_: object) -> None:
        raise httpx.ConnectError("the server restarts")

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse)
    monkeypatch.setattr("tasks.core.progress.SECONDS", 0.0)
    run = new_run(home, Calls(before=lambda work: work.progress.update(3, 3)))
    state, _ = in_flow(lambda: letters(run, TextSettings("x")))
    assert state.result().stage == "letters"


def test_no_result_of_a_stage_is_stored_by_prefect(home: Home) -> None:
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

    def stored() -> set[Path]:
        return set(Path(PREFECT_LOCAL_STORAGE_PATH.value()).rglob("*"))

    before = stored()
    run, calls = new_run(home), [Call(TextSettings("y"), {}, 1)]
    for _ in range(2):
        state, _ = in_flow(lambda: [letters(run, TextSettings("x")), *letters.map(run, calls)])
        assert state.is_completed()
    assert seen_by(run) == ["x", "y"]
    assert stored() == before
