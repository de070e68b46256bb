"""Adam and its two ways of decaying, and Muon, as language models use them: biases and norms do not decay.

Decay pulls weights towards zero to keep the network's function small; a LayerNorm gain pulled towards zero
would only fight the data (Loshchilov and Hutter 2019; Radford et al. 2019).

Muon orthogonalises the momentum of each weight matrix before it is applied (Jordan et al. 2024). A gradient of a matrix
is dominated by a few directions; replacing all its singular values by about 1 lets the rare ones learn as fast as the
common ones. That suits matrices between hidden states; tables, heads, norms and biases are better off with AdamW.

Measured on a CPU without bfloat16 instructions, on the matrices of 6 layers 384 wide, a step of torch.optim.Muon (2.13)
takes 43 times as long as one of `Muon`, or 1.5 times computed in float32; after 60 steps of a small training the
losses differed by less than with another seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainConfig
from .distributed import part_of, whole
from .transformer import Block

_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
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


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The configured optimiser over the model's trainable parameters; the caller sets each step's learning rate.

    With m and v the bias-corrected moments of the gradient g, "adam" makes of a weight w
    w - lr * m / (sqrt(v) + eps); "adamw" subtracts lr * weight_decay * w (the w before the step) as well, and "adam_l2"
    replaces g by g + weight_decay * w. "muon" is `Muon` for the matrices inside the blocks and "adamw" for the rest.

    Args:
        model: the network, already on its device.
        config: gives optimizer, lr, muon_lr, betas, eps, weight_decay and decay_groups.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = all(parameter.device.type in _FUSED_DEVICES for parameter in parameters)
    settings: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "fused": fused}
    if config.optimizer != "muon":
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        return kind(_groups(parameters, config), **settings)
    inside = {id(one) for block in model.modules() if isinstance(block, Block) for one in block.parameters()}
    matrices = [one for one in parameters if one.dim() == 2 and id(one) in inside]
    others = _groups([one for one in parameters if one.dim() != 2 or id(one) not in inside], config)
    optimizer = Muon(matrices, others, weight_decay=config.weight_decay, **settings)
    optimizer.param_groups[0]["lr_ratio"] = config.muon_lr / config.lr
    set_learning_rate(optimizer, config.lr)
    return optimizer


def _groups(parameters: list[nn.Parameter], config: TrainConfig) -> list[dict[str, Any]]:
    """Parameters that decay alike."""
    decayed = [p for p in parameters if p.dim() >= 2 or not config.decay_groups]
    spared = [p for p in parameters if p.dim() < 2 and config.decay_groups]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Gives every parameter group this learning rate times the group's own ratio, if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> float:
    """Scale the gradients down where their global norm exceeds max_norm (Pascanu et al. 2013).

    Args:
        parameters: those without a gradient are passed over; of sharded ones the whole counts.
        max_norm: largest norm; 0 only measures.

    Returns:
        The norm before clipping; of gradients that are not finite NaN or infinity.
    """
    total = whole(torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None]))
    norm = float(total)
    if 0 < max_norm < norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return norm


@dataclass(frozen=True)
class AdamStep:
    """The quantities of one Adam step of a single weight.

    Attributes:
        gradient: g; with "adam_l2" weight_decay * theta is part of it.
        m: running mean of g.
        v: running mean of g squared.
        m_hat: m / (1 - beta1^t), corrected for the start at 0.
        v_hat: v / (1 - beta2^t).
        sqrt_v_hat: its root.
        ratio: m_hat / (sqrt_v_hat + eps).
        bracket: factor of the learning rate: the ratio, with "adamw" plus weight_decay * theta (before the step).
        theta: the weight after the step, theta - lr * bracket.
    """

    gradient: float
    m: float
    v: float
    m_hat: float
    v_hat: float
    sqrt_v_hat: float
    ratio: float
    bracket: float
    theta: float


def adam_walk(config: TrainConfig, theta: float, gradients: Sequence[float]) -> list[AdamStep]:
    """Return the steps that a single weight takes, written out as Kingma and Ba 2015 and Loshchilov and Hutter 2019 do.

    Args:
        config: gives optimizer ("adamw", "adam" or "adam_l2"), lr (the same at every step), betas, eps, weight_decay.
        theta: the weight before the first step.
        gradients: of the loss, one per step.

    Raises:
        ValueError: the optimiser is another one, or a number is not finite.
    """
    if config.optimizer not in ("adamw", "adam", "adam_l2"):
        raise ValueError(f"optimizer={config.optimizer!r} has no steps of a single weight; use adamw, adam or adam_l2")
    if not all(map(math.isfinite, (theta, *gradients))):
        raise ValueError(f"theta={theta!r} and gradients={list(gradients)!r}; expected finite numbers")
    (beta1, beta2), decay = config.betas, float(config.weight_decay)
    coupled, decoupled = (decay if config.optimizer == kind else 0.0 for kind in ("adam_l2", "adamw"))
    m = v = 0.0
    steps = []
    for t, of_loss in enumerate(gradients, start=1):
        gradient = of_loss + coupled * theta
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient * gradient
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        ratio = m_hat / (math.sqrt(v_hat) + config.eps)
        bracket = ratio + decoupled * theta
        theta -= config.lr * bracket
        steps.append(AdamStep(gradient, m, v, m_hat, v_hat, math.sqrt(v_hat), ratio, bracket, theta))
    return steps


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All of the optimiser's state as tensors named "<parameter number>.<state name>"; settings are left out."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts back what optimizer_tensors returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, entry = name.partition(".")
        state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors, and singular values close to 1 where they were not tiny.

    With respect to an upper bound of the largest one, singular values from 0.003 on come to lie within 0.23 of 1, and
    smaller ones grow by up to 284 times. The bound is (sum of the values' eighth powers)^(1/8): the first products give
    it for nothing, and it is far tighter than the usual Frobenius norm.

    Args:
        matrices: (N, m, n), N of m rows and n columns.

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
    """The matrix Q with Q x = all polynomials applied to x, computed from gram = x x^T alone."""
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
        matrices = [matrix for matrix in first["params"] if matrix.grad is not None]
        if not matrices:
            return loss
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        gradients = [matrix.grad for matrix in matrices]
        averages = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - first["momentum"])
        updates: Sequence[Any] = torch._foreach_lerp(gradients, averages, first["momentum"])
        updates = [whole(update) for update in updates]
        for batch in _batches(updates):
            together = torch.stack(batch)
            half = together.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
            working = torch.bfloat16 if half else torch.promote_types(together.dtype, torch.float32)
            together = orthogonalise(together.to(working))
            n_rows, n_columns = batch[0].shape
            torch._foreach_copy_(batch, together.mul_(math.sqrt(max(1.0, n_rows / n_columns))).unbind())
        torch._foreach_mul_(matrices, 1 - first["lr"] * first["weight_decay"])
        parts = [part_of(update, matrix) for update, matrix in zip(updates, matrices, strict=True)]
        torch._foreach_add_(matrices, parts, alpha=-first["lr"])
        return loss


def _batches(matrices: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Matrices of one shape together: of small ones, and on a GPU, starting an operation is what takes the time."""
    by_shape = defaultdict(list)
    for matrix in matrices:
        by_shape[matrix.shape].append(matrix)
    for shape, alike in by_shape.items():
        elements = _CPU_BATCH_ELEMENTS if alike[0].device.type == "cpu" else _BATCH_ELEMENTS
        size = max(1, elements // shape.numel())
        yield from (alike[first : first + size] for first in range(0, len(alike), size))
