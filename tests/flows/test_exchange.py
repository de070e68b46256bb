"""`sheepfold export` and `sheepfold import`, from the keyboard to a generated text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import invoke

from model import ModelConfig, Transformer, save_weights
from storage.schemas import TOKEN_COUNTS
from storage.tables import write_table
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with random weights."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    tokenizer = AsciiTokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(ModelConfig(128, max_seq_len=16, n_layer=1, n_head=2, d_model=16, init_std=0.3))
    save_weights(bundle / "model.safetensors", model)
    (bundle / "config.json").write_text(json.dumps({"model": model.config.to_dict()}))
    tokenizer.save(bundle / "tokenizer.json")
    rows = ({"token": token, "count": 1} for token in range(128))
    write_table(bundle / "token_counts.parquet", TOKEN_COUNTS, rows)
    return bundle


def done(home: Path, *arguments: str) -> Any:
    result = invoke(home, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_model_goes_out_comes_in_and_continues_with_the_same_text(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    out = done(home, "export", str(folder), str(tmp_path / "hf"))
    assert (out["layout"], out["vocab_size"], out["tokenizer"]) == ("gpt2", 128, "ascii")
    back = done(home, "import", str(tmp_path / "hf"), str(tmp_path / "again"))
    assert back["n_parameters"] == out["n_parameters"]
    assert back["prompts_begin_with"] == out["prompts_begin_with"] == "bos (id 2)"
    asked = ["generate", "The fold", "--temperature", "0", "--max-new-tokens", "12", "--model"]
    first, second = (done(home, *asked, str(place))["rows"][0] for place in (folder, tmp_path / "again"))
    assert first["text"] == second["text"] != ""


def test_what_a_prompt_of_an_imported_model_begins_with_is_said(folder: Path, tmp_path: Path) -> None:
    home, again = tmp_path / "home", str(tmp_path / "again")
    done(home, "export", str(folder), str(tmp_path / "hf"))
    assert "prompts_begin_with: bos (id 2)\n" in invoke(home, "import", str(tmp_path / "hf"), again).stdout
    told = "the prompt begins with bos (id 2)\n"
    assert told in invoke(home, "generate", "The fold", "--model", again).stderr
    assert told not in invoke(home, "generate", "The fold", "--model", str(folder)).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "nobody", "{tmp}/hf"], "no model 'nobody'"),
        (["export", "{tmp}/bundle", "{tmp}/bundle"], "not an empty folder"),
        (["export", "{tmp}/bundle", "{tmp}/hf", "--layout", "llama-original"], "pos='learned' is not supported"),
        (["import", "{tmp}/nowhere", "{tmp}/again"], "no folder"),
        (["import", "{tmp}/bundle", "{tmp}/again"], "tokenizer.json"),
    ],
)
def test_a_mistake_in_an_exchange_is_told_in_a_sentence(
    arguments: list[str], sentence: str, folder: Path, tmp_path: Path
) -> None:
    result = invoke(tmp_path / "home", *(part.format(tmp=tmp_path) for part in arguments))
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_a_model_goes_out_for_llama_cpp_if_that_has_its_like_and_comes_back(folder: Path, tmp_path: Path) -> None:
    refused = invoke(tmp_path / "home", "export", str(folder), str(tmp_path / "no.gguf"))
    assert refused.exit_code == 1 and "llama.cpp has no such network with act='gelu'" in refused.output
    tokenizer = learn_merges(["The fold keeps the sheep. " * 8], 300)
    shape = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False, "d_model": 64}
    model = Transformer(ModelConfig(tokenizer.vocab_size, max_seq_len=16, n_layer=1, n_head=2, **shape))
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": model.config.to_dict()}))
    tokenizer.save(folder / "tokenizer.json")
    out = done(tmp_path / "home", "export", str(folder), str(tmp_path / "fold.gguf"), "--type", "q8_0")
    assert out["layout"] == "llama (q8_0)" and (tmp_path / "fold.gguf").stat().st_size > 10_000
    done(tmp_path / "home", "export", str(folder), str(tmp_path / "whole.gguf"), "--type", "f32")
    back = done(tmp_path / "home", "import", str(tmp_path / "whole.gguf"), str(tmp_path / "again"))
    assert (back["layout"], back["n_parameters"]) == ("llama", out["n_parameters"])
    asked = ["generate", "The fold", "--temperature", "0", "--max-new-tokens", "8", "--model"]
    first, second = (done(tmp_path / "home", *asked, str(place))["rows"][0] for place in (folder, tmp_path / "again"))
    assert first["text"] == second["text"] != ""


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [("x.gguf", ["--layout", "llama"], "for Hugging Face folders"), ("x", ["--type", "f16"], "for GGUF files")],
)
def test_options_of_the_other_form_are_refused(
    folder: Path, tmp_path: Path, target: str, options: list[str], message: str
) -> None:
    result = invoke(tmp_path / "home", "export", str(folder), str(tmp_path / target), *options)
    assert result.exit_code == 1 and message in result.output
