"""Block diagrams drawn from the network's own modules: what is not in the network is not in the picture.

A chain runs from top to bottom, with sums that a bypass leads around; attention from the inside and the training loop
have more than one line. The description of each names its parts in order, so that it says what the drawing shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup
from torch import nn

from model.attention import Attention
from model.transformer import Block, FeedForward
from tasks.report.charts import Point, drawing, element, label, path
from tasks.report.inspect.architecture import named, optimizer_name
from tasks.report.inspect.subject import Subject

_GAP, _LINE = 22.0, 16.0
_LETTER = 6.1  # width of a note's letter, in pixels
_SHOWN_BLOCKS = 4  # of a deep network's chain


@dataclass(frozen=True)
class Box:
    """One operator.

    Attributes:
        notes: smaller lines below the title, such as its module's name and settings.
        kind: class for its colour: io, norm, mix, feed, drop or plain.
    """

    title: str
    notes: tuple[str, ...] = ()
    kind: str = "plain"

    @property
    def height(self) -> float:
        return 30 + _LINE * len(self.notes)


@dataclass(frozen=True)
class Tap:
    """Where a bypass leaves the line; the next Sum takes it in again."""


@dataclass(frozen=True)
class Sum:
    """Adds the bypass that the last Tap opened."""


Part = Box | Tap | Sum


class Diagram(NamedTuple):
    """A drawing under its title."""

    title: str
    markup: Markup


class _Sheet:
    """Boxes and wires drawn so far, and the words that say the same."""

    def __init__(self) -> None:
        self.drawn: list[Markup] = []
        self.words: list[str] = []

    def put(self, part: Box, x: float, y: float, width: float) -> float:
        """Draw a box with its top at y, centred on x; return where it ends."""
        box = {"x": x - width / 2, "y": y, "width": width, "height": part.height}
        self.drawn.append(
            element("rect", **box, rx=part.height / 2 if part.kind == "io" else 7, class_=f"box {part.kind}")
        )
        for index, words in enumerate((part.title, *part.notes)):
            class_ = "note" if index else "name"
            self.drawn.append(label(x, y + 19 + _LINE * index, words, class_, text_anchor="middle"))
        self.words.append(" ".join((part.title, *part.notes)))
        return y + part.height

    def wire(self, *points: Point, head: str = "down", class_: str = "wire") -> None:
        """Draw a line that ends in an arrow."""
        turn = {"down": 0, "left": 90, "up": 180, "right": 270}[head]
        place = "translate({:g} {:g}) rotate({})".format(*points[-1], turn)
        self.drawn += [path(*points, class_=class_), element("path", d="M0 0L-4 -7H4Z", class_="tip", transform=place)]

    def below(self, part: Box, x: float, y: float, width: float) -> float:
        """Draw a box one step below y, with the wire to it; return where it ends."""
        self.wire((x, y), (x, y + _GAP))
        return self.put(part, x, y + _GAP, width)

    def diagram(self, name: str, title: str, opening: str, width: float, height: float) -> Diagram:
        """The finished drawing."""
        words = f"{opening}: {'; '.join(self.words)}."
        return Diagram(title, drawing(name, title, words, (width, height), *self.drawn))


def chain(name: str, title: str, parts: Sequence[Part], width: float = 236) -> Diagram:
    """Parts from top to bottom."""
    notes = [note for part in parts if isinstance(part, Box) for note in part.notes]
    width = max(width, _LETTER * max(map(len, notes), default=0) + 20)
    sheet, centre, bottom, tap = _Sheet(), width / 2 + 12, 8.0, 0.0
    for place, part in enumerate(parts):
        if isinstance(part, Tap):
            tap = bottom + 9
            sheet.drawn.append(element("circle", cx=centre, cy=tap, r=2.5, class_="joint"))
            sheet.words.append("the line branches")
            continue
        y = bottom
        if place:
            y += _GAP + (8 if tap else 2)
            sheet.wire((centre, bottom), (centre, y))
        if isinstance(part, Box):
            bottom = sheet.put(part, centre, y, width)
        else:
            middle, side = y + 11, centre + width / 2 + 22
            way = ((centre, tap), (side, tap), (side, middle), (centre + 11, middle))
            sheet.wire(*way, head="left", class_="wire bypass")
            sheet.drawn.append(element("circle", cx=centre, cy=middle, r=11, class_="sum"))
            sheet.drawn.append(path((centre - 5, middle), (centre + 5, middle), class_="wire"))
            sheet.drawn.append(path((centre, middle - 5), (centre, middle + 5), class_="wire"))
            sheet.words.append("the branch is added")
            bottom, tap = y + 22, 0.0
    total = centre + width / 2 + (30 if any(isinstance(part, Sum) for part in parts) else 12)
    return sheet.diagram(name, title, "From top to bottom", total, bottom + 8)


# ---- parts of the network


def count(module: nn.Module) -> str:
    """Number of a module's parameters, in words."""
    return f"{sum(parameter.numel() for parameter in module.parameters()):,} parameters"


def _norm(subject: Subject, module: nn.Module, title: str = "") -> Box:
    eps = f"eps {module.eps:g}" if hasattr(module, "eps") else ""
    return Box(title or type(module).__name__, (f"{named(subject.model, module)} · {eps}",), "norm")


def _dropout(share: float) -> list[Part]:
    """A dropout only where something is dropped."""
    return [Box(f"Dropout {share:g}", (), "drop")] if share else []


def _attention_box(subject: Subject, module: Attention) -> Box:
    heads, shared, _ = module.heads
    kind = "Multi-head attention" if shared == heads else "Grouped-query attention"
    sizes = f"{heads} heads × {module.head_dim}" + (f" · {shared} key-value heads" if shared != heads else "")
    return Box(kind, (sizes, f"{named(subject.model, module)} · {count(module)}"), "mix")


def _feed_box(subject: Subject, module: FeedForward) -> Box:
    config = subject.config
    kind = "Feed-forward" if module.gate is None else "Gated feed-forward"
    inside = f"{config.d_model} → {config.d_ff} → {config.d_model} · {config.act}"
    dropped = (f"dropout {module.dropout.p:g} inside",) if module.dropout.p else ()
    return Box(kind, (inside, *dropped, f"{named(subject.model, module)} · {count(module)}"), "feed")


def _first_block(subject: Subject) -> Block:
    block = subject.model.blocks[0]
    assert isinstance(block, Block)
    return block


def block_parts(subject: Subject) -> list[Part]:
    """The parts of the first block, in the order in which they run."""
    block = _first_block(subject)
    drop = _dropout(block.dropout.p)
    attention, feed = _attention_box(subject, block.attention), _feed_box(subject, block.mlp)
    first, second = (_norm(subject, norm) for norm in (block.norm_attention, block.norm_mlp))
    if block.post_norm:
        return [Tap(), attention, *drop, Sum(), first, Tap(), feed, *drop, Sum(), second]
    return [Tap(), first, attention, *drop, Sum(), Tap(), second, feed, *drop, Sum()]


def one_block(subject: Subject) -> Diagram:
    """(a) A block in detail."""
    order = "post-norm" if _first_block(subject).post_norm else "pre-norm"
    parts = [Box("state h0", (), "io"), *block_parts(subject), Box("state h1", (), "io")]
    return chain("diagram-block", f"One {order} block in detail", parts)


def block_formula(subject: Subject) -> list[str]:
    """The block in one formula, in lines that fit a box."""
    block = _first_block(subject)
    wrap = ("D(", ")") if block.dropout.p else ("", "")
    if block.post_norm:
        return [f"y = N₁(x + {wrap[0]}A(x){wrap[1]})", f"G(x) = N₂(y + {wrap[0]}F(y){wrap[1]})"]
    return [f"y = x + {wrap[0]}A(N₁(x)){wrap[1]}", f"G(x) = y + {wrap[0]}F(N₂(y)){wrap[1]}"]


def one_line_block(subject: Subject) -> Diagram:
    """(b) A block as one operator."""
    block = _first_block(subject)
    attention, feed = (named(subject.model, part).split(".")[-1] for part in (block.attention, block.mlp))
    norm = type(block.norm_attention).__name__
    where = [f"A {attention}, F {feed}", f"N {norm}" + (f", D dropout {block.dropout.p:g}" if block.dropout.p else "")]
    inside = Box("Block G", (*block_formula(subject), *where), "mix")
    parts = [Box("x", (), "io"), inside, Box("G(x) = x + Δ(x)", (), "io")]
    return chain("diagram-line", "The same block in one formula", parts)


def whole_model(subject: Subject) -> Diagram:
    """(c) The network from ids to probabilities."""
    model, config = subject.model, subject.config
    table = model.token_embedding
    embedding = Box("Embedding", (f"token_embedding · {tuple(table.weight.shape)}",))
    parts: list[Part] = [Box("token ids", (), "io"), embedding]
    if model.position_table is not None:
        parts.append(Box("Position", (f"+ position_table · {config.pos}",)))
    parts += _dropout(model.dropout.p)
    rotary = ("rotates queries and keys (rope)",) if model.rotation_table is not None else ()
    for number in range(1, config.n_layer + 1):
        if config.n_layer <= _SHOWN_BLOCKS or number in (1, 2, config.n_layer):
            block = model.blocks[number - 1]
            parts.append(Box(f"Block {number}", (f"{named(model, block)} · {count(block)}", *rotary), "mix"))
        elif number == 3:
            parts.append(Box(f"… {config.n_layer - 3} more blocks …", (), "drop"))
    if config.final_norm:
        parts.append(_norm(subject, model.norm, "Final norm"))
    tied = "the token table again (tied)" if model.untied_head is None else f"untied_head · {count(model.untied_head)}"
    bias = () if model.head_bias is None else (f"+ head_bias · {len(model.head_bias)}",)
    parts += [Box("Output projection", (tied, *bias)), Box("Softmax"), Box("next-token probabilities", (), "io")]
    return chain("diagram-model", "The whole network", parts)


def reductions(subject: Subject) -> list[Diagram]:
    """The whole network with ever more of its operators put together."""
    last = subject.config.n_layer
    blocks = [Box(f"G block {number}") for number in ((1,) if last == 1 else (1, last))]
    chained = [blocks[0], *([Box("…", (), "drop")] if last > 2 else []), *blocks[1:]]
    norm = [Box("G norm", (), "norm")] if subject.config.final_norm else []
    position = [Box("G position")] if subject.config.pos in ("learned", "sinusoidal") else []
    into = "G in = " + ("G position ∘ G embedding" if position else "G embedding")
    out = "G out ∘ G norm" if norm else "G out"
    low = "".join(chr(0x2080 + int(digit)) for digit in str(last))
    composed = f"block {last} ∘ … ∘ block 1" if last > 1 else "block 1"
    layers = Box("G layers", (composed, f"x + Δ₁ + … + Δ{low}"), "mix")
    rows: list[tuple[str, list[Box]]] = [
        ("1. All operators", [Box("G embedding"), *position, *chained, *norm, Box("G out")]),
        ("2. Input put together", [Box("G in", (into,)), *chained, *norm, Box("G out")]),
        ("3. Blocks put together", [Box("G in"), layers, *norm, Box("G out")]),
        ("4. Output put together", [Box("G forward", (f"{out} ∘ G layers ∘ G in",), "mix")]),
        ("5. One operator", [Box("logits = G(ids)", ("a chain: nothing is fed back", "within one pass"), "mix")]),
    ]
    return [
        chain(f"diagram-reduce-{index}", title, [Box("ids", (), "io"), *parts, Box("logits", (), "io")], 196)
        for index, (title, parts) in enumerate(rows, 1)
    ]


def reduced_attention(subject: Subject) -> Diagram:
    """Attention as one operator."""
    head_dim = _first_block(subject).attention.head_dim
    lines = ("Q, K, V = projection of x", f"A(x) = softmax(mask(Q Kᵀ / √{head_dim})) V W")
    parts = [Box("x", (), "io"), Box("Attention A", lines, "mix"), Box("A(x)", (), "io")]
    return chain("diagram-attention-line", "Attention in one formula", parts, 260)


# ---- more than one line


def attention_detail(subject: Subject) -> Diagram:
    """(e) Attention from the inside: three lines from one projection, joined by scores and by mixing."""
    module, config, model = _first_block(subject).attention, subject.config, subject.model
    sheet, small, wide, centre = _Sheet(), 112.0, 348.0, 188.0
    columns = {"Q": 70.0, "K": 188.0, "V": 306.0}
    prefix = named(model, module)
    y = sheet.put(Box("x", (), "io"), centre, 8.0, small)
    y = sheet.below(Box("Projection", (f"{prefix}.qkv · {count(module.qkv)}",), "mix"), centre, y, wide)
    ends = {}
    for name, norm, n_heads in zip("QKV", (module.norm_q, module.norm_k, None), module.heads, strict=True):
        ends[name] = sheet.below(Box(name, (f"{n_heads} × {module.head_dim}",)), columns[name], y, small)
        if norm is not None:
            part = Box(type(norm).__name__, (named(model, norm).split(".")[-1],), "norm")
            ends[name] = sheet.below(part, columns[name], ends[name], small)
        if model.rotation_table is not None and name != "V":
            part = Box("Rotate", (f"{config.rope_dim} columns",), "norm")
            ends[name] = sheet.below(part, columns[name], ends[name], small)
    pair, pair_width = (columns["Q"] + columns["K"]) / 2, columns["K"] - columns["Q"] + small
    top = ends["Q"] + _GAP
    for name in "QK":
        sheet.wire((columns[name], ends[name]), (columns[name], top))
    y = sheet.put(Box("Scores", (f"q · kᵀ / √{module.head_dim}",), "mix"), pair, top, pair_width)
    reach = "causal" if config.window is None else f"causal, window {config.window}"
    for part in (Box("Mask", (f"{reach}; −∞ elsewhere",)), Box("Softmax", ("rows add to one",), "norm")):
        y = sheet.below(part, pair, y, pair_width)
    if module.dropout:
        y = sheet.below(Box(f"Dropout {module.dropout:g}", (), "drop"), pair, y, pair_width)
    sheet.wire((columns["V"], ends["V"]), (columns["V"], y + _GAP))
    y = sheet.below(Box("Mix the values", ("weights × values, in every head",), "mix"), centre, y, wide)
    joined = f"{module.heads[0]} × {module.head_dim} = {module.heads[0] * module.head_dim} columns"
    y = sheet.below(Box("Join the heads", (joined,)), centre, y, wide)
    y = sheet.below(Box("Output projection", (f"{prefix}.proj · {count(module.proj)}",), "mix"), centre, y, wide)
    y = sheet.below(Box("attention output", (), "io"), centre, y, 180)
    return sheet.diagram("diagram-attention", "Attention in detail", "From top to bottom", 2 * centre, y + 8)


def training_loop(subject: Subject) -> Diagram:
    """(d) Training as a closed loop: the loss is the error, the optimiser the controller, the network the plant."""
    train, sheet = subject.training, _Sheet()
    left, right, size = 94.0, 304.0, 168.0
    plant = Box("Network", ("plant", count(subject.model)), "mix")
    start = sheet.put(Box("batch of tokens", (), "io"), left, 8.0, size)
    plant_top = start + _GAP
    y = sheet.below(plant, left, start, size)
    y = sheet.below(Box("Logits"), left, y, size)
    loss_end = sheet.below(Box("Loss", ("error signal", "cross-entropy per token"), "norm"), left, y, size)
    way_back = [
        Box("Update", ("actuator", "θ ← θ + Δθ"), "feed"),
        Box(optimizer_name(subject), ("controller", f"decay {train.weight_decay:g}"), "feed"),
        *([Box("Clip", (f"norm at most {train.clip_norm:g}",), "norm")] if train.clip_norm else []),
        Box("Gradient", ("backward pass",)),
    ]
    tops, y = [], plant_top
    for part in way_back:
        tops.append(y)
        sheet.put(part, right, y, size)
        if y > plant_top:
            sheet.wire((right, y), (right, y - _GAP), head="up")
        y += part.height + _GAP
    gradient = tops[-1] + way_back[-1].height / 2
    if gradient > loss_end:
        sheet.wire((left, loss_end), (left, gradient), (right - size / 2, gradient), head="right")
    else:
        sheet.wire((left + size / 2, gradient), (right - size / 2, gradient), head="right")
    middle = plant_top + plant.height / 2
    sheet.wire((right - size / 2, middle), (left + size / 2, middle), head="left", class_="wire loop")
    sheet.drawn.append(label((left + right) / 2, middle - 8, "θ", "name", text_anchor="middle"))
    rate_top = max(loss_end + _GAP, y)
    end = sheet.put(Box("Learning rate", ("gain schedule", f"peak {train.lr:g}")), right, rate_top, size)
    side, controller = right + size / 2, tops[1] + way_back[1].height / 2
    way = ((side, end - 31), (side + 14, end - 31), (side + 14, controller), (side, controller))
    sheet.wire(*way, head="left")
    return sheet.diagram("diagram-training", "Training as a closed loop", "A closed loop", side + 22, end + 8)
