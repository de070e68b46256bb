"""Checkpoints on disk, and runs that are killed and go on to the same bits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from interrupted_runs import EVERY_STEP, RARELY, Interrupted, assert_same_run, calling, stop_at
from safetensors.torch import load_file

from model import (
    ModelConfig,
    SpanSource,
    TrainConfig,
    Trainer,
    Transformer,
    count_parameters,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)
from model.checkpoint import Checkpoint, best_checkpoint, latest_checkpoint, newest_to_continue
from model.config import Execution
from model.data import Group, Part
from model.run_checkpoints import differences


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_interrupted_runs_end_with_the_same_bits(
    precision: str,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    shape = dataclasses.replace(model_config, drop_resid=0.1)
    config = dataclasses.replace(train_config, precision=precision)
    sources = build_source(), build_source(n=5, seed=1)
    undisturbed = Trainer(shape, config, *sources).fit()
    for step in (3, 4, 9):
        with pytest.raises(Interrupted):
            Trainer(
                shape,
                config,
                *sources,
                checkpoint_dir=tmp_path,
                execution=EVERY_STEP,
                callbacks=stop_at(step),
            ).fit()
    resumed = Trainer(shape, config, *sources, checkpoint_dir=tmp_path).fit()
    assert resumed.resumed_from == 9
    assert_same_run(undisturbed, resumed)


def test_interrupted_run_over_groups_ends_with_the_same_bits(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    groups = [Group(0, 5, 13), Group(5, 15, 6)]
    undisturbed = Trainer(model_config, train_config, build_source(), groups=groups).fit()
    settings = {"groups": groups, "checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(Interrupted):
        Trainer(model_config, train_config, build_source(), **settings, callbacks=stop_at(3)).fit()
    resumed = Trainer(model_config, train_config, build_source(), **settings).fit()
    assert resumed.resumed_from == 3
    assert_same_run(undisturbed, resumed)


def test_run_with_other_groups_is_not_continued(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    Trainer(model_config, train_config, build_source(), checkpoint_dir=tmp_path).fit()
    other = Trainer(model_config, train_config, build_source(), groups=[Group(0, 20, 40)], checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="'train_sequences_read' was '20 of 20 from 0' and is now '40 of 20 from 0'"):
        other.fit()


def test_finished_run_is_not_computed_again(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    first = Trainer(model_config, train_config, build_source(), checkpoint_dir=tmp_path).fit()
    again = Trainer(
        model_config, train_config, build_source(), checkpoint_dir=tmp_path, callbacks=calling(step=pytest.fail)
    ).fit()
    assert again.resumed_from == 10
    assert_same_run(first, again)


def damage_weights(place: Path) -> None:
    data = bytearray((place / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (place / "model.safetensors").write_bytes(data)


def remove_state(place: Path) -> None:
    (place / "state.json").unlink()


def cut_state(place: Path) -> None:
    (place / "state.json").write_text((place / "state.json").read_text()[:40])


def empty_state(place: Path) -> None:
    (place / "state.json").write_text("[]")


def change_state(place: Path) -> None:
    text = (place / "state.json").read_text()
    (place / "state.json").write_text(text.replace('"step": 5', '"step": 4'))


def cut_history(place: Path) -> None:
    lines = (place / "history.jsonl").read_text().splitlines(keepends=True)
    (place / "history.jsonl").write_text("".join(lines[:-1]))


@pytest.mark.parametrize(
    "damage",
    [
        damage_weights,
        cut_history,
        *(
            pytest.param(damage, marks=pytest.mark.full)
            for damage in (remove_state, cut_state, empty_state, change_state)
        ),
    ],
)
def test_torn_newest_checkpoint_is_skipped(
    damage: Callable[[Path], None],
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(Interrupted):
        Trainer(model_config, train_config, build_source(), **settings, callbacks=stop_at(5)).fit()
    damage(tmp_path / "step-00000005")
    resumed = Trainer(model_config, train_config, build_source(), **settings).fit()
    assert resumed.resumed_from == 4
    assert_same_run(Trainer(model_config, train_config, build_source()).fit(), resumed)


def test_damaged_checkpoint_is_not_loaded(tmp_path: Path, model_config: ModelConfig) -> None:
    place = save_checkpoint(tmp_path, state_at(1, Transformer(model_config)))
    damage_weights(place)
    with pytest.raises(ValueError, match=r"model\.safetensors does not have the sha256"):
        load_checkpoint(place)
    with pytest.raises(FileNotFoundError, match="no good checkpoint"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": {"dataset": "b"}}, "'dataset' was 'a' and is now 'b'"),
        ({"identity": {}}, "'dataset' was 'a' and is not there any more"),
        ({"identity": {"dataset": "a", "tokenizer": "t"}}, "'tokenizer' was not there and is now 't'"),
        ({"identity": {"dataset": "b"}, "lr": 0.5}, r"'dataset' was 'a' and is now 'b'; 'train\.lr' was"),
        ({"lr": 0.5}, r"'train\.lr' was '0\.003' and is now '0\.5'"),
        ({"n_layer": 1}, r"'model\.n_layer' was '2' and is now '1'"),
        ({"n": 21}, "'train_sequences' was '20' and is now '21'"),
    ],
)
def test_checkpoint_of_another_run_is_refused(
    change: dict,
    message: str,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    Trainer(model_config, train_config, build_source(), checkpoint_dir=tmp_path, identity={"dataset": "a"}).fit()
    identity = change.get("identity", {"dataset": "a"})
    shape = dataclasses.replace(model_config, **{k: v for k, v in change.items() if k == "n_layer"})
    config = dataclasses.replace(train_config, **{k: v for k, v in change.items() if k == "lr"})
    source = build_source(n=change.get("n", 20))
    with pytest.raises(ValueError, match=message):
        Trainer(shape, config, source, checkpoint_dir=tmp_path, identity=identity).fit()


def test_a_message_of_many_differences_names_the_first_ones_and_counts_the_rest() -> None:
    found = differences(dict.fromkeys("abcdef", "1"), dict.fromkeys("abcdef", "2"))
    assert found.startswith("'a' was '1' and is now '2'; 'b' was") and found.endswith("; 2 more differ")
    assert differences({"a": "1"}, {"a": "1"}) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torch": "1.0"}, "'torch' was '1.0' and is now"),
        ({"threads": "64"}, "'threads' was '64' and is now '1'"),
        ({"compile": "True"}, "'compile' was 'True' and is now 'False'"),
        ({"kernels": "deterministic"}, "'kernels' was 'deterministic' and is now 'fastest'"),
    ],
)
def test_a_run_that_was_computed_in_another_way_goes_on_and_says_so(
    change: dict[str, str],
    message: str,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(Interrupted):
        Trainer(model_config, train_config, build_source(), **settings, callbacks=stop_at(3)).fit()
    state = load_checkpoint(tmp_path)
    state.execution.update(change)
    save_checkpoint(tmp_path, state)
    with pytest.warns(
        UserWarning, match=f"resumes from step 3 with another execution: .*{message}.*may differ in the last bits"
    ):
        assert Trainer(model_config, train_config, build_source(), **settings).fit().resumed_from == 3


def test_a_run_goes_on_with_other_validation_sequences_and_its_history_says_so(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    first, other = build_source(n=5, seed=1), build_source(n=6, seed=2)
    undisturbed = Trainer(model_config, train_config, build_source(), other).fit()
    with pytest.raises(Interrupted):
        Trainer(model_config, train_config, build_source(), first, **settings, callbacks=stop_at(6)).fit()
    with pytest.warns(UserWarning, match=r"from step 7 on, .* other validation sequences"):
        resumed = Trainer(model_config, train_config, build_source(), other, **settings).fit()
    assert [row["step"] for row in resumed.history if "val/source_changed" in row] == [7]
    losses, expected = ([row.get("val/loss") for row in run.history] for run in (resumed, undisturbed))
    assert losses[3] is not None and losses[3] != expected[3]
    assert losses[4:] == expected[4:]
    weights, others = resumed.model.state_dict(), undisturbed.model.state_dict()
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_a_change_of_the_validation_sequences_is_said_once(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    sources = [build_source(n=5, seed=1), build_source(n=5, seed=2), build_source(n=5, seed=2)]
    for step, source in zip((5, 7, 9), sources, strict=True):
        with contextlib.suppress(Interrupted), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Trainer(model_config, train_config, build_source(), source, **settings, callbacks=stop_at(step)).fit()
    history = load_checkpoint(tmp_path).history
    assert [row["step"] for row in history if "val/source_changed" in row] == [6]


def test_nothing_is_said_where_no_validation_loss_was_measured_before_the_change(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    with pytest.raises(Interrupted):
        Trainer(
            model_config, train_config, build_source(), build_source(seed=1), **settings, callbacks=stop_at(3)
        ).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = Trainer(model_config, train_config, build_source(), build_source(seed=2), **settings).fit()
    assert not any("val/source_changed" in row for row in resumed.history)


def test_a_run_with_a_part_of_the_validation_sequences_resumes_to_the_same_history(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    sources = build_source(), build_source(n=5, seed=1)
    part = Part(build_source(n=2, seed=1), (40, 0), (60, 0))
    undisturbed = Trainer(model_config, train_config, *sources, replay=part).fit()
    settings = {"replay": part, "checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    for step in (0, 5):
        with pytest.raises(Interrupted):
            Trainer(model_config, train_config, *sources, **settings, callbacks=stop_at(step)).fit()
    resumed = Trainer(model_config, train_config, *sources, **settings).fit()
    assert resumed.resumed_from == 5
    assert [row["step"] for row in resumed.history] == list(range(11))
    assert_same_run(undisturbed, resumed)


def test_a_part_measured_at_step_0_only_is_followed_by_a_mark_of_other_validation_sequences(
    model_config: ModelConfig, train_config: TrainConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    settings = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP}
    part = Part(build_source(n=2, seed=1), (40, 0), (60, 0))
    with pytest.raises(Interrupted):
        sources = build_source(), build_source(n=5, seed=1)
        Trainer(model_config, train_config, *sources, replay=part, **settings, callbacks=stop_at(2)).fit()
    with pytest.warns(UserWarning, match=r"from step 3 on, .* other validation sequences"):
        sources = build_source(), build_source(n=6, seed=2)
        resumed = Trainer(model_config, train_config, *sources, replay=part, **settings).fit()
    assert [row["step"] for row in resumed.history if "val/source_changed" in row] == [3]


def state_at(step: int, model: Transformer) -> Checkpoint:
    counter = torch.tensor(float(step))
    return Checkpoint(
        step=step,
        position=2 * step,
        weights=model.state_dict(),
        optimizer={"0.step": counter},
        random={"cpu": torch.get_rng_state()},
        scaler={"scale": 65536.0},
        identity={"dataset": "a"},
        history=[{"step": 1, "train/loss": 0.1 + 0.2}],
    )


def test_checkpoint_round_trips(tmp_path: Path, model_config: ModelConfig) -> None:
    state = state_at(3, Transformer(model_config))
    loaded = load_checkpoint(save_checkpoint(tmp_path, state))
    for name in ("weights", "optimizer", "random"):
        saved, found = getattr(state, name), getattr(loaded, name)
        assert saved.keys() == found.keys()
        assert all(torch.equal(saved[key], found[key]) for key in saved)
        setattr(loaded, name, saved)
    assert loaded == state


def test_only_the_newest_two_are_kept(tmp_path: Path, model_config: ModelConfig) -> None:
    for step in (1, 2, 10, 30):
        save_checkpoint(tmp_path, state_at(step, Transformer(model_config)))
    assert sorted(place.name for place in tmp_path.iterdir()) == ["step-00000010", "step-00000030"]


@pytest.mark.parametrize("n_done", range(9))
def test_fault_inside_a_save_leaves_old_or_new_checkpoint_whole(
    n_done: int, tmp_path: Path, model_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the save after n_done of its flushes and renames."""
    save_checkpoint(tmp_path, state_at(1, Transformer(model_config)))
    left = [n_done]

    def count(operation: Callable) -> Callable:
        def counted(*arguments: object) -> object:
            if not left[0]:
                raise Interrupted
            left[0] -= 1
            return operation(*arguments)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", count(os.fsync))
        patch.setattr(Path, "rename", count(Path.rename))
        try:
            save_checkpoint(tmp_path, state_at(2, Transformer(model_config)), keep=1)
            finished = True
        except Interrupted:
            finished = False
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert newest_to_continue(tmp_path) == found
    assert load_checkpoint(found).step == (2 if n_done >= 6 else 1)
    assert finished == (n_done >= 8)
    assert not list(tmp_path.glob(".unfinished*"))


def test_a_reader_leaves_a_checkpoint_alone_that_is_being_written(tmp_path: Path, model_config: ModelConfig) -> None:
    save_checkpoint(tmp_path, state_at(1, Transformer(model_config)))
    unfinished = tmp_path / ".unfinished-step-00000002"
    unfinished.mkdir()
    assert load_checkpoint(tmp_path).step == 1
    assert unfinished.exists()


@pytest.mark.parametrize("tied", [True, False])
def test_weights_round_trip(tied: bool, tmp_path: Path, model_config: ModelConfig) -> None:
    config = dataclasses.replace(model_config, tie_weights=tied)
    model, path = Transformer(config).eval(), tmp_path / "model.safetensors"
    save_weights(path, model)
    n_stored = sum(tensor.numel() for tensor in load_file(path).values())
    assert n_stored == count_parameters(config)["total"]  # a shared matrix is counted, and stored, once
    before, ids = torch.get_rng_state(), torch.arange(8)[None]
    assert torch.equal(load_weights(path, config)(ids), model(ids))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("vocab_multiple", [1, 64])
@pytest.mark.parametrize("head", [{}, {"tie_weights": False}, {"tie_weights": False, "head_bias": True}])
def test_rows_of_new_ids_begin_as_the_mean_of_others(
    head: dict[str, bool], vocab_multiple: int, tmp_path: Path, model_config: ModelConfig
) -> None:
    config = dataclasses.replace(model_config, **head, vocab_multiple=vocab_multiple)
    model, n = Transformer(config).eval(), config.vocab_size
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    save_weights(tmp_path / "weights", model)
    grown = dataclasses.replace(config, vocab_size=n + 3)
    new_rows = [(n - 1, [1]), (n, [3, 5]), (n + 1, [2, 2, 7]), (n + 2, [0])]
    found = load_weights(tmp_path / "weights", grown, new_rows=new_rows)
    ids = torch.arange(8)[None]
    expected, logits = model(ids)[..., :n], found(ids)[..., : n + 3]
    assert torch.equal(logits[..., : n - 1], expected[..., : n - 1])
    for index, parts in new_rows:
        mean = model.token_embedding.weight[parts].mean(0)
        torch.testing.assert_close(found.token_embedding.weight[index], mean)
        torch.testing.assert_close(logits[..., index], expected[..., parts].mean(-1))


def test_weights_of_another_shape_are_refused(tmp_path: Path, model_config: ModelConfig) -> None:
    save_weights(tmp_path / "weights", Transformer(model_config))
    with pytest.raises(ValueError, match="do not fit the configuration"):
        load_weights(tmp_path / "weights", dataclasses.replace(model_config, n_layer=1))


def test_file_that_holds_no_weights_is_refused(tmp_path: Path, model_config: ModelConfig) -> None:
    (tmp_path / "weights").write_bytes(b"not weights at all")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_weights(tmp_path / "weights", model_config)


def names(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir())


def test_the_best_checkpoint_outlives_newer_ones_until_there_is_a_better_one(
    tmp_path: Path, model_config: ModelConfig
) -> None:
    for step, best in ((1, 0), (2, 2), (3, 2), (4, 2)):
        save_checkpoint(
            tmp_path, dataclasses.replace(state_at(step, Transformer(model_config)), best_step=best), keep=1
        )
    assert names(tmp_path) == ["step-00000002", "step-00000004"]
    assert best_checkpoint(tmp_path, 2) == tmp_path / "step-00000002"
    save_checkpoint(tmp_path, dataclasses.replace(state_at(5, Transformer(model_config)), best_step=5), keep=1)
    assert names(tmp_path) == ["step-00000005"]


def test_a_damaged_best_checkpoint_is_reported(tmp_path: Path, model_config: ModelConfig) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, dataclasses.replace(state_at(step, Transformer(model_config)), best_step=1), keep=1)
    (tmp_path / "step-00000001" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"step-00000001 is damaged: .*; use the intact weights of step-00000002"):
        best_checkpoint(tmp_path, 1)


@pytest.mark.parametrize("patience", [0, 1000])
def test_the_best_checkpoint_is_saved_where_patience_asks_for_it(
    patience: int, model_config: ModelConfig, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    rates = {"lr": 0.3, "warmup_ratio": 0.5}  # it soon gets worse
    config = TrainConfig(max_steps=30, batch_size=4, eval_every=3, patience=patience, **rates)
    sources = build_source(), build_source(n=5, seed=1)
    history = Trainer(model_config, config, *sources, checkpoint_dir=tmp_path, execution=RARELY).fit().history
    lowest = min((row for row in history if "val/loss" in row), key=lambda row: row["val/loss"])["step"]
    assert 0 < lowest < 30
    assert names(tmp_path)[-1] == "step-00000030"
    assert (f"step-{lowest:08d}" in names(tmp_path)) == bool(patience)


def test_a_checkpoint_is_saved_when_its_minutes_have_passed(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    saved: list[int] = []

    def on_step(step: int, max_steps: int, metrics: object) -> None:
        clock[0] += 60.0

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    Trainer(
        model_config,
        train_config,
        build_source(),
        checkpoint_dir=tmp_path,
        execution=Execution(checkpoint_minutes=3),
        callbacks=calling(step=on_step, checkpoint=saved.append),
    ).fit()
    assert saved == [4, 8, 10]
