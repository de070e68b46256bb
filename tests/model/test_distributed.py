"""Several ranks compute what one does, and go on with each other's checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_cases
import torch
from guarded_cases import LEAP, LEARNED
from rank_cases import Interrupted, Outcome, run_ranks, told, trainer_of

from model import TrainConfig, load_checkpoint
from model.data import order
from model.distributed import Ranks
from model.run_checkpoints import weights_digest

BOTH = ["ddp", "fsdp"]
SHARDINGS = ["ddp", pytest.param("fsdp", marks=pytest.mark.full)]
# nothing of it divides by two
ODD = {
    "vocab_size": 31,
    "vocab_multiple": 11,
    "head_bias": True,
    "d_model": 18,
    "tie_weights": False,
}


def alone(folder: Path | None = None, **settings: Any) -> Outcome:
    """The same training in this process."""
    return told(trainer_of(folder=folder, **settings).fit())


def assert_like(found: list[dict[str, Any]], expected: list[dict[str, Any]], rtol: float = 2e-5) -> None:
    """Two histories agree but for the last bits."""
    assert [sorted(row) for row in found] == [sorted(row) for row in expected]
    for name in ("step", "tokens", "lr"):
        assert [row[name] for row in found] == [row[name] for row in expected]
    for name in ("train/loss", "grad_norm", "val/loss"):
        left, right = ([row[name] for row in rows if name in row] for rows in (found, expected))
        np.testing.assert_allclose(left, right, rtol=rtol)


def assert_same_checkpoint(found: Path, expected: Path) -> None:
    """Two runs end with the same weights and optimiser state, but for the last bits, under the same names."""
    left, right = load_checkpoint(found), load_checkpoint(expected)
    assert left.identity == right.identity
    for name in ("weights", "optimizer"):
        ours, others = getattr(left, name), getattr(right, name)
        assert ours.keys() == others.keys()
        for key, value in others.items():
            torch.testing.assert_close(ours[key], value, rtol=1e-3, atol=2e-5)


def test_a_rank_takes_whole_micro_batches_as_far_as_they_go_round() -> None:
    assert Ranks(1, 2).share(np.arange(12).reshape(4, 3)).shape == (2, 3)


def test_a_step_that_does_not_divide_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(ValueError, match=r"3 processes cannot share the 8 sequences .* batch_size to a multiple of 3"):
        trainer_of({}, {}, ranks=Ranks(0, 3))


@pytest.mark.parametrize("sharding", BOTH)
@pytest.mark.parametrize(
    ("model", "train"),
    [
        pytest.param({}, {"grad_accum": 4, "batch_size": 2}, marks=pytest.mark.full),  # two micro-batches each
        # three rows each, and what blocks compute is computed again
        pytest.param(ODD, {"grad_accum": 1, "batch_size": 6}, marks=pytest.mark.full),
        ({"pos": "rope", "norm": "rmsnorm", "act": "swiglu"}, {"optimizer": "muon", "grad_accum": 3}),
    ],
    ids=["micro-batches", "rows", "rows-of-micro-batches-muon"],
)
def test_two_ranks_compute_what_one_does(
    sharding: str, model: dict[str, Any], train: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"model": model, "train": {**train, "clip_norm": 0.5}, "recompute": train["grad_accum"] == 1}
    expected = alone(tmp_path / "one", **settings)
    first, second = run_ranks(
        rank_cases.training, tmp_path, sharding=sharding, folder=str(tmp_path / "two"), **settings
    )
    assert first["history"] == second["history"]
    assert_like(first["history"], expected["history"])
    assert_same_checkpoint(tmp_path / "two", tmp_path / "one")
    assert first["kinds"] == ["Parameter"]
    assert second["kinds"] == (["DTensor"] if sharding == "fsdp" else ["Parameter"])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_ranks_measure_a_part_of_the_validation_sequences_from_step_0(sharding: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": {}, "train": {}, "replay": True}
    expected = alone(**settings)["history"]
    first, second = run_ranks(rank_cases.training, tmp_path, sharding=sharding, **settings)
    assert first["history"] == second["history"]
    assert_like(first["history"][1:], expected[1:])
    for name in ("val/replay_bits_per_byte", "val/own_bits_per_byte"):
        left, right = (
            [(row["step"], row[name]) for row in rows if name in row] for rows in (first["history"], expected)
        )
        assert [step for step, _ in left] == [0, 3, 6]
        np.testing.assert_allclose(left, right, rtol=2e-5)


def test_replicas_that_save_and_go_on_read_no_pickle_of_each_other(tmp_path: Path) -> None:
    settings = {"model": {}, "train": {"max_steps": 4}, "folder": str(tmp_path / "run")}
    run_ranks(rank_cases.training_without_pickle, tmp_path, stop_at=3, **settings)
    first, _ = run_ranks(rank_cases.training_without_pickle, tmp_path, **settings)
    assert first["history"][-1]["step"] == 4


@pytest.mark.full
@pytest.mark.parametrize(("sharding", "precision"), [("ddp", "bf16"), ("fsdp", "bf16"), ("fsdp", "fp16")])
def test_two_ranks_compute_what_one_does_in_half_precision(sharding: str, precision: str, tmp_path: Path) -> None:
    settings = {"model": {}, "train": {"precision": precision, "max_steps": 4}}
    first, second = run_ranks(rank_cases.training, tmp_path, sharding=sharding, **settings)
    assert first["history"] == second["history"]
    assert_like(first["history"], alone(**settings)["history"], rtol=0.02)


@pytest.mark.full
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_run_goes_on_with_fewer_and_with_more_ranks(sharding: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": {}, "train": {}}
    expected = alone(tmp_path / "one", **settings)
    folder = tmp_path / "mixed"
    two = {"sharding": sharding, "folder": str(folder), **settings}
    run_ranks(rank_cases.training, tmp_path, stop_at=3, **two)
    shutil.copytree(folder, tmp_path / "fewer")
    with pytest.warns(UserWarning, match=f"'processes' was '2 by {sharding}' and is now '1'"):
        fewer = alone(tmp_path / "fewer", **settings)
    assert fewer["resumed_from"] == 3
    assert_like(fewer["history"], expected["history"])
    with pytest.warns(UserWarning), pytest.raises(Interrupted):
        trainer_of(folder=folder, stop_at=5, **settings).fit()
    first, second = run_ranks(rank_cases.training, tmp_path, **two)
    assert first["resumed_from"] == second["resumed_from"] == 5
    assert f"'processes' was '1' and is now '2 by {sharding}'" in first["warnings"][0]
    assert second["warnings"] == []
    assert_like(first["history"], expected["history"])
    assert_same_checkpoint(folder, tmp_path / "one")


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_interrupted_ranks_end_with_the_same_bits(sharding: str, tmp_path: Path) -> None:
    settings = {"sharding": sharding, "model": {"drop_resid": 0.1}, "train": {"precision": "fp16"}}
    (undisturbed, _) = run_ranks(rank_cases.training, tmp_path, folder=str(tmp_path / "undisturbed"), **settings)
    run_ranks(rank_cases.training, tmp_path, folder=str(tmp_path / "interrupted"), stop_at=4, **settings)
    written = {file.name.partition("-model-")[0] for file in tmp_path.glob("interrupted/step-00000004/*.safetensors")}
    files = {"ddp": {"model.safetensors", "optimizer.safetensors"}, "fsdp": {"shard-00001", "shard-00002"}}
    assert written == files[sharding]
    (resumed, _) = run_ranks(rank_cases.training, tmp_path, folder=str(tmp_path / "interrupted"), **settings)
    assert resumed["resumed_from"] == 4
    assert not [warning for warning in resumed["warnings"] if "last bits" in warning]
    assert resumed["history"] == undisturbed["history"]
    one, other = load_checkpoint(tmp_path / "undisturbed"), load_checkpoint(tmp_path / "interrupted")
    for name in ("weights", "optimizer", "random"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_ranks_drop_different_features(tmp_path: Path) -> None:
    settings = {"model": {"drop_resid": 0.1}, "train": {"max_steps": 1}}
    run_ranks(rank_cases.training, tmp_path, folder=str(tmp_path / "run"), **settings)
    random = load_checkpoint(tmp_path / "run").random
    assert sorted(random) == ["1/cpu", "cpu"]
    assert not torch.equal(random["1/cpu"], random["cpu"])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_loss_that_is_no_number_on_one_rank_stops_all_of_them(sharding: str, tmp_path: Path) -> None:
    settings = {"sharding": sharding, "folder": str(tmp_path / "run"), "model": {}, "train": {}}
    outcomes = run_ranks(rank_cases.spoilt_training, tmp_path, rank=1, call=4, how="nan", **settings)
    read = order(20, TrainConfig(1).seed, epoch=1)[4:12].tolist()  # the fourth eight of an epoch of twenty and the next
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["error"].startswith(f"NonFiniteLoss: the loss is nan at step 4, in the sequences {read}")
    assert load_checkpoint(tmp_path / "run").step == 3


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_gradient_that_overflows_on_one_rank_is_skipped_by_all(sharding: str, tmp_path: Path) -> None:
    settings = {"sharding": sharding, "folder": str(tmp_path / "run"), "model": {}, "train": {"precision": "fp16"}}
    first, second = run_ranks(rank_cases.spoilt_training, tmp_path, rank=1, call=4, how="overflow", **settings)
    assert first["history"] == second["history"]
    assert [row["step"] for row in first["history"] if row["grad_norm"] == 0] == [4]
    assert load_checkpoint(tmp_path / "run").scaler["scale"] == 2.0**15


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_stop_that_one_rank_is_asked_for_stops_all_behind_the_same_step(sharding: str, tmp_path: Path) -> None:
    settings = {"sharding": sharding, "folder": str(tmp_path / "run"), "model": {}, "train": {}}
    first, second = run_ranks(rank_cases.stopped_training, tmp_path, step=3, **settings)
    assert first == second
    assert first["error"].startswith(
        "TrainingStopped: training stopped on request after step 3; its checkpoint is saved"
    )
    assert load_checkpoint(tmp_path / "run").step == 3


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_no_rank_waits_for_one_that_died(sharding: str, tmp_path: Path) -> None:
    settings = {"sharding": sharding, "model": {}, "train": {}}
    first, second = run_ranks(rank_cases.spoilt_training, tmp_path, rank=1, call=3, how="die", **settings)
    assert second == {"exit": 7}
    assert "error" in first


@pytest.mark.parametrize("n_val", [1, pytest.param(9, marks=pytest.mark.full)])
def test_every_validation_sequence_counts_once_however_the_batches_go_round(n_val: int, tmp_path: Path) -> None:
    settings = {"model": {}, "train": {"max_steps": 2, "batch_size": 2, "eval_every": 1}, "n_val": n_val}
    (first, _) = run_ranks(rank_cases.training, tmp_path, sharding="fsdp", **settings)
    assert_like(first["history"], alone(**settings)["history"])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_ranks_find_the_same_leap_and_one_tells_of_it(sharding: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    first, second = run_ranks(rank_cases.leaping_training, tmp_path, sharding=sharding, folder=folder)
    assert "error" not in first, first
    assert first["history"] == second["history"]
    assert (first["events"], second["events"]) == ([[LEAP, "spike"]], [])
    assert [row["step"] for row in first["history"] if "spike/score" in row] == [LEAP]


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_ranks_end_at_the_same_step_with_the_best_weights(sharding: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = run_ranks(rank_cases.patient_training, tmp_path, sharding=sharding, folder=str(folder))
    assert "error" not in first, first
    assert first["history"] == second["history"]
    losses = {row["step"]: row["val/loss"] for row in first["history"] if "val/loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert first["best_step"] == second["best_step"] == best
    assert first["history"][-1]["step"] == best + LEARNED.patience * LEARNED.eval_every < LEARNED.max_steps
    expected = weights_digest(load_checkpoint(folder / f"step-{best:08d}").weights)
    assert first["weights"] == expected and second["weights"] == (expected if sharding == "ddp" else "")
    assert (first["events"], second["events"]) == ([[first["history"][-1]["step"], "early stop"]], [])


@pytest.mark.full
@pytest.mark.timeout(1200)  # a first compilation, on a machine with other work
@pytest.mark.parametrize(("sharding", "precision"), [("ddp", "fp32"), ("fsdp", "fp32"), ("fsdp", "bf16")])
def test_two_ranks_compute_with_a_compiled_network_what_one_does_plainly(
    sharding: str, precision: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"model": {}, "train": {"max_steps": 3, "precision": precision}}
    means: dict[str, Any] = {"sharding": sharding, "compiled": True}
    first, second = run_ranks(rank_cases.training, tmp_path, deadline_seconds=1000.0, **means, **settings)
    for warning in [*first.get("warnings", ()), first.get("error", "")]:
        if "torch.compile does not work here" in warning:
            pytest.skip(warning)
    assert first["history"] == second["history"]
    assert_like(first["history"], alone(**settings)["history"], rtol=2e-5 if precision == "fp32" else 0.02)
