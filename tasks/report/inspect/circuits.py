"""Block diagrams with more than one line: attention from the inside, and training as a closed loop."""

from __future__ import annotations

from collections.abc import Sequence

from model.attention import Attention
from tasks.report.inspect.diagrams import count
from tasks.report.inspect.elements import named, optimizer_name
from tasks.report.inspect.flowchart import Box, box, box_height
from tasks.report.inspect.subject import Subject
from tasks.report.inspect.svg import Picture, arrow, label, line

_GAP = 22.0


class _Sheet:
    """Boxes and wires drawn so far, and the words that say the same."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.words: list[str] = []

    def put(self, part: Box, x: float, y: float, width: float) -> float:
        """Draws a box with its top at y; returns where it ends."""
        self.drawn.append(box(x, y, width, part))
        self.words.append(" ".join((part.title, *part.notes)))
        return y + box_height(part)

    def wire(self, *points: tuple[float, float], head: str = "down", class_: str = "wire") -> None:
        """Draws a line that ends in an arrow."""
        self.drawn += [line(*points, class_=class_), arrow(*points[-1], head)]

    def below(self, part: Box, x: float, y: float, width: float) -> float:
        """Draws a box one step below y, with the wire to it; returns where it ends."""
        self.wire((x, y), (x, y + _GAP))
        return self.put(part, x, y + _GAP, width)

    def picture(self, name: str, title: str, opening: str, width: float, height: float) -> Picture:
        """The finished drawing."""
        return Picture(name, title, f"{opening}: {'; '.join(self.words)}.", width, height, "".join(self.drawn))


def attention_detail(subject: Subject) -> Picture:
    """(e) Attention from the inside: three lines from one projection, joined by scores and by mixing."""
    module, config, model = subject.model.blocks[0].attention, subject.config, subject.model
    assert isinstance(module, Attention)
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
    sheet.wire((pair, y), (pair, y + _GAP))
    y = sheet.put(Box("Mix the values", ("weights × values, in every head",), "mix"), centre, y + _GAP, wide)
    joined = f"{module.heads[0]} × {module.head_dim} = {module.heads[0] * module.head_dim} columns"
    y = sheet.below(Box("Join the heads", (joined,)), centre, y, wide)
    y = sheet.below(Box("Output projection", (f"{prefix}.proj · {count(module.proj)}",), "mix"), centre, y, wide)
    y = sheet.below(Box("attention output", (), "io"), centre, y, 180)
    return sheet.picture("diagram-attention", "Attention in detail", "From top to bottom", 2 * centre, y + 8)


def training_loop(subject: Subject) -> Picture:
    """(d) Training as a closed loop: the loss is the error, the optimiser the controller, the network the plant."""
    train, sheet = subject.training, _Sheet()
    left, right, size, step = 94.0, 304.0, 168.0, _GAP
    plant = Box("Network", ("plant", count(subject.model)), "mix")
    start = sheet.put(Box("batch of tokens", (), "io"), left, 8.0, size)
    plant_top = start + step
    y = sheet.below(plant, left, start, size)
    y = sheet.below(Box("Logits"), left, y, size)
    loss_end = sheet.below(Box("Loss", ("error signal", "cross-entropy per token"), "norm"), left, y, size)
    way_back = [
        Box("Gradient", ("backward pass",)),
        *([Box("Clip", (f"norm at most {train.clip_norm:g}",), "norm")] if train.clip_norm else []),
        Box(optimizer_name(subject), ("controller", f"decay {train.weight_decay:g}"), "feed"),
        Box("Update", ("actuator", "θ ← θ + Δθ"), "feed"),
    ]
    tops = _upwards(sheet, way_back, right, plant_top, size)
    gradient = tops[0] + box_height(way_back[0]) / 2
    if gradient > loss_end:
        sheet.wire((left, loss_end), (left, gradient), (right - size / 2, gradient), head="right")
    else:
        sheet.wire((left + size / 2, gradient), (right - size / 2, gradient), head="right")
    middle = plant_top + box_height(plant) / 2
    sheet.wire((right - size / 2, middle), (left + size / 2, middle), head="left", class_="wire loop")
    sheet.drawn.append(label((left + right) / 2, middle - 8, "θ", "name", text_anchor="middle"))
    rate_top = max(loss_end, tops[0] + box_height(way_back[0])) + step
    end = sheet.put(Box("Learning rate", ("gain schedule", f"peak {train.lr:g}")), right, rate_top, size)
    side, controller = right + size / 2, tops[-2] + box_height(way_back[-2]) / 2
    path = ((side, end - 31), (side + 14, end - 31), (side + 14, controller), (side, controller))
    sheet.wire(*path, head="left")
    return sheet.picture("diagram-training", "Training as a closed loop", "A closed loop", side + 22, end + 8)


def _upwards(sheet: _Sheet, parts: Sequence[Box], x: float, top: float, width: float) -> list[float]:
    """Draws parts that follow each other from bottom to top, the last one at `top`; returns where each begins."""
    tops: list[float] = []
    y = top
    for part in reversed(parts):
        tops.insert(0, y)
        y += box_height(part) + _GAP
    for part, place in zip(parts, tops, strict=True):
        sheet.put(part, x, place, width)
        if place > top:
            sheet.wire((x, place), (x, place - _GAP), head="up")
    return tops
