"""The ten control elements of the language model seen as a controlled system, and the module that each one is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from model import TrainConfig
from model.optim import build_optimizer
from model.transformer import Block
from tasks.report.inspect.subject import Subject


@dataclass(frozen=True)
class Element:
    """One control element.

    Attributes:
        name: its name.
        role: what it controls.
        module: where it is found: modules of the network, or the function that does it.
        detail: its settings in this model.
    """

    name: str
    role: str
    module: str
    detail: str


def named(model: nn.Module, wanted: nn.Module) -> str:
    """The name under which a module hangs in the network."""
    return next(name for name, module in model.named_modules() if module is wanted)


def control_elements(subject: Subject) -> list[Element]:
    """Tokeniser, seed, embedding, position, attention, feed-forward, norm, optimiser, scheduler and sampling."""
    model, config, train = subject.model, subject.config, subject.training
    block = model.blocks[0]
    assert isinstance(block, Block)
    names = {id(module): name for name, module in model.named_modules()}

    def each(part: nn.Module) -> str:
        return names[id(part)].replace(
            "blocks.0.", f"blocks.0–{config.n_layer - 1}." if config.n_layer > 1 else "blocks.0."
        )

    heads = f"{config.n_head} heads of {config.head_dim}"
    heads += f", {config.n_kv_head} for keys and values" if config.n_kv_head != config.n_head else ""
    extras = [*(["QK-norm"] if config.qk_norm else []), *([f"window {config.window}"] if config.window else [])]
    norms = [each(block.norm_attention), each(block.norm_mlp), *(["norm"] if config.final_norm else [])]
    trained = "" if subject.train else " (default; not trained here)"
    return [
        Element(
            "Tokeniser",
            "encodes the input",
            type(subject.tokenizer).__name__,
            f"{subject.tokenizer.vocab_size} ids",
        ),
        Element("Seed", "fixes the initial state", "model.randomness", f"seed {subject.seed}"),
        Element("Embedding", "projects ids to states", "token_embedding", _shape(model.token_embedding.weight)),
        Element("Position", "brings in time", *_position(subject)),
        Element("Attention", "routes information", each(block.attention), ", ".join([heads, *extras])),
        Element(
            "Feed-forward",
            "transforms nonlinearly",
            each(block.mlp),
            f"{config.d_model} → {config.d_ff} → {config.d_model}, {config.act}",
        ),
        Element(
            "Normalisation",
            "regulates the state",
            ", ".join(norms),
            f"{type(block.norm_attention).__name__}, {config.norm_order}-norm, eps {config.norm_eps:g}",
        ),
        Element(
            "Optimiser",
            "controls the parameters",
            f"model.optim: {optimizer_name(subject)}",
            f"rate {train.lr:g}, decay {train.weight_decay:g}, clip {train.clip_norm:g}{trained}",
        ),
        Element(
            "Scheduler",
            "controls the learning rate",
            "model.schedule.learning_rate",
            f"{_schedule(train)}{trained}",
        ),
        Element(
            "Sampling",
            "controls the output",
            "model.sampling.token_probabilities",
            "temperature, then top-k, then top-p; this page shows temperature 1 and no filter",
        ),
    ]


def optimizer_name(subject: Subject) -> str:
    """The optimiser that these training settings build."""
    return type(build_optimizer(nn.Linear(1, 1), subject.training)).__name__


def _schedule(train: TrainConfig) -> str:
    parts = [train.schedule]
    if train.warmup_steps:
        parts.append(f"warm-up {train.warmup_steps} of {train.max_steps} steps")
    if train.min_lr_ratio is not None:
        parts.append(f"floor {train.min_lr_ratio:g} of the rate")
    return ", ".join(parts)


def _position(subject: Subject) -> tuple[str, str]:
    model, config = subject.model, subject.config
    if model.position_table is not None:
        return "position_table", f"{config.pos}, {_shape(model.position_table)}"
    if model.rotation_table is not None:
        return "rotation_table", f"rotary, {config.rope_layout} pairs, base {config.pos_base:g}"
    return "none", "the mask alone tells tokens apart in time"


def _shape(tensor: torch.Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
