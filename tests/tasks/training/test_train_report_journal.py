"""The journal of a training: nothing that a checkpoint covers is lost, nothing stands in it twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.schemas import HISTORY
from storage.tables import read_rows
from tasks.training.telemetry import (
    MOST_EVENTS,
    TELEMETRY_FILE,
    Event,
    Journal,
    Notes,
    Sample,
    Start,
    read_notes,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scratch" / "journal.jsonl"


def opened(path: Path) -> Journal:
    return Journal(path, clock=lambda: 1000.0)


def noted(journal: Journal, steps: range, seconds: float = 0.5) -> None:
    for step in steps:
        journal.telemetry(step, {"time/step_seconds": seconds, "memory/resident_mb": float(step)})


def written(journal: Journal, folder: Path) -> tuple[list[tuple[str, int, float]], Notes]:
    folder.mkdir()
    journal.close()
    journal.write(folder)
    rows = read_rows(folder / TELEMETRY_FILE)
    return [(row["metric"], row["step"], row["value"]) for row in rows], read_notes(folder)


def test_what_was_noted_is_in_the_artefact(path: Path, tmp_path: Path) -> None:
    journal = opened(path)
    journal.start(1e6, 2e11, "measured")
    noted(journal, range(1, 3))
    assert journal.event(2, "spike", "the loss leapt")
    journal.sample([Sample(2, "Once", " upon\na \u202etime")])
    points, notes = written(journal, tmp_path / "out")
    assert points == [
        ("memory/resident_mb", 1, 1.0),
        ("memory/resident_mb", 2, 2.0),
        ("time/step_seconds", 1, 0.5),
        ("time/step_seconds", 2, 0.5),
    ]
    assert notes == Notes(
        [Start(1000.0, 1e6, 2e11, "measured")],
        [Event(2, "spike", "the loss leapt", 1000.0)],
        [Sample(2, "Once", " upon\na \u202etime")],
    )


def test_the_table_has_the_schema_of_histories_even_when_it_is_empty(path: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    points, notes = written(opened(path), tmp_path / "out")
    assert points == [] and notes == Notes()
    assert pq.read_schema(tmp_path / "out" / TELEMETRY_FILE).equals(HISTORY)


def test_a_training_that_goes_on_has_every_step_once_and_says_so(path: Path, tmp_path: Path) -> None:
    first = opened(path)
    noted(first, range(1, 8))
    first.flush()
    second = opened(path)  # of step 5 there was a checkpoint
    noted(second, range(6, 11), seconds=0.25)
    points, notes = written(second, tmp_path / "out")
    seconds = {step: value for metric, step, value in points if metric == "time/step_seconds"}
    assert seconds == {step: 0.5 if step < 6 else 0.25 for step in range(1, 11)}
    assert len(points) == 20
    assert notes.events == [Event(5, "resumed", "went on from the checkpoint of step 5", 1000.0)]


def test_a_training_that_starts_anew_says_so(path: Path, tmp_path: Path) -> None:
    first = opened(path)
    noted(first, range(1, 3))
    first.flush()
    second = opened(path)
    noted(second, range(1, 5))
    _, notes = written(second, tmp_path / "out")
    assert [(event.step, event.message) for event in notes.events] == [(0, "started anew: there was no checkpoint yet")]


@pytest.mark.parametrize("lost", [1, 5, 40])
def test_a_line_that_a_kill_cut_is_left_out(path: Path, tmp_path: Path, lost: int) -> None:
    first = opened(path)
    noted(first, range(1, 4))
    first.flush()
    path.write_bytes(path.read_bytes()[:-lost])
    second = opened(path)
    noted(second, range(3, 5))
    points, _ = written(second, tmp_path / "out")
    assert [step for metric, step, _ in points if metric == "time/step_seconds"] == [1, 2, 3, 4]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_what_a_step_that_is_computed_again_says_again_is_noted_once(path: Path, tmp_path: Path) -> None:
    first = opened(path)
    noted(first, range(1, 4))
    first.event(3, "spike", "the loss leapt")
    first.sample([Sample(3, "a", "one"), Sample(3, "b", "two")])
    second = opened(path)
    noted(second, range(3, 4))
    assert not second.event(3, "spike", "the loss leapt")
    second.sample([Sample(3, "a", "one"), Sample(3, "b", "two")])
    _, notes = written(second, tmp_path / "out")
    assert [event.kind for event in notes.events] == ["spike", "resumed"]
    assert notes.samples == [Sample(3, "a", "one"), Sample(3, "b", "two")]
    third = opened(path)
    assert third.notes.samples == notes.samples


def test_events_without_end_do_not_fill_the_page(path: Path) -> None:
    journal = opened(path)
    for step in range(MOST_EVENTS + 50):
        journal.event(step, "spike", "again")
    assert len(journal.notes.events) == MOST_EVENTS
    assert journal.notes.events[-1].step == MOST_EVENTS + 49
