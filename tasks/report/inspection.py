"""Inspection of a network on one prompt: values of the forward pass, gains and projections, as JSON and as text.

Descriptions of the steps and of the ten control elements are generated from the network's configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model import PRESETS, ModelConfig, TrainConfig, Transformer, count_parameters, preset
from model.config import Sampling
from model.optim import build_optimizer
from model.trace import MAX_TRACED_TOKENS, Gain, Step, Trace, local_gains, trace
from model.transformer import Block
from storage.errors import UserError
from tasks.core.settings import GenerateSettings
from tasks.report.diagrams import plan_of_preset, sampling_of, training_of
from tasks.report.queries import Row
from tasks.report.vocabulary import Spelling
from tasks.report.worked_example import state_weights, words
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, Tokenizer
from tasks.training.bundle import Bundle

COLUMNS = 4  # columns of each value in JSON and on the page, by default
NEXT_TOKENS = 10  # most likely next tokens at each position in JSON
_USUAL = GenerateSettings()
MAX_UNTRAINED = 2e9  # parameters of the largest network that is initialised only for inspection


@dataclass(frozen=True)
class Subject:
    """A network with its tokeniser and configuration.

    Attributes:
        name: name for people.
        train: fields of `model.TrainConfig`, of an untrained network those of its recipe; None if unknown.
        sampling: default sampling settings.
        fresh: True if it was never trained.
        bos: True if prompts begin with bos, as documents did in training.
        seed: seed of the initial weights.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    train: Mapping[str, Any] | None = None
    sampling: Sampling = _USUAL
    fresh: bool = False
    bos: bool = True
    seed: int = 0

    @classmethod
    def of_bundle(cls, bundle: Bundle, name: str) -> Subject:
        """Build the subject of a trained model."""
        train = bundle.config.get("train")
        seed = int((train or {}).get("seed", 0))
        return cls(name, bundle.model, bundle.tokenizer, train, sampling_of(bundle.config), bos=bundle.bos, seed=seed)

    @classmethod
    def untrained(cls, name: str, seed: int) -> Subject:
        """Build an untrained network of a preset's shape over the 128 ASCII codes.

        "llama_toy" has the vocabulary and the weights of the walk-through, see `worked_example`.

        Raises:
            UserError: the preset does not exist, or its network is too large.
        """
        if name not in PRESETS:
            raise UserError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        is_stated = name == "llama_toy"
        tokenizer = words() if is_stated else AsciiTokenizer()
        config = preset(name, tokenizer.vocab_size)
        size = count_parameters(config)["total"]
        if size > MAX_UNTRAINED:
            raise UserError(
                f"{name} has {size:,} parameters, expected at most {MAX_UNTRAINED:,.0f} for an untrained network: "
                "choose a smaller preset"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Transformer(config).eval()
        if is_stated:
            state_weights(network)
        # without bos, as the walk-throughs have it
        plan, kind = plan_of_preset(name), "weights of its source" if is_stated else "fresh"
        train, title = plan.train.to_dict(), f"{name} ({kind})"
        return cls(title, network, tokenizer, train, plan.sampling, fresh=True, bos=False, seed=seed)

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def config(self) -> ModelConfig:
        """Configuration of the network."""
        return self.model.config

    @property
    def training(self) -> TrainConfig:
        """Configuration of the training, or the default one if unknown."""
        return training_of(self.train)


class InspectError(UserError):
    """A prompt that cannot be inspected."""


@dataclass(frozen=True)
class Inspection:
    """The values of a prompt of T tokens.

    Attributes:
        spelling: readable spelling of each id.
        planes: projections of token vectors by name, see `project`.
        distances: (T, T) Euclidean distances between token vectors.
        columns: number of columns shown of each value.
    """

    subject: Subject
    prompt: str
    spelling: Spelling
    trace: Trace
    gains: list[Gain]
    planes: dict[str, Row]
    distances: Tensor
    columns: int = COLUMNS

    @property
    def labels(self) -> list[str]:
        """Readable spellings of the T tokens."""
        return [self.spelling.text_of(index) for index in self.trace.ids.tolist()]

    @property
    def n_tokens(self) -> int:
        """Number of tokens, T."""
        return len(self.trace.ids)


def inspect_prompt(subject: Subject, prompt: str, seed: int = 0, columns: str = str(COLUMNS)) -> Inspection:
    """Run a prompt through a network and return everything that the page shows.

    Args:
        prompt: text of at most 256 tokens, and at most the network's context.
        seed: seed of the random directions of the local gains.
        columns: number of columns shown of each value, or "all".

    Raises:
        InspectError: the prompt is empty, too long or not valid text, or `columns` is invalid.
    """
    if columns != "all" and not (columns.isdecimal() and int(columns)):
        raise InspectError(f"--columns {columns!r}: expected a number of at least 1, or all")
    ids = _encode(subject, prompt)
    found = trace(subject.model, ids)
    planes = {"token vectors": project(found["embedding"]), "token and position": project(found["sum"])}
    vectors = found["embedding"].double()
    return Inspection(
        subject=subject,
        prompt=prompt,
        spelling=Spelling(subject.tokenizer),
        trace=found,
        gains=local_gains(subject.model, ids, seed),
        planes=planes,
        distances=(vectors[:, None] - vectors[None]).norm(dim=-1),
        columns=max(step.tensor.shape[-1] for step in found.steps) if columns == "all" else int(columns),
    )


def _encode(subject: Subject, prompt: str) -> list[int]:
    if not prompt:
        raise InspectError('the prompt is empty; give a text, such as --prompt "Hello World"')
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise InspectError(
            "the prompt contains a lone surrogate (U+D800 to U+DFFF), which is not a character; remove it"
        )
    ids: list[int] = subject.tokenizer.encode([prompt])[0].tolist()
    start = subject.tokenizer.start_id
    if subject.bos and start is not None:
        ids = [start, *ids]
    limit = min(MAX_TRACED_TOKENS, subject.config.max_seq_len)
    if len(ids) > limit:
        why = "the most that can be shown" if limit == MAX_TRACED_TOKENS else "the model's context"
        raise InspectError(f"the prompt has {len(ids)} tokens; expected at most {limit}, {why}; shorten it")
    return ids


def project(vectors: Tensor) -> Row:
    """Project vectors (T, D) on their first two principal components, computed over distinct vectors.

    Returns:
        `points` (T, 2), and the `shares` of the variance explained by each component.
    """
    wide = vectors.double()
    distinct = torch.unique(wide, dim=0)
    centre = distinct.mean(0)
    _, sizes, axes = torch.linalg.svd(distinct - centre, full_matrices=False)
    axes = torch.nn.functional.pad(axes[:2], (0, 0, 0, max(0, 2 - len(axes))))
    # the sign of an axis is arbitrary: make its largest coordinate positive, so that pages are comparable
    largest = axes.abs().argmax(dim=1, keepdim=True)
    axes = axes * torch.where(axes.gather(1, largest) < 0, -1.0, 1.0)
    total = float(sizes.square().sum())
    shares = [float(size) ** 2 / total if total else 0.0 for size in sizes[:2]] + [0.0, 0.0]
    return Row(points=(wide - centre) @ axes.T, shares=shares[:2])


def rounded(value: Any, digits: int = 4) -> Any:
    """Return a tensor or nested list as lists of rounded numbers; non-finite ones become None."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float):
        return round(value, digits) if abs(value) < float("inf") else None
    return value


def to_json(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as a JSON document."""
    found, subject, columns = inspection.trace, inspection.subject, inspection.columns
    return {
        "model": {
            "name": subject.name,
            "parameters": subject.n_parameters,
            "trained": not subject.fresh,
            "config": dataclasses.asdict(subject.config),
        },
        "prompt": inspection.prompt,
        "tokens": [
            {"position": place, "id": index, "text": text}
            for place, (index, text) in enumerate(zip(found.ids.tolist(), inspection.labels, strict=True))
        ],
        "steps": [
            {
                "name": step.name,
                "what": described(step, subject.config)[1],
                "shape": list(step.tensor.shape),
                "first_columns": rounded(step.tensor[..., :columns] if step.tensor.dim() > 1 else step.tensor),
            }
            for step in found.steps
        ],
        "attention": rounded(found.weights),
        "mask": found.mask.tolist(),
        "projections": {
            name: {"points": rounded(plane.points), "variance_shares": rounded(plane.shares)}
            for name, plane in inspection.planes.items()
        },
        "distances": rounded(inspection.distances),
        "hidden_norms": rounded(found.hidden.norm(dim=-1)),
        "hidden_first_columns": rounded(found.hidden[..., :columns]),
        "increment_norms": rounded(found.increments.norm(dim=-1)),
        "next": [next_tokens(inspection, place, NEXT_TOKENS) for place in range(inspection.n_tokens)],
        "sequence": {
            "conditionals": rounded(found.conditionals),
            "log_probability": rounded(-found.score.nll_nats),
            "nll": rounded(found.score.loss),
            "perplexity": rounded(found.score.perplexity),
        },
        "gains": [
            {name: rounded(value) for name, value in dataclasses.asdict(gain).items()} for gain in inspection.gains
        ],
        "elements": [vars(item) for item in control_elements(subject)],
    }


def next_tokens(inspection: Inspection, position: int, n: int) -> list[dict[str, Any]]:
    """Return the `n` most likely next tokens at a position, most likely first."""
    logits = inspection.trace["logits"][position]
    ids, log_probs = inspection.trace.top(position, n)
    return [
        {
            "id": index,
            "text": inspection.spelling.text_of(index),
            "logit": rounded(float(logits[index])),
            "probability": rounded(probability, 6),
        }
        for index, probability in zip(ids.tolist(), log_probs.exp().tolist(), strict=True)
    ]


def inspection_text(found: Inspection) -> str:
    """Return tokens, norms of the states, likelihood and most likely next tokens, for a terminal."""
    score, states = found.trace.score, found.trace.hidden.norm(dim=-1).mean(dim=1).tolist()
    lines = ["tokens:   " + " ".join(found.labels[:40]) + (" …" if found.n_tokens > 40 else "")]
    lines.append(
        "states:   " + " → ".join(f"{length:.3g}" for length in states) + "  (mean norm, h0 to the last block)"
    )
    if score.tokens:
        lines.append(f"prompt:   {score.loss:.3f} nats per token, perplexity {score.perplexity:.4g}")
    likely = next_tokens(found, found.n_tokens - 1, n=5)
    return "\n".join([*lines, "next:", *(f"  {item['probability']:6.1%}  {item['text']}" for item in likely)])


# descriptions


_ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh form)",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "swiglu": "a SiLU gate",
    "geglu": "a GELU gate",
}


def described(step: Step, config: ModelConfig) -> tuple[str, str]:
    """Return a title and a one-sentence description of a step of the forward pass."""
    width, norm = config.d_model, "LayerNorm" if config.norm == "layernorm" else "RMSNorm"
    is_post = config.norm_order == "post"
    shared = config.n_head // config.n_kv_head
    of_heads = f"{config.n_kv_head} heads" + (f", each shared by {shared} query heads" if shared > 1 else "")
    prepared = [*(["normalised"] if config.qk_norm else []), *(["rotated (RoPE)"] if config.pos == "rope" else [])]
    ready = f", {' and '.join(prepared)}" if prepared else ""
    reach = f" and tokens more than {config.window - 1} back" if config.window else ""
    regulated = "to mean 0 and variance 1" if config.norm == "layernorm" else "to root mean square 1"
    position = "The row of each position in the learned position table."
    if config.pos == "sinusoidal":
        position = f"Sines and cosines of the position; wavelengths from 2π to nearly {config.pos_base:g}·2π tokens."
    entering = "token vector plus position vector" if config.pos in ("learned", "sinusoidal") else "the token vector"
    leaving = f", after the second {norm}" if is_post else ": the sum plus the feed-forward output"
    moments = ("Mean and variance", f"Moments of the input of the {norm}, for each token.")
    head = "tied to the token embedding" if config.tie_weights else "untied"
    said = {
        "ids": ("Token ids", "The ids of the prompt's tokens."),
        "embedding": ("Embedding", f"The row of {width} values of each id in the embedding table."),
        "position": ("Position", position),
        "rotation": (
            "Rotations",
            "Cosine and sine of the rotation angle of each pair of columns at each position (RoPE).",
        ),
        "sum": ("State h₀", f"The input of the first block: {entering}."),
        "norm_attention_moments": moments,
        "norm_ffn_moments": moments,
        "norm_moments": moments,
        "norm_attention": (
            "Norm after attention" if is_post else "Norm before attention",
            f"{norm} scales each token's state {regulated}, then applies its learned gain.",
        ),
        "q_unrotated": ("Queries before rotation", "Query projection of each token, without its position."),
        "k_unrotated": ("Keys before rotation", "Key projection of each token, without its position."),
        "q": ("Queries", f"Query projection of each token, {config.n_head} heads of {config.head_dim} columns{ready}."),
        "k": ("Keys", f"Key projection of each token, {of_heads}{ready}."),
        "v": ("Values", f"Value projection of each token, {of_heads}."),
        "products": ("Products", "Dot product of each query with each key."),
        "scores": ("Scores", f"The products divided by √{config.head_dim}, before masking."),
        "masked_scores": ("Masked scores", f"The mask sets later tokens{reach} to −∞."),
        "exponentials": ("Exponentials", "exp(score − largest score of the row)."),
        "sums": ("Sums of exponentials", "Sum of the exponentials of each row, for each head and token."),
        "weights": (
            "Attention weights",
            "Each exponential divided by the sum of its row (softmax); rows sum to 1.",
        ),
        "mixed": ("Weighted values", "Sum of the values, weighted by the attention weights."),
        "attention": (
            "Attention output",
            f"The concatenated heads, projected to {width} columns.",
        ),
        "norm_attention_out": ("Norm of the attention output", f"{norm} before it is added to the state."),
        "norm_attention_out_moments": moments,
        "norm_ffn_out": ("Norm of the feed-forward output", f"{norm} before it is added to the state."),
        "norm_ffn_out_moments": moments,
        "sum_attention": ("Sum after attention", "Block input plus attention output (residual connection)."),
        "norm_ffn": (
            "Norm after feed-forward" if is_post else "Norm before feed-forward",
            f"{norm} {'of the sum' if is_post else 'before the feed-forward layer'}.",
        ),
        "up": ("Feed-forward, up", f"Projection to {config.d_ff} columns, before the activation."),
        "gate": ("Feed-forward, gate", f"Second projection to {config.d_ff} columns, which gates the first."),
        "silu_gate": ("SiLU of the gate", "Each value of the gate times its sigmoid.")
        if config.act == "swiglu"
        else ("GELU of the gate", "The activation of each value of the gate."),
        "hidden": ("Feed-forward, hidden", f"{config.d_ff} columns after {_ACTIVATIONS[config.act]}."),
        "ffn": ("Feed-forward output", f"Projection to {width} columns."),
        "sum_ffn": ("Sum after feed-forward", "Input plus feed-forward output (residual connection)."),
        "output": (f"Block output h{step.block}", f"State after the block{leaving}."),
        "norm": ("Final norm", f"{norm} before the output projection."),
        "logits": ("Logits", f"One value per token of the vocabulary, from the output projection ({head})."),
        "probabilities": ("Probabilities", "Softmax of the logits: probability of each next token."),
    }
    return said[step.kind]


def control_elements(subject: Subject) -> list[Row]:
    """Return the ten control elements of a network.

    Returns:
        Rows of `name`; `role`; `module`, modules of the network or a function; and `detail`, its configuration here.
    """
    model, config, train = subject.model, subject.config, subject.training
    block = model.blocks[0]
    assert isinstance(block, Block)
    all_blocks = f"blocks.0–{config.n_layer - 1}." if config.n_layer > 1 else "blocks.0."

    def each(part: nn.Module) -> str:
        name = next(name for name, module in model.named_modules() if module is part)
        return name.replace("blocks.0.", all_blocks)

    heads = [f"{config.n_head} heads of {config.head_dim}"]
    heads += [f"{config.n_kv_head} for keys and values"] if config.n_kv_head != config.n_head else []
    heads += [*(["QK-norm"] if config.qk_norm else []), *([f"window {config.window}"] if config.window else [])]
    own = (block.norm_attention, block.norm_attention_out, block.norm_mlp, block.norm_mlp_out)
    names = [each(one) for one in own if one is not None]
    norms = ", ".join([*names, *(["norm"] if config.final_norm else [])])
    order = "pre- and post" if config.norm_order == "both" else config.norm_order
    norm = f"{type(block.norm_attention).__name__}, {order}-norm, eps {config.norm_eps:g}"
    trained = "" if subject.train and not subject.fresh else " (not trained here)"
    feed = f"{config.d_model} → {config.d_ff} → {config.d_model}, {config.act}"
    rule = f"rate {train.lr:g}, decay {train.weight_decay:g}, clip {train.clip_norm:g}{trained}"
    order = "temperature, then top-k, then top-p; this page shows temperature 1 and no filter"
    tokenizer, embedding = subject.tokenizer, model.token_embedding.weight
    optimizer = type(build_optimizer(nn.Linear(1, 1), train)).__name__
    elements = [
        ("Tokeniser", "encodes the input", type(tokenizer).__name__, f"{tokenizer.vocab_size} ids"),
        ("Seed", "fixes the initial state", "model.randomness", f"seed {subject.seed}"),
        ("Embedding", "projects ids to states", "token_embedding", _shape(embedding)),
        ("Position", "encodes the position", *_position_module(subject)),
        ("Attention", "routes information", each(block.attention), ", ".join(heads)),
        ("Feed-forward", "transforms nonlinearly", each(block.mlp), feed),
        ("Normalisation", "regulates the state", norms, norm),
        ("Optimiser", "controls the parameters", f"model.optim: {optimizer}", rule),
        ("Scheduler", "controls the learning rate", "model.schedule.learning_rate", _schedule(train) + trained),
        ("Sampling", "controls the output", "model.sampling.token_probabilities", order),
    ]
    return [Row(name=name, role=role, module=module, detail=detail) for name, role, module, detail in elements]


def _schedule(train: TrainConfig) -> str:
    parts = [train.schedule]
    if train.warmup:
        parts.append(f"warm-up {train.warmup} of {train.max_steps} steps")
    if train.min_lr_ratio is not None:
        parts.append(f"floor {train.min_lr_ratio:g} of the peak rate")
    return ", ".join(parts)


def _position_module(subject: Subject) -> tuple[str, str]:
    model, config = subject.model, subject.config
    if model.position_table is not None:
        return "position_table", f"{config.pos}, {_shape(model.position_table)}"
    if model.rotation_table is not None:
        return "rotation_table", f"rotary, {config.rope_layout} pairs, base {config.pos_base:g}"
    return "none", "none; only the causal mask depends on position"


def _shape(tensor: torch.Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
