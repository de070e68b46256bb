"""Adam and its two ways of decaying, and Muon, as language models use them: biases and norms do not decay.

Decay pulls weights towards zero to keep the network's function small; a LayerNorm gain pulled towards zero
would only fight the data (Loshchilov and Hutter 2019; Radford et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainConfig
from .muon import Muon
from .transformer import Block

_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


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
    taken = set(map(id, matrices))
    others = _groups([parameter for parameter in parameters if id(parameter) not in taken], config)
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
    total = torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
    if hasattr(total, "full_tensor"):  # a DTensor; importing its class takes seconds
        total = total.full_tensor()
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
    """All of the optimiser's state as tensors named "<parameter number>.<state name>", counters included.

    Hyper-parameters are left out: they come from the configuration, which a checkpoint's identity already
    binds.
    """
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts back what optimizer_tensors returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, entry = name.partition(".")
        state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
