"""The inspection report: what it says is what the network did, and no prompt breaks it."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from html_tags import Tags, sections_of

from model import ModelConfig, Transformer
from tasks.report.inspection import (
    InspectError,
    Inspection,
    Subject,
    control_elements,
    inspect_prompt,
    project,
    to_json,
)
from tasks.report.inspection_page import page_data, to_html
from tasks.report.vocabulary import Spelling
from tasks.report.wording import visible
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, CharTokenizer, HfTokenizer, Tokenizer

SHAPE = {"vocab_size": 128, "max_seq_len": 64, "n_layer": 2, "n_head": 2, "d_model": 16, "init_std": 0.3}
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><!-- \" ' & &amp;",
    "nul \x00 and \x1b escape",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
    "\u0301 combining",
    " \n\t",
]


def subject(tokenizer: Tokenizer | None = None, bos: bool = False, **settings: Any) -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(ModelConfig(**{**SHAPE, **settings})).eval()
    return Subject("a small network", model, tokenizer or AsciiTokenizer(), bos=bos)


def look(prompt: str = "Hello World", **settings: Any) -> Inspection:
    return inspect_prompt(subject(**settings), prompt)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", "a␣b"),
        ("\n\t", "⏎⇥"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("\u202e\u200b", "<U+202E><U+200B>"),
        ("\u0301", "◌\u0301"),
        ("é שלום", "é␣שלום"),
    ],
)
def test_what_cannot_be_seen_becomes_a_sign(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_layers_that_differ_are_shown() -> None:
    shape = {"norm_order": "both", "act": "geglu", "pos": "rope", "window": 3, "full_every": 2, "n_layer": 2}
    names = [step["name"] for step in to_json(look("Hello World", **shape))["steps"]]
    assert {"block_1.norm_attention_out", "block_2.norm_ffn_out"} <= set(names)


def test_the_phrase_of_the_documents_has_the_ids_of_the_documents() -> None:
    found = to_json(look("Hello World"))
    assert [token["id"] for token in found["tokens"]] == [72, 101, 108, 108, 111, 32, 87, 111, 114, 108, 100]
    assert found["tokens"][5]["text"] == "␣"
    names = [step["name"] for step in found["steps"]]
    assert names[:4] == ["ids", "embedding", "position", "sum"]
    assert names[-3:] == ["norm", "logits", "probabilities"]
    shapes = {step["name"]: step["shape"] for step in found["steps"]}
    assert shapes["sum"] == [11, 16]
    assert shapes["block_1.weights"] == [2, 11, 11]
    assert shapes["logits"] == [11, 128]


def test_json_holds_the_rounded_values_of_the_trace() -> None:
    found = look()
    document = json.loads(json.dumps(to_json(found), allow_nan=False))
    np.testing.assert_allclose(document["attention"], found.trace.weights.numpy(), atol=5.1e-5)
    step = {step["name"]: step for step in document["steps"]}["block_2.ffn"]
    np.testing.assert_allclose(step["first_columns"], found.trace["block_2.ffn"][:, :4].numpy(), atol=5.1e-5)
    assert document["sequence"]["perplexity"] == pytest.approx(found.trace.score.perplexity, rel=1e-3)
    best = document["next"][-1][0]
    assert best["id"] == int(found.trace["logits"][-1].argmax())
    assert document["model"]["parameters"] == sum(p.numel() for p in found.subject.model.parameters())


def test_a_bundle_begins_as_in_training_with_bos() -> None:
    found = look(tokenizer=CharTokenizer("Helo"), bos=True, vocab_size=8)
    assert found.labels == ["<bos>", "H", "e", "l", "l", "o", "<unk>", "<unk>", "o", "<unk>", "l", "<unk>"]


@pytest.mark.parametrize(
    ("prompt", "said"), [("", "empty"), ("x" * 65, "expected at most 64"), ("a\ud800", "lone surrogate")]
)
def test_what_cannot_be_looked_at_is_said(prompt: str, said: str) -> None:
    with pytest.raises(InspectError, match=said):
        look(prompt)


def test_a_plane_keeps_the_distances_of_points_that_lie_in_it() -> None:
    flat = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    plane = project(torch.nn.functional.pad(flat, (0, 7)) @ turned)
    torch.testing.assert_close(torch.cdist(plane.points, plane.points), torch.cdist(flat, flat))
    assert sum(plane.shares) == pytest.approx(1)


@pytest.mark.parametrize("prompt", [*HOSTILE, "a", "Hello World", "long prompt " * 5])
def test_the_page_is_closed_in_order_and_names_nothing_twice(prompt: str) -> None:
    page = to_html(look(prompt))
    tags = Tags(page)
    assert len(tags.ids) == len(set(tags.ids))
    assert set(sections_of(page)) <= set(tags.ids)
    assert page.count("<script") == 2
    assert "\x00" not in page


def test_the_page_fetches_nothing() -> None:
    page = to_html(look())
    assert not re.search(r"""(src|href)="(?!data:|#)|@import|https?://""", page)


def test_the_page_holds_the_weights_of_every_head() -> None:
    found = look(n_head=4, n_kv_head=2, window=3)
    data = page_data(found)
    values = np.frombuffer(base64.b64decode(data["weights"]), dtype="<u2") / 65535
    expected = found.trace.weights[:, :, found.trace.mask].flatten().numpy()
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert data["cells"] == found.trace.mask.nonzero().tolist()


@pytest.mark.full
def test_the_page_of_a_deep_network_and_a_long_prompt_stays_small() -> None:
    page = to_html(look("sixty tokens " * 4 + "and more", n_layer=12, n_head=8, d_model=16))
    assert len(page) < 3_000_000


def test_the_ten_control_elements_name_modules_that_exist() -> None:
    whole = subject(n_layer=3)
    elements = control_elements(whole)
    assert len(elements) == 10
    modules = dict(whole.model.named_modules())
    for element in elements[4:7]:
        for name in element.module.split(", "):
            assert name.replace("0–2", "1") in modules, name
    assert hasattr(whole.model, elements[2].module)
    assert hasattr(whole.model, elements[3].module)


def test_a_prompt_of_one_token_says_why_it_has_no_probability() -> None:
    found = look("a")
    assert to_json(found)["sequence"]["nll"] is None
    assert math.isnan(found.trace.score.loss)
    assert "The first token is not predicted" in to_html(found)


def test_foreign_special_tokens_are_labelled_by_their_meaning() -> None:
    spec = json.dumps(learn_merges(["some text to learn from"], 300).record()["spec"])
    tokenizer = HfTokenizer(spec, eos_id=3)
    spelling = Spelling(tokenizer)
    labels = [spelling.text_of(index) for index in [3, 0, *tokenizer.encode(["so"])[0].tolist()]]
    assert labels[:2] == ["<eos>", "<special 0>"]
    assert "".join(labels[2:]) == "so"


def test_a_network_from_elsewhere_is_not_called_fresh() -> None:
    told = subject()
    assert "trained elsewhere" in to_html(inspect_prompt(told, "fold"))
    assert "untrained, seed" in to_html(inspect_prompt(dataclasses.replace(told, fresh=True), "fold"))
