"""The fused last layer and loss against the two separate operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from model.transformer import linear_nll

SHAPES = [(1, 3, 5), (7, 4, 11), (300, 8, 40)]


def case(n: int, d: int, vocab_size: int, ignored: float, dtype: torch.dtype = torch.float32) -> tuple:
    generator = torch.Generator().manual_seed(n)
    features = torch.randn(n, d, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab_size, d, generator=generator, dtype=dtype).requires_grad_()
    labels = torch.randint(vocab_size, (n,), generator=generator)
    labels[torch.rand(n, generator=generator) < ignored] = -100
    return features, weight, labels


@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_is_added_to_the_logits(shape: tuple[int, int, int], ignored: float) -> None:
    features, weight, labels = case(*shape, ignored, torch.float64)
    bias = torch.linspace(-2, 2, shape[2], dtype=torch.float64).requires_grad_()
    logits = F.linear(features, weight, bias)
    expected = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    found = linear_nll(features, weight, labels, bias)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    inputs = (features, weight, bias)
    for one, other in zip(torch.autograd.grad(expected, inputs), torch.autograd.grad(found, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_without_labels_loss_and_gradients_are_zero() -> None:
    features, weight, _ = case(4, 3, 5, 0.0)
    found = linear_nll(features, weight, torch.full((4,), -100))
    gradients = torch.autograd.grad(found, (features, weight))
    assert found.item() == 0.0
    assert not any(gradient.any() for gradient in gradients)


def test_large_logits_do_not_overflow() -> None:
    features, weight = torch.tensor([[1.0]]), torch.tensor([[5000.0], [4000.0], [-5000.0]])
    assert linear_nll(features, weight, torch.tensor([1])).item() == pytest.approx(1000.0)
