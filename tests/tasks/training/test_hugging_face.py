"""Bundles to Hugging Face folders and back: the same ids, the same texts, and mistakes told in a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizer_samples import HOSTILE, byte_level_engine, prose
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

from model import ModelConfig, Transformer, save_weights
from storage.schemas import COUNTS_FILE, TOKEN_COUNTS
from storage.tables import read_columns, write_table
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import (
    BOS,
    EOS,
    AsciiTokenizer,
    ByteTokenizer,
    CharTableTokenizer,
    CharTokenizer,
    HfTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
)
from tasks.training.bundle import Bundle
from tasks.training.hugging_face import (
    ExchangeError,
    export_bundle,
    import_folder,
    read_hf_tokenizer,
    write_hf_tokenizer,
)

PROSE, TEXTS = prose(1), list(HOSTILE.values())
LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 24}


@pytest.fixture(scope="module", params=["char", "ascii", "bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "char":
        return CharTokenizer.fit([PROSE])
    if request.param == "bpe":
        return learn_merges([PROSE], 400)
    return AsciiTokenizer() if request.param == "ascii" else ByteTokenizer()


def bundle_at(folder: Path, tokenizer: Tokenizer, **shape: Any) -> Path:
    """A bundle of random weights that are large enough for clear preferences."""
    fields = {"max_seq_len": 32, "n_layer": 2, "n_head": 2, "d_model": 16, "init_std": 0.3, **shape}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Transformer(ModelConfig(tokenizer.vocab_size, **fields))
    folder.mkdir()
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": model.config.to_dict()}))
    tokenizer.save(folder / "tokenizer.json")
    rows = ({"token": token, "count": 1} for token in range(tokenizer.vocab_size))
    write_table(folder / COUNTS_FILE, TOKEN_COUNTS, rows)
    return folder


def test_an_exported_tokenizer_gives_the_same_ids_and_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    export_bundle(bundle_at(tmp_path / "bundle", tokenizer), tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    engine = Engine.from_file(str(path))
    bare = PreTrainedTokenizerFast(tokenizer_file=str(path))
    auto = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert engine.encode(text).ids == ids.tolist()
        assert bare(text)["input_ids"] == ids.tolist()
        assert auto(text)["input_ids"] == ids.tolist()
        assert auto.decode(ids.tolist(), skip_special_tokens=True) == tokenizer.decode(ids.tolist())
        if 1 not in ids:
            assert engine.decode(ids.tolist()) == text
    assert (auto.pad_token_id, auto.unk_token_id, auto.bos_token_id, auto.eos_token_id) == (0, 1, 2, 3)
    assert auto.decode([BOS, EOS], skip_special_tokens=True) == ""


def comes_back(folder: Path, layout: str, tmp_path: Path) -> None:
    """Exports a bundle, imports what was exported, and compares what both continue."""
    wanted = layout if layout == "llama-original" else ""
    assert export_bundle(folder, tmp_path / "hf", wanted).layout == layout
    made = import_folder(tmp_path / "hf", tmp_path / "again")
    before, after = Bundle(folder), Bundle(tmp_path / "again")
    assert (made.layout, made.vocab_size, made.tokenizer) == (layout, before.tokenizer.vocab_size, "hf")
    prompts = ["the fold", "", "<|eos|> sheep", "x\u4e00"]
    sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 4, "max_new_tokens": 12}
    for how in (GREEDY, sampled):
        found, expected = (
            [(item.text, item.finish_reason, item.n_tokens) for item in bundle.complete(prompts, **how)]
            for bundle in (after, before)
        )
        assert found == expected


def test_out_and_in_again_continues_with_the_same_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    comes_back(bundle_at(tmp_path / "bundle", tokenizer, vocab_multiple=64, **LLAMA), "llama", tmp_path)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("gpt2", {}),
        ("mistral", {**LLAMA, "window": 6}),
        ("qwen2", {**LLAMA, "qkv_bias": True}),
        ("qwen3", {**LLAMA, "qk_norm": True, "window": 6}),
        ("llama-original", {**LLAMA, "tie_weights": False, "max_seq_len": 40}),
    ],
)
def test_every_layout_continues_with_the_same_text(layout: str, shape: dict[str, Any], tmp_path: Path) -> None:
    comes_back(bundle_at(tmp_path / "bundle", AsciiTokenizer(), vocab_multiple=64, **shape), layout, tmp_path)


def test_transformers_continues_with_the_same_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = bundle_at(tmp_path / "bundle", tokenizer, **LLAMA)
    export_bundle(folder, tmp_path / "hf")
    model, auto = (kind.from_pretrained(tmp_path / "hf") for kind in (AutoModelForCausalLM, AutoTokenizer))
    ids = torch.tensor([[auto.bos_token_id, *auto("the fold")["input_ids"]]])
    made = model.generate(ids, do_sample=False, max_new_tokens=16)[0, ids.shape[1] :]
    expected = Bundle(folder).complete(["the fold"], temperature=0.0, max_new_tokens=16)[0].text
    assert auto.decode(made, skip_special_tokens=True) == expected


def test_an_imported_tokenizer_comes_back_from_its_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_hf_tokenizer(tokenizer, tmp_path, 16)
    found = read_hf_tokenizer(tmp_path)
    found.save(tmp_path / "saved.json")
    again = load_tokenizer(tmp_path / "saved.json")
    assert isinstance(again, HfTokenizer)
    assert (again.pad_id, again.unk_id, again.bos_id, again.eos_id) == (0, 1, 2, 3)
    assert again.special_ids == (0, 1, 2, 3)
    assert again.vocab_size == tokenizer.vocab_size
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert np.array_equal(again.encode([text])[0], ids)
        assert again.decode([BOS, *ids.tolist(), EOS]) == tokenizer.decode(ids.tolist())
        assert again.lost_bytes(text, ids) == tokenizer.lost_bytes(text, ids)


def foreign_folder(folder: Path, extra_rows: int = 3, **ids: Any) -> Path:
    """A model of `transformers` with GPT-2's one special token, which lies at the end of the vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    engine = byte_level_engine(300)
    engine.add_special_tokens(["<|endoftext|>"])
    folder.mkdir()
    engine.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=engine.get_vocab_size() + extra_rows, n_positions=32, n_embd=16, n_layer=2, n_head=2, **ids
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_foreign_model_generates_with_its_own_special_ids(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf", bos_token_id=None, eos_token_id=300)
    made = import_folder(folder, tmp_path / "bundle")
    bundle = Bundle(tmp_path / "bundle")
    assert (made.vocab_size, made.prompts_begin_with) == (304, "eos (id 300), as there is no bos")
    assert (bundle.tokenizer.bos_id, bundle.tokenizer.eos_id, bundle.tokenizer.pad_id) == (None, 300, None)
    # a text begins behind the token that ends texts; one that spells it does not hold it
    assert bundle.encode_prompts([""]) == [[300]]
    assert bundle.encode_prompts(["<|endoftext|>"])[0].count(300) == 1
    # rows that the tokeniser does not know are never drawn, the end is
    assert bundle.ids_without_text() == (301, 302, 303)
    found = bundle.complete(["the fold", ""], temperature=1.0, max_new_tokens=40)
    assert all(0 < item.n_tokens <= 40 for item in found)


def test_a_foreign_model_with_gpt_2_s_pair_of_files_is_the_same_model(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf", bos_token_id=None, eos_token_id=300)
    import_folder(folder, tmp_path / "one")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": 300}))
    (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])), encoding="utf-8")
    import_folder(folder, tmp_path / "two")
    found, expected = (Bundle(tmp_path / name).complete(["it's the fold"], **GREEDY) for name in ("two", "one"))
    assert found == expected


def test_a_model_without_special_ids_needs_a_prompt(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf", bos_token_id=None, eos_token_id=None)
    assert import_folder(folder, tmp_path / "bundle").prompts_begin_with == "nothing"
    bundle = Bundle(tmp_path / "bundle")
    assert len(bundle.complete(["the fold"], max_new_tokens=3)[0].logprobs) == 3
    with pytest.raises(ValueError, match="no token to begin with"):
        bundle.complete([""])


def test_a_continuation_keeps_its_first_space() -> None:
    engine = Engine(models.WordLevel({"▁the": 0, "▁fold": 1}))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    tokenizer = HfTokenizer(engine.to_str())
    assert tokenizer.decode([1]) == "fold"
    assert tokenizer.decode_continuation([0], [1]) == " fold"


def test_counts_of_an_imported_model_are_zero_for_every_id(tmp_path: Path) -> None:
    import_folder(foreign_folder(tmp_path / "hf"), tmp_path / "bundle")
    assert read_columns(tmp_path / "bundle" / COUNTS_FILE, ["count"])["count"] == [0] * 304


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "AutoTokenizer.from_pretrained"),
        ("model.safetensors", "expected weights as safetensors"),
    ],
)
def test_a_folder_that_lacks_something_is_told(fault: str, sentence: str, tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf")
    (folder / fault).unlink()
    with pytest.raises(ExchangeError, match=sentence):
        import_folder(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_broken_tokenizer_is_told(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf")
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ExchangeError, match=r"tokenizer\.json: not a tokeniser"):
        import_folder(folder, tmp_path / "bundle")


def test_special_ids_of_the_configuration_that_no_token_has_are_passed_over(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf")  # bos and eos are 50256, as GPT-2's class has them
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    tokenizer = read_hf_tokenizer(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 300)


def test_a_special_id_outside_the_vocabulary_is_refused() -> None:
    spec = Engine(models.WordLevel({"the": 0})).to_str()
    with pytest.raises(ValueError, match="bos_id is 1; expected an id of the vocabulary, 0 to 0"):
        HfTokenizer(spec, bos_id=1)


def test_a_tokenizer_larger_than_the_network_is_told(tmp_path: Path) -> None:
    folder = foreign_folder(tmp_path / "hf", extra_rows=-2, bos_token_id=None, eos_token_id=None)
    with pytest.raises(ExchangeError, match="ids up to 299, but the network's vocab_size is 299"):
        import_folder(folder, tmp_path / "bundle")


def test_an_added_token_without_an_embedding_is_left_out(tmp_path: Path) -> None:
    # Gemma 3 has one of pictures
    folder = foreign_folder(tmp_path / "hf", extra_rows=-1, bos_token_id=None, eos_token_id=None)
    import_folder(folder, tmp_path / "bundle")
    assert Bundle(tmp_path / "bundle").tokenizer.vocab_size == 300


def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="no folder"):
        import_folder(tmp_path / "nowhere", tmp_path / "bundle")
    with pytest.raises(ExchangeError, match="lacks model"):
        export_bundle(tmp_path / "nowhere", tmp_path / "hf")


def test_a_shape_without_a_layout_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    folder = bundle_at(tmp_path / "bundle", AsciiTokenizer(), pos="sinusoidal")
    with pytest.raises(ExchangeError, match="pos='sinusoidal'"):
        export_bundle(folder, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_taken_target_is_left_alone(tmp_path: Path) -> None:
    folder = bundle_at(tmp_path / "bundle", AsciiTokenizer())
    shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(ExchangeError, match="not an empty folder"):
        export_bundle(folder, tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_words_have_no_place_in_hugging_face_s_layouts(tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="kind 'word' cannot be exported"):
        export_bundle(bundle_at(tmp_path / "bundle", WordTokenizer({"the": 4, "fold": 5})), tmp_path / "hf")


@pytest.mark.parametrize(
    "tokenizer", [WordTokenizer({"Hi": 4, "Thomas": 8, "Nguyen": 9}), CharTableTokenizer({"H": 4, "i": 8, " ": 99})]
)
def test_ids_in_gaps_of_a_table_are_never_drawn(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bundle = Bundle(bundle_at(tmp_path / "bundle", tokenizer))
    drawn = bundle.complete(["Hi"] * 20, temperature=5.0, max_new_tokens=20, ignore_eos=True)
    ids = {index for item in drawn for index in item.ids}
    assert ids == set(tokenizer.vocabulary.values())  # type: ignore[attr-defined]


def test_a_table_with_gaps_goes_out_and_comes_back(tmp_path: Path) -> None:
    folder = bundle_at(tmp_path / "bundle", CharTableTokenizer({"H": 4, "i": 8, " ": 19}))
    export_bundle(folder, tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "again")
    prompts = ["Hi H", "i"]
    assert Bundle(tmp_path / "again").complete(prompts, **GREEDY) == Bundle(folder).complete(prompts, **GREEDY)
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["suppress_tokens"] == [
        *[0, 1, 2],
        *range(5, 8),
        *range(9, 19),
    ]


def test_reserved_ids_are_rows_of_the_network_that_are_never_drawn(tmp_path: Path) -> None:
    tokenizer = CharTokenizer.fit([PROSE], reserved=3)
    bundle = Bundle(bundle_at(tmp_path / "bundle", tokenizer))
    assert set(range(tokenizer.vocab_size - 3, tokenizer.vocab_size)) <= set(bundle.ids_without_text())
    export_bundle(tmp_path / "bundle", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "again")
    assert Bundle(tmp_path / "again").complete(["the"], **GREEDY) == bundle.complete(["the"], **GREEDY)
