"""Training: loss, optimisers, clipping, schedules, initial weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from golden.registry import Found, by_hand, operation
from golden.shared import float64, numbers, small_config
from model import NllSum, TrainConfig, Transformer, preset, schedule
from model.data import IGNORE
from model.kernels import linear_nll
from model.metrics import perplexity
from model.optim import build_optimizer


@operation("cross_entropy_grad")
def cross_entropy_grad(logits: Any, labels: list[int]) -> dict[str, Tensor]:
    scores = numbers(logits).requires_grad_()
    loss = linear_nll(scores, torch.eye(scores.shape[1], dtype=torch.float64), torch.tensor(labels)) / len(labels)
    loss.backward()
    return {"loss": loss.detach(), "grad": scores.grad}


@operation("uniform_ppl")
def uniform_ppl(V: int) -> dict[str, Any]:
    nll = linear_nll(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(V, 2, dtype=torch.float64), torch.arange(3))
    found = NllSum(float(nll), 3)
    return {"loss": found.loss, "perplexity": found.perplexity}


@operation("chain_rule")
def chain_rule(conditionals: Any) -> dict[str, Any]:
    p = numbers(conditionals)
    logits = torch.stack((p.log(), (1 - p).log()), dim=-1)
    total = NllSum()
    for step in logits:
        total += NllSum(float(linear_nll(step[None], torch.eye(2, dtype=torch.float64), torch.tensor([0]))), 1)
    return {"p": math.exp(-total.nll_nats), "nll": total.nll_nats, "ppl": total.perplexity}


@operation("loss_mean")
def loss_mean(token_nll: Any) -> Found:
    sums = [NllSum(sum(row), len(row)) for row in token_nll]
    total = sums[0]
    for other in sums[1:]:
        total += other
    return Found({"per_token": total.loss}, printed={"per_sequence": total.loss})


@operation("valid_targets")
def valid_targets(labels: Any, ignore_index: int) -> dict[str, Any]:
    assert ignore_index == IGNORE
    wanted = torch.tensor(labels)
    model = Transformer(preset("sheepop", n_layer=1)).eval()
    logits = model(wanted.clamp(min=0)).detach()
    features, weight = (torch.zeros(*shape, 1, dtype=torch.float64) for shape in (wanted.shape, logits.shape[-1:]))
    nll = linear_nll(features, weight, wanted)
    return {
        "flat": wanted.flatten(),
        "n_valid": round(float(nll) / math.log(logits.shape[-1]), 9),  # each one costs the log of the vocabulary
        "logits_shape": list(logits.shape),
        "flat_shape": list(logits.flatten(0, 1).shape),
    }


@operation("exp")
def exp(x: Any) -> list[float]:
    return [perplexity(value, 1) for value in x]


def optimizer_steps(
    kind: str, theta0: float, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, grads: list[float]
) -> list[dict[str, float]]:
    """What each step of the project's optimiser leaves in its state and in a single weight."""
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(layer.weight, theta0)
    settings = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
    optimizer = build_optimizer(layer, TrainConfig(len(grads), optimizer=kind, **settings))
    steps = []
    for t, gradient in enumerate(grads, start=1):
        before = layer.weight.item()
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        m, v = (optimizer.state[layer.weight][name].item() for name in ("exp_avg", "exp_avg_sq"))
        update = (before - layer.weight.item()) / lr
        corrected = {"mhat": m / (1 - beta1**t), "vhat": v / (1 - beta2**t), "ratio": update - weight_decay * before}
        steps.append({"m": m, "v": v, **corrected, "update": update, "theta": layer.weight.item()})
    return steps


@operation("adamw_steps")
def adamw_steps(fields: list[str], **settings: Any) -> list[float]:
    return [optimizer_steps("adamw", **settings)[-1][name] for name in fields]


@operation("adam_l2_steps")
def adam_l2_steps(**settings: Any) -> list[float]:
    return [step["theta"] for step in optimizer_steps("adam_l2", **settings)]


@by_hand("bias_denoms")
def bias_denoms(beta1: float, beta2: float, t: int) -> list[float]:
    return [1 - beta1**t, 1 - beta2**t]


def clipped(g: Any, max_norm: float) -> tuple[Tensor, float]:
    """Gradient and norm from the function that training clips with."""
    parameter = nn.Parameter(torch.zeros(len(g), dtype=torch.float64))
    parameter.grad = numbers(g)
    norm = float(nn.utils.clip_grad_norm_([parameter], max_norm))
    return parameter.grad, norm


@operation("clip_by_norm")
def clip_by_norm(g: Any, max_norm: float) -> Tensor:
    gradient, norm = clipped(g, max_norm)
    # torch divides by the norm plus 1e-6, which moves the result by less than 1e-6; taken out to compare all digits
    return gradient * (norm + 1e-6) / norm if norm > max_norm else gradient


@operation("l2norm")
def l2norm(g: Any) -> list[float]:
    return [clipped(g, math.inf)[1]]


@operation("sumsq")
def sumsq(g: Any) -> list[float]:
    return [clipped(g, math.inf)[1] ** 2]


@operation("cosine_lr")
def cosine_lr(eta_max: float, eta_min: float, T_max: int, t: list[int]) -> list[float]:
    return [schedule.cosine(step, eta_max, eta_min, T_max) for step in t]


@operation("cos_pi_ratio")
def cos_pi_ratio(t: list[int], T: int) -> list[float]:
    return [schedule.cosine(step, 1.0, -1.0, T) for step in t]


@operation("warmup_cosine")
def warmup_cosine(warmup: int, max_steps: int, t: list[int]) -> list[float]:
    return [schedule.warmup_cosine(step, 1.0, 0.0, warmup, max_steps) for step in t]


@operation("noam")
def noam(d_model: int, warmup: int, t: list[int]) -> list[float]:
    return [schedule.noam(step, d_model, warmup) for step in t]


@operation("xavier_std")
def xavier_std(fan_in: int, fan_out: int) -> Found:
    """From two networks with the same noise: their weights differ by the standard deviation only."""

    def matrix(**fields: Any) -> Tensor:
        config = small_config(d_model=fan_in, d_ff=fan_out, init_residual_scaling=False, **fields)
        with float64(), torch.random.fork_rng():
            torch.manual_seed(0)
            return Transformer(config).blocks[0].mlp.up.weight.detach()

    ratio = matrix(init="xavier", init_std=1.0) / matrix(init="normal", init_std=1.0)
    std = ratio.mean()
    assert torch.allclose(ratio, std, rtol=1e-9)
    value = {"xavier_std": std, "default_std": preset("light_llm").init_std}
    return Found(value, printed={"xavier_var": std**2, "used_std": std})
