"""Models whose documents had no ids around them in training: they are measured, asked and exchanged as trained."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

from flows.generate import make_completions
from model import GenerationConfig, ModelConfig, Transformer, generate, save_weights
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import EVALSET
from storage.store import Store
from storage.tables import read_columns, read_rows, write_table
from tasks.evaluation.evaluate import charged_nats, encode_documents
from tasks.generation.completions import Prompt
from tasks.generation.prompts import sample_prompts
from tasks.report.inspection import Subject, inspect_prompt
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import BOS, EOS, AsciiTokenizer, HfTokenizer, Tokenizer
from tasks.training.bundle import Bundle
from tasks.training.hugging_face import export_bundle, import_folder

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 24}
BARE = ("tokenizer.bos=false", "tokenizer.eos=false")


@pytest.fixture(scope="module")
def bare(tiny: Ran, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The tiny run with nothing around documents."""
    home = copy_of_store(tiny, tmp_path_factory.mktemp("bare") / "home", "train", "evaluate", "generate", "prompts")
    return run_whole(home, tiny_source, tiny_settings(*BARE))


@pytest.fixture(scope="module")
def bundle(bare: Ran) -> Bundle:
    return Bundle(bare.folder(bare.checkpoint))


@pytest.fixture(scope="module")
def texts(bare: Ran) -> list[str]:
    return read_columns(bare.folder(bare.prepared.evalset) / "documents.parquet", ["text"])["text"]


def bundle_at(folder: Path, tokenizer: Tokenizer, **entries: bool) -> Bundle:
    """A bundle of random weights that are large enough for clear preferences."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = ModelConfig(tokenizer.vocab_size, max_seq_len=32, n_layer=2, n_head=2, d_model=16, init_std=0.3)
        model = Transformer(config)
    folder.mkdir()
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": config.to_dict(), **entries}))
    tokenizer.save(folder / "tokenizer.json")
    return Bundle(folder)


def foreign_tokenizer() -> HfTokenizer:
    """One whose only special id ends texts, and so stands between them."""
    spec = json.dumps(learn_merges(["the sheep"], 300).record()["spec"])
    return HfTokenizer(spec, eos_id=EOS)


def test_a_bundle_says_what_stood_around_its_documents(tiny: Ran, bare: Ran) -> None:
    for ran, expected in ((tiny, True), (bare, False)):
        written = json.loads((ran.folder(ran.checkpoint) / "config.json").read_text())
        assert (written["bos"], written["eos"]) == (expected, expected)
        bundle = Bundle(ran.folder(ran.checkpoint))
        assert (bundle.bos, bundle.eos) == (expected, expected)


def test_a_bundle_that_does_not_say_had_both(tmp_path: Path) -> None:
    bundle = bundle_at(tmp_path / "bundle", AsciiTokenizer())
    assert (bundle.start_id, bundle.end_id) == (BOS, EOS)


@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [(True, True, (EOS, EOS)), (True, False, (EOS, EOS)), (False, True, (None, EOS)), (False, False, (None, None))],
)
def test_an_id_that_stands_between_texts_ends_them_wherever_it_stood(
    bos: bool, eos: bool, expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    bundle = bundle_at(tmp_path / "bundle", foreign_tokenizer(), bos=bos, eos=eos)
    assert (bundle.start_id, bundle.end_id) == expected


def test_documents_are_measured_as_they_were_trained_on(bare: Ran, bundle: Bundle, texts: list[str]) -> None:
    assert bare.metrics is not None
    nll, count, width = 0.0, 0, bundle.model_config.max_seq_len
    for ids in (ids.tolist() for ids in bundle.tokenizer.encode(texts)):
        for start in range(0, len(ids), width):
            with torch.no_grad():
                likely = bundle.model(torch.tensor([ids[start : start + width]])).double().log_softmax(-1)[0]
            following = ids[start + 1 : start + width + 1]
            nll -= sum(float(likely[place, token]) for place, token in enumerate(following))
            count += len(following)
    assert bare.metrics["val/tokens"] == count
    assert bare.metrics["val/loss"] == pytest.approx(nll / count, rel=1e-5)


def test_first_ids_that_nothing_predicts_are_charged(bare: Ran, bundle: Bundle, texts: list[str]) -> None:
    """Or a model that is spared them would win over one that is not."""
    assert bare.metrics is not None
    given = len(texts) * math.log(bundle.tokenizer.vocab_size)
    for name in ("", "uniform_", "unigram_", "ngram_"):
        nats = bare.metrics[f"val/{name}loss"] * bare.metrics["val/tokens"] + given
        expected = (nats / math.log(2) + 8 * bare.metrics["val/lost_bytes"]) / bare.metrics["val/bytes"]
        assert bare.metrics[f"val/{name}bits_per_byte"] == pytest.approx(expected)


def test_nothing_is_charged_where_a_token_begins_a_text(tiny: Ran) -> None:
    bundle = Bundle(tiny.folder(tiny.checkpoint))
    encoded = encode_documents(bundle.tokenizer, TokeniseSettings(bundle.bos, bundle.eos), ["the sheep", "a dog"])
    assert charged_nats(bundle.tokenizer, encoded).tolist() == [0, 0]


def test_a_prompt_begins_as_documents_did(tiny: Ran, bundle: Bundle) -> None:
    ids = bundle.tokenizer.encode(["The sheep"])[0].tolist()
    assert bundle.encode_prompts(["The sheep"]) == [ids]
    assert Bundle(tiny.folder(tiny.checkpoint)).encode_prompts(["The sheep"]) == [[BOS, *ids]]


def test_without_an_end_in_training_a_text_goes_on_to_its_limit(tmp_path: Path) -> None:
    tokenizer, prompts = AsciiTokenizer(), [f"the fold {number}" for number in range(40)]
    how: dict[str, Any] = {"temperature": 3.0, "max_new_tokens": 60}
    ended = bundle_at(tmp_path / "ended", tokenizer).complete(prompts, **how)
    assert "stop" in {item.finish_reason for item in ended}  # so hot that every id is drawn some time
    endless = bundle_at(tmp_path / "endless", tokenizer, eos=False).complete(prompts, **how)
    assert {(item.finish_reason, item.n_tokens, len(item.text)) for item in endless} == {("length", 60, 60)}


def test_completions_are_those_of_the_bare_prompt(bare: Ran, bundle: Bundle) -> None:
    suppress = tuple(bundle.tokenizer.special_ids)
    config = GenerationConfig(max_new_tokens=24, temperature=0.0, suppress=suppress)
    ids = bundle.tokenizer.encode(["The sheep"])[0].tolist()
    expected = bundle.tokenizer.decode(generate(bundle.model, [ids], config)[0].ids)
    assert bundle.complete(["The sheep"], **GREEDY)[0].text == expected


def test_an_empty_prompt_gets_an_error_and_the_other_goes_on(bare: Ran) -> None:
    asked = [Prompt("a", "the"), Prompt("b", "")]
    assert bare.checkpoint is not None
    with direct_run(bare.run.home) as run:
        made = make_completions(run, tiny_settings(), bare.checkpoint, asked)
        good, bad = read_rows(run.store.folder(made) / "completions.parquet")
    assert good["error"] is None
    assert bad["error"] == "the prompt is empty, and this model was trained with no token to begin with; give a text"


def evaluation_documents(folder: Path, texts: dict[str, str]) -> tuple[Store, ArtifactRef]:
    """An evaluation set of these texts by their ids."""
    store = Store(folder)
    with store.workspace("evalset", "handmade") as workspace:
        labels = {"kind": "text", "language": "en", "source": "in", "method": "text"}
        rows = [{"doc_id": name, **labels, "text": text} for name, text in texts.items()]
        write_table(workspace.out / "documents.parquet", EVALSET, rows)
        made = Manifest("evalset", 1, "handmade", sha256_json(rows), inputs={}, settings={}, files=[])
        return store, store.commit(workspace, made).ref


def test_blank_documents_are_no_sample(tmp_path: Path) -> None:
    store, evalset = evaluation_documents(tmp_path, {"a": " \n", "b": "two words"})
    assert sample_prompts(store, evalset) == [Prompt("b", "two words")]


def test_a_sample_prompt_has_the_lines_and_indents_of_its_document(tmp_path: Path) -> None:
    texts = {"a": "\n  def fold(sheep):\n    return 1 + 1 if sheep else 0\n", "b": "word" * 1000 + " and so on" * 4}
    store, evalset = evaluation_documents(tmp_path, texts)
    assert sample_prompts(store, evalset) == [
        Prompt("a", "def fold(sheep):\n    return 1 + 1 if sheep"),
        Prompt("b", ("word" * 1000)[:400]),
    ]


def test_a_look_into_the_network_begins_as_documents_did(bundle: Bundle) -> None:
    assert inspect_prompt(Subject.of_bundle(bundle, "bare"), "the").labels == ["t", "h", "e"]


@pytest.mark.parametrize("tokenizer", [AsciiTokenizer(), foreign_tokenizer()], ids=["ascii", "foreign"])
@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_out_and_in_again_begins_and_ends_alike(bos: bool, eos: bool, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = bundle_at(tmp_path / "bundle", tokenizer, bos=bos, eos=eos)
    export_bundle(tmp_path / "bundle", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "again")
    after = Bundle(tmp_path / "again")
    assert (after.bos, after.eos) == (bos, eos)
    assert (after.start_id, after.end_id) == (before.start_id, before.end_id)
    assert after.ids_without_text() == before.ids_without_text()
    assert after.complete(["the fold"], **GREEDY) == before.complete(["the fold"], **GREEDY)


def test_transformers_continues_a_bare_prompt_with_the_same_text(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    bundle = bundle_at(tmp_path / "bundle", AsciiTokenizer(), bos=False, eos=False)
    export_bundle(tmp_path / "bundle", tmp_path / "hf")
    model, auto = (kind.from_pretrained(tmp_path / "hf") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    ids = torch.tensor([auto("the fold")["input_ids"]])
    made = model.generate(ids, do_sample=False, max_new_tokens=24)[0, ids.shape[1] :]
    assert auto.decode(made, skip_special_tokens=True) == bundle.complete(["the fold"], **GREEDY)[0].text
