"""The command `inspect`, from what is typed to what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import invoke
from typer.testing import Result

from model import PRESETS, ModelConfig, Transformer, save_weights
from storage.schemas import COUNTS_FILE
from tasks.report.inspection import Subject
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, CharTokenizer
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE


@pytest.fixture
def bundle_folder(tmp_path: Path) -> Path:
    """A model folder as training leaves it, with random weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = CharTokenizer(" HWdelor")
    config = ModelConfig(tokenizer.vocab_size, max_seq_len=16, n_layer=2, n_head=2, d_model=16)
    save_weights(folder / WEIGHTS_FILE, Transformer(config))
    train = {"max_steps": 7, "lr": 0.002, "seed": 11}
    (folder / CONFIG_FILE).write_text(json.dumps({"model": config.to_dict(), "train": train}))
    tokenizer.save(folder / TOKENIZER_FILE)
    (folder / COUNTS_FILE).write_bytes(b"")
    return folder


def call(home: Path, *arguments: str) -> Result:
    return invoke(home, "inspect", *arguments)


def test_a_model_folder_is_inspected_into_a_page_and_a_few_lines(tmp_path: Path, bundle_folder: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    done = call(tmp_path / "home", "--model", str(bundle_folder), "--prompt", "Hello World", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "<bos> H e l l o ␣ W o r l d" in done.stdout
    assert "perplexity" in done.stdout
    assert str(out) in done.stderr
    page = out.read_text(encoding="utf-8")
    assert "trained, 7 steps" in page
    assert "peak 0.002" in page


def test_without_a_file_name_the_page_goes_to_the_reports_of_the_home(tmp_path: Path, bundle_folder: Path) -> None:
    done = call(tmp_path / "home", "--model", str(bundle_folder), "--prompt", "Hello")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "home" / "reports" / "inspect.html").is_file()


def test_json_is_one_document_and_writes_no_page(tmp_path: Path) -> None:
    done = call(tmp_path / "home", "--preset", "tiny", "--prompt", "Hello World", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [token["id"] for token in document["tokens"]][:5] == [72, 101, 108, 108, 111]
    assert document["model"]["trained"] is False
    assert not (tmp_path / "home" / "reports").exists()


def test_a_seed_gives_the_same_network_and_another_seed_another() -> None:
    first, again, other = (Subject.untrained("tiny", seed).model.head_weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["llama_toy", "sheepop", "modern-1m", "light_llm"])
def test_fresh_networks_of_every_family_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name != "llama_toy":  # what they are made of counts here, not how large they are
        monkeypatch.setitem(PRESETS, name, {**PRESETS[name], "n_layer": 2, "n_head": 2, "d_model": 64})
    out = tmp_path / "page.html"
    done = call(tmp_path, "--preset", name, "--prompt", "Hi!", "--out", str(out))
    assert done.exit_code == 0, done.output
    weights = "weights of its source" if name == "llama_toy" else "fresh"
    assert f"Inside {name} ({weights})" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "tiny"], "the prompt is empty"),
        (["--preset", "tinny", "--prompt", "a"], "no preset 'tinny'"),
        (["--preset", "llama-7b", "--prompt", "a"], "choose a smaller preset"),
        (["--prompt", "a", "--model", "nobody"], "no model 'nobody'"),
        (["--prompt", "a", "--corpus", "poems"], "models:/sheepfold-poems@ALIAS"),
        (["--prompt", "a", "--preset", "tiny", "--model", "7"], "give one of them"),
        (["--prompt", "a" * 129, "--preset", "tiny"], "expected at most 128"),
    ],
)
def test_mistakes_are_told_in_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = call(tmp_path / "home", *arguments)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call(tmp_path, "--preset", "tiny", "--prompt", "a", "--out", str(tmp_path / "file" / "page.html"))
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr
