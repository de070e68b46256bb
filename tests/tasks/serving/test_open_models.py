"""Every layout all the way: a base of random weights, adapters, gates, registry, chats, and out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_serving import client_of, running
from tiny_run import direct_run, home_at, train_in, with_tracking, write_texts

from flows.evaluate import evaluate_model
from flows.prepare import ingest_and_prepare
from flows.promote import promote_model
from flows.train import train_model
from tasks.core.settings import load_settings, parse_assignments
from tasks.serving.served import load_served
from tasks.tokens.tokenizer_kinds import load_tokenizer
from tasks.training.bundle import CHAT_FILE, Bundle
from tasks.training.gguf_file import export_gguf, import_gguf
from tasks.training.hugging_face import export_bundle
from tests.open_models import SHAPES, TEMPLATE, open_model


@pytest.mark.parametrize(
    "layout", [layout if layout == "gemma3_text" else pytest.param(layout, marks=pytest.mark.full) for layout in SHAPES]
)
def test_an_open_model_goes_all_the_way(layout: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base = open_model(tmp_path / "base", layout)
    home = with_tracking(home_at(tmp_path / "home"))
    settings = load_settings(
        None,
        parse_assignments(
            [
                "curate.validation_share=0.3",
                "evaluate.trace=false",
                *("train.max_steps=12", "train.batch_size=4", "train.lr=0.01"),
                *("mix.by=folder", "mix.weights=notes=0.8,general=0.2"),
                *("gates.replay=general", "gates.slice_documents=2", "gates.max_base_loss=0.1"),
                *(f"train.base={base}", "train.adapter=lora", "train.adapter_rank=4"),
            ]
        ),
    )
    write_texts(tmp_path / "texts" / "notes")
    write_texts(tmp_path / "texts" / "general", range(20, 50))
    with direct_run(home) as run:
        _, prepared, found = ingest_and_prepare(run, str(tmp_path / "texts"), settings)
        checkpoint = train_model(run, settings, prepared, found)
        evaluation, _ = evaluate_model(run, checkpoint, prepared.evalset)
        promotion, _ = promote_model(run, checkpoint, evaluation, settings)
        folder = run.store.folder(checkpoint)
    assert promotion.alias == "champion", promotion.reason
    (kept,) = [item for item in promotion.verdicts if item.gate == "base_loss"]
    assert kept.verdict == "passed" and "not clearly worse than the base" in kept.sentence
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    served = load_served(home, "champion", "default")
    assert served is not None and served.template is not None
    with running(served.bundle, template=served.template) as (_, address):
        messages: Any = [{"role": "user", "content": "Who counts the sheep?"}]
        answer = client_of(address).chat.completions.create(
            model="sheepfold", messages=messages, max_tokens=8, temperature=0, logprobs=True
        )
    bundle = Bundle(folder)
    assert answer.choices[0].logprobs.content
    export_bundle(folder, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert theirs.config.model_type == layout
    assert (tmp_path / "out" / CHAT_FILE).read_text() == TEMPLATE
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        expected, logits = theirs(ids).logits, bundle.model(ids)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
    if layout in ("gpt2", "llama", "qwen2", "qwen3"):
        export_gguf(folder, tmp_path / "out.gguf", "f32")
        assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("layout", ["llama", pytest.param("gpt2", marks=pytest.mark.full)])
def test_an_extended_open_model_is_exported_with_its_pieces(layout: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base = open_model(tmp_path / "base", layout)
    asked = [f"train.base={base}", "tokenizer.extend=12", "train.max_steps=4", "train.batch_size=4"]
    settings = load_settings(None, parse_assignments(["curate.validation_share=0.3", *asked]))
    with direct_run(home_at(tmp_path / "home")) as run:
        folder = run.store.folder(train_in(run, write_texts(tmp_path / "texts"), settings))
    export_bundle(folder, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    opened, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), Bundle(folder)
    text = "the shepherd counts his sheep at dusk and closes the fold"
    (ids,) = ours.tokenizer.encode([text])
    before = transformers.AutoTokenizer.from_pretrained(base)
    assert opened(text)["input_ids"] == ids.tolist() and ids.max() >= len(before)
    with torch.no_grad():
        expected, logits = theirs(torch.tensor(ids)[None]).logits, ours.model(torch.tensor(ids)[None])
    assert logits.shape[-1] == len(before) + 12
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
    messages = [{"role": "user", "content": "sheep"}]
    (one, other) = (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for tokenizer in (before, opened)
    )
    assert one == other and (folder / CHAT_FILE).read_text() == TEMPLATE
    marks = [before.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>")]
    assert [index for index in opened(one)["input_ids"] if index in marks] == [marks[0], marks[1], marks[0]]
    export_gguf(folder, tmp_path / "out.gguf", "f32")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    again = load_tokenizer(tmp_path / "again" / "tokenizer.json")
    assert again.encode([text])[0].tolist() == ids.tolist()
