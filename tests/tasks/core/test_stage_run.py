"""A stage makes its artefact once, keeps nothing half made, and is addressed by content and settings alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import stage_samples
from stage_samples import Calls, TextSettings, ask_for, capitals, copy_of, found, joined, letters, run_at

from storage.manifest import ArtifactRef, RefSet
from storage.store import Store
from tasks.core.executor import is_transient
from tasks.core.stage import Work, stage

SOURCE = ArtifactRef("letters", "key", "digest")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def fail(error: BaseException) -> Callable[[Work], None]:
    def before(work: Work) -> None:
        (work.out / "half").write_text("half made")
        (work.scratch / "step").write_text("100")
        raise error

    return before


def test_the_key_changes_with_settings_name_version_and_content_of_the_inputs() -> None:
    def key(name: str = "capitals", version: int = 1, text: str = "a", source: ArtifactRef = SOURCE) -> str:
        return stage(name, version)(capitals.function).key(TextSettings(text), {"source": source})

    keys = {
        key(),
        key(name="other"),
        key(version=2),
        key(text="b"),
        key(source=ArtifactRef("letters", "key", "another digest")),
    }
    assert len(keys) == 5


def test_the_key_does_not_change_with_where_an_input_lies_or_how_it_is_spread() -> None:
    elsewhere = ArtifactRef("letters", "another key", "digest")
    settings = TextSettings()
    assert capitals.key(settings, {"source": SOURCE}) == capitals.key(settings, {"source": elsewhere})
    spread = [RefSet((SOURCE,), "union"), RefSet((elsewhere, SOURCE), "union")]
    keys = {joined.key(None, {"parts": parts, "first": SOURCE}) for parts in spread}
    assert len(keys) == 1


def test_key_and_digest_do_not_depend_on_the_store_or_the_resources(tmp_path: Path) -> None:
    outcomes = [
        ask_for(Store(tmp_path / folder), letters, TextSettings("x"), calls)
        for folder, calls in (("one", Calls()), ("two/three", Calls(seen=["much"])))
    ]
    assert outcomes[0].ref == outcomes[1].ref


def test_settings_of_equal_content_give_the_same_key_whatever_their_class() -> None:
    @dataclass(frozen=True)
    class Renamed:
        text: str

    assert letters.key(Renamed("a"), {}) == letters.key(TextSettings("a"), {}) == letters.key({"text": "a"}, {})


@pytest.mark.parametrize("inputs", [{}, {"source": SOURCE, "more": SOURCE}, {"sources": SOURCE}])
def test_inputs_other_than_those_a_stage_takes_are_refused_by_name(inputs: dict[str, ArtifactRef]) -> None:
    with pytest.raises(TypeError, match=r"stage capitals takes inputs \('source',\)"):
        capitals.key(TextSettings(), inputs)


def test_the_second_request_is_cached_and_does_not_call_the_function(store: Store) -> None:
    calls = Calls()
    first = ask_for(store, letters, TextSettings("x"), calls)
    second = ask_for(store, letters, TextSettings("x"), calls)
    assert (first.cached, second.cached, calls.seen) == (False, True, ["x"])
    assert second.manifest == first.manifest


def test_the_manifest_records_inputs_settings_counts_and_the_code(store: Store) -> None:
    calls = Calls()
    source = ask_for(store, letters, TextSettings("x"), calls).ref
    manifest = ask_for(store, capitals, TextSettings("y"), calls, source=source).manifest
    assert manifest.input_refs("source") == [source]
    assert manifest.inputs["source"]["digest"] == source.digest
    assert manifest.settings == {"text": "y"}
    assert manifest.counts == {"rows": 1, "units": 1}
    assert manifest.code == capitals.code
    assert [entry.name for entry in manifest.files] == ["text"]


def test_a_stage_without_settings_can_be_asked_for_twice(store: Store) -> None:
    calls = Calls()
    source = ask_for(store, letters, TextSettings("x"), calls).ref
    inputs = {"parts": RefSet((source,), "union"), "first": source}
    made = ask_for(store, joined, None, calls, **inputs)
    assert ask_for(store, joined, None, calls, **inputs).manifest == made.manifest


def test_a_change_that_leads_to_the_same_content_stops_at_the_stage_where_it_does(store: Store) -> None:
    calls = Calls()
    lower, upper = (ask_for(store, letters, TextSettings(text), calls).ref for text in ("x", "X"))
    settings = TextSettings()
    one, other = (ask_for(store, capitals, settings, calls, source=ref).ref for ref in (lower, upper))
    assert one.key != other.key and one.digest == other.digest
    calls.seen.clear()
    downstream = TextSettings("downstream")
    first = ask_for(store, capitals, downstream, calls, source=one)
    second = ask_for(store, capitals, downstream, calls, source=other)
    assert (first.cached, second.cached, calls.seen) == (False, True, ["X"])


def test_a_stage_that_raises_leaves_nothing_in_the_store_and_can_be_run_again(store: Store) -> None:
    calls = Calls(before=fail(ValueError("no such luck")))
    with pytest.raises(ValueError, match="no such luck"):
        ask_for(store, letters, TextSettings("x"), calls)
    assert found(store, letters, TextSettings("x")) is None
    assert store.stages() == []

    def look(work: Work) -> None:
        assert (work.scratch / "step").read_text() == "100"  # what it had worked out is still there
        assert list(work.out.iterdir()) == []  # what it had half written is not

    outcome = ask_for(store, letters, TextSettings("x"), Calls(before=look))
    assert not outcome.cached
    assert [entry.name for entry in outcome.manifest.files] == ["text"]


def test_refresh_computes_again_and_replaces_the_artefact(store: Store) -> None:
    calls = Calls()
    first = ask_for(store, letters, TextSettings("x"), calls)
    (store.folder(first.ref) / "text").write_text("y")  # damage of the same size, which no cache notices
    again = ask_for(store, letters, TextSettings("x"), calls, refresh=True)
    assert (again.cached, calls.seen, again.ref) == (False, ["x", "x"], first.ref)
    assert (store.folder(first.ref) / "text").read_text() == "x"


def test_an_artefact_that_is_there_is_found_without_waiting_for_a_refresh_of_it(store: Store) -> None:
    first = ask_for(store, letters, TextSettings("x"), Calls())
    answers = []

    def ask(work: Work) -> None:
        answers.append(ask_for(store, letters, TextSettings("x")))

    ask_for(store, letters, TextSettings("x"), Calls(before=ask), refresh=True)
    assert [(outcome.cached, outcome.manifest) for outcome in answers] == [(True, first.manifest)]


def test_a_refresh_that_raises_keeps_the_artefact_that_was_there(store: Store) -> None:
    first = ask_for(store, letters, TextSettings("x"), Calls())
    with pytest.raises(RuntimeError):
        ask_for(store, letters, TextSettings("x"), Calls(before=fail(RuntimeError())), refresh=True)
    assert found(store, letters, TextSettings("x")) == first.manifest


def test_an_artefact_whose_file_was_cut_is_made_again(store: Store) -> None:
    first = ask_for(store, letters, TextSettings("long"), Calls())
    (store.folder(first.ref) / "text").write_text("lo")
    again = ask_for(store, letters, TextSettings("long"), Calls())
    assert not again.cached and again.ref == first.ref
    assert (store.folder(first.ref) / "text").read_text() == "long"


def test_settings_may_be_a_function_that_is_called_once_the_inputs_are_there(store: Store) -> None:
    run = run_at(store.root)
    source = letters(run, lambda: TextSettings("x"))
    assert source == letters(run, TextSettings("x"))
    planned = run_at(store.root, plan=True)
    unmade = letters(planned, TextSettings("y"))
    assert not unmade.made
    waits = capitals(planned, lambda: pytest.fail("asked for settings"), source=unmade)
    assert not waits.made and planned.reports["capitals"].reason == "waits for letters"


def test_an_unkeyed_argument_reaches_the_function_and_not_the_key(store: Store) -> None:
    seen = []

    @stage("told", version=1, unkeyed=("place",))
    def told(work: Work, settings: TextSettings, *, place: str) -> str:
        seen.append(place)
        return "digest"

    run = run_at(store.root)
    refs = [told(run, TextSettings(), place=place) for place in ("here", "there")]
    assert refs[0] == refs[1] and seen == ["here"]
    manifest = run.store.find("told", refs[0].key)
    assert manifest is not None and manifest.inputs == {}


def test_threads_that_ask_for_one_artefact_at_once_compute_it_once(store: Store) -> None:
    calls = Calls()
    ready = threading.Barrier(4)
    outcomes = []

    def ask() -> None:
        ready.wait()
        outcomes.append(ask_for(store, letters, TextSettings("x"), calls))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.seen == ["x"]
    assert sorted(outcome.cached for outcome in outcomes) == [False, True, True, True]


@pytest.fixture
def ask(store: Store) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a process that asks for the same artefact as all others."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, stage_samples.__file__, str(store.root), "x"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_of_two_processes_that_ask_for_one_artefact_the_second_waits_and_finds_it(
    store: Store, ask: Callable[[], subprocess.Popen[str]]
) -> None:
    first = ask()
    assert line(first) == "working"
    second = ask()
    assert line(second).startswith(f"waiting for process {first.pid} on ")
    assert found(store, letters, TextSettings("x")) is None
    go_on(first)
    assert (line(first), line(second)) == ("made", "cached")


def test_the_work_of_a_killed_process_is_taken_over_by_the_one_that_waits(
    store: Store, ask: Callable[[], subprocess.Popen[str]]
) -> None:
    first = ask()
    assert line(first) == "working"
    second = ask()
    assert line(second).startswith("waiting for process")
    first.kill()
    assert line(second) == "working"
    go_on(second)
    assert line(second) == "made"
    assert found(store, letters, TextSettings("x")) is not None


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError("input/output error"), True),
        (BlockingIOError(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (InterruptedError(), True),
        (FileNotFoundError("gone"), False),
        (PermissionError(), False),
        (NotADirectoryError(), False),
        (IsADirectoryError(), False),
        (FileExistsError(), False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), False),
        (OSError(errno.EIO, "input/output error"), True),
        (ValueError("a setting"), False),
        (RuntimeError(), False),
        (KeyError("x"), False),
        (MemoryError(), False),
        (KeyboardInterrupt(), False),
        (None, False),
    ],
)
def test_faults_that_may_pass_are_told_from_those_that_stay(error: BaseException | None, transient: bool) -> None:
    assert is_transient(error) is transient


def test_a_copy_of_a_stage_has_its_key() -> None:
    assert copy_of(letters).key(TextSettings(), {}) == letters.key(TextSettings(), {})
