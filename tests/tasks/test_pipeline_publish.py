"""The ref of a corpus: what a run leaves there, and what overlapping runs leave of each other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from flows.evaluate import remember_evaluation
from flows.report import publish
from storage.catalog import read_state
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.store import Store
from tasks.core.run import Run


def run_with(home: Home, corpus: str = "letters", **made: str) -> Run:
    """A run that made an artefact of each of these stages."""
    run = Run(home, corpus=corpus)
    run.produced = {stage: [ArtifactRef(stage, key, key)] for stage, key in made.items()}
    return run


def keys(home: Home, corpus: str = "letters") -> dict[str, str]:
    state = read_state(Store(Path(home.store)), corpus)
    return {stage: refs[0].key for stage, refs in state.items()}


def test_a_later_run_replaces_what_it_made_and_leaves_the_rest(home: Home) -> None:
    publish(run_with(home, snapshot="old", train="old"))
    publish(run_with(home, snapshot="new"))
    assert keys(home) == {"snapshot": "new", "train": "old"}


def test_of_two_runs_that_publish_at_once_neither_undoes_the_other(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has read the ref, and the first goes on when the second is done or waits."""
    publish(run_with(home, snapshot="old"))
    seen = threading.Event()
    acquire, write = FileLock.acquire, Store.write_ref

    def tell_and_acquire(lock: FileLock, *how: Any, **more: Any) -> Any:
        if not how and not more:  # after a first attempt that failed
            seen.set()
        return acquire(lock, *how, **more)

    def publish_second() -> None:
        publish(run_with(home, snapshot="new"))
        seen.set()

    second = threading.Thread(target=publish_second)

    def write_late(store: Store, name: str, value: dict[str, Any]) -> None:
        monkeypatch.setattr(Store, "write_ref", write)
        second.start()
        assert seen.wait(60)
        write(store, name, value)

    monkeypatch.setattr(FileLock, "acquire", tell_and_acquire)
    monkeypatch.setattr(Store, "write_ref", write_late)
    publish(run_with(home, generate="text"))
    second.join()
    assert keys(home) == {"snapshot": "new", "generate": "text"}


@pytest.mark.parametrize("stage", ["generate", "evaluate"])
def test_using_a_model_makes_no_corpus(home: Home, stage: str) -> None:
    run = run_with(home, "never-run", **{stage: "made"})
    publish(run)
    assert run.store.refs("corpus/") == []


@pytest.mark.parametrize(("measured", "published"), [("latest", "new"), ("another", "old")])
def test_an_evaluation_is_the_corpus_s_own_if_it_measured_the_latest_training(
    home: Home, measured: str, published: str
) -> None:
    publish(run_with(home, snapshot="s", train="latest", evaluate="old"))
    checkpoint, evaluation = ArtifactRef("train", measured, measured), ArtifactRef("evaluate", "new", "new")
    run = Run(home, corpus="letters")
    remember_evaluation(run, checkpoint, evaluation)
    publish(run)
    assert keys(home)["evaluate"] == published


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "team/x", "a\nb", "-x", " x", "x" * 300, "\udcff"])
def test_a_name_that_no_file_can_bear_is_no_corpus_name(home: Home, name: str) -> None:
    run = run_with(home, name, snapshot="made")
    with pytest.raises(UserError, match="is not a valid name of a corpus: give"):
        publish(run)
    assert run.store.refs("") == []


@pytest.mark.parametrize("name", ["default", "v1.2", "Bücher 2024", "羊の群れ", "a_b-c", "𠀀" * 50])
def test_letters_digits_and_a_few_marks_are_a_corpus_name(home: Home, name: str) -> None:
    publish(run_with(home, name, snapshot="made"))
    assert keys(home, name) == {"snapshot": "made"}
