"""Block diagrams drawn from the network's own modules: what is not in the network is not in the picture."""

from __future__ import annotations

from torch import nn

from model.attention import Attention
from model.transformer import Block, FeedForward
from tasks.report.inspect.elements import named
from tasks.report.inspect.flowchart import Box, Part, Sum, Tap, chain
from tasks.report.inspect.subject import Subject
from tasks.report.inspect.svg import Picture

_SHOWN_BLOCKS = 4  # of a deep network's chain


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


def block_parts(subject: Subject, block: Block) -> list[Part]:
    """The parts of one block, in the order in which they run."""
    drop = _dropout(block.dropout.p)
    attention, feed = _attention_box(subject, block.attention), _feed_box(subject, block.mlp)
    first, second = (_norm(subject, norm) for norm in (block.norm_attention, block.norm_mlp))
    if block.post_norm:
        return [Tap(), attention, *drop, Sum(), first, Tap(), feed, *drop, Sum(), second]
    return [Tap(), first, attention, *drop, Sum(), Tap(), second, feed, *drop, Sum()]


def one_block(subject: Subject, number: int = 1) -> Picture:
    """(a) A block in detail."""
    block = subject.model.blocks[number - 1]
    assert isinstance(block, Block)
    order = "post-norm" if block.post_norm else "pre-norm"
    ends = Box(f"state h{number - 1}", (), "io"), Box(f"state h{number}", (), "io")
    return chain("diagram-block", f"One {order} block in detail", [ends[0], *block_parts(subject, block), ends[1]], 236)


def block_formula(subject: Subject) -> list[str]:
    """The block in one formula, in lines that fit a box."""
    block = subject.model.blocks[0]
    assert isinstance(block, Block)
    wrap = ("D(", ")") if block.dropout.p else ("", "")
    if block.post_norm:
        return [f"y = N₁(x + {wrap[0]}A(x){wrap[1]})", f"G(x) = N₂(y + {wrap[0]}F(y){wrap[1]})"]
    return [f"y = x + {wrap[0]}A(N₁(x)){wrap[1]}", f"G(x) = y + {wrap[0]}F(N₂(y)){wrap[1]}"]


def one_line_block(subject: Subject) -> Picture:
    """(b) A block as one operator."""
    block = subject.model.blocks[0]
    assert isinstance(block, Block)
    where = [
        f"A {named(subject.model, block.attention).split('.')[-1]}, F {named(subject.model, block.mlp).split('.')[-1]}"
    ]
    norm = type(block.norm_attention).__name__
    where += [f"N {norm}" + (f", D dropout {block.dropout.p:g}" if block.dropout.p else "")]
    parts = [
        Box("x", (), "io"),
        Box("Block G", (*block_formula(subject), *where), "mix"),
        Box("G(x) = x + Δ(x)", (), "io"),
    ]
    return chain("diagram-line", "The same block in one formula", parts, 236)


def whole_model(subject: Subject) -> Picture:
    """(c) The network from ids to probabilities."""
    model, config = subject.model, subject.config
    table = model.token_embedding
    parts: list[Part] = [
        Box("token ids", (), "io"),
        Box("Embedding", (f"token_embedding · {tuple(table.weight.shape)}",)),
    ]
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
    return chain("diagram-model", "The whole network", parts, 236)


def reductions(subject: Subject) -> list[Picture]:
    """The whole network with ever more of its operators put together."""
    last = subject.config.n_layer
    blocks = [Box(f"G block {number}") for number in ((1,) if last == 1 else (1, last))]
    chained = [blocks[0], *([Box("…", (), "drop")] if last > 2 else []), *blocks[1:]]
    ends = Box("ids", (), "io"), Box("logits", (), "io")
    norm = [Box("G norm", (), "norm")] if subject.config.final_norm else []
    position = [Box("G position")] if subject.config.pos in ("learned", "sinusoidal") else []
    into = "G in = " + ("G position ∘ G embedding" if position else "G embedding")
    out = "G out ∘ G norm" if norm else "G out"
    layers = Box(
        "G layers", (f"block {last} ∘ … ∘ block 1" if last > 1 else "block 1", "x + Δ₁ + … + Δ" + _low(last)), "mix"
    )
    rows: list[tuple[str, list[Box]]] = [
        ("1. All operators", [Box("G embedding"), *position, *chained, *norm, Box("G out")]),
        ("2. Input put together", [Box("G in", (into,)), *chained, *norm, Box("G out")]),
        ("3. Blocks put together", [Box("G in"), layers, *norm, Box("G out")]),
        ("4. Output put together", [Box("G forward", (f"{out} ∘ G layers ∘ G in",), "mix")]),
        ("5. One operator", [Box("logits = G(ids)", ("a chain: nothing is fed back", "within one pass"), "mix")]),
    ]
    return [
        chain(f"diagram-reduce-{index}", title, [ends[0], *parts, ends[1]], 196)
        for index, (title, parts) in enumerate(rows, 1)
    ]


def _low(value: int) -> str:
    return "".join(chr(0x2080 + int(digit)) for digit in str(value))


def reduced_attention(subject: Subject) -> Picture:
    """Attention as one operator."""
    module = subject.model.blocks[0].attention
    assert isinstance(module, Attention)
    lines = ("Q, K, V = projection of x", f"A(x) = softmax(mask(Q Kᵀ / √{module.head_dim})) V W")
    parts = [Box("x", (), "io"), Box("Attention A", lines, "mix"), Box("A(x)", (), "io")]
    return chain("diagram-attention-line", "Attention in one formula", parts, 260)
