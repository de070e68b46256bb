"""Checks of the metric rows of a run: spikes, early stopping, out-of-memory errors, micro-batches in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from model import ModelConfig, SpanSource, TrainConfig, Trainer
from model.config import Execution
from model.guards import (
    MIN_STEPS,
    WINDOW,
    OutOfMemory,
    advice,
    best_precision,
    best_step,
    cuda_advice,
    cuda_precision,
    explaining_memory,
    is_out_of_memory,
    is_out_of_patience,
    spike_of,
)


def rows(losses: list[float], norms: list[float] | None = None) -> list[dict[str, Any]]:
    norms = [1.0] * len(losses) if norms is None else norms
    return [
        {"step": step, "train/loss": loss, "grad_norm": norm}
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    ]


def noisy(n: int, level: float = 3.0, spread: float = 0.05, seed: int = 0) -> list[float]:
    return (level * np.exp(spread * np.random.default_rng(seed).normal(size=n))).tolist()


def score(history: list[dict[str, Any]], loss: float, norm: float = 1.0, zscore: float = 8.0) -> float:
    """Score of a step behind these rows; 0 if it is no spike."""
    found = spike_of(history, {"train/loss": loss, "grad_norm": norm}, zscore)
    return found[0] if found else 0.0


def test_a_leap_of_the_loss_is_seen_and_named() -> None:
    found = spike_of(rows(noisy(100)), {"train/loss": 6.0, "grad_norm": 1.0}, 8.0)
    assert found is not None
    # ln 2 lies 0.69 above the median, and the spread of the logarithms is 0.05
    assert found[0] == pytest.approx(math.log(2) / 0.05, rel=0.25)
    assert "the loss is 6, the last steps' median 3" in found[1]


def test_a_fall_is_no_leap() -> None:
    assert not score(rows(noisy(100)), 0.3, 0.001, zscore=3.0)


def test_nothing_is_judged_before_there_is_something_to_compare_with() -> None:
    assert not score(rows(noisy(MIN_STEPS - 1)), 300.0, 300.0)
    assert score(rows(noisy(MIN_STEPS)), 300.0, 300.0)
    assert not score([], 3.0)


def test_calm_values_leave_room_for_noise() -> None:
    still = rows([2.0] * 100)
    assert not score(still, 2.3, 4.0)
    assert score(still, 2.6, 1.0)
    assert score(still, 2.0, 6.0)


def test_a_leap_among_the_values_does_not_hide_the_next() -> None:
    losses = noisy(100)
    losses[-10:] = [30.0] * 10
    assert score(rows(losses), 9.0)


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    history, alarms = rows(noisy(100)), 0
    for step, loss in enumerate(noisy(WINDOW, 6.0, seed=1), 101):
        alarms += score(history, loss) > 0
        history.append({"step": step, "train/loss": loss, "grad_norm": 1.0})
    assert 1 <= alarms <= WINDOW // 2 + 1
    assert not score(history, 6.0)


@pytest.mark.parametrize(("lr", "seed"), [pytest.param(3e-4, 1, marks=pytest.mark.full), (1e-2, 3)])
def test_no_alarm_in_real_runs(
    lr: float, seed: int, model_config: ModelConfig, build_source: Callable[..., SpanSource]
) -> None:
    config = TrainConfig(200, batch_size=2, lr=lr, seed=seed, eval_every=200)
    history = Trainer(model_config, config, build_source(n=64, seed=seed)).fit().history
    assert [row["step"] for row in history if "spike/score" in row] == []


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
    assert best_step(evaluations(*losses)) == best
    assert is_out_of_patience(evaluations(*losses), 2) is over


def test_losses_on_other_validation_sequences_do_not_count() -> None:
    history = evaluations(1.0, 3.0, 2.5, 2.6)
    history[14]["val/source_changed"] = 1.0
    assert best_step(history) == 30
    assert not is_out_of_patience(history, 2)


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
        with (
            pytest.raises(OutOfMemory) as caught,
            explaining_memory("step 7", torch.device(device), model_config, config, execution),
        ):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nlong trace")
        return str(caught.value)

    plain = text(TrainConfig(5, batch_size=7, grad_accum=2), Execution())
    assert plain.startswith("step 7 does not fit into the memory of cpu with batch_size=7, max_seq_len=16")
    assert "batch_size=4 with grad_accum=4" in plain
    assert "a max_seq_len below 16" in plain and "recompute=True" in plain
    assert plain.endswith("(DefaultCPUAllocator: can't allocate memory)")
    assert "bf16" not in plain  # takes no less memory where float32 weights are cast, and time on most CPUs
    assert "precision='bf16'" in text(TrainConfig(5), Execution(), "cuda")
    small = text(TrainConfig(5, batch_size=1), Execution(recompute=True))
    assert "grad_accum=" not in small and "recompute=True" not in small


def test_a_cpu_without_a_gpu_beside_it_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert advice("bf16", torch.device("cpu")) == []


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32")],
)
def test_the_precision_chosen_for_a_gpu_draws_no_advice_against_it(capability: tuple[int, int], precision: str) -> None:
    assert cuda_precision(capability) == precision
    assert cuda_advice(precision, capability, "Some GPU") is None


def test_a_cpu_computes_in_float32_by_default() -> None:
    assert best_precision(torch.device("cpu")) == "fp32"


@pytest.mark.parametrize(
    ("precision", "capability", "words"),
    [
        ("bf16", (7, 5), "use precision='fp16'"),
        ("bf16", (6, 1), "use precision='fp32'"),
        ("fp16", (6, 1), "precision='fp32' trains faster"),
        ("fp16", (8, 0), "precision='bf16' is safer"),
        ("fp32", (9, 0), "precision='bf16' trains several times faster"),
        ("fp32", (7, 0), "precision='fp16' trains several times faster"),
        ("fp16", (7, 0), None),
        ("fp32", (6, 1), None),
        ("bf16", (8, 0), None),
        ("bf16", (9, 0), None),
    ],
)
def test_a_gpu_is_judged_by_its_generation(precision: str, capability: tuple[int, int], words: str | None) -> None:
    sentence = cuda_advice(precision, capability, "Some GPU")
    if words is None:
        assert sentence is None
    else:
        assert sentence is not None and words in sentence and "Some GPU" in sentence
