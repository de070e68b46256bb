"""The fused last layer and loss against the two separate operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from model import loss
from model.loss import linear_nll

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
def test_value_and_gradients_equal_linear_and_cross_entropy(
    shape: tuple[int, int, int], ignored: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "_BLOCK_ELEMENTS", 1)  # many blocks, the last one not full
    features, weight, labels = case(*shape, ignored)
    expected = F.cross_entropy(F.linear(features, weight), labels, ignore_index=-100, reduction="sum")
    found = linear_nll(features, weight, labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    left = torch.autograd.grad(3 * expected, (features, weight))
    right = torch.autograd.grad(3 * found, (features, weight))
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    features, weight, labels = case(6, 3, 5, 0.3, torch.float64)
    assert torch.autograd.gradcheck(lambda x, w: linear_nll(x, w, labels), (features, weight))


@pytest.mark.parametrize("block_elements", [1, 2**21])
def test_gradients_with_a_bias_are_those_of_finite_differences(
    block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "_BLOCK_ELEMENTS", block_elements)
    monkeypatch.setattr(loss, "_MIN_ROWS", 2)  # three blocks, or one
    features, weight, labels = case(6, 3, 5, 0.3, torch.float64)
    bias = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w, b: linear_nll(x, w, labels, b), (features, weight, bias))


@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_is_added_to_the_logits(
    shape: tuple[int, int, int], ignored: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "_BLOCK_ELEMENTS", 1)
    features, weight, labels = case(*shape, ignored, torch.float64)
    bias = torch.linspace(-2, 2, shape[2], dtype=torch.float64).requires_grad_()
    logits = F.linear(features, weight, bias)
    expected = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    found = linear_nll(features, weight, labels, bias)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    inputs = (features, weight, bias)
    for one, other in zip(torch.autograd.grad(expected, inputs), torch.autograd.grad(found, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_features_may_have_any_leading_shape() -> None:
    features, weight, labels = case(12, 3, 5, 0.3)
    found = linear_nll(features.reshape(2, 6, 3), weight, labels.reshape(2, 6))
    assert found.item() == linear_nll(features, weight, labels).item()


def test_without_labels_loss_and_gradients_are_zero() -> None:
    features, weight, _ = case(4, 3, 5, 0.0)
    found = linear_nll(features, weight, torch.full((4,), -100))
    gradients = torch.autograd.grad(found, (features, weight))
    assert found.item() == 0.0
    assert not any(gradient.any() for gradient in gradients)


def test_large_logits_do_not_overflow() -> None:
    features, weight = torch.tensor([[1.0]]), torch.tensor([[5000.0], [4000.0], [-5000.0]])
    assert linear_nll(features, weight, torch.tensor([1])).item() == pytest.approx(1000.0)


def test_gradient_is_not_computed_where_none_is_wanted() -> None:
    features, weight, labels = case(4, 3, 5, 0.0)
    with torch.no_grad():
        assert not linear_nll(features, weight, labels).requires_grad
