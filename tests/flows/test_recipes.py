"""The presets named after documents, each trained by `sheepfold run`: what is recorded is what the document states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import answer, invoke

from model.presets import preset
from storage.tables import read_rows
from tests.tasks.tiny_run import write_texts

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]

SHORT = ["--max-steps=2", "--set=train.batch_size=1", "--set=generate.max_new_tokens=3", "--set=evaluate.trace=false"]
SHORT += ["--set=curate.validation_share=0.3", "--set=evaluate.ngram_order=0"]
# given beside the presets, so that the networks train in seconds; the whole shapes are held by a test of their own
SMALL = {"n_layer": 1, "n_head": 2, "d_model": 64, "d_ff": 256, "max_seq_len": 64}
UNFILTERED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_new_tokens": 0}


@dataclass(frozen=True)
class Stated:
    """Figures stated in a document, named as in the records; `top_rate` is the highest learning rate."""

    tokenizer: Mapping[str, Any]
    network: Mapping[str, Any]
    train: Mapping[str, Any]
    sampling: Mapping[str, Any]


STATED = {
    "sheepop": Stated(
        {"kind": "ascii", "vocab_size": 0},
        {
            **{"d_model": 512, "n_head": 8, "d_ff": 2048, "n_layer": 6, "norm_eps": 1e-5},
            **{"pos": "sinusoidal", "norm": "layernorm", "norm_order": "pre", "act": "gelu", "init_std": 0.02},
            **{"attn_bias": False, "ffn_bias": True, "tie_weights": False, "final_norm": True},
            **{"drop_embed": 0.1, "drop_attn": 0.0, "drop_ffn": 0.1, "drop_resid": 0.1},
        },
        {
            **{"optimizer": "adamw", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "decay_groups": False},
            **{"schedule": "cosine", "lr": 1e-3, "min_lr_ratio": 0.0, "first_step": 0, "clip_norm": 1.0},
        },
        UNFILTERED,
    ),
    "light_llm": Stated(
        {"kind": "bpe", "vocab_size": 50257},
        {
            **{"d_model": 384, "n_head": 6, "n_layer": 6, "max_seq_len": 1024, "d_ff": 1536, "pos": "learned"},
            **{"norm": "layernorm", "norm_order": "pre", "act": "gelu", "tie_weights": True, "init_std": 0.02},
            **{"attn_bias": True, "ffn_bias": True, "drop_embed": 0.1, "drop_resid": 0.1, "drop_resid_mlp": 0.0},
        },
        {
            **{"optimizer": "adamw", "betas": [0.9, 0.95], "eps": 1e-8, "decay_groups": True},
            **{"schedule": "warmup_cosine", "min_lr_ratio": 0.0, "first_step": 0},
        },
        UNFILTERED,
    ),
    "llama_toy": Stated(
        {"kind": "word", "vocab_size": 10},
        {
            **{"d_model": 6, "n_head": 2, "head_dim": 3, "n_layer": 1, "max_seq_len": 3},
            **{"d_ff": 24, "norm": "rmsnorm", "norm_eps": 1e-6, "act": "swiglu", "pos": "rope", "pos_base": 10000.0},
            **{"rope_layout": "interleaved", "attn_bias": False, "ffn_bias": False, "tie_weights": False},
        },
        {},
        {**UNFILTERED, "temperature": 0.0},
    ),
    "fundamentals": Stated(
        {},
        {
            **{"n_layer": 18, "n_head": 16, "d_model": 2048, "d_ff": 8192, "max_seq_len": 1024, "pos": "learned"},
            **{"norm": "layernorm", "norm_order": "post", "act": "relu"},
            **{"tie_weights": True, "final_norm": True, "drop_attn": 0.1, "drop_ffn": 0.1, "drop_resid": 0.1},
        },
        {
            **{"optimizer": "adam", "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.0},
            **{"schedule": "noam", "warmup_steps": 4000, "lr": (64 * 4000) ** -0.5},
        },
        {**UNFILTERED, "max_new_tokens": 100},
    ),
}


@pytest.fixture(scope="module", params=STATED)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A preset and the home of a run by it."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    small = [f"--set=model.{key}={value}" for key, value in SMALL.items() if name != "llama_toy"]
    answer(folder / "home", "run", str(write_texts(folder / "texts")), "--preset", name, *SHORT, *small)
    return name, folder / "home"


def recorded(home: Path, stage: str) -> tuple[Path, dict[str, Any]]:
    """Folder and settings of the only artefact of a stage."""
    (manifest,) = (home / "store" / stage).glob("*/manifest.json")
    found: dict[str, Any] = json.loads(manifest.read_text())["settings"]
    return manifest.parent, found


@pytest.mark.parametrize("name", STATED)
def test_the_network_of_a_preset_is_the_documents(name: str) -> None:
    network = preset(name).to_dict()
    assert {key: network[key] for key in STATED[name].network} == STATED[name].network


@pytest.mark.full
def test_a_run_records_what_the_document_states_but_for_what_was_given(trained: tuple[str, Path]) -> None:
    name, home = trained
    stated = STATED[name]
    shape = stated.network if name == "llama_toy" else {**stated.network, **SMALL}
    folder, train = recorded(home, "train")
    _, tokenizer = recorded(home, "tokenizer")
    found = [tokenizer, train["model"], train["train"], train["sampling"]]
    expected = [stated.tokenizer, shape, stated.train, stated.sampling]
    assert [{key: part[key] for key in want} for part, want in zip(found, expected, strict=True)] == expected
    assert train["train"]["precision"] == "fp32"  # of a CPU, as no document asks for another one
    rates = {row["step"]: row["value"] for row in read_rows(folder / "history.parquet") if row["metric"] == "lr"}
    first = {"sheepop": 1e-3, "light_llm": 0.0, "fundamentals": 64**-0.5 * 4000**-1.5}
    if name in first:
        assert math.isclose(rates[1], first[name], rel_tol=1e-9)


@pytest.mark.full
def test_a_model_of_a_preset_is_sampled_as_the_document_says_unless_told_otherwise(trained: tuple[str, Path]) -> None:
    name, home = trained
    asked = ["generate", "the shepherd", "--max-new-tokens", "3", "--seed", "5", "--model", "champion"]
    explicit = [f"--set=generate.{key}={value}" for key, value in STATED[name].sampling.items() if "max" not in key]
    texts = [
        [row["text"] for row in answer(home, *asked, *more)["rows"]]
        for more in ([], explicit, ["--temperature", "0.8", "--top-p", "0.95", "--n-samples", "2"])
    ]
    assert texts[0] == texts[1]
    assert len(texts[2]) == 2


@pytest.mark.full
def test_what_is_trained_and_how_is_said_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sheepfold")
    invoke(tmp_path / "home", "train", str(write_texts(tmp_path / "texts")), *SHORT)
    said = [record.getMessage() for record in caplog.records]
    (chosen,) = (text for text in said if text.startswith("suggest: "))
    (begun,) = (text for text in said if text.startswith("train: ") and "parameters on" in text)
    assert "modern-200k" in chosen and "muon in fp32" in chosen
    report = (tmp_path / "home" / "reports" / "default" / "report.md").read_text()
    assert "Muon trains the matrices" in report  # the reasons
    assert "on cpu in fp32 by muon" in begun
