"""`sheepfold run` again: unchanged it starts no server and prints the same; with anything changed it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import answer, invoke

from storage.home import Home
from storage.registry import Models, read_models, write_models
from storage.store import open_store
from tests.tasks.tiny_run import SETTINGS, write_texts

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]


class ServerStarted(Exception):
    """A command asked for a Prefect server."""


@dataclass(frozen=True)
class Ran:
    """A run that came to its end."""

    home: Path
    source: Path
    result: dict[str, Any]

    @property
    def command(self) -> list[str]:
        return ["run", str(self.source), *(f"--set={item}" for item in SETTINGS)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("unchanged")
    begun = Ran(folder / "home", write_texts(folder / "texts"), {})
    return Ran(begun.home, begun.source, answer(begun.home, *begun.command))


@pytest.fixture(autouse=True)
def no_server(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(home: Home) -> None:
        raise ServerStarted

    monkeypatch.setattr("flows.context.prefect_api", refuse)


def test_an_unchanged_run_starts_no_server_and_prints_the_same(ran: Ran) -> None:
    again = answer(ran.home, *ran.command)
    parts = ("metrics", "mlflow_run_id", "completions", "suggestion")
    assert {name: again[name] for name in parts} == {name: ran.result[name] for name in parts}
    assert again["model"] == {**ran.result["model"], "moved": False}
    assert all(stage["cached"] and not stage["computed"] and not stage["seconds"] for stage in again["stages"])
    said = invoke(ran.home, *ran.command)
    assert said.exit_code == 0 and f"{ran.result['metrics']['val/bits_per_byte']:.4f}" in said.stdout


@contextmanager
def another_document(ran: Ran) -> Iterator[None]:
    file = ran.source / "new.txt"
    file.write_text("A shepherd who was not there before closes the gate of the fold.\n" * 9)
    yield
    file.unlink()


@contextmanager
def other_text(ran: Ran) -> Iterator[None]:
    file = ran.source / "text-03.txt"
    before = file.read_text()
    file.write_text(f"{before}One more line.\n")
    yield
    file.write_text(before)


@contextmanager
def no_champion(ran: Ran) -> Iterator[None]:
    store = open_store(str(ran.home / "store"))
    before = read_models(store, "default")
    write_models(store, "default", Models(before.models))
    yield
    write_models(store, "default", before)


@contextmanager
def no_database(ran: Ran) -> Iterator[None]:
    aside = (ran.home / "mlflow.db").rename(ran.home / "mlflow.db.lost")
    yield
    aside.rename(ran.home / "mlflow.db")


@contextmanager
def other_report(ran: Ran) -> Iterator[None]:
    file = ran.home / "reports" / "default" / "evaluation.html"
    before = file.read_bytes()
    file.write_bytes(before + b"edited")
    yield
    file.write_bytes(before)


@contextmanager
def no_report(ran: Ran) -> Iterator[None]:
    file = ran.home / "reports" / "default" / "report.md"
    aside = file.rename(ran.home / "report.md")
    yield
    aside.rename(file)


@contextmanager
def damaged_result(ran: Ran) -> Iterator[None]:
    file = ran.home / "reports" / "default" / "result.json"
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2])
    yield
    file.write_bytes(before)


CHANGES = (another_document, other_text, no_champion, no_database, other_report, no_report, damaged_result)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changed_is_run_again(ran: Ran, change: Callable[[Ran], AbstractContextManager[None]]) -> None:
    with change(ran), pytest.raises(ServerStarted):
        invoke(ran.home, *ran.command)
    answer(ran.home, *ran.command)  # as it was, so nothing runs


@pytest.mark.parametrize(
    "further", [["--seed", "8"], ["--set", "gates.rule=not_worse"], ["--refresh", "evaluate"], ["--retry-failed"]]
)
def test_another_request_is_run(ran: Ran, further: list[str]) -> None:
    with pytest.raises(ServerStarted):
        invoke(ran.home, *ran.command, *further)


def test_a_base_from_outside_is_taken_in_by_a_run(ran: Ran) -> None:
    folder = Path(ran.result["completions"]).parents[2] / "train"
    (checkpoint,) = folder.iterdir()
    with pytest.raises(ServerStarted):
        invoke(ran.home, "run", str(ran.source), "--set", f"train.base={checkpoint}")
