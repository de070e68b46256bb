"""Settings: what is accepted, what is refused, and the way to a dictionary and back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from model import PRESETS, GenerationConfig, ModelConfig, TrainConfig, preset

LINEAR = {"pos": "rope", "rope_scaling": "linear", "rope_factor": 2.0}
YARN = {**LINEAR, "rope_scaling": "yarn", "rope_original_len": 64}
CONFIGS = [
    ModelConfig(50, **YARN, rope_ramp=(2.0, 8.0), norm="rmsnorm", window=9, n_kv_head=2, vocab_multiple=64),
    ModelConfig(50, pos="sinusoidal", pos_base=500.0, act="gelu_tanh", attn_bias=False),
    TrainConfig(7, betas=(0.8, 0.9), precision="bf16"),
    GenerationConfig(top_k=3, top_p=0.5, eos_id=2, logit_bias={3: 1.5}, stop=("a", "b"), stop_ids=(4,)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_configuration_survives_json(config: Any) -> None:
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_unknown_setting_is_named(config: Any) -> None:
    with pytest.raises(ValueError, match="'n_layers'"):
        type(config).from_dict({**config.to_dict(), "n_layers": 2})


def test_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match="'vocab_size'"):
        ModelConfig.from_dict({"n_layer": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 30, "n_head": 4}, "multiple of n_head"),
        ({"act": "elu"}, "gelu_tanh"),
        ({"pos": "alibi"}, "sinusoidal"),
        ({"drop_attn": 1.0}, "drop_attn=1.0"),
        ({"n_layer": 0}, "n_layer=0"),
        ({"n_layer": True}, "n_layer=True"),
        ({"d_model": "128"}, "d_model='128'"),
        ({"max_seq_len": 1}, "at least 2"),
        ({"pos_base": 500.0}, "has no wavelengths"),
        ({"pos": "sinusoidal", "d_model": 9, "n_head": 3}, "even d_model"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"attn_bias": 1}, "True or False"),
        ({"init_residual_scaling": "yes"}, "init_residual_scaling='yes'; expected True or False"),
        ({"vocab_size": 0}, "vocab_size=0; expected a whole number of at least 1"),
        ({"vocab_multiple": 0}, "vocab_multiple=0"),
        ({"d_ff": 0}, "d_ff=0"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"n_kv_head": 0}, "n_kv_head=0"),
        (
            {"n_kv_head": 3},
            "n_head=4 query heads cannot share n_kv_head=3 heads evenly; choose an n_kv_head that divides",
        ),
        ({"n_kv_head": 8}, "cannot share n_kv_head=8"),
        ({"norm": "batchnorm"}, "norm='batchnorm'; expected one of layernorm, rmsnorm"),
        ({"norm_order": "sandwich"}, "expected one of pre, post"),
        ({"norm": "rmsnorm", "norm_bias": True}, "norm_bias=True has no effect: norm='rmsnorm' has a gain only"),
        ({"norm": "rmsnorm", "norm_bias": False}, "norm_bias=False has no effect"),
        ({"norm_bias": 1}, "norm_bias=1; expected True or False"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"init": "orthogonal"}, "expected one of normal, xavier"),
        ({"init_std": 0.0}, "init_std=0.0"),
        ({"init_std": float("inf")}, "init_std=inf"),
        ({"drop_embed": -0.1}, "drop_embed=-0.1"),
        ({"drop_ffn": True}, "drop_ffn=True"),
        ({"drop_resid": 2}, "drop_resid=2"),
        ({"window": 0}, "window=0"),
        ({"window": 257}, "window=257 is longer than max_seq_len=256 and would mask nothing; leave it out"),
        ({"pos": "none", "pos_base": 500.0}, "pos_base=500.0 has no effect: pos='none' has no wavelengths"),
        ({"pos": "rope", "pos_base": 1.0}, "pos_base=1.0"),
        ({"rope_layout": "half"}, "rope_layout='half' has no effect: nothing is rotated with pos='learned'; leave it"),
        ({"pos": "none", "rope_dim": 4}, "rope_dim=4 has no effect"),
        (
            {"pos": "sinusoidal", "rope_scaling": "linear", "rope_factor": 2.0},
            "nothing is rotated with pos='sinusoidal'",
        ),
        ({"rope_factor": 2.0}, "rope_factor=2.0 has no effect"),
        ({"rope_original_len": 64}, "rope_original_len=64 has no effect"),
        ({"rope_ramp": (1.0, 4.0)}, "has no effect"),
        ({"pos": "rope", "rope_layout": "pairs"}, "rope_layout='pairs'; expected one of half, interleaved"),
        ({"pos": "rope", "head_dim": 5}, "head_dim=5 is odd, but rotation needs pairs"),
        ({"pos": "rope", "head_dim": 5}, "or set rope_dim=4 to leave the last column as it is"),
        ({"pos": "rope", "rope_dim": 3}, "rope_dim=3; expected an even number up to head_dim=32"),
        ({"pos": "rope", "rope_dim": 34}, "rope_dim=34; expected an even number up to head_dim=32"),
        ({"pos": "rope", "rope_dim": 0}, "rope_dim=0"),
        ({"pos": "rope", "rope_scaling": "longrope"}, "rope_scaling='longrope'"),
        ({"pos": "rope", "rope_factor": 2.0}, "rope_factor=2.0 has no effect: rope_scaling='none' stretches nothing"),
        ({"pos": "rope", "rope_original_len": 64}, "rope_scaling='none' stretches nothing"),
        ({"pos": "rope", "rope_scaling": "linear"}, "rope_factor=1.0"),
        ({**LINEAR, "rope_original_len": 64}, "rope_original_len=64 has no effect: rope_scaling='linear' has no ramp"),
        ({**LINEAR, "rope_ramp": (1.0, 4.0)}, "rope_scaling='linear' has no ramp"),
        ({**LINEAR, "rope_scaling": "ntk", "rope_dim": 2}, "rope_dim=2 has only that one"),
        ({**LINEAR, "rope_scaling": "yarn"}, "rope_scaling='yarn' needs rope_original_len, the context the weights"),
        ({**LINEAR, "rope_scaling": "llama3"}, "rope_scaling='llama3' needs rope_original_len"),
        ({**YARN, "rope_original_len": 0}, "rope_original_len=0"),
        ({**YARN, "rope_ramp": (1.0,)}, "expected two numbers of turns such as"),
        ({**YARN, "rope_ramp": 4.0}, "rope_ramp=4.0; expected two numbers of turns"),
        ({**YARN, "rope_ramp": (4.0, 1.0)}, "rope_ramp=1.0"),
        ({**YARN, "rope_ramp": (4.0, 4.0)}, "rope_ramp=4.0"),
        ({**YARN, "rope_ramp": (0.0, 4.0)}, "rope_ramp=0.0"),
    ],
)
def test_wrong_model_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ModelConfig(**{"vocab_size": 10, **settings})


def test_derived_fields_are_worked_out_where_they_have_an_effect() -> None:
    plain = ModelConfig(10)
    assert (plain.d_ff, plain.n_kv_head, plain.head_dim, plain.norm_bias) == (512, 4, 32, True)
    assert (plain.pos_base, plain.rope_layout, plain.rope_dim, plain.rope_ramp) == (None, None, None, None)
    rope = ModelConfig(10, pos="rope")
    assert (rope.pos_base, rope.rope_layout, rope.rope_dim, rope.rope_ramp) == (10000.0, "half", 32, None)
    assert ModelConfig(10, norm="rmsnorm").norm_bias is None
    assert ModelConfig(10, **YARN).rope_ramp == (1.0, 32.0)
    assert ModelConfig(10, **{**YARN, "rope_scaling": "llama3"}).rope_ramp == (1.0, 4.0)


@pytest.mark.parametrize(("vocab_multiple", "rows"), [(1, 50), (64, 64), (50, 50), (7, 56)])
def test_tables_get_rows_up_to_the_multiple(vocab_multiple: int, rows: int) -> None:
    assert ModelConfig(50, vocab_multiple=vocab_multiple).padded_vocab_size == rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 0}, "max_steps=0"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"precision": "fp8"}, "bf16"),
        ({"betas": (0.9,)}, "two numbers"),
        ({"betas": (0.9, 1.0)}, "betas=1.0"),
        ({"warmup_ratio": 1.5}, "warmup_ratio"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_training_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{"max_steps": 10, **settings})


def test_a_bias_of_json_is_that_of_python() -> None:
    assert GenerationConfig.from_dict(json.loads('{"logit_bias": {"3": 1}}')) == GenerationConfig(logit_bias={3: 1.0})


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 1.1},
        {"eos_id": -1},
        {"min_p": -0.1},
        {"typical_p": 2},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": float("nan")},
        {"presence_penalty": "1"},
        {"no_repeat_ngram": -1},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": [(1, 2, 3)]},
        {"logit_bias": {1: float("-inf")}},
        {"stop_ids": [-1]},
        {"stop_ids": None},
        {"suppress": 5},
        {"suppress": "5"},
        {"logit_bias": 5},
        {"stop": "text"},
        {"stop": [""]},
        {"stop": 5},
        {"n_samples": 0},
        {"top_logprobs": -1},
        {"overflow": "crop"},
        {"deterministic": 1},
    ],
    ids=str,
)
def test_wrong_generation_setting_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GenerationConfig(**settings)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_takes_a_vocabulary_and_overrides(name: str) -> None:
    config = preset(name, 100, drop_ffn=0.5)
    assert (config.vocab_size, config.drop_ffn, config.n_layer) == (100, 0.5, PRESETS[name]["n_layer"])


def test_unknown_preset_lists_the_known() -> None:
    with pytest.raises(ValueError, match="tiny, small, medium, sheepop"):
        preset("huge", 100)
