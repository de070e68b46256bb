"""Training as a stage: a complete artefact, one curve in MLflow, and the same bits after an interruption."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from tiny_run import (
    Ran,
    direct_run,
    hash_share,
    home_at,
    run_prepare,
    run_whole,
    text_of,
    tiny_settings,
    train_in,
    with_tracking,
    write_texts,
)

from flows.train import suggest_training
from model.data import Group
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.tables import read_columns, read_rows
from tasks.core.progress import StageProgress
from tasks.core.run import Run
from tasks.registry.models import ensure_training_run
from tasks.text.cleaning import normalise_text
from tasks.training.suggest import read_suggestion
from tasks.training.train import steps_of_epochs, steps_of_tokens

N_STEPS = 20
SAVING = tiny_settings("execution.checkpoint_minutes=0")  # every step


class Interrupted(RuntimeError):
    """Stands for whatever may go wrong."""


@pytest.fixture
def prepared_home(tiny: Ran, tmp_path: Path) -> Home:
    """A home with everything but the training."""
    target = with_tracking(home_at(tmp_path / "home"))
    store = Path(tiny.run.home.store)
    ignored = shutil.ignore_patterns("train", "evaluate", "generate", "prompts", ".work", ".locks")
    shutil.copytree(store, target.store, ignore=ignored)
    shutil.copyfile(tiny.run.home.hash_memo, target.hash_memo)
    return target


def interrupt_after(patches: pytest.MonkeyPatch, step: int) -> None:
    """Let reporting the progress of this step fail."""
    shown = StageProgress.update

    def update(self: StageProgress, done: float, total: float, note: str = "") -> None:
        shown(self, done, total, note)
        if self.name == "train" and done == step:
            raise Interrupted(f"step {done}")

    patches.setattr(StageProgress, "update", update)


def curve(run: Run, run_id: str) -> list[tuple[str, int]]:
    """(metric, step) of every point of a run, however often it is there."""
    client = run.tracking.client
    names = client.get_run(run_id).data.metrics
    return [(name, point.step) for name in names for point in client.get_metric_history(run_id, name)]


def kept_points(folder: Path) -> list[tuple[str, int]]:
    """(metric, step) of what belongs to MLflow: the whole history, and the clock values of one step in a second."""
    telemetry = read_rows(folder / "telemetry.parquet")
    seconds = {row["step"]: row["value"] for row in telemetry if row["metric"] == "time/step_seconds"}
    assert list(seconds) == list(range(1, N_STEPS + 1))
    taken, since = {1, N_STEPS}, 0.0
    for step in range(2, N_STEPS + 1):
        since += seconds[step]
        if since >= 1:
            taken.add(step)
            since = 0.0
    rows = [*read_rows(folder / "history.parquet"), *(row for row in telemetry if row["step"] in taken)]
    return sorted((row["metric"], row["step"]) for row in rows)


def run_of(run: Run, checkpoint: ArtifactRef) -> Any:
    tracking = run.tracking
    return tracking.client.get_run(tracking.runs(checkpoint.key)[-1])


def bits(run: Run, checkpoint: ArtifactRef) -> bytes:
    return (run.store.folder(checkpoint) / "model.safetensors").read_bytes()


def test_the_artefact_is_a_complete_bundle(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    folder = tiny.folder(tiny.checkpoint)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "history.parquet",
        "journal.json",
        "manifest.json",
        "model.safetensors",
        "telemetry.parquet",
        "token_counts.parquet",
        "tokenizer.json",
    ]
    config = json.loads((folder / "config.json").read_text())
    assert config["model"]["d_model"] == 32
    assert config["train"]["max_steps"] == N_STEPS
    assert config["tokenizer"] == tiny.prepared.tokenizer.digest
    assert (folder / "tokenizer.json").read_bytes() == (
        tiny.folder(tiny.prepared.tokenizer) / "tokenizer.json"
    ).read_bytes()


def test_the_manifest_holds_seed_and_kernels(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    manifest = tiny.run.store.find("train", tiny.checkpoint.key)
    assert manifest is not None
    assert manifest.modes["seed"] == str(manifest.settings["train"]["seed"])
    assert (manifest.modes["device"], manifest.modes["kernels"], manifest.modes["threads"]) == ("cpu", "fastest", "1")


def test_the_history_holds_every_step_and_no_clock(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    rows = read_rows(tiny.folder(tiny.checkpoint) / "history.parquet")
    names = {row["metric"] for row in rows}
    assert names == {"train/loss", "val_sample/loss", "lr", "grad_norm", "tokens"}
    losses = [row["step"] for row in rows if row["metric"] == "train/loss"]
    assert losses == list(range(1, N_STEPS + 1))
    assert [row["step"] for row in rows if row["metric"] == "val_sample/loss"] == list(range(2, N_STEPS + 1, 2))


def test_the_loss_falls(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    rows = read_rows(tiny.folder(tiny.checkpoint) / "history.parquet")
    losses = [row["value"] for row in rows if row["metric"] == "val_sample/loss"]
    assert losses[-1] < losses[0]


def test_training_twice_gives_the_same_bits_and_the_same_history(
    tiny: Ran, tiny_source: Path, prepared_home: Home
) -> None:
    assert tiny.checkpoint is not None
    with direct_run(prepared_home) as run:
        again = train_in(run, tiny_source)
        assert again == tiny.checkpoint
        for name in ("model.safetensors", "history.parquet", "config.json"):
            one, other = run.store.folder(again) / name, tiny.folder(tiny.checkpoint) / name
            assert one.read_bytes() == other.read_bytes()


@pytest.mark.full
def test_a_failed_training_marks_its_run_and_leaves_no_artefact(
    tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 7)
    with direct_run(prepared_home) as run:
        with pytest.raises(Interrupted):
            train_in(run, tiny_source)
        tracking = run.tracking
        runs = tracking.client.search_runs([tracking.experiment_id])
        assert [made.info.status for made in runs] == ["FAILED"]
        assert "train" not in run.store.stages()


def test_a_training_resumed_after_a_failure_has_the_bits_of_an_undisturbed_one(
    tiny: Ran, tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.checkpoint is not None
    for step in (3, 7, N_STEPS):
        with monkeypatch.context() as patches, direct_run(prepared_home) as run:
            interrupt_after(patches, step)
            with pytest.raises(Interrupted):
                train_in(run, tiny_source, SAVING)
    with direct_run(prepared_home) as run:
        resumed = train_in(run, tiny_source)
        assert resumed == tiny.checkpoint
        assert bits(run, resumed) == bits(tiny.run, tiny.checkpoint)
        history = run.store.folder(resumed) / "history.parquet"
        assert read_rows(history) == read_rows(tiny.folder(tiny.checkpoint) / "history.parquet")


@pytest.mark.full
@pytest.mark.parametrize("minutes", [0, 60], ids=["after-a-checkpoint", "from-the-beginning"])
def test_a_resumed_training_has_one_run_with_every_point_once(
    tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    for step in (3, 7):
        with monkeypatch.context() as patches, direct_run(prepared_home) as run:
            interrupt_after(patches, step)
            with pytest.raises(Interrupted):
                train_in(run, tiny_source, tiny_settings(f"execution.checkpoint_minutes={minutes}"))
    with direct_run(prepared_home) as run:
        checkpoint = train_in(run, tiny_source)
        run_id = ensure_training_run(run, checkpoint)
        tracking = run.tracking
        assert len(tracking.client.search_runs([tracking.experiment_id])) == 1
        assert run_of(run, checkpoint).info.status == "FINISHED"
        points = Counter(curve(run, run_id))
    assert set(points.values()) == {1}
    rows = read_rows(Path(prepared_home.store) / "train" / checkpoint.key / "history.parquet")
    assert {(row["metric"], row["step"]) for row in rows} <= points.keys()
    assert {("time/step_seconds", step) for step in (1, N_STEPS)} <= points.keys()


def number_in_validation() -> int:
    """The first text beyond the tiny corpus whose hash puts it into validation (`tiny_settings` hold 0.3 out)."""
    for number in range(100, 200):
        content = normalise_text(text_of(number), "text").encode()
        if hash_share(hashlib.sha256(content).hexdigest(), "sheepfold") < 0.3:
            return number
    raise AssertionError("none of a hundred texts falls into validation")


@pytest.mark.full
def test_a_training_goes_on_when_a_new_document_fell_into_validation_in_between(
    tiny: Ran, tiny_source: Path, prepared_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.checkpoint is not None
    source = shutil.copytree(tiny_source, tmp_path / "texts")
    with monkeypatch.context() as patches, direct_run(prepared_home) as run:
        interrupt_after(patches, 6)
        with pytest.raises(Interrupted):
            train_in(run, source, SAVING)
    write_texts(source, [number_in_validation()])
    with direct_run(prepared_home) as run, pytest.warns(UserWarning, match="other validation sequences"):
        resumed = train_in(run, source)
        assert bits(run, resumed) == bits(tiny.run, tiny.checkpoint)
        rows = read_rows(run.store.folder(resumed) / "history.parquet")
    assert [row["step"] for row in rows if row["metric"] == "val_sample/source_changed"] == [6]


def test_a_training_survives_an_mlflow_that_answers_no_more_and_its_curve_is_completed(
    tiny: Ran, tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.checkpoint is not None

    def refuse(*_: Any) -> None:
        raise MlflowException("API request failed with error code 503")

    with direct_run(prepared_home) as run:
        with monkeypatch.context() as patches:
            patches.setattr("storage.tracking.Tracking.log_points", refuse)
            checkpoint = train_in(run, tiny_source)
        assert checkpoint == tiny.checkpoint
        points = curve(run, ensure_training_run(run, checkpoint))
        assert run_of(run, checkpoint).info.status == "FINISHED"
    assert sorted(points) == kept_points(Path(prepared_home.store) / "train" / checkpoint.key)


def test_the_run_holds_the_settings_and_the_dataset(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    with direct_run(tiny.run.home) as run:
        found = run_of(run, tiny.checkpoint)
    assert found.data.params["model.d_model"] == "32"
    assert found.data.params["train.max_steps"] == str(N_STEPS)
    assert [entry.dataset.digest for entry in found.inputs.dataset_inputs] == [tiny.prepared.dataset.digest[:36]]


def test_minutes_become_steps_once(tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings("train.max_steps=0", "train.minutes=0.001", "train.max_epochs=0.5")
    first = run_whole(prepared_home, tiny_source, settings)
    # another measurement would say something else
    monkeypatch.setattr("model.step.measure_step_seconds", lambda *_, **__: 1e-9)
    again = run_whole(prepared_home, tiny_source, settings)
    assert first.reports["suggest"].computed == 1
    assert again.reports["suggest"].cached
    assert again.checkpoint == first.checkpoint


def test_another_number_of_minutes_is_measured_anew(
    tiny_source: Path, prepared_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.1]
    monkeypatch.setattr("model.step.measure_step_seconds", lambda *_, **__: seconds[0])

    def steps(minutes: float) -> int:
        settings = tiny_settings("train.max_steps=0", f"train.minutes={minutes}", "execution.processes=1")
        with direct_run(prepared_home) as run:
            prepared = run_prepare(prepared_home, tiny_source, settings).prepared
            suggestion = suggest_training(run, settings, prepared)
            return int(read_suggestion(run.store.folder(suggestion))["max_steps"])

    assert steps(1) == int(52 * 0.96 / 0.1)
    seconds[0] = 0.05
    assert steps(1) == int(52 * 0.96 / 0.1)
    assert steps(2) == int(112 * 0.96 / 0.05)


LABELS = np.array([31, 2, 30, 7, 1, 16, 31, 10])  # 128 in all
ONCE = [Group(0, len(LABELS), len(LABELS))]


def test_accumulated_batches_make_fewer_steps() -> None:
    assert steps_of_tokens(1280, {"batch_size": 2, "grad_accum": 4, "seed": 7}, LABELS, ONCE, most=1000) == 10


def test_a_text_without_anything_to_predict_is_refused_for_a_number_of_tokens() -> None:
    plan, labels = {"batch_size": 2, "grad_accum": 1, "seed": 7}, np.zeros(3, dtype=np.int64)
    with pytest.raises(UserError, match=r"train\.max_tokens is 9, .* add documents"):
        steps_of_tokens(9, plan, labels, [Group(0, 3, 3)], most=9)


@pytest.mark.parametrize(("epochs", "sequences", "steps"), [(10, 800, 1_000), (1, 80, 10), (0.5, 24, 1), (1, 23, 2)])
def test_epochs_limit_the_steps(epochs: float, sequences: int, steps: int) -> None:
    assert steps_of_epochs(epochs, {"batch_size": 4, "grad_accum": 2}, sequences) == steps


def test_there_is_always_one_step() -> None:
    assert steps_of_epochs(1, {"batch_size": 4, "grad_accum": 2}, 1) == 1


def test_counts_lie_beside_the_weights(tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    own = read_columns(tiny.folder(tiny.checkpoint) / "token_counts.parquet", ["count"])
    assert own == read_columns(tiny.folder(tiny.prepared.dataset) / "token_counts.parquet", ["count"])
