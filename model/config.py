"""Settings of training and of generation, as frozen dataclasses that rest in JSON beside the weights."""

from __future__ import annotations

import dataclasses
import math

from .validation import Settings, check_choice, check_int, check_number

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Settings):
    """How a network is trained. Context length and vocabulary come from the model's configuration.

    Args:
        max_steps: optimiser steps.
        batch_size: sequences per micro-batch.
        grad_accum: micro-batches per optimiser step.
        lr: highest learning rate.
        min_lr_ratio: the last step's learning rate as a share of lr.
        warmup_ratio: share of max_steps with a linearly rising learning rate.
        weight_decay: decoupled decay of matrices and tables (never of biases and norms).
        betas: AdamW's two decay rates.
        eps: AdamW's epsilon.
        clip_norm: largest global gradient norm; 0 turns clipping off.
        precision: "fp32", "bf16" (autocast) or "fp16" (autocast with loss scaling).
        seed: initial weights, data order and dropout each draw from their own stream of it.
        eval_every: optimiser steps between two evaluations; the last step is always evaluated.
    """

    max_steps: int
    batch_size: int = 16
    grad_accum: int = 1
    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    warmup_ratio: float = 0.05
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip_norm: float = 1.0
    precision: str = "fp32"
    seed: int = 1337
    eval_every: int = 100

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "grad_accum", "eval_every"):
            check_int(name, getattr(self, name), 1)
        check_int("seed", self.seed, 0)
        check_number("lr", self.lr, 0.0, math.inf, open_low=True)
        check_number("min_lr_ratio", self.min_lr_ratio, 0.0, 1.0)
        check_number("warmup_ratio", self.warmup_ratio, 0.0, 1.0)
        check_number("weight_decay", self.weight_decay, 0.0, math.inf)
        check_number("eps", self.eps, 0.0, 1.0, open_low=True)
        check_number("clip_norm", self.clip_norm, 0.0, math.inf)
        check_choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ValueError(f"betas={self.betas!r}; expected two numbers such as (0.9, 0.95)")
        for beta in self.betas:
            check_number("betas", beta, 0.0, 1.0, open_high=True)
        object.__setattr__(self, "betas", tuple(self.betas))

    @property
    def warmup_steps(self) -> int:
        """Optimiser steps with a rising learning rate; at least one if any warm-up is asked for."""
        return max(1, round(self.warmup_ratio * self.max_steps)) if self.warmup_ratio > 0 else 0


@dataclasses.dataclass(frozen=True)
class GenerationConfig(Settings):
    """How tokens are drawn from the network.

    Args:
        max_new_tokens: longest continuation, in tokens.
        temperature: divides the logits; 0 means greedy.
        top_k: keep the k likeliest tokens (capped at the vocabulary); None keeps all.
        top_p: keep the smallest set of likeliest tokens whose probabilities reach p; None keeps all.
        seed: of the sampling noise.
        eos_id: token that ends a continuation; None never stops early.
        suppress: tokens that are never drawn, such as padding.
        min_new_tokens: eos_id is not drawn before so many tokens.
    """

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    eos_id: int | None = None
    suppress: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        check_int("max_new_tokens", self.max_new_tokens, 1)
        check_number("temperature", self.temperature, 0.0, math.inf)
        check_int("seed", self.seed, 0)
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            check_number("top_p", self.top_p, 0.0, 1.0)
        if self.eos_id is not None:
            check_int("eos_id", self.eos_id, 0)
        check_int("min_new_tokens", self.min_new_tokens, 0)
        for token in self.suppress:
            check_int("suppress", token, 0)
        object.__setattr__(self, "suppress", tuple(self.suppress))
