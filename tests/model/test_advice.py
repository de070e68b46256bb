"""Sentences about what a machine does badly."""

from __future__ import annotations

import pytest
import torch

from model import ModelConfig, TrainConfig
from model.advice import advice, best_precision, cuda_advice, cuda_precision


def test_a_cpu_without_a_gpu_beside_it_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert advice(TrainConfig(1, precision="bf16"), "cpu") == []


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


SHAPE = ModelConfig(31, max_seq_len=64, n_layer=1, n_head=4, n_kv_head=2, d_model=32)
