"""Muon: the momentum of each weight matrix is orthogonalised before it is applied (Jordan et al. 2024).

A gradient of a matrix is dominated by a few directions. Replacing all its singular values by about 1 lets the rare
directions learn as fast as the common ones. That suits matrices between hidden states; tables, heads, norms and biases
are better off with AdamW, so one optimiser holds both kinds of groups.

Measured on a CPU without bfloat16 instructions, on the matrices of 6 layers 384 wide, a step of torch.optim.Muon (2.13)
takes 43 times as long as one of this class, or 1.5 times computed in float32; after 60 steps of a small training the
losses differed by less than with another seed.

Shapes in comments: N matrices, m rows, n columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# Odd polynomials a x + b x^3 + c x^5 whose composition maps every x from 0.003 to 1 to 1 within 0.23: each is the best
# approximation of 1 on the range that the ones before it leave (Amsel et al. 2025), taken 2 % further up, because
# beyond it they rise steeply and rounding must not push a value there.
POLYNOMIALS = (
    (8.22176, -23.34686, 16.63376),
    (3.97276, -2.84494, 0.51701),
    (3.47347, -2.50575, 0.48102),
    (2.50437, -1.79072, 0.40706),
)
_SMALLEST = 1e-30  # divisors are kept above it, so that a gradient of zeros stays zeros
_WIDE = 1.5  # from so many columns per row on, iterating the m x m matrix alone takes fewer operations
_BATCH_ELEMENTS = 2**26  # of one batched product, which bounds the memory for what lies between
_CPU_BATCH_ELEMENTS = 2**17  # so that this stays in the processor's cache


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values close to 1 where they were not tiny.

    With respect to an upper bound of the largest one, singular values from 0.003 on come to lie within 0.23 of 1, and
    smaller ones grow by up to 284 times. The bound is (sum of the values' eighth powers)^(1/8): the first products give
    it for nothing, and it is far tighter than the usual Frobenius norm.

    Args:
        matrices: (N, m, n).

    Returns:
        (N, m, n) of the same type.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalise(matrices.mT).mT
    gram = matrices @ matrices.mT  # (N, m, m), with the squares of the singular values
    power = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp(min=_SMALLEST)  # their sum
    gram = gram / power  # so that its square does not leave the range of its type
    square = gram @ gram
    bound = torch.linalg.matrix_norm(square, keepdim=True).clamp(min=_SMALLEST).sqrt()  # of gram's largest eigenvalue
    gram = gram / bound
    _, b, c = POLYNOMIALS[0]
    p = square.mul_(c / bound.square()).add_(gram, alpha=b)
    scale = power.rsqrt() * bound.rsqrt()
    # bfloat16 is too coarse for the small eigenvalues, on which the second way rests
    if matrices.dtype.itemsize < 4 or matrices.shape[-1] < _WIDE * matrices.shape[-2]:
        return _by_matrix(matrices * scale, p)
    return (_by_gram(gram, p) * scale) @ matrices


def _by_matrix(x: Tensor, p: Tensor) -> Tensor:
    """The polynomials applied to x one by one: (a + p) x with p = b gram + c gram^2, gram = x x^T."""
    for number, (a, b, c) in enumerate(POLYNOMIALS):
        if number:
            gram = x @ x.mT
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, p, x, beta=a)
    return x


def _by_gram(gram: Tensor, p: Tensor) -> Tensor:
    """What the polynomials together multiply x with: each makes (a + p) gram (a + p) of gram, and x is not needed."""
    product = None
    for number, (a, b, c) in enumerate(POLYNOMIALS):
        if number:
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if number < len(POLYNOMIALS) - 1:
            gram = p @ (gram @ p)
    assert product is not None
    return product


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices, AdamW for everything else.

    With B the moving average of a matrix's gradients G, a step makes of the matrix W (rows x columns)
    W (1 - lr * weight_decay) - lr * sqrt(max(1, rows / columns)) * orthogonalise((1 - momentum) G + momentum B). The
    root gives every update the same effect on what comes out of its matrix, whether that widens or narrows.

    The first of `param_groups` holds the matrices; the caller gives each group its learning rate.

    Args:
        matrices: parameters (rows, columns), whole or DTensors; there may be none.
        others: parameter groups for AdamW, each with its weight_decay.
        weight_decay: of the matrices.
        momentum: decay rate of B.
        **adamw: lr of all groups, and AdamW's betas, eps and fused.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        others: Sequence[dict[str, Any]],
        *,
        weight_decay: float,
        momentum: float = 0.95,
        **adamw: Any,
    ) -> None:
        first = {"params": list(matrices), "weight_decay": weight_decay, "momentum": momentum}
        self._adamw = torch.optim.AdamW([first, *others], **adamw)
        super().__init__(self._adamw.param_groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Takes a step with the gradients at hand; parameters without one stay as they are."""
        first, *others = self.param_groups
        self._adamw.state, self._adamw.param_groups = self.state, others  # loading a state replaces both
        loss: float | None = self._adamw.step(closure)
        self._step_matrices(first)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
        if not matrices:
            return
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        gradients = [matrix.grad for matrix in matrices]
        averages = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        updates: Sequence[Any] = torch._foreach_lerp(gradients, averages, group["momentum"])
        updates = [update.full_tensor() if hasattr(update, "full_tensor") else update for update in updates]
        for batch in _batches(updates):
            together = torch.stack(batch)
            together = orthogonalise(together.to(_working_type(together)))
            n_rows, n_columns = batch[0].shape
            torch._foreach_copy_(batch, together.mul_(math.sqrt(max(1.0, n_rows / n_columns))).unbind())
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        shares = [_share(update, matrix) for update, matrix in zip(updates, matrices, strict=True)]
        torch._foreach_add_(matrices, shares, alpha=-group["lr"])


def _batches(matrices: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Matrices of one shape together: of small ones, and on a GPU, starting an operation is what takes the time."""
    by_shape = defaultdict(list)
    for matrix in matrices:
        by_shape[matrix.shape].append(matrix)
    for shape, alike in by_shape.items():
        elements = _CPU_BATCH_ELEMENTS if alike[0].device.type == "cpu" else _BATCH_ELEMENTS
        size = max(1, elements // shape.numel())
        yield from (alike[first : first + size] for first in range(0, len(alike), size))


def _working_type(matrices: Tensor) -> torch.dtype:
    """bfloat16 on a GPU that computes with it, else float32; float64 stays."""
    if matrices.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.promote_types(matrices.dtype, torch.float32)


def _share(whole: Tensor, like: Any) -> Tensor:
    """This device's share of a matrix that all devices have computed, as `like` is shared out."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import distribute_tensor  # slow to import, and not in every build of torch

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)  # None: nothing is sent
