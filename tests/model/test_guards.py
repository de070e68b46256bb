"""Verdicts on a run's rows: leaps, the end of progress, errors that mean too little memory, micro-batches in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from model import ModelConfig, SpanSource, TrainConfig, Trainer, Transformer
from model.data import Batch
from model.execution import Execution
from model.guards import (
    FEWEST,
    WINDOW,
    EarlyStop,
    OutOfMemory,
    SpikeDetector,
    is_out_of_memory,
    non_finite_rows,
    non_finite_weights,
)


def rows(losses: list[float], norms: list[float] | None = None) -> list[dict[str, Any]]:
    norms = [1.0] * len(losses) if norms is None else norms
    return [
        {"step": step, "train/loss": loss, "grad_norm": norm}
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    ]


def noisy(n: int, level: float = 3.0, spread: float = 0.05, seed: int = 0) -> list[float]:
    return (level * np.exp(spread * np.random.default_rng(seed).normal(size=n))).tolist()


def test_a_leap_of_the_loss_is_seen_and_named() -> None:
    spike = SpikeDetector(8.0).judge(rows(noisy(100)), 6.0, 1.0)
    assert spike is not None
    assert (spike.signal, spike.value) == ("loss", 6.0)
    assert spike.usual == pytest.approx(3.0, rel=0.05)
    # ln 2 lies 0.69 above the median, and the spread of the logarithms is 0.05
    assert spike.score == pytest.approx(math.log(2) / 0.05, rel=0.25)
    assert "the loss is 6, the last steps' median 3" in str(spike)


def test_a_fall_is_no_leap() -> None:
    assert SpikeDetector(3.0).judge(rows(noisy(100)), 0.3, 0.001) is None


def test_nothing_is_judged_before_there_is_something_to_compare_with() -> None:
    detector = SpikeDetector(8.0)
    assert detector.judge(rows(noisy(FEWEST - 1)), 300.0, 300.0) is None
    assert detector.judge(rows(noisy(FEWEST)), 300.0, 300.0) is not None
    assert detector.judge([], 3.0, 1.0) is None


def test_calm_values_leave_room_for_noise() -> None:
    detector, still = SpikeDetector(8.0), rows([2.0] * 100)
    assert detector.judge(still, 2.3, 4.0) is None
    assert detector.judge(still, 2.6, 1.0) is not None
    assert detector.judge(still, 2.0, 6.0) is not None


def test_a_leap_among_the_values_does_not_hide_the_next() -> None:
    losses = noisy(100)
    losses[-10:] = [30.0] * 10
    assert SpikeDetector(8.0).judge(rows(losses), 9.0, 1.0) is not None


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    detector, history = SpikeDetector(8.0), rows(noisy(100))
    alarms = 0
    for step, loss in enumerate(noisy(WINDOW, 6.0, seed=1), 101):
        alarms += detector.judge(history, loss, 1.0) is not None
        history.append({"step": step, "train/loss": loss, "grad_norm": 1.0})
    assert 1 <= alarms <= WINDOW // 2 + 1
    assert detector.judge(history, 6.0, 1.0) is None


@pytest.mark.parametrize(("lr", "seed"), [(3e-4, 1), (1e-2, 3)])
def test_no_alarm_in_real_runs(
    lr: float, seed: int, model_config: ModelConfig, build_source: Callable[..., SpanSource]
) -> None:
    config = TrainConfig(200, batch_size=2, lr=lr, seed=seed, eval_every=200)
    history = Trainer(model_config, config, build_source(n=64, seed=seed)).fit().history
    detector = SpikeDetector(config.spike_zscore)
    alarms = [
        row["step"]
        for place, row in enumerate(history)
        if detector.judge(history[:place], row["train/loss"], row["grad_norm"])
    ]
    assert alarms == []


def evaluations(*losses: float, every: int = 10) -> list[dict[str, Any]]:
    """Rows of a run that was evaluated at every tenth step."""
    history: list[dict[str, Any]] = [{"step": step} for step in range(1, every * len(losses) + 1)]
    for number, loss in enumerate(losses, 1):
        history[every * number - 1]["val/loss"] = loss
    return history


@pytest.mark.parametrize(
    ("losses", "best", "over"),
    [
        ([], None, False),
        ([3.0], 10, False),
        ([3.0, 2.0, 2.5], 20, False),
        ([3.0, 2.0, 2.5, 2.1], 20, True),
        ([3.0, 2.0, 2.5, 1.9], 40, False),
        ([3.0, 2.0, 2.0, 2.0], 20, True),  # the same again is no progress
        ([2.0, math.nan, math.nan], 10, False),  # an evaluation without labels says nothing
    ],
)
def test_a_run_ends_after_its_patience(losses: list[float], best: int | None, over: bool) -> None:
    stop = EarlyStop(patience=2)
    assert stop.best(evaluations(*losses)) == best
    assert stop.is_over(evaluations(*losses)) is over


def test_losses_on_other_validation_sequences_do_not_count() -> None:
    history = evaluations(1.0, 3.0, 2.5, 2.6)
    history[14]["val/source_changed"] = 1.0
    stop = EarlyStop(patience=2)
    assert stop.best(history) == 30
    assert not stop.is_over(history)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB)"), True),
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for a matmul primitive"), False),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_that_mean_too_little_memory_are_known(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_what_this_torch_says_about_an_impossible_allocation_is_known() -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    with pytest.raises(MemoryError) as numpys:
        np.empty(2**60, dtype=np.uint8)
    assert is_out_of_memory(numpys.value)


def test_the_error_says_what_to_change(model_config: ModelConfig) -> None:
    def text(config: TrainConfig, execution: Execution, device: str = "cpu") -> str:
        error = RuntimeError("DefaultCPUAllocator: can't allocate memory\nlong trace")
        return str(OutOfMemory("step 7", torch.device(device), model_config, config, execution, error))

    plain = text(TrainConfig(5, batch_size=7, grad_accum=2), Execution())
    assert plain.startswith("step 7 does not fit into the memory of cpu with batch_size=7, max_seq_len=16")
    assert "batch_size=4 with grad_accum=4" in plain
    assert "a max_seq_len below 16" in plain and "recompute=True" in plain
    assert plain.endswith("(DefaultCPUAllocator: can't allocate memory)")
    assert "bf16" not in plain  # takes no less memory where float32 weights are cast, and time on most CPUs
    assert "precision='bf16'" in text(TrainConfig(5), Execution(), "cuda")
    small = text(TrainConfig(5, batch_size=1), Execution(recompute=True))
    assert "grad_accum=" not in small and "recompute=True" not in small


def test_the_rows_that_are_not_finite_by_themselves_are_found(
    build_model: Callable[..., Transformer], build_source: Callable[..., SpanSource]
) -> None:
    model, source = build_model(), build_source(n=8)
    weights = list(model.parameters())
    with torch.no_grad():
        model.token_embedding.weight[13] = math.nan
    batches = [source.batch(np.arange(4)), source.batch(np.arange(4, 8))]
    assert model.config.tie_weights  # so the head is spoilt as well: every row is

    def nll(batch: Batch) -> torch.Tensor:
        return model.nll(torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels))

    assert non_finite_rows(batches, nll, weights) == list(range(8))
    assert non_finite_weights(model) == ["token_embedding.weight"]
    assert all(weight.grad is None for weight in weights)
