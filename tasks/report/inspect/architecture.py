"""A network with all that belongs to it, and its description: steps of the trace, the ten control elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from model import PRESETS, ModelConfig, TrainConfig, Transformer, count_parameters, preset
from model.optim import build_optimizer
from model.trace import Step
from model.transformer import Block
from storage.errors import UserError
from tasks.report.queries import Row
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, Tokenizer
from tasks.training.bundle import Bundle

MAX_UNTRAINED = 2e9  # parameters; a larger network only fills the memory


@dataclass(frozen=True)
class Subject:
    """A network with all that belongs to it.

    Attributes:
        name: what to call it.
        train: fields of `model.TrainConfig`; None for a network that was not trained here.
        fresh: whether it was never trained at all.
        bos: whether prompts begin with the token that begins a text, as they did in training.
        seed: of the initial weights.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    train: Mapping[str, Any] | None = None
    fresh: bool = False
    bos: bool = True
    seed: int = 0

    @classmethod
    def of_bundle(cls, bundle: Bundle, name: str) -> Subject:
        """Return a trained model."""
        train = bundle.config.get("train")
        seed = int((train or {}).get("seed", 0))
        return cls(name, bundle.model, bundle.tokenizer, train, bos=bundle.bos, seed=seed)

    @classmethod
    def untrained(cls, name: str, seed: int) -> Subject:
        """Return an untrained network of a preset's shape over the 128 ASCII codes.

        Raises:
            UserError: if there is no such preset, or its network is too large.
        """
        if name not in PRESETS:
            raise UserError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        tokenizer = AsciiTokenizer()
        config = preset(name, tokenizer.vocab_size)
        size = count_parameters(config)["total"]
        if size > MAX_UNTRAINED:
            raise UserError(
                f"{name} has {size:,} parameters; up to {MAX_UNTRAINED:,.0f} are made for a look: take a smaller one"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Transformer(config).eval()
        # the source documents begin with the first character, and there is no training to agree with
        return cls(f"{name} (fresh)", network, tokenizer, fresh=True, bos=False, seed=seed)

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def config(self) -> ModelConfig:
        """Shape of the network."""
        return self.model.config

    @property
    def training(self) -> TrainConfig:
        """Configuration of the training, or the default one."""
        return TrainConfig.from_dict(dict(self.train)) if self.train else TrainConfig(max_steps=1000)


_ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh form)",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "swiglu": "a SiLU gate",
}


def described(step: Step, config: ModelConfig) -> tuple[str, str]:
    """Return a short name of a step of the forward pass, and the step in one sentence."""
    width, norm = config.d_model, "LayerNorm" if config.norm == "layernorm" else "RMSNorm"
    is_post = config.norm_order == "post"
    shared = config.n_head // config.n_kv_head
    of_heads = f"{config.n_kv_head} heads" + (f", each shared by {shared} query heads" if shared > 1 else "")
    prepared = [*(["normalised"] if config.qk_norm else []), *(["rotated"] if config.pos == "rope" else [])]
    ready = f", {' and '.join(prepared)}" if prepared else ""
    reach = f", and not more than {config.window - 1} tokens back" if config.window else ""
    regulated = "to mean 0 and variance 1" if config.norm == "layernorm" else "to root mean square 1"
    position = "Each place picks its row from the learned position table."
    if config.pos == "sinusoidal":
        position = f"Sines and cosines of each place, with wavelengths from 2π to nearly {config.pos_base:g}·2π tokens."
    entering = "token vector plus position vector" if config.pos in ("learned", "sinusoidal") else "the token vector"
    leaving = f", after the second {norm}" if is_post else ": the sum plus the feed-forward output"
    head = "the token table itself" if config.tie_weights else "a matrix of its own"
    said = {
        "ids": ("Token ids", "The tokeniser turns the text into one number per token."),
        "embedding": ("Embedding", f"Each id picks its row of {width} numbers from the token table."),
        "position": ("Position", position),
        "rotation": (
            "Rotations",
            "Cosine and sine of each pair's angle at each place; queries and keys are turned by them.",
        ),
        "sum": ("State h₀", f"The state that enters the first block: {entering}."),
        "norm_attention": (
            "Norm after attention" if is_post else "Norm before attention",
            f"{norm} brings each token's state {regulated}, then applies its learned gain.",
        ),
        "q": ("Queries", f"What each token asks for, in {config.n_head} heads of {config.head_dim} columns{ready}."),
        "k": ("Keys", f"What each token offers to be found by, in {of_heads}{ready}."),
        "v": ("Values", f"What each token hands over when it is looked at, in {of_heads}."),
        "scores": (
            "Scores",
            f"Each query times each key, divided by √{config.head_dim}; later tokens are not masked yet.",
        ),
        "weights": (
            "Attention weights",
            f"The mask forbids what comes later{reach}; softmax makes each row add to one.",
        ),
        "mixed": ("Mixed values", "Each token's average of the values, by its weights."),
        "attention": (
            "Attention output",
            f"The heads side by side, brought back to {width} columns by the output projection.",
        ),
        "sum_attention": ("Sum after attention", "Attention's output is added to the state that came in."),
        "norm_mlp": ("Norm before feed-forward", f"{norm} again, before the feed-forward layer."),
        "hidden": ("Feed-forward, wide", f"Up to {config.d_ff} columns and through {_ACTIVATIONS[config.act]}."),
        "ffn": ("Feed-forward output", f"Back down to {width} columns."),
        "sum_ffn": ("Sum after feed-forward", "The feed-forward output is added to its own input."),
        "output": (f"Block output h{step.block}", f"The state that leaves the block{leaving}."),
        "norm": ("Final norm", f"{norm} once more, before the head reads the state."),
        "logits": ("Logits", f"One number per token of the vocabulary, from the head ({head})."),
        "probabilities": ("Probabilities", "Softmax of the logits: how likely each token is to come next."),
    }
    return said[step.kind]


def named(model: nn.Module, wanted: nn.Module) -> str:
    """The name under which a module hangs in the network."""
    return next(name for name, module in model.named_modules() if module is wanted)


def control_elements(subject: Subject) -> list[Row]:
    """Return the ten control elements of a network.

    Returns:
        Rows of `name`; `role`, what it controls; `module`, modules of the network, or the function that does it; and
        `detail`, its settings in this model.
    """
    model, config, train = subject.model, subject.config, subject.training
    block = model.blocks[0]
    assert isinstance(block, Block)
    all_blocks = f"blocks.0–{config.n_layer - 1}." if config.n_layer > 1 else "blocks.0."

    def each(part: nn.Module) -> str:
        return named(model, part).replace("blocks.0.", all_blocks)

    heads = [f"{config.n_head} heads of {config.head_dim}"]
    heads += [f"{config.n_kv_head} for keys and values"] if config.n_kv_head != config.n_head else []
    heads += [*(["QK-norm"] if config.qk_norm else []), *([f"window {config.window}"] if config.window else [])]
    norms = ", ".join([each(block.norm_attention), each(block.norm_mlp), *(["norm"] if config.final_norm else [])])
    norm = f"{type(block.norm_attention).__name__}, {config.norm_order}-norm, eps {config.norm_eps:g}"
    trained = "" if subject.train else " (default; not trained here)"
    feed = f"{config.d_model} → {config.d_ff} → {config.d_model}, {config.act}"
    rule = f"rate {train.lr:g}, decay {train.weight_decay:g}, clip {train.clip_norm:g}{trained}"
    order = "temperature, then top-k, then top-p; this page shows temperature 1 and no filter"
    tokenizer, embedding = subject.tokenizer, model.token_embedding.weight
    elements = [
        ("Tokeniser", "encodes the input", type(tokenizer).__name__, f"{tokenizer.vocab_size} ids"),
        ("Seed", "fixes the initial state", "model.randomness", f"seed {subject.seed}"),
        ("Embedding", "projects ids to states", "token_embedding", _shape(embedding)),
        ("Position", "brings in time", *_position_module(subject)),
        ("Attention", "routes information", each(block.attention), ", ".join(heads)),
        ("Feed-forward", "transforms nonlinearly", each(block.mlp), feed),
        ("Normalisation", "regulates the state", norms, norm),
        ("Optimiser", "controls the parameters", f"model.optim: {optimizer_name(subject)}", rule),
        ("Scheduler", "controls the learning rate", "model.schedule.learning_rate", _schedule(train) + trained),
        ("Sampling", "controls the output", "model.sampling.token_probabilities", order),
    ]
    return [Row(name=name, role=role, module=module, detail=detail) for name, role, module, detail in elements]


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
