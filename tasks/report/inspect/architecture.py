"""The architecture in words: what each step of the trace does, and the ten control elements with their modules."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from model import ModelConfig, TrainConfig
from model.optim import build_optimizer
from model.trace import Step
from model.transformer import Block
from tasks.report.inspect.subject import Subject

_ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh form)",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "swiglu": "a SiLU gate",
}

TITLES = {
    "ids": "Token ids",
    "embedding": "Embedding",
    "position": "Position",
    "rotation": "Rotations",
    "sum": "State h₀",
    "norm_attention": "Norm before attention",
    "q": "Queries",
    "k": "Keys",
    "v": "Values",
    "scores": "Scores",
    "weights": "Attention weights",
    "mixed": "Mixed values",
    "attention": "Attention output",
    "sum_attention": "Sum after attention",
    "norm_mlp": "Norm before feed-forward",
    "hidden": "Feed-forward, wide",
    "ffn": "Feed-forward output",
    "sum_ffn": "Sum after feed-forward",
    "output": "Block output",
    "norm": "Final norm",
    "logits": "Logits",
    "probabilities": "Probabilities",
}


def title(step: Step, config: ModelConfig) -> str:
    """A short name of the step."""
    if step.kind == "norm_attention" and config.norm_order == "post":
        return "Norm after attention"
    return f"Block output h{step.block}" if step.kind == "output" else TITLES.get(step.kind, step.kind)


def sentence(step: Step, config: ModelConfig) -> str:
    """What the step does."""
    width, norm = config.d_model, "LayerNorm" if config.norm == "layernorm" else "RMSNorm"
    shared = config.n_head // config.n_kv_head
    of_heads = f"{config.n_kv_head} heads" + (f", each shared by {shared} query heads" if shared > 1 else "")
    prepared = [*(["normalised"] if config.qk_norm else []), *(["rotated"] if config.pos == "rope" else [])]
    ready = f", {' and '.join(prepared)}" if prepared else ""
    reach = f", and not more than {config.window - 1} tokens back" if config.window else ""
    regulated = "to mean 0 and variance 1" if config.norm == "layernorm" else "to root mean square 1"
    said = {
        "ids": "The tokeniser turns the text into one number per token.",
        "embedding": f"Each id picks its row of {width} numbers from the token table.",
        "position": _position(config),
        "rotation": "Cosine and sine of each pair's angle at each place; queries and keys are turned by them.",
        "sum": "The state that enters the first block: "
        + ("token vector plus position vector." if config.pos in ("learned", "sinusoidal") else "the token vector."),
        "norm_attention": f"{norm} brings each token's state {regulated}, then applies its learned gain.",
        "q": f"What each token asks for, in {config.n_head} heads of {config.head_dim} columns{ready}.",
        "k": f"What each token offers to be found by, in {of_heads}{ready}.",
        "v": f"What each token hands over when it is looked at, in {of_heads}.",
        "scores": f"Each query times each key, divided by √{config.head_dim}; later tokens are not masked yet.",
        "weights": f"The mask forbids what comes later{reach}; softmax makes each row add to one.",
        "mixed": "Each token's average of the values, by its weights.",
        "attention": f"The heads side by side, brought back to {width} columns by the output projection.",
        "sum_attention": "Attention's output is added to the state that came in.",
        "norm_mlp": f"{norm} again, before the feed-forward layer.",
        "hidden": f"Up to {config.d_ff} columns and through {_ACTIVATIONS[config.act]}.",
        "ffn": f"Back down to {width} columns.",
        "sum_ffn": "The feed-forward output is added to its own input.",
        "output": "The state that leaves the block"
        + (f", after the second {norm}." if config.norm_order == "post" else ": the sum plus the feed-forward output."),
        "norm": f"{norm} once more, before the head reads the state.",
        "logits": f"One number per token of the vocabulary, from the head ({_head(config)}).",
        "probabilities": "Softmax of the logits: how likely each token is to come next.",
    }
    return said.get(step.kind, "")


def _position(config: ModelConfig) -> str:
    if config.pos == "learned":
        return "Each place picks its row from the learned position table."
    return f"Sines and cosines of each place, with wavelengths from 2π to nearly {config.pos_base:g}·2π tokens."


def _head(config: ModelConfig) -> str:
    return "the token table itself" if config.tie_weights else "a matrix of its own"


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
        Element("Position", "brings in time", *_position_module(subject)),
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


def _position_module(subject: Subject) -> tuple[str, str]:
    model, config = subject.model, subject.config
    if model.position_table is not None:
        return "position_table", f"{config.pos}, {_shape(model.position_table)}"
    if model.rotation_table is not None:
        return "rotation_table", f"rotary, {config.rope_layout} pairs, base {config.pos_base:g}"
    return "none", "the mask alone tells tokens apart in time"


def _shape(tensor: torch.Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
