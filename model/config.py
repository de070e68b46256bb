"""Settings of the network, of its training and of its generation.

Frozen dataclasses that check themselves: a wrong value is refused where it is written, not hours later in a
training loop. They turn into plain dictionaries and back, so that they can rest in JSON beside the weights.
Every field has an effect; a setting that would be ignored is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

POSITIONS = ("learned", "sinusoidal")
ACTIVATIONS = ("gelu", "gelu_tanh")
PRECISIONS = ("fp32", "bf16", "fp16")
DEFAULT_POS_BASE = 10000.0


class _Settings:
    """What the three configurations share: the way to and from a dictionary."""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as JSON types (tuples become lists)."""
        found = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The configuration with these fields.

        Args:
            settings: field names and values; fields that are left out keep their defaults.

        Raises:
            ValueError: a name is no field, a needed field is missing, or a value is not allowed.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        known = {field.name for field in fields}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no setting {', '.join(map(repr, unknown))}; "
                f"its settings are {', '.join(sorted(known))}"
            )
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        missing = sorted(needed - set(settings))
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(map(repr, missing))}; add it to the settings")
        return cls(**settings)


@dataclasses.dataclass(frozen=True)
class ModelConfig(_Settings):
    """The shape of a decoder-only Transformer.

    Args:
        vocab_size: number of token ids.
        max_seq_len: longest sequence (context), in tokens, at least 2.
        n_layer: number of blocks.
        n_head: attention heads per block; divides d_model.
        d_model: width of the residual stream.
        d_ff: width inside the feed-forward layer; None means 4 * d_model.
        pos: "learned" or "sinusoidal" positions, added to the token embedding.
        pos_base: base of the sinusoidal wavelengths; only with pos="sinusoidal".
        act: "gelu" (exact, by erf) or "gelu_tanh" (the tanh approximation).
        norm_eps: added to the variance inside LayerNorm's root.
        dropout: probability at embedding, attention weights and both residual branches.
        bias: biases in the linear layers and LayerNorms of the blocks (the head never has one).
        tie_weights: the output head shares the token embedding's matrix.
        init_std: standard deviation of the initial weights.
    """

    vocab_size: int
    max_seq_len: int = 256
    n_layer: int = 4
    n_head: int = 4
    d_model: int = 128
    d_ff: int | None = None
    pos: str = "learned"
    pos_base: float = DEFAULT_POS_BASE
    act: str = "gelu"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    bias: bool = True
    tie_weights: bool = True
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "d_model"):
            _check_int(name, getattr(self, name), 1)
        _check_int("max_seq_len", self.max_seq_len, 2)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        _check_int("d_ff", self.d_ff, 1)
        _check_choice("pos", self.pos, POSITIONS)
        _check_choice("act", self.act, ACTIVATIONS)
        _check_number("norm_eps", self.norm_eps, 0.0, 1.0, open_low=True)
        _check_number("dropout", self.dropout, 0.0, 1.0, open_high=True)
        _check_number("init_std", self.init_std, 0.0, math.inf, open_low=True)
        _check_number("pos_base", self.pos_base, 1.0, math.inf, open_low=True)
        _check_bool("bias", self.bias)
        _check_bool("tie_weights", self.tie_weights)
        if self.d_model % self.n_head:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by n_head={self.n_head}; "
                f"choose a d_model that is a multiple of n_head"
            )
        if self.pos == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs; use an even d_model"
            )
        if self.pos == "learned" and self.pos_base != DEFAULT_POS_BASE:
            raise ValueError(
                f"pos_base={self.pos_base} has no effect on learned positions; leave it out or set pos='sinusoidal'"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_head

    @property
    def ff_dim(self) -> int:
        """Width inside the feed-forward layer, always a number."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


@dataclasses.dataclass(frozen=True)
class TrainConfig(_Settings):
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
            _check_int(name, getattr(self, name), 1)
        _check_int("seed", self.seed, 0)
        _check_number("lr", self.lr, 0.0, math.inf, open_low=True)
        _check_number("min_lr_ratio", self.min_lr_ratio, 0.0, 1.0)
        _check_number("warmup_ratio", self.warmup_ratio, 0.0, 1.0)
        _check_number("weight_decay", self.weight_decay, 0.0, math.inf)
        _check_number("eps", self.eps, 0.0, 1.0, open_low=True)
        _check_number("clip_norm", self.clip_norm, 0.0, math.inf)
        _check_choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ValueError(f"betas={self.betas!r}; expected two numbers such as (0.9, 0.95)")
        for beta in self.betas:
            _check_number("betas", beta, 0.0, 1.0, open_high=True)
        object.__setattr__(self, "betas", tuple(self.betas))

    @property
    def warmup_steps(self) -> int:
        """Optimiser steps with a rising learning rate; at least one if any warm-up is asked for."""
        return max(1, round(self.warmup_ratio * self.max_steps)) if self.warmup_ratio > 0 else 0


@dataclasses.dataclass(frozen=True)
class GenerationConfig(_Settings):
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
        _check_int("max_new_tokens", self.max_new_tokens, 1)
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_int("seed", self.seed, 0)
        if self.top_k is not None:
            _check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.eos_id is not None:
            _check_int("eos_id", self.eos_id, 0)
        _check_int("min_new_tokens", self.min_new_tokens, 0)
        for token in self.suppress:
            _check_int("suppress", token, 0)
        object.__setattr__(self, "suppress", tuple(self.suppress))


def _check_int(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}={value!r}; expected a whole number of at least {low}")


def _check_number(
    name: str, value: object, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good or (open_low and value == low) or (open_high and value == high) or value == math.inf:
        opening, closing = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        raise ValueError(f"{name}={value!r}; expected a number in {opening}{low:g}, {high:g}{closing}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(choices)}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected True or False")
