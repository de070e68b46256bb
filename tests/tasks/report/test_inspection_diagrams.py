"""Block diagrams: drawn from the network's modules, in the order in which they run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from html_tags import Tags
from torch import nn

from model import ModelConfig, Transformer
from tasks.report.inspection import Subject, inspect_prompt
from tasks.report.inspection_page import to_html
from tasks.tokens.tokenizer_kinds import AsciiTokenizer

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


def diagram(whole: Subject, title: str) -> str:
    """One diagram as it stands in the page."""
    page = to_html(inspect_prompt(whole, "fold"))
    return page[page.index(f"<h3>{title}") :].partition('<div class="diagram">')[0]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_block_is_drawn_in_the_order_in_which_it_runs(settings: dict) -> None:
    whole = subject(**settings)
    drawn = re.findall(r"<small>(blocks\.0\.\S+) ", diagram(whole, "(a)"))
    names = {module: name for name, module in whole.model.named_modules()}
    ran: list[str] = []

    def note(module: nn.Module, *_: object) -> None:
        ran.append(names[module])

    for module in whole.model.blocks[0].children():
        module.register_forward_pre_hook(note)
    whole.model(torch.tensor([[1, 2, 3]]))
    assert drawn == [name for name in ran if not name.endswith("dropout")]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_bypass_that_leaves_the_line_comes_back(settings: dict) -> None:
    whole = subject(**settings)
    drawn = re.findall(r'class="(bypass|sum)"', diagram(whole, "(a)"))
    assert drawn == ["bypass", "sum", "bypass", "sum"]


def test_the_one_line_form_is_the_block() -> None:
    x = torch.randn(1, 3, 16)
    for order in ("pre", "post"):
        whole = subject(norm_order=order)
        block = whole.model.blocks[0]
        _, reading = whole.model.plan(torch.zeros(1, 3, dtype=torch.int64))
        names = {"N₁": block.norm_attention, "N₂": block.norm_mlp, "F": block.mlp, "x": x}
        names["A"] = lambda value, block=block, reading=reading: block.attention(value, 0, reading)
        first, second = re.findall(r"<small>([^<]* = [^<]*)</small>", diagram(whole, "(b)"))
        plain = {old: new for new, old in (("N1", "N₁"), ("N2", "N₂"))}
        for old, new in plain.items():
            first, second, names[new] = first.replace(old, new), second.replace(old, new), names[old]
        names["y"] = eval(first.partition(" = ")[2], {}, dict(names))
        torch.testing.assert_close(eval(second.partition(" = ")[2], {}, dict(names)), block(x, 0, reading))


def test_the_whole_network_shows_norm_and_head_as_they_are() -> None:
    usual = diagram(subject(), "(c)")
    other = diagram(subject(final_norm=False, tie_weights=False, head_bias=True), "(c)")
    assert "Final norm" in usual
    assert "tied" in usual
    assert "Final norm" not in other
    assert "untied_head" in other
    assert "head_bias" in other


def test_the_training_loop_is_closed_and_names_its_parts() -> None:
    picture = diagram(subject({"max_steps": 10, "lr": 0.004, "clip_norm": 0.0, "weight_decay": 0.3}), "(d)")
    for word in ("plant", "error signal", "controller", "actuator", "gain schedule", "peak 0.004", "decay 0.3"):
        assert word in picture
    assert "Clip" not in picture
    assert picture.count('"theta"') == 1


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_element_of_a_page_with_diagrams_is_closed(settings: dict) -> None:
    assert "diagrams" in Tags(to_html(inspect_prompt(subject(**settings), "fold"))).ids
