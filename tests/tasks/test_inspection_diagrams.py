"""Block diagrams: drawn from the network's modules, in the order in which they run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from model import ModelConfig, Transformer
from tasks.inspection.circuits import attention_detail, training_loop
from tasks.inspection.diagrams import block_formula, block_parts, one_block, one_line_block, reductions, whole_model
from tasks.inspection.flowchart import Box, Sum, Tap
from tasks.inspection.subject import Subject
from tasks.tokens.tokenizer import AsciiTokenizer

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
    for part in block_parts(whole, whole.model.blocks[0]):
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


def test_a_post_norm_block_is_another_picture_than_a_pre_norm_one() -> None:
    kinds = {}
    for order in ("pre", "post"):
        whole = subject(norm_order=order)
        parts = block_parts(whole, whole.model.blocks[0])
        kinds[order] = [part.kind if isinstance(part, Box) else type(part).__name__ for part in parts]
    assert kinds["pre"] == ["Tap", "norm", "mix", "Sum", "Tap", "norm", "feed", "Sum"]
    assert kinds["post"] == ["Tap", "mix", "Sum", "norm", "Tap", "feed", "Sum", "norm"]
    pictures = [one_block(subject(norm_order=order)) for order in ("pre", "post")]
    assert pictures[0].body != pictures[1].body
    assert pictures[0].description != pictures[1].description
    assert "post-norm" in pictures[1].title


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_bypass_that_leaves_the_line_comes_back(settings: dict) -> None:
    whole = subject(**settings)
    parts = block_parts(whole, whole.model.blocks[0])
    assert [type(part) for part in parts if not isinstance(part, Box)] == [Tap, Sum, Tap, Sum]
    assert one_block(whole).body.count("bypass") == 2


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


def test_dropout_is_drawn_with_its_share_and_only_where_there_is_some() -> None:
    assert "Dropout" not in one_block(subject()).description
    wet = subject(drop_resid=0.1, drop_ffn=0.2, drop_attn=0.3, drop_embed=0.4)
    assert one_block(wet).description.count("Dropout 0.1") == 2
    assert "dropout 0.2 inside" in one_block(wet).description
    assert "Dropout 0.3" in attention_detail(wet).description
    assert "Dropout 0.4" in whole_model(wet).description
    assert "D(A(" in one_line_block(wet).description


def test_attention_shows_the_parts_that_it_has() -> None:
    plain = attention_detail(subject()).description
    rich = attention_detail(subject(qk_norm=True, pos="rope", n_kv_head=2, window=3)).description
    assert "Rotate" not in plain
    assert "RMSNorm" not in plain
    assert rich.count("Rotate") == rich.count("RMSNorm") == 2
    assert "Q 4 × 4; " in rich
    assert rich.count("2 × 4") == 2  # keys and values
    assert "window 3" in rich


def test_the_gate_and_shared_heads_are_named() -> None:
    described = one_block(subject(act="swiglu", n_kv_head=1)).description
    assert "Gated feed-forward" in described
    assert "Grouped-query attention 4 heads × 4 · 1 key-value heads" in described


def test_the_whole_network_shows_norm_and_head_as_they_are() -> None:
    usual, other = whole_model(subject()), whole_model(subject(final_norm=False, tie_weights=False, head_bias=True))
    assert "Final norm" in usual.description
    assert "tied" in usual.description
    assert "Final norm" not in other.description
    assert "untied_head" in other.description
    assert "head_bias" in other.description


def test_a_deep_network_is_drawn_with_the_number_of_blocks_left_out() -> None:
    described = whole_model(subject(n_layer=12)).description
    assert "… 9 more blocks …" in described
    assert "Block 12 blocks.11" in described


def test_reduction_ends_in_one_operator() -> None:
    pictures = reductions(subject(n_layer=3))
    boxes = [picture.body.count('class="box') for picture in pictures]
    assert len(pictures) == 5
    assert boxes == sorted(boxes, reverse=True)
    assert boxes[-1] == 3  # ids, one operator, logits


def test_the_training_loop_is_closed_and_names_its_parts() -> None:
    picture = training_loop(subject({"max_steps": 10, "lr": 0.004, "clip_norm": 0.0, "weight_decay": 0.3}))
    for word in ("plant", "error signal", "controller", "actuator", "gain schedule", "peak 0.004", "decay 0.3"):
        assert word in picture.description
    assert "Clip" not in picture.description
    assert picture.body.count("wire loop") == 1


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_no_drawing_writes_beyond_its_edge(settings: dict) -> None:
    whole = subject(**settings)
    for picture in (one_block(whole), whole_model(whole), attention_detail(whole), training_loop(whole)):
        boxes = re.findall(r'<rect x="([-\d.]+)" y="[-\d.]+" width="([\d.]+)"', picture.body)
        assert len(boxes) > 4
        for left, width in boxes:
            assert float(left) >= 0
            assert float(left) + float(width) <= picture.width
