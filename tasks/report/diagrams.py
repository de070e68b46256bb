"""Block diagrams of a network, its training and its generation: rows of boxes, and arrows between them.

Diagrams are derived from configurations alone, so that a network of any size is drawn without being built. SVG files,
the JSON document and the page of `inspect` use the same description.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from model.accounting import count_parameters, layer_parameters
from model.architecture import ModelConfig
from model.config import Sampling, TrainConfig
from storage.errors import UserError
from tasks.core.settings import GenerateSettings, load_settings
from tasks.report.page import macro
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, load_tokenizer
from tasks.training.bundle import CONFIG_FILE
from tasks.training.network_cost import network_shape
from tasks.training.train import train_config

WIDTH, LINE, GAP, LANE = 320, 15, 24, 15  # of boxes, text lines, gaps between rows, lanes of side arrows; pixels
MARGIN = 70
STEPS = 1000  # of the training of a preset, which has no budget
LOOP_GAINS = (1, 10, 100, 1000)  # forward gains of the scalar closed-loop example
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "adam_l2": "Adam with coupled decay", "muon": "Muon and AdamW"}


@dataclass(frozen=True)
class Node:
    """A box.

    Attributes:
        id: name for arrows, unique in the diagram.
        title: first line.
        notes: further lines.
        kind: "io" (a value), "mix", "feed", "norm", "drop" or "sum".
    """

    id: str
    title: str
    notes: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow; one to another than the next row runs at the side: down on the right, up on the left."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Diagram:
    """A block diagram.

    Attributes:
        name: base name of its file.
        rows: boxes from top to bottom; None is an empty column.
    """

    name: str
    title: str
    rows: tuple[tuple[Node | None, ...], ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class Plan:
    """Configurations that the diagrams show; `tokenizer` is the kind of tokeniser, "" if unknown."""

    config: ModelConfig
    train: TrainConfig
    sampling: Sampling
    tokenizer: str = ""


def training_of(train: Mapping[str, Any] | None) -> TrainConfig:
    """Return the training configuration of a model, or the default one if it has none."""
    return TrainConfig.from_dict(dict(train)) if train else TrainConfig(max_steps=STEPS)


def plan_of_preset(name: str) -> Plan:
    """Return the configurations of a preset, with training and sampling of its recipe.

    Raises:
        UserError: the preset does not exist.
    """
    config, settings = network_shape(name), load_settings(settings={"model.preset": name})
    train = training_of(train_config(settings.train, config.to_dict(), "cpu", STEPS))
    return Plan(config, train, settings.generate, settings.tokenizer.kind)


def plan_of_folder(folder: Path) -> Plan:
    """Return the configurations of a model in a folder, without reading its weights."""
    found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    kind = load_tokenizer(folder / TOKENIZER_FILE).kind
    train, sampling = training_of(found.get("train")), sampling_of(found)
    return Plan(ModelConfig.from_dict(found["model"]), train, sampling, kind)


def sampling_of(bundle: Mapping[str, Any]) -> GenerateSettings:
    """Return the sampling settings recorded in a model's config.json."""
    return GenerateSettings(**bundle.get("sampling", {}))


def write_diagrams(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Write each diagram as NAME.svg and all as diagrams.json; returns the content of the JSON file.

    Raises:
        UserError: the folder cannot be written.
    """
    found = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for diagram in diagrams(plan):
            file = folder / f"{diagram.name}.svg"
            file.write_text(to_svg(diagram, STYLE), encoding="utf-8")
            found.append({**asdict(diagram), "file": str(file)})
        text = json.dumps({"diagrams": found}, ensure_ascii=False, indent=1)
        (folder / "diagrams.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    return found


def diagrams(plan: Plan) -> list[Diagram]:
    """Return all diagrams of a model."""
    return [
        _system(plan),
        _block(plan.config),
        _block_formula(plan.config),
        _increments(plan.config),
        _attention(plan.config),
        _chain("attention-formula", "Attention in one formula", [_IN, _attention_operator(plan.config), _OUT]),
        _training(plan),
        _feedback(plan),
        _generation(plan),
        *_reductions(plan.config),
    ]


_IN, _OUT = Node("x", "x", (), "io"), Node("y", "A(x)", (), "io")


def _chain(name: str, title: str, nodes: Sequence[Node], *edges: Edge) -> Diagram:
    return Diagram(name, title, tuple((node,) for node in nodes), (*_in_order(nodes), *edges))


def _in_order(nodes: Sequence[Node]) -> list[Edge]:
    return [Edge(one.id, other.id) for one, other in pairwise(nodes)]


def _norm(config: ModelConfig) -> str:
    return "LayerNorm" if config.norm == "layernorm" else "RMSNorm"


def _of_blocks(config: ModelConfig) -> str:
    return f"{sum(layer_parameters(config).values()):,} parameters"


def _system(plan: Plan) -> Diagram:
    """From characters to sampled tokens."""
    config, d, vocabulary = plan.config, plan.config.d_model, f"{plan.config.vocab_size:,} ids"
    counts = count_parameters(config)
    nodes = [
        Node("text", "characters", (), "io"),
        Node("tokeniser", "Tokeniser", (*([plan.tokenizer] if plan.tokenizer else []), vocabulary)),
        Node("ids", "token ids", (f"T of them, at most {config.max_seq_len:,}",), "io"),
        Node("embedding", "Embedding", (f"token_embedding · {config.padded_vocab_size:,} × {d:,}",)),
    ]
    if config.pos in ("learned", "sinusoidal"):
        nodes.append(Node("position", "Position", (f"+ {config.pos} · {config.max_seq_len:,} × {d:,}",)))
    if config.drop_embed:
        nodes.append(Node("drop", f"Dropout {config.drop_embed:g}", (), "drop"))
    turned = ("rotates queries and keys",) if config.pos == "rope" else ()
    for number in sorted({1, min(2, config.n_layer), config.n_layer}):
        if number == config.n_layer > 3:
            nodes.append(Node("more", f"… {config.n_layer - 3} more …", (), "drop"))
        notes = (f"blocks.{number - 1} · {_of_blocks(config)}", *turned)
        nodes.append(Node(f"block{number}", f"Block {number}", notes, "mix"))
    if config.final_norm:
        nodes.append(Node("norm", "Final norm", (f"norm · {_norm(config)}, eps {config.norm_eps:g}",), "norm"))
    head = "token_embedding (tied)" if config.tie_weights else f"untied_head · {d:,} × {config.padded_vocab_size:,}"
    bias = (f"+ head_bias · {config.padded_vocab_size:,}",) if config.head_bias else ()
    nodes += [
        Node("head", "Output projection", (head, *bias)),
        Node("logits", "logits", (f"T × {config.vocab_size:,}",), "io"),
        Node("softmax", "Softmax", ("of the last row",), "norm"),
        Node("sampling", "Sampling", _choice(plan.sampling), "feed"),
        Node("next", "next token id", (f"one of {vocabulary}",), "io"),
        Node("decode", "Tokeniser", ("id to characters",)),
        Node("more_text", "characters", (), "io"),
    ]
    title = f"From characters to sampled tokens: the whole network, {counts['total']:,} parameters"
    return _chain("system", title, nodes, Edge("next", "ids", "appended"))


def _choice(sampling: Sampling) -> tuple[str, ...]:
    """Return the sampling settings as lines of a box."""
    if sampling.strategy != "sample" or not sampling.temperature:
        return ("greedy" if not sampling.temperature else f"{sampling.strategy} search",)
    kept = [f"top-k {sampling.top_k}"] if sampling.top_k else []
    kept += [f"top-p {sampling.top_p:g}"] if sampling.top_p is not None and sampling.top_p < 1 else []
    return f"temperature {sampling.temperature:g}", *([", ".join(kept)] if kept else []), f"seed {sampling.seed}"


def _branches(config: ModelConfig) -> tuple[Node, Node]:
    parts = layer_parameters(config)
    shared = config.n_kv_head != config.n_head
    heads = f"{config.n_head} heads × {config.head_dim}" + (f" · {config.n_kv_head} key-value heads" if shared else "")
    inside = (f"dropout {config.drop_ffn:g} inside",) if config.drop_ffn else ()
    return (
        Node(
            "attention",
            "Grouped-query attention" if shared else "Multi-head attention",
            (heads, f"blocks.0.attention · {parts['attention']:,} parameters"),
            "mix",
        ),
        Node(
            "mlp",
            "Gated feed-forward" if config.is_gated else "Feed-forward",
            (
                f"{config.d_model} → {config.d_ff} → {config.d_model} · {config.act}",
                *inside,
                f"blocks.0.mlp · {parts['mlp']:,} parameters",
            ),
            "feed",
        ),
    )


def _block(config: ModelConfig) -> Diagram:
    """One block: norms, branches and residual connections."""
    is_post = config.norm_order == "post"
    nodes, bypasses = [Node("h0", "state h₀", (f"T × {config.d_model}",), "io")], []
    for branch in _branches(config):
        norm = Node(
            f"norm_{branch.id}", _norm(config), (f"blocks.0.norm_{branch.id} · eps {config.norm_eps:g}",), "norm"
        )
        drop = Node(f"drop_{branch.id}", f"Dropout {config.drop_resid:g}", (), "drop")
        total = Node(f"sum_{branch.id}", "+", (), "sum")
        bypasses.append(Edge(nodes[-1].id, total.id, "residual"))
        nodes += [] if is_post else [norm]
        out = Node(f"norm_{branch.id}_out", _norm(config), (f"blocks.0.norm_{branch.id}_out",), "norm")
        has_both = config.norm_order == "both"
        nodes += [branch, *([out] if has_both else []), *([drop] if config.drop_resid else []), total]
        nodes += [norm] if is_post else []
    nodes.append(Node("h1", "state h₁", (), "io"))
    kind = "pre- and post-norm" if config.norm_order == "both" else f"{config.norm_order}-norm"
    return _chain("block", f"One {kind} block in detail", nodes, *bypasses)


def _block_formula(config: ModelConfig) -> Diagram:
    start, end = ("D(", ")") if config.drop_resid else ("", "")
    if config.norm_order == "both":
        start, end = f"{start}N(", f"){end}"
    if config.norm_order == "post":
        formula = (f"y = N₁(x + {start}A(x){end})", f"G(x) = N₂(y + {start}F(y){end})")
    else:
        formula = (f"y = x + {start}A(N₁(x)){end}", f"G(x) = y + {start}F(N₂(y)){end}")
    drop = f", D dropout {config.drop_resid:g}" if config.drop_resid else ""
    names = f"A attention, F mlp, N {_norm(config)}{drop}"
    nodes = [Node("x", "x", (), "io"), Node("g", "Block G", (*formula, names), "mix")]
    return _chain("block-formula", "One block in one formula", [*nodes, Node("y", "G(x) = x + Δ(x)", (), "io")])


def _increments(config: ModelConfig) -> Diagram:
    """The residual stream as a sum of increments."""
    nodes, bypasses = [Node("h0", "h₀", (f"T × {config.d_model}",), "io")], []
    inner = ("h₀", "h₀ + Δ₁(h₀)", "h₀ + Δ₁(h₀) + Δ₂(h₀ + Δ₁(h₀))")
    for number in range(1, min(config.n_layer, 2) + 1):
        sub = "₀₁₂"[number]
        bypasses.append(Edge(nodes[-1].id, f"sum{number}", "identity"))
        notes = (f"G{sub}(x) − x of block {number}", _of_blocks(config))
        nodes.append(Node(f"d{number}", f"Δ{sub}({inner[number - 1]})", notes, "mix"))
        nodes.append(Node(f"sum{number}", "+", (), "sum"))
        nodes.append(Node(f"h{number}", f"h{sub} = {inner[number]}", (), "io"))
    if config.n_layer > 2:
        nodes.append(Node("last", f"h_{config.n_layer} = h₀ + the {config.n_layer} increments", (), "io"))
    return _chain("increments", "The blocks as nested increments", nodes, *bypasses)


def _attention_operator(config: ModelConfig) -> Node:
    formula = ("Q, K, V = projections of x", f"A(x) = softmax(mask(Q Kᵀ / √{config.head_dim})) V W")
    return Node("a", "Attention A", formula, "mix")


def _attention(config: ModelConfig) -> Diagram:
    width, d = config.head_dim, config.d_model
    heads = {"q": config.n_head, "k": config.n_kv_head, "v": config.n_kv_head}
    rows: list[tuple[Node | None, ...]] = [
        (Node("x", "x", (f"T × {d}",), "io"),),
        tuple(Node(name, name.upper(), (f"{d} → {n} × {width}",), "mix") for name, n in heads.items()),
    ]
    prepared = [("norm", "RMSNorm", f"over {width}")] if config.qk_norm else []
    prepared += [("rotated", "Rotate", f"{config.rope_dim} columns")] if config.pos == "rope" else []
    for name, title, note in prepared:
        rows.append((*(Node(f"{name}_{part}", title, (note,), "norm") for part in ("q", "k")), None))
    reach = f", window {config.window}" if config.window else ""
    tail = [
        Node("scores", "Scores", (f"q · kᵀ / √{width}", f"{config.n_head} × T × T"), "mix"),
        Node("mask", "Mask", (f"causal{reach}; −∞ elsewhere",)),
        Node("softmax", "Softmax", ("rows sum to 1",), "norm"),
        *([Node("drop", f"Dropout {config.drop_attn:g}", (), "drop")] if config.drop_attn else []),
        Node("mixed", "Weighted values", ("weights × values, in each head",), "mix"),
        Node("joined", "Concatenate heads", (f"{config.n_head} × {width} = {config.n_head * width} columns",)),
        Node("proj", "Output projection", (f"{config.n_head * width} → {d}",), "mix"),
        Node("y", "attention output", (f"T × {d}",), "io"),
    ]
    edges = [Edge("x", name) for name in heads]
    for part in ("q", "k"):
        way = [part, *(f"{name}_{part}" for name, _, _ in prepared), "scores"]
        edges += [Edge(one, other) for one, other in pairwise(way)]
    rows += [(node,) for node in tail]
    return Diagram("attention", "Attention in detail", tuple(rows), (*edges, Edge("v", "mixed"), *_in_order(tail)))


def _training(plan: Plan) -> Diagram:
    """Training as a closed loop: the loss is the error, the optimiser the controller, the network the plant."""
    config, train = plan.config, plan.train
    total, chance = count_parameters(config)["total"], math.log(config.vocab_size)
    shape = f"{train.batch_size} × {config.max_seq_len:,}"
    batch = shape + (f", {train.grad_accum} times" if train.grad_accum > 1 else "")
    floor = f", floor {train.min_lr_ratio:g} of it" if train.min_lr_ratio is not None else ""
    warmup = f", warm-up {train.warmup_steps}" if train.warmup_steps else ""
    rate = (f"gain schedule: {train.schedule}{warmup}", f"peak {train.lr:g}{floor}")
    betas = f"β {train.betas[0]:g}, {train.betas[1]:g}; ε {train.eps:g}; decay {train.weight_decay:g}"
    length = f"{train.minutes:g} minutes" if train.minutes else f"{train.max_steps:,} steps"
    clip = Node("clip", "Clip", (f"norm at most {train.clip_norm:g}",), "norm")
    nodes = [
        Node("batch", "batch of tokens", (batch,), "io"),
        Node("network", "Network", ("plant", f"{total:,} parameters θ"), "mix"),
        Node("logits", "Logits", (f"{shape} × {config.vocab_size:,}",), "io"),
        Node(
            "loss",
            "Loss",
            ("error signal: cross-entropy per token", f"uniform: ln {config.vocab_size:,} = {chance:.3f}"),
            "norm",
        ),
        Node("gradient", "Gradient", (f"backward pass: {total:,} values",)),
        *([clip] if train.clip_norm else []),
        Node("optimizer", _OPTIMIZERS[train.optimizer], ("controller", betas), "feed"),
        Node("rate", "Learning rate", rate, "feed"),
        Node(
            "update",
            "Update",
            ("actuator: θ ← θ + Δθ", length),
            "feed",
        ),
    ]
    return _chain("training", "Training as a closed loop", nodes, Edge("update", "network", "H₁: θ"))


def _feedback(plan: Plan) -> Diagram:
    """The training loop reduced to a scalar transfer function, with the learning rate as feedback gain."""
    rate, total = plan.train.lr, count_parameters(plan.config)["total"]
    closed = tuple(f"G = {gain:,}: C/R = {gain / (1 + gain * rate):.5g}" for gain in LOOP_GAINS)
    nodes = [
        Node("r", "R: tokens", (), "io"),
        Node("sum", "−", (), "sum"),
        Node("g", "G forward = G out ∘ G layers ∘ G in", (f"{total:,} parameters",), "mix"),
        Node("c", "C: logits", (f"{plan.config.vocab_size:,} per token",), "io"),
        Node("h", "H₁: update of θ", (f"gain at most the peak rate, {rate:g}",), "feed"),
    ]
    note = Node("closed", "C/R = G / (1 + G H₁)", (f"a scalar illustration, H₁ = {rate:g}", *closed), "norm")
    rows = (*((node,) for node in nodes), (note,))
    edges = (*_in_order(nodes), Edge("h", "sum", "H₁"))
    return Diagram("feedback", "The closed loop as one transfer function", rows, edges)


def _generation(plan: Plan) -> Diagram:
    """Generation as a control loop: the chosen token is fed back into the state."""
    config, sampling = plan.config, plan.sampling
    bound = f"{sampling.max_length} in all" if sampling.max_length else f"{sampling.max_new_tokens} new"
    nodes = [
        Node("prompt", "prompt x₁ … x_t", (f"context of {config.max_seq_len:,} tokens",), "io"),
        Node(
            "state",
            "State h_t",
            ("F(x₁ … x_t, θ), keys and values kept", f"{config.n_layer} × t × {config.d_model}"),
            "mix",
        ),
        Node("logits", "Output", (f"last row: {config.vocab_size:,} logits",)),
        Node("p", "p_t = softmax(logits / τ)", (f"τ = {sampling.temperature:g}",), "norm"),
        Node("choice", "Controller: choose x_t+1", _choice(sampling), "feed"),
        Node("ended", "End of text or limit?", (f"{bound} tokens",)),
        Node("text", "text", (), "io"),
    ]
    return _chain("generation", "Generation as a control loop", nodes, Edge("ended", "state", "no: t ← t + 1"))


def _reductions(config: ModelConfig) -> list[Diagram]:
    """The operators of the network, composed step by step into one."""
    last = config.n_layer
    blocks = [Node("b1", "G block 1"), *([Node("more", "…", (), "drop")] if last > 2 else [])]
    blocks += [Node("bl", f"G block {last}")] if last > 1 else []
    norm = [Node("norm", "G norm", (), "norm")] if config.final_norm else []
    position = [Node("position", "G position")] if config.pos in ("learned", "sinusoidal") else []
    into = "G position ∘ G embedding" if position else "G embedding"
    out = "G out ∘ G norm" if norm else "G out"
    composed = f"block {last} ∘ … ∘ block 1" if last > 1 else "block 1"
    layers = Node("layers", "G layers", (composed, "x + Δ₁(x) + Δ₂(x + Δ₁(x)) + …"), "mix")
    steps = {
        "All operators": [Node("e", "G embedding"), *position, *blocks, *norm, Node("out", "G out")],
        "Input composed": [Node("in", "G in", (f"G in = {into}",)), *blocks, *norm, Node("out", "G out")],
        "Blocks composed": [Node("in", "G in"), layers, *norm, Node("out", "G out")],
        "Output composed": [Node("g", "G forward", (f"{out} ∘ G layers ∘ G in",), "mix")],
        "One operator": [Node("g", "logits = G(ids)", ("no feedback within a forward pass",), "mix")],
    }
    ends = Node("ids", "ids", (), "io"), Node("logits", "logits", (), "io")
    return [
        _chain(f"reduction-{letter}", f"Reduction ({letter}): {title}", [ends[0], *nodes, ends[1]])
        for letter, (title, nodes) in zip("abcde", steps.items(), strict=True)
    ]


STYLE = """.blocks{color:#2b2b28;font:13px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.blocks{color:#e4e2da}}
.blocks rect,.blocks circle{fill:currentColor;fill-opacity:.04;stroke:currentColor;stroke-opacity:.5}
.blocks .io{stroke-dasharray:4 3;fill-opacity:0}.blocks .drop{stroke-dasharray:3 3}
.blocks .mix{fill:#3f7fbf;fill-opacity:.16}.blocks .feed{fill:#4f9a5b;fill-opacity:.18}
.blocks .norm{fill:#c99a2e;fill-opacity:.18}.blocks text{fill:currentColor;text-anchor:middle}
.blocks .note{font-size:11px;fill-opacity:.75}.blocks path{fill:none;stroke:currentColor;stroke-opacity:.7}
.blocks .side{stroke:#b3541e;stroke-width:1.6;stroke-opacity:1}.blocks .tip{fill:currentColor;stroke:none}"""


def to_svg(diagram: Diagram, style: str = "") -> Markup:
    """Return a diagram as an SVG element for a page with the CSS `STYLE`, or as a document if a style is given."""
    boxes, height = _placed(diagram)
    rows = {node.id: place for place, row in enumerate(diagram.rows) for node in row if node is not None}
    lines, sides = [], []
    taken: list[tuple[bool, int, int]] = []  # side arrows so far: right side, first and last row
    for edge in sorted(diagram.edges, key=lambda edge: abs(rows[edge.target] - rows[edge.source])):
        (x, top, width, tall), (to_x, to_top, to_width, to_tall) = boxes[edge.source], boxes[edge.target]
        first, last = rows[edge.source], rows[edge.target]
        if last == first + 1:
            lines.append(((x, top + tall), (to_x, to_top - 2)))
            continue
        right, low, high = last > first, min(first, last), max(first, last)
        lane = LANE * (1 + sum(side == right and low < end and begin < high for side, begin, end in taken))
        taken.append((right, low, high))
        side = 0.5 if right else -0.5
        begin = (x + side * width, top + tall / 2)
        end = (to_x + side * (to_width + 4), to_top + to_tall / 2)
        sides.append((begin, MARGIN + WIDTH + lane if right else MARGIN - lane, end, edge.label))
    placed = [(node, *boxes[node.id]) for row in diagram.rows for node in row if node is not None]
    wide = WIDTH + 2 * MARGIN
    return macro(
        "diagrams.html", "picture", diagram.name, diagram.title, wide, height, placed, lines, sides, Markup(style)
    )


def _placed(diagram: Diagram) -> tuple[dict[str, tuple[float, float, float, float]], float]:
    """Return each box as (centre x, top, width, height), and the total height."""
    boxes, top = {}, 8.0
    for row in diagram.rows:
        column = WIDTH / len(row)
        tall = max(10 + LINE * (1 + len(node.notes)) for node in row if node is not None)
        for place, node in enumerate(row):
            if node is not None:
                width = 25.0 if node.kind == "sum" else column - (8 if len(row) > 1 else 0)
                boxes[node.id] = (MARGIN + column * (place + 0.5), top, width, float(tall))
        top += tall + GAP
    return boxes, top - GAP + 8
