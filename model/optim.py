"""Adam, AdamW, Adam with L2 regularisation, and Muon; by default biases and gains of norms do not decay.

Muon orthogonalises the momentum of each weight matrix before it is applied (Jordan et al. 2024): all its singular
values become about 1, so that directions with small gradients are learned as fast as dominant ones. It is used for the
matrices of the blocks; embeddings, head, norms and biases use AdamW.

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
# Odd polynomials a x + b x^3 + c x^5 whose composition maps [0.003, 1] to 1 within 0.23. Each is the best approximation
# of 1 on the range of the previous one (Amsel et al. 2025), extended upwards by 2 % as a margin for rounding, because
# the polynomials rise steeply beyond it.
POLYNOMIALS = (
    (8.22176, -23.34686, 16.63376),
    (3.97276, -2.84494, 0.51701),
    (3.47347, -2.50575, 0.48102),
    (2.50437, -1.79072, 0.40706),
)
_SMALLEST = 1e-30  # lower bound of divisors, so that a zero gradient stays zero
_WIDE = 1.5  # columns per row above which iterating on the m x m Gram matrix takes fewer operations
_BATCH_ELEMENTS = 2**26  # of one batched product; bounds the memory of intermediate results
_CPU_BATCH_ELEMENTS = 2**17  # so that intermediate results stay in the cache


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the configured optimiser of the trainable parameters; the caller sets the learning rate of each step.

    With the bias-corrected moments m and v of the gradient g, "adam" updates w to w - lr * m / (sqrt(v) + eps). "adamw"
    also subtracts lr * weight_decay * w (w before the step), and "adam_l2" replaces g by g + weight_decay * w. "muon"
    is `Muon` for the matrices of the blocks and "adamw" for the rest.

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
    decayed = [p for p in parameters if p.dim() >= 2 or not config.decay_groups]
    spared = [p for p in parameters if p.dim() < 2 and config.decay_groups]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group, times the group's lr_ratio if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> float:
    """Scale the gradients down where their global norm exceeds max_norm (Pascanu et al. 2013).

    Args:
        parameters: parameters, also DTensors; those without a gradient are ignored.
        max_norm: largest norm; 0 does not clip.

    Returns:
        The global norm before clipping; NaN or infinity if a gradient is not finite.
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
        m: moving average of g.
        v: moving average of g squared.
        m_hat: m / (1 - beta1^t), bias-corrected.
        v_hat: v / (1 - beta2^t).
        sqrt_v_hat: square root of v_hat.
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
    """Return the steps of a single weight by Kingma and Ba 2015 and Loshchilov and Hutter 2019.

    Args:
        config: gives optimizer ("adamw", "adam" or "adam_l2"), lr (the same at every step), betas, eps, weight_decay.
        theta: the weight before the first step.
        gradients: gradient of the loss at each step.

    Raises:
        ValueError: the optimiser is "muon", or a number is not finite.
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
    """Return the optimiser's state as tensors named "<parameter number>.<state name>", without its settings."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, entry = name.partition(".")
        state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and singular values close to 1.

    Relative to an upper bound of the largest singular value, values from 0.003 to 1 become 1 within 0.23, and smaller
    ones are multiplied by at most 284. The bound is (sum of the eighth powers of the values)^(1/8), which follows from
    the first products and is tighter than the usual Frobenius norm.

    Args:
        matrices: (N, m, n), N matrices of m rows and n columns.

    Returns:
        (N, m, n) of the same dtype.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalise(matrices.mT).mT
    gram = matrices @ matrices.mT  # (N, m, m); its eigenvalues are the squared singular values
    power = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp(min=_SMALLEST)  # sum of the eigenvalues
    gram = gram / power  # so that its square does not overflow
    square = gram @ gram
    bound = torch.linalg.matrix_norm(square, keepdim=True).clamp(min=_SMALLEST).sqrt()  # of gram's eigenvalues
    gram = gram / bound
    _, b, c = POLYNOMIALS[0]
    p = square.mul_(c / bound.square()).add_(gram, alpha=b)
    scale = power.rsqrt() * bound.rsqrt()
    # bfloat16 is too coarse for the small eigenvalues of the Gram matrix
    if matrices.dtype.itemsize < 4 or matrices.shape[-1] < _WIDE * matrices.shape[-2]:
        return _by_matrix(matrices * scale, p)
    return (_by_gram(gram, p) * scale) @ matrices


def _by_matrix(x: Tensor, p: Tensor) -> Tensor:
    """Apply the polynomials to x one by one: (a + p) x with p = b gram + c gram^2, gram = x x^T."""
    for number, (a, b, c) in enumerate(POLYNOMIALS):
        if number:
            gram = x @ x.mT
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, p, x, beta=a)
    return x


def _by_gram(gram: Tensor, p: Tensor) -> Tensor:
    """Return the matrix Q with Q x = all polynomials applied to x, from gram = x x^T."""
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

    With the moving average B of the gradients G of a matrix W (rows, columns), a step is
    W (1 - lr * weight_decay) - lr * sqrt(max(1, rows / columns)) * orthogonalise((1 - momentum) G + momentum B). The
    square root makes the effect of an update on the output independent of the shape.

    The first of `param_groups` has the matrices; the caller sets the learning rate of each group.

    Args:
        matrices: parameters (rows, columns), plain tensors or DTensors; may be empty.
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
        """Update the parameters that have a gradient."""
        first, *others = self.param_groups
        self._adamw.state, self._adamw.param_groups = self.state, others  # load_state_dict replaces both
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
    """Yield groups of matrices of equal shape, because many small operations are bound by their overhead."""
    by_shape = defaultdict(list)
    for matrix in matrices:
        by_shape[matrix.shape].append(matrix)
    for shape, equal in by_shape.items():
        elements = _CPU_BATCH_ELEMENTS if equal[0].device.type == "cpu" else _BATCH_ELEMENTS
        size = max(1, elements // shape.numel())
        yield from (equal[first : first + size] for first in range(0, len(equal), size))
