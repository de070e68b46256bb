"""Settings: what is accepted, what is refused, and the way to a dictionary and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model import PRESETS, GenerationConfig, ModelConfig, TrainConfig, preset

CONFIGS = [
    ModelConfig(50, pos="sinusoidal", pos_base=500.0, act="gelu_tanh", attn_bias=False),
    TrainConfig(7, betas=(0.8, 0.9), precision="bf16"),
    GenerationConfig(top_k=3, top_p=0.5, eos_id=2),
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
    ],
)
def test_wrong_model_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"vocab_size": 10, **settings})


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


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 1.1}, {"eos_id": -1}])
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
