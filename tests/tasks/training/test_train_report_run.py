"""Records of a training: history, telemetry, samples and a page, each written once, also after interruptions."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_training_stage import SAVING, Interrupted, bits, curve, interrupt_after, prepared_home, run_of, train_in
from tiny_run import Ran, direct_run, text_of, with_tracking

from storage.home import Home
from storage.manifest import ArtifactRef
from storage.tables import read_rows
from tasks.core.run import Run
from tasks.registry.models import ensure_training_run
from tasks.report.page import Outcome
from tasks.report.queries import Row
from tasks.report.training import collect_training, derived, training_page, training_pictures, write
from tasks.training.telemetry import Notes, read_notes

__all__ = ["prepared_home"]  # a fixture of that module

N_STEPS = 20
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def figures(tiny: Ran) -> Row:
    assert tiny.checkpoint is not None and tiny.metrics is not None
    return collect_training(tiny.run.store, tiny.checkpoint, tiny.metrics)


def notes_of(run: Run, checkpoint: ArtifactRef) -> Notes:
    return read_notes(run.store.folder(checkpoint))


def test_every_step_has_its_time_its_speed_and_its_memory(figures: Row) -> None:
    for name in ("time/step_seconds", "time/tokens_per_second", "memory/resident_mb"):
        assert list(figures.curves[name].steps) == list(range(1, N_STEPS + 1)), name
        assert min(figures.curves[name].values) > 0


def test_figures_are_those_of_the_history_and_of_the_dataset(tiny: Ran, figures: Row) -> None:
    rows = read_rows(tiny.folder(tiny.checkpoint) / "history.parquet")
    assert derived(figures).loss.values == [row["value"] for row in rows if row["metric"] == "train/loss"]
    record = json.loads((tiny.folder(tiny.prepared.dataset) / "dataset.json").read_text())
    assert figures.epoch is not None
    assert figures.epoch.sequences == record["splits"]["train"]["sequences"]
    assert figures.epoch.tokens == record["splits"]["train"]["labels"]
    assert derived(figures).epochs == pytest.approx(N_STEPS * 4 / figures.epoch.sequences)
    assert 0 < derived(figures).mfu < 1.5


def test_the_curves_are_documents_of_their_own(figures: Row) -> None:
    """A line begins at the first step and ends at the last."""
    found = training_pictures(figures)
    assert list(found) == ["loss", "learning-rate", "gradient"]
    for picture in found.values():
        lines = ElementTree.fromstring(picture).findall(f"{SVG}g/{SVG}path")
        places = [tuple(map(float, pair.split())) for pair in lines[0].get("d", "").strip("M").split("L")]
        assert (places[0][0], places[-1][0]) == (0.0, 1000.0)
    ticks = [text.text for text in ElementTree.fromstring(found["learning-rate"]).findall(f"{SVG}text")]
    assert {"Learning rate", "step"} <= set(ticks)


def test_the_history_itself_holds_no_clock(tiny: Ran) -> None:
    rows = read_rows(tiny.folder(tiny.checkpoint) / "history.parquet")
    assert not [row["metric"] for row in rows if row["metric"].startswith(("time/", "memory/"))]


def test_samples_continue_training_documents_and_never_those_held_out(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    samples = notes_of(tiny.run, tiny.checkpoint).samples
    assert {sample.step for sample in samples} >= {N_STEPS}
    texts = {number: " ".join(text_of(number).split()) for number in range(12)}
    rows = read_rows(tiny.folder(tiny.prepared.evalset) / "documents.parquet")
    held_out = {" ".join(row["text"].split()) for row in rows}
    assert held_out
    for prompt in {sample.prompt for sample in samples}:
        begun = [text for text in texts.values() if text.startswith(" ".join(prompt.split()))]
        assert begun and not set(begun) & held_out


def test_samples_are_a_table_of_the_run(tiny: Ran, tiny_source: Path) -> None:
    assert tiny.checkpoint is not None
    client = tiny.run.tracking.client
    run = run_of(tiny.run, tiny.checkpoint)
    path = client.download_artifacts(run.info.run_id, "samples.json")
    table = json.loads(Path(path).read_text())
    samples = notes_of(tiny.run, tiny.checkpoint).samples
    assert table == {
        "columns": ["step", "prompt", "text"],
        "data": [[item.step, item.prompt, item.text] for item in samples],
    }
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples.json", "type": "table"}]


def test_samples_change_no_bit(
    tiny: Ran, tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.checkpoint is not None
    monkeypatch.setattr("tasks.training.train.sampler_of", lambda *_: None)
    with direct_run(prepared_home) as run:
        without = train_in(run, tiny_source)
        assert bits(run, without) == bits(tiny.run, tiny.checkpoint)
        assert notes_of(run, without).samples == []


@pytest.mark.full
def test_an_interrupted_training_has_every_point_once_and_tells_of_it(
    tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sheepfold")
    for step in (3, 7):
        with monkeypatch.context() as patches, direct_run(prepared_home) as run:
            interrupt_after(patches, step)
            with pytest.raises(Interrupted):
                train_in(run, tiny_source, SAVING)
    with direct_run(prepared_home) as run:
        checkpoint = train_in(run, tiny_source)
        run_id = ensure_training_run(run, checkpoint)
        points = Counter(curve(run, run_id))
        notes = notes_of(run, checkpoint)
        telemetry = collect_training(run.store, checkpoint)
    assert set(points.values()) == {1}
    assert {("memory/resident_mb", step) for step in (1, 3, 7, N_STEPS)} <= points.keys()  # of each start the first
    assert len(telemetry.curves["time/step_seconds"].steps) == N_STEPS
    assert [event.step for event in notes.events if event.kind == "resumed"] == [2, 6]
    resumed = [line for line in caplog.messages if line.startswith("train: resumed")]
    assert resumed == [f"train: resumed at step {step} of {N_STEPS}" for step in (2, 6)]
    assert len(notes.starts) == 3
    assert max(Counter((sample.step, sample.prompt) for sample in notes.samples).values()) == 1


def test_a_lost_run_gets_its_telemetry_and_its_samples_back(tiny: Ran, tiny_source: Path, prepared_home: Home) -> None:
    with direct_run(prepared_home) as run:
        checkpoint = train_in(run, tiny_source)
    with_tracking(prepared_home)
    with direct_run(prepared_home) as run:
        run_id = ensure_training_run(run, checkpoint)
        points = Counter(curve(run, run_id))
        tracking = run.tracking
        assert tracking.has_file(run_id, "samples.json")
    assert points["memory/resident_mb", N_STEPS] == points["time/tokens_per_second", 1] == 1


def test_the_bar_shows_loss_speed_share_and_time_left(
    tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(
        "tasks.core.progress.StageProgress.update", lambda self, done, total, note="": notes.append(note)
    )
    with direct_run(prepared_home) as run:
        train_in(run, tiny_source)
    last = [note for note in notes if note.startswith("loss ")][-1]
    for word in (" val ", " tokens/s, ", " % MFU, ", " left"):
        assert word in last


def page_of(tiny: Ran, metrics: dict[str, Any]) -> tuple[Path, str]:
    assert tiny.checkpoint is not None
    with direct_run(tiny.run.home) as run:
        run.corpus = "page"
        run.remember(train=tiny.checkpoint)
        made = write(Outcome(run, metrics))
    assert made is not None
    return made.files[0], made.summary


def test_the_page_is_written_and_only_drawn_again_after_a_change(tiny: Ran) -> None:
    page, summary = page_of(tiny, {})
    assert page.name == "training.html" and page.read_text().startswith("<!doctype html>")
    assert "| Parameters |" in summary
    page.write_text("by hand")
    assert page_of(tiny, {}) == (page, summary) and page.read_text() == "by hand"
    assert tiny.metrics is not None
    page_of(tiny, tiny.metrics)
    assert "Bits per byte" in page.read_text()


def test_a_training_from_before_there_were_journals_has_a_page_too(
    tiny: Ran, tiny_source: Path, prepared_home: Home
) -> None:
    with direct_run(prepared_home) as run:
        checkpoint = train_in(run, tiny_source)
        folder = run.store.folder(checkpoint)
        manifest = json.loads((folder / "manifest.json").read_text())
        for name in ("telemetry.parquet", "journal.json"):
            (folder / name).unlink()
            manifest["files"] = [entry for entry in manifest["files"] if entry["name"] != name]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        old = collect_training(run.store, checkpoint)
    found = derived(old)
    assert math.isnan(found.tokens_per_second) and found.mfu is None and found.steps == N_STEPS
    assert "<!doctype html>" in training_page(old, "old")[0]
