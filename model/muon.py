"""Muon: the momentum of each weight matrix is orthogonalised before it is applied (Jordan et al. 2024).

A gradient of a matrix is dominated by a few directions. Replacing all its singular values by about 1 lets the rare
directions learn as fast as the common ones. That suits matrices between hidden states; tables, heads, norms and biases
are better off with AdamW, so one optimiser holds both kinds of groups.

torch.optim.Muon computes in bfloat16 everywhere, matrix by matrix, and knows no second kind of group. Here matrices of
one shape go through one batched product, in float32 where that is faster, and one that holds several (queries, keys and
values) is orthogonalised part by part.

Shapes in comments: N matrices, m rows, n columns, m <= n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

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
_CPU_BATCH_ELEMENTS = 2**19  # so that this stays in the processor's cache


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values close to 1 where they were not tiny.

    With respect to an upper bound of the largest one, singular values from 0.003 on come to lie within 0.23 of 1, and
    smaller ones grow by up to 284 times. The bound is (sum of the values' eighth powers)^(1/8): the first products give
    it for nothing, and it is far tighter than the usual Frobenius norm.

    Args:
        matrices: (N, m, n), m <= n.

    Returns:
        (N, m, n) of the same type.
    """
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

    With B the moving average of a matrix's gradients G, a step makes of its part W (rows x columns)
    W (1 - lr * weight_decay) - lr * sqrt(max(1, rows / columns)) * orthogonalise((1 - momentum) G + momentum B). The
    root gives every update the same effect on what comes out of its matrix, whether that widens or narrows.

    Args:
        matrices: pairs of a matrix and the numbers of rows of the parts that it holds.
        others: parameter groups for AdamW, each with its weight_decay.
        lr: of all groups; the caller gives each its own (`param_groups`).
        weight_decay: of the matrices.
        betas: AdamW's two decay rates.
        eps: AdamW's epsilon.
        momentum: decay rate of B.
        fused: compute AdamW in one kernel.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[Tensor, Sequence[int]]],
        others: Sequence[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        momentum: float = 0.95,
        fused: bool = False,
    ) -> None:
        groups: list[dict[str, Any]] = [{**group, "rows": None, "fused": fused} for group in others]
        if matrices:
            parameters, rows = zip(*matrices, strict=True)
            first = {"params": list(parameters), "rows": [list(parts) for parts in rows], "fused": False}
            groups.insert(0, {**first, "weight_decay": weight_decay, "momentum": momentum})
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Takes a step with the gradients at hand; parameters without one stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["rows"] is None:
                self._step_adamw(group)
            else:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        pairs = zip(group["params"], group["rows"], strict=True)
        moved = [(parameter, rows) for parameter, rows in pairs if parameter.grad is not None]
        if not moved:
            return
        parameters = [parameter for parameter, _ in moved]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        averages = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, averages, group["momentum"])
        whole = [_gathered(update) for update in updates]
        for batch in _alike(part for one, (_, rows) in zip(whole, moved, strict=True) for part in one.split(rows)):
            _replace(batch)
        applied = [_like(update, one) for update, one in zip(updates, whole, strict=True)]
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, applied, alpha=-group["lr"])

    def _step_adamw(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                place = parameter.device if group["fused"] else "cpu"
                state["step"] = torch.zeros((), dtype=torch.float32, device=place)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _alike(parts: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Matrices in batches of one shape, whether they lie or stand."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for part in parts:
        by_shape.setdefault(tuple(sorted(part.shape)), []).append(part)
    for (low, high), alike in by_shape.items():
        elements = _CPU_BATCH_ELEMENTS if alike[0].device.type == "cpu" else _BATCH_ELEMENTS
        size = max(1, elements // (low * high))
        for first in range(0, len(alike), size):
            yield alike[first : first + size]


def _replace(batch: Sequence[Tensor]) -> None:
    """Orthogonalises and scales matrices of one shape in place."""
    lying = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in batch]
    together = torch.stack(lying)
    done = orthogonalise(together.to(_working_type(together)))
    for matrix, place, result in zip(batch, lying, done, strict=True):
        n_rows, n_columns = matrix.shape
        torch.mul(result, math.sqrt(max(1.0, n_rows / n_columns)), out=place)


def _working_type(matrices: Tensor) -> torch.dtype:
    """bfloat16 on a GPU that computes with it, else float32; float64 stays."""
    if matrices.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.promote_types(matrices.dtype, torch.float32)


def _gathered(tensor: Tensor) -> Tensor:
    """All of a matrix of which several devices hold a share each; another one as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _like(share: Any, whole: Tensor) -> Tensor:
    """What this device holds of a matrix, as `share` is held."""
    if not hasattr(share, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, Replicate  # slow to import, and not in every build of torch

    mesh = share.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, share.placements)
