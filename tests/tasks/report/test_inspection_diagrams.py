"""Block diagrams: drawn from the network's modules, in the order in which they run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from model import ModelConfig, Transformer
from tasks.report.inspect.diagrams import (
    Box,
    Sum,
    Tap,
    attention_detail,
    block_formula,
    block_parts,
    one_block,
    training_loop,
    whole_model,
)
from tasks.report.inspect.subject import Subject
from tasks.tokens.tokenizers import AsciiTokenizer

SHAPE = {"vocab_size": 128, "max_seq_len": 16, "n_layer": 2, "n_head": 4, "d_model": 16}
VARIANTS: list[dict] = [
    {},
    {"norm_order": "post"},
    {"norm": "rmsnorm", "act": "swiglu", "pos": "rope", "qk_norm": True, "n_kv_head": 2},
    {"drop_resid": 0.1, "drop_ffn": 0.2, "norm_order": "post"},
    {"final_norm": False, "tie_weights": False, "head_bias": True},
]


def subject(train: dict | None = None, **settings: Any) -> Subject:
    return Subject("small", Transformer(ModelConfig(**{**SHAPE, **settings})).eval(), AsciiTokenizer(), train)


def drawn_modules(whole: Subject) -> list[str]:
    """Names of the first block's modules, from top to bottom of its drawing."""
    found = []
    for part in block_parts(whole):
        if isinstance(part, Box) and part.notes:
            found += [note.split(" · ")[0] for note in part.notes if note.startswith("blocks.0.")]
    return found


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_block_is_drawn_in_the_order_in_which_it_runs(settings: dict) -> None:
    whole = subject(**settings)
    names = {module: name for name, module in whole.model.named_modules()}
    ran: list[str] = []

    def note(module: nn.Module, *_: object) -> None:
        ran.append(names[module])

    for module in whole.model.blocks[0].children():
        module.register_forward_pre_hook(note)
    whole.model(torch.tensor([[1, 2, 3]]))
    assert drawn_modules(whole) == [name for name in ran if not name.endswith("dropout")]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_bypass_that_leaves_the_line_comes_back(settings: dict) -> None:
    whole = subject(**settings)
    parts = block_parts(whole)
    assert [type(part) for part in parts if not isinstance(part, Box)] == [Tap, Sum, Tap, Sum]
    assert one_block(whole).markup.count("bypass") == 2


def test_the_one_line_form_is_the_block() -> None:
    x = torch.randn(1, 3, 16)
    for order in ("pre", "post"):
        whole = subject(norm_order=order)
        block = whole.model.blocks[0]
        _, reading = whole.model.plan(torch.zeros(1, 3, dtype=torch.int64))
        names = {"N₁": block.norm_attention, "N₂": block.norm_mlp, "F": block.mlp, "x": x}
        names["A"] = lambda value, block=block, reading=reading: block.attention(value, 0, reading)
        first, second = block_formula(whole)
        plain = {old: new for new, old in (("N1", "N₁"), ("N2", "N₂"))}
        for old, new in plain.items():
            first, second, names[new] = first.replace(old, new), second.replace(old, new), names[old]
        names["y"] = eval(first.partition(" = ")[2], {}, dict(names))
        torch.testing.assert_close(eval(second.partition(" = ")[2], {}, dict(names)), block(x, 0, reading))


def test_the_whole_network_shows_norm_and_head_as_they_are() -> None:
    usual, other = whole_model(subject()), whole_model(subject(final_norm=False, tie_weights=False, head_bias=True))
    assert "Final norm" in usual.markup
    assert "tied" in usual.markup
    assert "Final norm" not in other.markup
    assert "untied_head" in other.markup
    assert "head_bias" in other.markup


def test_the_training_loop_is_closed_and_names_its_parts() -> None:
    picture = training_loop(subject({"max_steps": 10, "lr": 0.004, "clip_norm": 0.0, "weight_decay": 0.3}))
    for word in ("plant", "error signal", "controller", "actuator", "gain schedule", "peak 0.004", "decay 0.3"):
        assert word in picture.markup
    assert "Clip" not in picture.markup
    assert picture.markup.count("wire loop") == 1


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_no_drawing_writes_beyond_its_edge(settings: dict) -> None:
    whole = subject(**settings)
    for picture in (one_block(whole), whole_model(whole), attention_detail(whole), training_loop(whole)):
        boxes = re.findall(r'<rect x="([-\d.]+)" y="[-\d.]+" width="([\d.]+)"', picture.markup)
        (edge,) = re.findall(r'viewBox="0 0 ([\d.]+) ', picture.markup)
        assert len(boxes) > 4
        for left, width in boxes:
            assert float(left) >= 0
            assert float(left) + float(width) <= float(edge)
