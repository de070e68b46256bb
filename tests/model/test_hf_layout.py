"""Hugging Face folders: what comes back to the byte, what is tolerated, and what is refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_parity import LIMIT, compare, load_theirs, random_network, random_shape, random_theirs, relative
from safetensors.torch import load_file, save_file

from model import (
    PRESETS,
    ModelConfig,
    SpanSource,
    TrainConfig,
    Trainer,
    Transformer,
    count_parameters,
    from_hf,
    preset,
    to_hf,
)
from model.hf_config import ORIGINAL, LayoutError, config_from_hf, config_to_hf, layout_of

GPT2 = {"vocab_size": 31, "max_seq_len": 16, "n_layer": 2, "n_head": 2, "d_model": 16}
LLAMA = {
    **{**GPT2, "pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False},
    **{"n_kv_head": 1, "tie_weights": False, "init_residual_scaling": False},
}
MISTRAL = {**LLAMA, "window": 5}
QWEN2 = {**LLAMA, "qkv_bias": True}
QWEN3 = {**LLAMA, "qk_norm": True, "head_dim": 12}
SMOLLM3 = {**LLAMA, "unrotated_every": 2}
GEMMA = {**LLAMA, "act": "geglu", "embed_scale": True}
GEMMA3 = {**GEMMA, "qk_norm": True, "norm_order": "both", "window": 5, "full_every": 2, "window_pos_base": 50.0}
SHAPES = {"gpt2": GPT2, "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3}
SHAPES |= {"smollm3": SMOLLM3, "gemma": GEMMA, "gemma3_text": GEMMA3}
ROTARY = [layout for layout in SHAPES if layout != "gpt2"]
MODERN = [
    name if name in ("modern-200k", "modern-1m") else pytest.param(name, marks=pytest.mark.full)
    for name in PRESETS
    if name.startswith("modern-")
]
IDS = torch.randint(31, (2, 16), generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=SHAPES)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Transformer, Path]:
    """A small network and its folder."""
    model = random_network(SHAPES[request.param])
    to_hf(model, tmp_path / "exported")
    return model, tmp_path / "exported"


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("layout", [*SHAPES, ORIGINAL])
def test_out_and_in_again_gives_the_same_bits(layout: str, number: int, tmp_path: Path) -> None:
    shape = {**random_shape(layout, number), "vocab_multiple": 1}
    if layout != "gpt2":
        shape["rope_layout"] = "interleaved" if layout == ORIGINAL else "half"
    if layout == ORIGINAL:
        plain = {"head_dim": None, "tie_weights": False, "rope_scaling": "none", "rope_factor": 1.0}
        shape |= {**plain, "rope_original_len": None, "rope_ramp": None}
    model = random_network(shape)
    to_hf(model, tmp_path / "exported", layout)
    again = from_hf(tmp_path / "exported").state_dict()
    assert again.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again[name]), name


@pytest.mark.parametrize("layout", ROTARY)
@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_a_scaled_rotation_comes_back(scaling: str, layout: str) -> None:
    fields: dict[str, Any] = {"rope_scaling": scaling, "rope_factor": 4.0}
    if scaling != "linear":
        fields |= {"rope_original_len": 64, "rope_ramp": (2.0, 9.0)}
    config = ModelConfig(**{**SHAPES[layout], "pos_base": 5000.0, **fields})
    assert config_from_hf(config_to_hf(config)) == config


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "llama-7b", "llama"])
def test_presets_of_published_models_come_back(name: str) -> None:
    config = preset(name)
    assert config_from_hf(config_to_hf(config)) == config


@pytest.mark.parametrize("name", MODERN)
def test_every_modern_preset_has_a_place_in_transformers(name: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    written = config_to_hf(preset(name))
    # without what is no part of the function
    bare = preset(name, vocab_multiple=1, init_residual_scaling=False)
    assert config_from_hf(written) == bare
    with torch.device("meta"):
        theirs = Qwen3ForCausalLM(Qwen3Config.from_dict(written))
    assert theirs.num_parameters() == count_parameters(bare)["total"]


def test_a_modern_network_gives_the_same_logits_in_transformers(tmp_path: Path) -> None:
    model = random_network({**PRESETS["modern-1m"], "vocab_size": 300, "max_seq_len": 64})
    to_hf(model, tmp_path / "exported")
    for attention in ("sdpa", "eager"):
        found = compare(model, load_theirs(tmp_path / "exported", attention))
        assert max(found.logits, found.gradients) <= LIMIT, found


def test_the_config_of_a_published_qwen3_is_read() -> None:
    """Qwen3-0.6B, whose heads are together wider than the stream."""
    written = {
        **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "transformers_version": "4.51.0"},
        **{"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645},
        **{"head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02},
        **{"intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28},
        **{"num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06},
        **{"rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False},
        **{"tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 151936},
    }
    config = config_from_hf(written)
    assert (config.n_head, config.n_kv_head, config.head_dim, config.pos_base) == (16, 8, 128, 1e6)
    assert count_parameters(config)["total"] == 596_049_920


@pytest.mark.parametrize("layout", ROTARY)
def test_what_a_config_leaves_out_has_the_defaults_of_transformers(layout: str) -> None:
    from transformers import AutoConfig

    heads = {"num_attention_heads": 64}  # not the default number of key-value heads
    theirs = AutoConfig.for_model(layout, **heads)
    assert config_from_hf({"model_type": layout, **heads}) == config_from_hf(theirs.to_dict())


@pytest.mark.parametrize("layout", SHAPES)
def test_shards_of_transformers_are_read(layout: str, tmp_path: Path) -> None:
    theirs = random_theirs(layout, 3)
    theirs.save_pretrained(tmp_path, max_shard_size=2000)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    found = compare(from_hf(tmp_path), theirs)
    assert max(found.logits, found.gradients) <= LIMIT


def test_a_stored_copy_of_a_tied_head_changes_nothing(tmp_path: Path) -> None:
    model = random_network(GPT2)
    to_hf(model, tmp_path / "exported")
    assert "lm_head.weight" not in load_file(tmp_path / "exported" / "model.safetensors")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()

    change_weights(tmp_path / "exported", add)
    with torch.no_grad():
        assert torch.equal(from_hf(tmp_path / "exported")(IDS), model(IDS))


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    to_hf(random_network(GPT2), tmp_path / "exported")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    change_weights(tmp_path / "exported", add)
    with pytest.raises(LayoutError, match=r"lm_head\.weight differs from the token embedding"):
        from_hf(tmp_path / "exported")


def test_names_without_prefix_and_old_buffers_are_read(tmp_path: Path) -> None:
    model = random_network(GPT2)
    to_hf(model, tmp_path / "exported")

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        tensors["h.1.attn.masked_bias"] = torch.tensor(-1e4)

    change_weights(tmp_path / "exported", strip)
    with torch.no_grad():
        assert torch.equal(from_hf(tmp_path / "exported")(IDS), model(IDS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_single(exported: tuple[Transformer, Path], dtype: torch.dtype, tmp_path: Path) -> None:
    model, folder = exported

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)

    change_weights(folder, halve)
    again = from_hf(folder)
    assert again.token_embedding.weight.dtype == torch.float32
    expected = model.token_embedding.weight.to(dtype).float()
    assert torch.equal(again.token_embedding.weight, expected)


def test_faults_of_tensors_are_all_named(exported: tuple[Transformer, Path]) -> None:
    _, folder = exported

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        first, second, *_ = sorted(tensors)
        del tensors[first]
        tensors[second] = torch.zeros(3, 5)
        tensors["adapter.weight"] = torch.zeros(1)

    names = sorted(load_file(folder / "model.safetensors"))
    change_weights(folder, spoil)
    with pytest.raises(LayoutError) as told:
        from_hf(folder)
    assert f"{names[0]} is missing" in str(told.value)
    assert f"{names[1]} has the shape (3, 5)" in str(told.value)
    assert "adapter.weight is unknown" in str(told.value)


GPT2_REFUSED: list[dict[str, Any]] = [
    {"model_type": "opt"},
    {"scale_attn_by_inverse_layer_idx": True},
    {"scale_attn_weights": False},
    {"add_cross_attention": True},
    {"activation_function": "silu"},
    {"quantization_config": {"bits": 4}},
    {"auto_map": {"AutoModelForCausalLM": "code.Model"}},
    {"pruned_heads": {"0": [1]}},
    {"n_head": 3},
]
LLAMA_REFUSED: list[dict[str, Any]] = [
    {"hidden_act": "gelu"},
    {"partial_rotary_factor": 0.5},
    {"sliding_window": 4},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5}},
    {"rope_scaling": {"full_attention": {"rope_type": "default"}}},
    {"per_layer_config": {"0": {"num_attention_heads": 4}}},
    {"num_attention_heads": 3},
]
MIXED = ["full_attention", "sliding_attention"]
MISTRAL_REFUSED: list[dict[str, Any]] = [
    {"hidden_act": "gelu"},
    {"layer_types": MIXED},
    {"layer_types": ["full_attention", "full_attention"]},  # which its class does not read
    {"sliding_window": None, "layer_types": MIXED},
]
QWEN3_REFUSED: list[dict[str, Any]] = [
    {"hidden_act": "gelu"},
    {"partial_rotary_factor": 0.5},
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "layer_types": None},
    {"sliding_window": 4, "use_sliding_window": True, "layer_types": MIXED},
    {"layer_types": ["sliding_attention", "sliding_attention"]},
    {"layer_types": ["chunked_attention", "full_attention"]},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5}},
]


SMOLLM3_REFUSED: list[dict[str, Any]] = [
    {"hidden_act": "gelu"},
    {"use_sliding_window": True, "sliding_window": 4},
    {"no_rope_layers": [0, 1]},
    {"no_rope_layers": [1]},
]
GEMMA_REFUSED: list[dict[str, Any]] = [
    {"hidden_activation": "silu"},
    {"final_logit_softcapping": 30.0},
    {"use_bidirectional_attention": True},
]
GEMMA3_REFUSED: list[dict[str, Any]] = [
    *GEMMA_REFUSED,
    {"attn_logit_softcapping": 50.0},
    {"query_pre_attn_scalar": 99},
    {"layer_types": ["full_attention", "sliding_attention"]},
    {"layer_types": ["chunked_attention", "full_attention"]},
    {"layer_types": ["sliding_attention"]},
    {"hidden_activation": "gelu"},
]
REFUSED = {"gpt2": GPT2_REFUSED, "llama": LLAMA_REFUSED, "mistral": MISTRAL_REFUSED}
REFUSED |= {"qwen2": QWEN3_REFUSED, "qwen3": QWEN3_REFUSED}
REFUSED |= {"smollm3": SMOLLM3_REFUSED, "gemma": GEMMA_REFUSED, "gemma3_text": GEMMA3_REFUSED}


@pytest.mark.parametrize(
    ("layout", "change"),
    [(layout, change) for layout, changes in REFUSED.items() for change in changes],
    ids=str,
)
def test_what_cannot_be_computed_here_is_refused_by_name(layout: str, change: dict[str, Any], tmp_path: Path) -> None:
    to_hf(random_network(SHAPES[layout]), tmp_path / "exported")
    change_config(tmp_path / "exported", **change)
    name, value = next(iter(change.items()))
    name = name.replace("hidden_activation", "hidden_act")
    if isinstance(value, dict) and name.startswith("rope"):
        inner = value.get("rope_type", value.get("type"))
        name = next((key for key in ("truncate", "attention_factor") if key in value), inner or "rope_parameters")
    with pytest.raises(LayoutError, match={"n_head": "n_head=3"}.get(name, name)):
        from_hf(tmp_path / "exported")


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 1.0}},
        {"rope_parameters": None, "rope_scaling": None},
        {"partial_rotary_factor": 1.0, "pretraining_tp": 4, "unheard_of": True},
    ],
    ids=str,
)
def test_what_changes_nothing_is_accepted(change: dict[str, Any], tmp_path: Path) -> None:
    model = random_network(LLAMA)
    to_hf(model, tmp_path / "exported")
    change_config(tmp_path / "exported", **change)
    assert from_hf(tmp_path / "exported").config == model.config


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": 4},
        {"sliding_window": 4, "max_window_layers": 0, "layer_types": None},
        {"use_sliding_window": True, "layer_types": None, "max_window_layers": 2, "sliding_window": 4},
        {"use_sliding_window": True, "layer_types": None, "max_window_layers": 0, "sliding_window": None},
        {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2, "sliding_window": 16},
        {"mlp_bias": True},
    ],
    ids=str,
)
def test_windows_of_qwen3_that_hide_nothing_are_accepted(change: dict[str, Any], tmp_path: Path) -> None:
    model = random_network(QWEN3)
    to_hf(model, tmp_path / "exported")
    change_config(tmp_path / "exported", **change)
    again = from_hf(tmp_path / "exported")
    assert again.config == model.config
    found = compare(again, load_theirs(tmp_path / "exported", "sdpa"))
    assert max(found.logits, found.gradients) <= LIMIT


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pos": "sinusoidal"}, "pos='sinusoidal'"),
        ({"norm": "rmsnorm"}, "norm='rmsnorm'"),
        ({"norm_order": "post"}, "norm_order='post'"),
        ({"norm_bias": False}, "norm_bias=False"),
        ({"final_norm": False}, "final_norm=False"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"act": "swiglu"}, "act='swiglu'"),
        ({"attn_bias": False}, "attn_bias=False"),
        ({"ffn_bias": False}, "ffn_bias=False"),
        ({"head_bias": True}, "head_bias=True"),
        ({"n_kv_head": 1}, "n_kv_head=1"),
        ({"head_dim": 4}, "head_dim=4"),
        ({"window": 5}, "window=5"),
        ({**LLAMA, "norm": "layernorm"}, "norm='layernorm'"),
        ({**LLAMA, "act": "gelu"}, "act='gelu'"),
        ({**QWEN3, "norm": "layernorm"}, "norm='layernorm'"),
        ({**QWEN3, "norm_order": "post"}, "norm_order='post'"),
        ({**QWEN3, "ffn_bias": True}, "ffn_bias=True"),
        ({**QWEN3, "act": "relu2"}, "act='relu2'"),
        ({**QWEN3, "head_bias": True}, "head_bias=True"),
        ({**MISTRAL, "attn_bias": True}, "llama.*window=5"),
        ({**QWEN2, "ffn_bias": True}, "ffn_bias=True"),
        ({**QWEN3, "rope_dim": 4}, "qwen3 does not support rope_dim=4"),
        ({**LLAMA, "rope_dim": 4}, "rope_dim=4"),
        ({**LLAMA, "d_model": 17, "head_dim": 4, "ffn_bias": True}, "hidden_size=17"),
    ],
    ids=str,
)
def test_what_no_layout_can_say_is_refused_by_name(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = Transformer(ModelConfig(**{**GPT2, **change}))
    with pytest.raises(LayoutError, match=named):
        to_hf(model, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        (LLAMA, "llama"),
        ({**LLAMA, "attn_bias": True, "ffn_bias": True}, "llama"),
        ({**LLAMA, "window": 16}, "llama"),  # which hides nothing
        (MISTRAL, "mistral"),
        ({**LLAMA, "d_model": 17, "head_dim": 4}, "mistral"),
        (QWEN2, "qwen2"),
        ({**QWEN2, "window": 5}, "qwen2"),
        (QWEN3, "qwen3"),
        ({**QWEN3, "window": 5, "attn_bias": True}, "qwen3"),
        (SMOLLM3, "smollm3"),
        (GEMMA, "gemma"),
        (GEMMA3, "gemma3_text"),
    ],
)
def test_the_plainest_layout_that_says_everything_is_written(shape: dict[str, Any], layout: str) -> None:
    config = ModelConfig(**shape)
    assert layout_of(config) == config_to_hf(config)["model_type"] == layout


@pytest.mark.parametrize(
    ("layout", "told"), [("qwen3", "qwen3.*qk_norm=False"), ("gpt2", "pos='rope'.*gpt2"), ("opt", "no layout 'opt'")]
)
def test_a_layout_that_is_asked_for_and_does_not_fit_is_refused(layout: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=told):
        to_hf(random_network(LLAMA), tmp_path / "exported", layout)


def test_dropout_without_a_field_is_no_part_of_a_finished_network() -> None:
    config = ModelConfig(**GPT2, drop_resid=0.2, drop_resid_mlp=0.3, drop_ffn=0.4)
    assert config_from_hf(config_to_hf(config)) == ModelConfig(**GPT2, drop_resid=0.2)


def test_a_network_goes_out_in_llama_s_own_names_and_comes_back_as_the_same_function(tmp_path: Path) -> None:
    model = random_network(LLAMA)  # its pairs are halves, theirs lie side by side
    to_hf(model, tmp_path / "exported", ORIGINAL)
    names = set(load_file(tmp_path / "exported" / "model.safetensors"))
    assert {"tok_embeddings.weight", "layers.1.attention.wq.weight", "layers.0.ffn_norm.weight"} <= names
    with torch.no_grad():
        assert relative(from_hf(tmp_path / "exported")(IDS), model(IDS)) <= LIMIT


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"use_scaled_rope": True}, r"params\.json: use_scaled_rope=True is not supported"),
        ({"dim": None}, r"params\.json: d_model=None"),
        ({"hidden_dim": 9}, r"feed_forward\.w1\.weight has the shape"),
        ({"n_heads": 3}, r"params\.json: d_model=16 is not divisible by n_head=3"),
    ],
)
def test_params_of_a_llama_that_do_not_fit_are_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    to_hf(random_network(LLAMA), tmp_path / "exported", ORIGINAL)
    path = tmp_path / "exported" / "params.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(LayoutError, match=told):
        from_hf(tmp_path / "exported")


@dataclasses.dataclass(frozen=True)
class WiderConfig(ModelConfig):
    """A shape with a switch that the layouts have never heard of."""

    softcap: float = 0.0


def test_a_switch_that_is_new_is_not_dropped_in_silence() -> None:
    assert layout_of(WiderConfig(**GPT2)) == "gpt2"
    with pytest.raises(LayoutError, match=r"softcap=30\.0"):
        layout_of(WiderConfig(**GPT2, softcap=30.0))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_a_pickle_is_never_read(name: str, exported: tuple[Transformer, Path]) -> None:
    _, folder = exported
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(LayoutError, match=rf"{name}, a pickle.*save_pretrained"):
        from_hf(folder)


def test_an_index_leads_nowhere_else(exported: tuple[Transformer, Path]) -> None:
    _, folder = exported
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../model.safetensors"}}))
    with pytest.raises(LayoutError, match=r"names \.\./model\.safetensors"):
        from_hf(folder)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_broken_config_is_told(exported: tuple[Transformer, Path], content: str) -> None:
    _, folder = exported
    (folder / "config.json").write_text(content)
    with pytest.raises(LayoutError, match=r"config\.json"):
        from_hf(folder)


@pytest.mark.parametrize(
    ("layout", "change", "told"),
    [
        ("llama", {"attention_dropout": "x"}, r"config\.json: could not convert string to float: 'x'"),
        ("llama", {"num_attention_heads": 0}, r"config\.json: n_head=0"),
        ("llama", {"rope_scaling": "linear"}, r"config\.json: rope_scaling='linear'; expected an object"),
        ("llama", {"max_position_embeddings": 0, "rope_scaling": {"rope_type": "yarn"}}, r"config\.json: "),
        (ORIGINAL, {"multiple_of": 0}, r"params\.json: "),
        (ORIGINAL, {"ffn_dim_multiplier": float("inf")}, r"params\.json: "),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_refused_with_its_file(layout: str, change: dict[str, Any], told: str) -> None:
    written = config_to_hf(ModelConfig(**LLAMA), layout)
    with pytest.raises(LayoutError, match=told):
        config_from_hf({**written, **change}, layout)


def test_params_without_a_multiple_have_that_of_llama_s_code() -> None:
    params = {"dim": 64, "n_layers": 1, "n_heads": 2, "vocab_size": 8}
    assert config_from_hf(params, ORIGINAL).d_ff == 256


def test_a_taken_folder_is_left_alone(exported: tuple[Transformer, Path]) -> None:
    model, folder = exported
    before = (folder / "config.json").read_bytes()
    with pytest.raises(LayoutError, match="not an empty folder"):
        to_hf(model, folder)
    assert (folder / "config.json").read_bytes() == before


def test_a_failed_write_leaves_nothing(
    exported: tuple[Transformer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("model.hf.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        to_hf(exported[0], tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


@pytest.mark.parametrize("layout", ROTARY)
def test_a_network_trained_here_gives_the_same_logits_there(
    layout: str, build_source: Callable[..., SpanSource], train_config: TrainConfig, tmp_path: Path
) -> None:
    config = ModelConfig(**{**SHAPES[layout], "rope_layout": "interleaved", "vocab_multiple": 64})
    trained = Trainer(config, train_config, build_source()).fit().model
    to_hf(trained, tmp_path / "exported")
    found = compare(trained, load_theirs(tmp_path / "exported", "sdpa"))
    assert max(found.logits, found.gradients) <= LIMIT
