"""The saver: a copy that nothing disturbs, errors that surface, and a best checkpoint that outlives newer ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import model.saver
from model import ModelConfig, SpanSource, TrainConfig, Trainer
from model.checkpoint import Checkpoint, best_checkpoint, load_checkpoint, save_checkpoint
from model.execution import Execution
from model.saver import CheckpointSaver


def state_at(step: int, **fields: Any) -> Checkpoint:
    filled = torch.full((4, 3), float(step))
    return Checkpoint(
        step,
        2 * step,
        weights={"w": filled, "transposed": filled.T},
        optimizer={"0.step": torch.tensor(float(step))},
        random={"cpu": torch.get_rng_state()},
        **fields,
    )


def names(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes begin when this is set."""
    event = threading.Event()

    def wait_and_save(*arguments: Any, **settings: Any) -> Path:
        event.wait()
        return save_checkpoint(*arguments, **settings)

    monkeypatch.setattr(model.saver, "save_checkpoint", wait_and_save)
    return event


def test_what_changes_after_a_save_is_not_in_the_checkpoint(tmp_path: Path, held: threading.Event) -> None:
    state = state_at(1, scaler={"scale": 2.0}, history=[{"step": 1}])
    with CheckpointSaver(tmp_path) as saver:
        saver.save(state)
        for tensor in (*state.weights.values(), *state.optimizer.values()):
            tensor.fill_(-1.0)
        state.random["cpu"].zero_()
        state.history.append({"step": 2})
        state.scaler["scale"] = 1.0
        held.set()
    loaded = load_checkpoint(tmp_path)
    assert loaded.weights["w"].eq(1).all() and loaded.optimizer["0.step"] == 1
    assert loaded.random["cpu"].any()
    assert loaded.history == [{"step": 1}] and loaded.scaler == {"scale": 2.0}


def test_a_save_returns_while_the_checkpoint_is_being_written(tmp_path: Path, held: threading.Event) -> None:
    with CheckpointSaver(tmp_path) as saver:
        saver.save(state_at(1))
        assert saver.busy and not names(tmp_path)
        held.set()
    assert not saver.busy and names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize(
    "ask_next", [lambda saver: saver.save(state_at(2)), CheckpointSaver.wait, CheckpointSaver.load]
)
def test_an_error_of_a_write_is_raised_at_the_next_call(
    ask_next: Callable[[CheckpointSaver], object], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    saver = CheckpointSaver(tmp_path / "file")
    saver.save(state_at(1))
    with pytest.raises(FileExistsError) as raised:
        ask_next(saver)
    assert "older checkpoints there are whole" in raised.value.__notes__[0]
    saver.close()  # it was told


def test_the_best_checkpoint_outlives_newer_ones_until_there_is_a_better_one(tmp_path: Path) -> None:
    with CheckpointSaver(tmp_path, keep=1) as saver:
        for step in range(1, 5):
            saver.save(state_at(step), best=step == 2)
        saver.wait()
        assert best_checkpoint(tmp_path) == tmp_path / "step-00000002"
        assert names(tmp_path) == ["step-00000002", "step-00000004"]
        saver.save(state_at(5), best=True)
    assert names(tmp_path) == ["step-00000005"]


def test_a_saver_that_goes_on_knows_the_best_one(tmp_path: Path) -> None:
    with CheckpointSaver(tmp_path, keep=1) as saver:
        saver.save(state_at(1), best=True)
        saver.save(state_at(2))
    with CheckpointSaver(tmp_path, keep=1) as saver:
        loaded = saver.load()
        assert loaded is not None and (loaded.step, loaded.best_step) == (2, 1)
        saver.save(state_at(3))
    assert names(tmp_path) == ["step-00000001", "step-00000003"]
    assert best_checkpoint(tmp_path) == tmp_path / "step-00000001"


def test_a_damaged_best_checkpoint_is_told(tmp_path: Path) -> None:
    with CheckpointSaver(tmp_path, keep=1) as saver:
        saver.save(state_at(1), best=True)
        saver.save(state_at(2))
    (tmp_path / "step-00000001" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"step-00000001 is damaged: .*; the weights of step-00000002 are whole"):
        best_checkpoint(tmp_path)


def test_a_save_takes_the_memory_of_the_one_before_unless_shapes_have_changed(tmp_path: Path) -> None:
    with CheckpointSaver(tmp_path) as saver:
        saver.save(state_at(1))
        saver.save(state_at(2))
        assert load_checkpoint_of(saver).weights["transposed"].equal(torch.full((3, 4), 2.0))
        other = state_at(3)
        other.weights = {"w": torch.full((5, 3), 3.0), "new": torch.zeros(2, dtype=torch.bfloat16)}
        saver.save(other)
        found = load_checkpoint_of(saver).weights
    assert found.keys() == {"w", "new"}
    assert found["w"].equal(other.weights["w"]) and found["new"].dtype == torch.bfloat16


def test_history_comes_back_as_it_was_also_where_rows_were_taken_back(tmp_path: Path) -> None:
    rows = [{"step": step, "train/loss": 0.1 * step, "lr": 1e-300 / step} for step in range(1, 6)]
    with CheckpointSaver(tmp_path) as saver:
        saver.save(state_at(5, history=rows))
        again = [*rows[:3], {"step": 4, "train/loss": math.inf}]
        saver.save(state_at(6, history=again))
        assert load_checkpoint_of(saver).history == again
        longer = [*again, {"step": 5, "train/loss": 0.3}]
        saver.save(state_at(7, history=longer))
        assert load_checkpoint_of(saver).history == longer


def load_checkpoint_of(saver: CheckpointSaver) -> Checkpoint:
    saver.wait()
    return load_checkpoint(saver.folder)


def test_a_run_keeps_the_checkpoint_with_the_lowest_validation_loss(
    model_config: ModelConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    config = TrainConfig(max_steps=30, batch_size=4, eval_every=3, lr=0.3, warmup_ratio=0.5)  # it soon gets worse
    trainer = Trainer(
        model_config,
        config,
        build_source(),
        build_source(n=5, seed=1),
        checkpoint_dir=tmp_path,
        checkpoint_seconds=0,
        execution=Execution(keep=1),
    )
    history = trainer.fit().history
    lowest = min((row for row in history if "val/loss" in row), key=lambda row: row["val/loss"])["step"]
    assert 0 < lowest < 30
    assert names(tmp_path) == [f"step-{lowest:08d}", "step-00000030"]
    assert best_checkpoint(tmp_path) == tmp_path / f"step-{lowest:08d}"


def test_the_best_checkpoint_is_saved_however_rare_the_others_are(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    sources = build_source(), build_source(n=5, seed=1)
    result = Trainer(model_config, train_config, *sources, checkpoint_dir=tmp_path, checkpoint_seconds=1e9).fit()
    lowest = min((row for row in result.history if "val/loss" in row), key=lambda row: row["val/loss"])["step"]
    assert best_checkpoint(tmp_path) == tmp_path / f"step-{lowest:08d}"
