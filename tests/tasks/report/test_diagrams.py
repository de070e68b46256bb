"""Block diagrams: drawn from configurations, in the order in which the network runs, as files, JSON and on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from html_tags import Tags
from torch import nn

from model import PRESETS, ModelConfig, TrainConfig, Transformer
from tasks.core.settings import GenerateSettings
from tasks.report.diagrams import Diagram, Plan, diagrams, plan_of_preset
from tasks.report.inspection import Subject, inspect_prompt
from tasks.report.inspection_page import to_html
from tasks.tokens.tokenizer_kinds import AsciiTokenizer
from tests.flows.runs import answer, invoke

SHAPE = {"vocab_size": 128, "max_seq_len": 16, "n_layer": 2, "n_head": 4, "d_model": 16}
VARIANTS: list[dict] = [
    {},
    {"norm_order": "post"},
    {"norm": "rmsnorm", "act": "swiglu", "pos": "rope", "qk_norm": True, "n_kv_head": 2},
    {"drop_resid": 0.1, "drop_ffn": 0.2, "norm_order": "post"},
    {"final_norm": False, "tie_weights": False, "head_bias": True},
]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, train: dict | None = None, sampling: dict | None = None, **settings: Any) -> Diagram:
    config = ModelConfig(**{**SHAPE, **settings})
    plan = Plan(
        config, TrainConfig(**{"max_steps": 10, **(train or {})}), GenerateSettings(**(sampling or {})), "ascii"
    )
    (found,) = [diagram for diagram in diagrams(plan) if diagram.name == name]
    return found


def nodes(diagram: Diagram) -> list[Any]:
    return [node for row in diagram.rows for node in row if node is not None]


def words(diagram: Diagram) -> str:
    return "\n".join("\n".join((node.title, *node.notes)) for node in nodes(diagram))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_block_is_drawn_in_the_order_in_which_it_runs(settings: dict) -> None:
    model = Transformer(ModelConfig(**{**SHAPE, **settings})).eval()
    names = {module: name for name, module in model.named_modules()}
    ran: list[str] = []

    def note(module: nn.Module, *_: object) -> None:
        ran.append(names[module])

    for module in model.blocks[0].children():
        module.register_forward_pre_hook(note)
    model(torch.tensor([[1, 2, 3]]))
    found = re.findall(r"^(blocks\.0\.\S+) ", words(drawn("block", **settings)), re.MULTILINE)
    assert found == [name for name in ran if "drop" not in name]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_both_residual_paths_end_at_a_sum(settings: dict) -> None:
    block = drawn("block", **settings)
    paths = [(edge.source, edge.target) for edge in block.edges if edge.label == "residual"]
    second = "norm_attention" if settings.get("norm_order") == "post" else "sum_attention"
    assert paths == [("h0", "sum_attention"), (second, "sum_mlp")]


def test_the_one_line_form_is_the_block() -> None:
    x = torch.randn(1, 3, 16)
    for order in ("pre", "post"):
        model = Transformer(ModelConfig(**SHAPE, norm_order=order)).eval()
        block = model.blocks[0]
        now = model.plan(torch.zeros(1, 3, dtype=torch.int64))
        values = {"N1": block.norm_attention, "N2": block.norm_mlp, "F": block.mlp, "x": x}
        values["A"] = lambda value, block=block, now=now: block.attention(value, 0, now)
        text = words(drawn("block-formula", norm_order=order)).replace("₁", "1").replace("₂", "2")
        first, second = re.findall(r"^\S+ = (.*)$", text, re.MULTILINE)[:2]
        values["y"] = eval(first, {}, dict(values))
        torch.testing.assert_close(eval(second, {}, dict(values)), block(x, 0, now))


def test_the_whole_network_shows_norm_and_head_as_they_are() -> None:
    usual, other = words(drawn("system")), words(drawn("system", **VARIANTS[-1]))
    assert "Final norm" in usual and "tied" in usual
    assert "Final norm" not in other
    assert "untied_head · 16 × 128" in other and "head_bias · 128" in other


def test_the_whole_way_leads_from_characters_to_a_sampled_token_and_back() -> None:
    system = drawn("system", sampling={"temperature": 0.7, "top_k": 5})
    order = [node.title for node in nodes(system)]
    assert (order[0], order[-1]) == ("characters", "characters")
    assert order.index("Tokeniser") < order.index("Embedding") < order.index("Softmax") < order.index("Sampling")
    assert "temperature 0.7" in words(system) and "top-k 5, top-p 0.95" in words(system)
    assert ("next", "ids") in [(edge.source, edge.target) for edge in system.edges]


def test_the_training_loop_is_closed_and_names_its_parts() -> None:
    train = {"lr": 0.004, "clip_norm": 0.0, "weight_decay": 0.3, "batch_size": 3}
    picture = drawn("training", train)
    for word in ("plant", "error signal", "controller", "actuator", "gain schedule", "peak 0.004", "decay 0.3"):
        assert word in words(picture)
    assert "Clip" not in words(picture)
    assert "3 × 16 × 128" in words(picture)
    assert ("update", "network") in [(edge.source, edge.target) for edge in picture.edges]


@pytest.mark.parametrize("rate", [0.25, 0.002])
def test_the_closed_loop_is_reduced_with_the_peak_rate_as_feedback(rate: float) -> None:
    picture = drawn("feedback", {"lr": rate})
    found = re.findall(r"G = ([\d,]+): C/R = (\S+)", words(picture))
    assert len(found) == 4
    for gain, ratio in found:
        forward = float(gain.replace(",", ""))
        assert float(ratio) == pytest.approx(1 / (1 / forward + rate), rel=1e-4)
    assert ("h", "sum", "H₁") in [(edge.source, edge.target, edge.label) for edge in picture.edges]


def test_the_second_increment_reads_the_stream_with_the_first() -> None:
    picture = drawn("increments")
    assert [node.title for node in nodes(picture)] == [
        "h₀",
        "Δ₁(h₀)",
        "+",
        "h₁ = h₀ + Δ₁(h₀)",
        "Δ₂(h₀ + Δ₁(h₀))",
        "+",
        "h₂ = h₀ + Δ₁(h₀) + Δ₂(h₀ + Δ₁(h₀))",
    ]
    assert [(edge.source, edge.target) for edge in picture.edges if edge.label] == [("h0", "sum1"), ("h1", "sum2")]


def test_inference_feeds_the_chosen_token_back() -> None:
    picture = drawn("generation", sampling={"strategy": "beam", "max_length": 12})
    assert "beam search" in words(picture) and "12 in all tokens" in words(picture)
    assert ("ended", "state") in [(edge.source, edge.target) for edge in picture.edges]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_drawn_into_files_without_a_prompt(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pictures"
    found = answer(tmp_path, "inspect", "--preset", name, "--diagrams", str(folder))["diagrams"]
    assert json.loads((folder / "diagrams.json").read_text(encoding="utf-8"))["diagrams"] == found
    assert {item["name"] for item in found} >= {"system", "training", "feedback", "increments", "generation"}
    for item in found:
        tree = ElementTree.parse(item["file"]).getroot()
        boxes = [node for row in item["rows"] for node in row if node is not None]
        assert len(tree.findall(f"{SVG}rect")) + len(tree.findall(f"{SVG}circle")) == len(boxes)
        assert len(tree.findall(f"{SVG}path")) == len(item["edges"])
        shown = {text.text for text in tree.findall(f"{SVG}text")}
        assert shown >= {line for node in boxes for line in (node["title"], *node["notes"])}
        assert {edge[end] for edge in item["edges"] for end in ("source", "target")} <= {node["id"] for node in boxes}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "tinny"], "no preset 'tinny'; did you mean tiny?"),
        (["--preset", "tiny", "--prompt", "a"], "leave out --prompt and --out"),
        (["--preset", "tiny", "--model", "7"], "give one of them"),
        (["--model", "nobody"], "no model 'nobody'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = invoke(tmp_path, "inspect", "--diagrams", str(tmp_path / "pictures"), *arguments)
    assert done.exit_code == 1
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_element_of_a_page_with_diagrams_is_closed(settings: dict) -> None:
    network = Transformer(ModelConfig(**{**SHAPE, **settings})).eval()
    page = to_html(inspect_prompt(Subject("small", network, AsciiTokenizer()), "fold"))
    assert "diagrams" in Tags(page).ids
    assert page.count('class="blocks"') == 14


def test_a_preset_is_drawn_with_its_own_recipe() -> None:
    plan = plan_of_preset("sheepop")
    assert (plan.sampling.temperature, plan.sampling.top_p, plan.tokenizer) == (1.0, 1.0, "ascii")
    assert (plan.train.optimizer, plan.train.betas, plan.train.schedule) == ("adamw", (0.9, 0.999), "cosine")
