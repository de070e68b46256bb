"""The shape of the network as Hugging Face writes it down: `config.json` of GPT-2, LLaMA and Qwen3 models, and back.

A field that changes the function and has no counterpart on the other side is refused by name, in both directions: a
model that computes something else than it did before would be worse than none. Fields that the classes of
`transformers` do not read are passed over, as they are there; what a file leaves out has those classes' defaults.

Qwen3's layout is LLaMA's with QK-norm: a gain for each head's queries and keys before they are rotated, with the norms'
rms_norm_eps. Its feed-forward layers have no biases, its heads any width, and its sliding windows are not supported.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .architecture import ModelConfig
from .hf_rotary import Fields, LayoutError, rope_from_hf, rope_misfits, rope_to_hf

__all__ = ["GPT2", "LLAMA", "QWEN3", "LayoutError", "config_from_hf", "config_to_hf", "layout_of"]

GPT2, LLAMA, QWEN3 = "gpt2", "llama", "qwen3"
_LAYOUT_NAMES = {GPT2: "GPT-2", LLAMA: "LLaMA", QWEN3: "Qwen3"}
_ARCHITECTURES = {GPT2: "GPT2LMHeadModel", LLAMA: "LlamaForCausalLM", QWEN3: "Qwen3ForCausalLM"}
_EXAMPLES = {GPT2: "gpt2", LLAMA: "llama", QWEN3: "modern-1m"}  # presets

_FULL_ATTENTION, _SLIDING_ATTENTION = "full_attention", "sliding_attention"

_GPT2_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
_GPT2_ACTIVATION_OF = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}
# the class reads either name
_GPT2_SYNONYMS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
}

# what the two rotary classes take for a field that is left out, where they differ
_ROTARY_DEFAULTS: dict[str, dict[str, Any]] = {
    LLAMA: {"vocab_size": 32000, "max_position_embeddings": 2048, "intermediate_size": 11008},
    QWEN3: {
        **{"vocab_size": 151936, "max_position_embeddings": 32768, "intermediate_size": 22016},
        **{"num_key_value_heads": 32, "head_dim": 128},
    },
}

# What each layout can say of a switch. All other fields of ModelConfig are numbers with a place of their own, are no
# part of the function (dropout, initial weights), or are looked at one by one.
_ROTARY_NEEDS: dict[str, tuple[Any, ...]] = {
    "norm": ("rmsnorm",),
    "norm_order": ("pre",),
    "final_norm": (True,),
    "act": ("swiglu",),
    "head_bias": (False,),
}
_NEEDS: dict[str, dict[str, tuple[Any, ...]]] = {
    GPT2: {
        "norm": ("layernorm",),
        "norm_order": ("pre",),
        "norm_bias": (True,),
        "final_norm": (True,),
        "qk_norm": (False,),
        "act": tuple(_GPT2_ACTIVATION_OF),
        "attn_bias": (True,),
        "ffn_bias": (True,),
        "head_bias": (False,),
    },
    LLAMA: {**_ROTARY_NEEDS, "qk_norm": (False,)},
    QWEN3: {**_ROTARY_NEEDS, "qk_norm": (True,), "ffn_bias": (False,)},
}
_OTHER_FIELDS = (
    {"vocab_size", "max_seq_len", "n_layer", "n_head", "d_model", "d_ff", "n_kv_head", "head_dim", "pos", "pos_base"}
    | {"rope_layout", "rope_dim", "rope_scaling", "rope_factor", "rope_original_len", "rope_ramp", "norm_bias"}
    | {"norm_eps", "window", "attn_bias", "ffn_bias", "tie_weights", "vocab_multiple", "drop_embed", "drop_attn"}
    | {"drop_ffn", "drop_resid", "init", "init_std", "init_residual_scaling"}
)


def layout_of(config: ModelConfig) -> str:
    """Which layout a network of this shape has: "gpt2", "llama" or, where rotary positions meet QK-norm, "qwen3".

    Raises:
        LayoutError: none of them; the message names the switches that have no place.
    """
    layout = {"learned": GPT2, "rope": QWEN3 if config.qk_norm else LLAMA}.get(config.pos)
    if layout is None:
        raise LayoutError(
            f"pos={config.pos!r} has no place in Hugging Face's layouts: GPT-2's needs pos='learned', LLaMA's and "
            f"Qwen3's pos='rope'; train with one of those to export"
        )
    needs = _NEEDS[layout]
    misfits = [
        f"{name}={getattr(config, name)!r} (it needs {' or '.join(map(repr, allowed))})"
        for name, allowed in needs.items()
        if getattr(config, name) not in allowed
    ]
    if config.window is not None and config.window < config.max_seq_len:
        misfits.append(f"window={config.window} (layers are written with full attention)")
    misfits += _gpt2_misfits(config) if layout == GPT2 else rope_misfits(config)
    if layout == LLAMA and config.d_model % config.n_head:
        misfits.append(f"d_model={config.d_model} (it needs a multiple of n_head={config.n_head})")
    # a switch that this module has never heard of must not be dropped in silence
    misfits += [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if field.name not in needs
        and field.name not in _OTHER_FIELDS
        and getattr(config, field.name) not in (field.default, None)
    ]
    if misfits:
        asked = f"pos={config.pos!r}" + (" with qk_norm=True" if layout == QWEN3 else "")
        raise LayoutError(
            f"{_LAYOUT_NAMES[layout]}'s layout, which {asked} asks for, has no place for {', '.join(misfits)}; train "
            f"with a shape that it can say, such as preset {_EXAMPLES[layout]!r}, to export"
        )
    return layout


def _gpt2_misfits(config: ModelConfig) -> list[str]:
    found = []
    if config.n_kv_head != config.n_head:
        found.append(f"n_kv_head={config.n_kv_head} (it needs n_head={config.n_head})")
    if config.n_head * config.head_dim != config.d_model:
        found.append(f"head_dim={config.head_dim} (it needs d_model / n_head)")
    return found


def config_to_hf(
    config: ModelConfig, *, bos_id: int | None = None, eos_id: int | None = None, pad_id: int | None = None
) -> dict[str, Any]:
    """The content of `config.json` for a network of this shape.

    Dropout goes where the layout has a field for it; `drop_ffn`, and in LLaMA's and Qwen3's layout `drop_embed` and
    `drop_resid`, have none and are left out: they are no part of what a finished network computes. "ntk" scaling is
    written as the larger base that it is.

    Args:
        config: the shape.
        bos_id, eos_id, pad_id: special ids; null where None, because the classes' defaults name ids of GPT-2 and LLaMA.

    Raises:
        LayoutError: the shape has no place in any layout.
    """
    layout = layout_of(config)
    fields = {GPT2: _gpt2_fields, LLAMA: _llama_fields, QWEN3: _qwen3_fields}[layout]
    return {
        "architectures": [_ARCHITECTURES[layout]],
        "model_type": layout,
        "dtype": "float32",
        "torch_dtype": "float32",  # the name of `dtype` before transformers 5
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_weights,
        "initializer_range": config.init_std,
        "use_cache": True,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        **fields(config),
    }


def _gpt2_fields(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_positions": config.max_seq_len,
        "n_embd": config.d_model,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.d_ff,
        "activation_function": _GPT2_ACTIVATION_OF[config.act],
        "layer_norm_epsilon": config.norm_eps,
        "attn_pdrop": config.drop_attn,
        "resid_pdrop": config.drop_resid,
        "embd_pdrop": config.drop_embed,
    }


def _llama_fields(config: ModelConfig) -> dict[str, Any]:
    return {**_rotary_fields(config), "mlp_bias": config.ffn_bias}


def _qwen3_fields(config: ModelConfig) -> dict[str, Any]:
    # `layer_types` says it since transformers 4.53; what is older reads the other three
    windows = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": config.n_layer}
    return {**_rotary_fields(config), **windows, "layer_types": [_FULL_ATTENTION] * config.n_layer}


def _rotary_fields(config: ModelConfig) -> dict[str, Any]:
    theta, scaling = rope_to_hf(config)
    return {
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attn_bias,
        "attention_dropout": config.drop_attn,
        # transformers 5 reads rope_parameters; what is older reads the other two
        "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        "rope_theta": theta,
        "rope_scaling": scaling,
    }


def config_from_hf(config_json: Fields) -> ModelConfig:
    """The shape that a `config.json` of a GPT-2, LLaMA or Qwen3 model describes.

    Args:
        config_json: the file's content, of transformers 5 or of what came before.

    Raises:
        LayoutError: another kind of model, or a field that asks for what the network here does not do.
    """
    layout = config_json.get("model_type")
    if layout not in _LAYOUT_NAMES:
        raise LayoutError(f"config.json: model_type is {layout!r}; expected 'gpt2', 'llama' or 'qwen3'")
    for name, harmless, why in _REFUSED:
        if config_json.get(name) not in harmless:
            raise LayoutError(f"config.json: {name}={config_json[name]!r} is not supported: {why}")
    read = {GPT2: _from_gpt2, LLAMA: _from_llama, QWEN3: _from_qwen3}[layout]
    try:
        return ModelConfig(**read(config_json))
    except LayoutError:
        raise
    except (ValueError, TypeError) as error:
        raise LayoutError(f"config.json describes a network that cannot be built here: {error}") from error


# Fields with the values (beside null) that change nothing, and what any other would mean.
_NOTHING: tuple[Any, ...] = (None, {}, [])
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("quantization_config", _NOTHING, "save the model with float weights"),
    ("auto_map", _NOTHING, "it names code of its own, which is never run; save the model with a class of transformers"),
    ("pruned_heads", _NOTHING, "all layers have the same heads here"),
    ("per_layer_config", _NOTHING, "all layers have the same shape here"),
    ("add_cross_attention", (None, False), "there is no encoder to attend to"),
    ("is_encoder_decoder", (None, False), "there is no encoder"),
    ("scale_attn_weights", (None, True), "attention scores are always divided by sqrt(head_dim)"),
    ("scale_attn_by_inverse_layer_idx", (None, False), "attention scores are scaled alike in all layers"),
)


def _common(config: Fields, tied: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"tie_weights": config.get("tie_word_embeddings", tied)}
    std = config.get("initializer_range", 0.02)
    return {**fields, "init_std": std} if std else fields  # 0 draws nothing, and says nothing of a finished model


def _from_gpt2(config: Fields) -> dict[str, Any]:
    def read(name: str, default: Any) -> Any:
        return config.get(name, config.get(_GPT2_SYNONYMS.get(name, name), default))

    act = read("activation_function", "gelu_new")
    if act not in _GPT2_ACTIVATIONS:
        raise LayoutError(
            f"config.json: activation_function={act!r} is not supported; expected one of {', '.join(_GPT2_ACTIVATIONS)}"
        )
    return {
        "vocab_size": read("vocab_size", 50257),
        "max_seq_len": read("n_positions", 1024),
        "n_layer": read("n_layer", 12),
        "n_head": read("n_head", 12),
        "d_model": read("n_embd", 768),
        "d_ff": read("n_inner", None),
        "pos": "learned",
        "act": _GPT2_ACTIVATIONS[act],
        "norm": "layernorm",
        "norm_eps": read("layer_norm_epsilon", 1e-5),
        "drop_attn": float(read("attn_pdrop", 0.1)),
        "drop_resid": float(read("resid_pdrop", 0.1)),
        "drop_embed": float(read("embd_pdrop", 0.1)),
        **_common(config, tied=True),
    }


def _from_llama(config: Fields) -> dict[str, Any]:
    fields = _from_rotary(config, LLAMA)
    window, width, heads = config.get("sliding_window"), fields["d_model"], fields["n_head"]
    if window is not None and window < fields["max_seq_len"]:
        raise LayoutError(
            f"config.json: sliding_window={window!r} is not supported in LLaMA's layout, whose tokens see all before "
            f"them; remove it if the model was trained without"
        )
    if width % heads:
        raise LayoutError(f"config.json: hidden_size={width} is no multiple of num_attention_heads={heads}")
    return {**fields, "ffn_bias": config.get("mlp_bias", False)}


def _from_qwen3(config: Fields) -> dict[str, Any]:
    fields = _from_rotary(config, QWEN3)
    _check_windows(config, fields["n_layer"], fields["max_seq_len"])
    return {**fields, "qk_norm": True, "ffn_bias": False}


def _check_windows(config: Fields, n_layer: int, length: int) -> None:
    """Refuses Qwen3's sliding windows, unless they are switched off or hide nothing."""
    used = config.get("use_sliding_window", False)
    window, first = config.get("sliding_window", 4096) if used else None, config.get("max_window_layers", 28)
    kinds, told = config.get("layer_types"), f"sliding_window={window!r} (use_sliding_window={used!r})"
    if kinds is None:
        kinds = [_SLIDING_ATTENTION] if window is not None and first < n_layer else []
    wide = window is not None and window >= length
    harmless = {_FULL_ATTENTION, _SLIDING_ATTENTION} if wide else {_FULL_ATTENTION}
    if foreign := sorted(set(kinds) - harmless):
        raise LayoutError(
            f"config.json: layer_types {', '.join(foreign)} with {told} is not supported: every token sees all before "
            f"it in all layers here"
        )


def _from_rotary(config: Fields, layout: str) -> dict[str, Any]:
    def read(name: str, default: Any = None) -> Any:
        return config.get(name, _ROTARY_DEFAULTS[layout].get(name, default))

    act = read("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise LayoutError(
            f"config.json: hidden_act={act!r} is not supported in {_LAYOUT_NAMES[layout]}'s layout; expected 'silu'"
        )
    length = read("max_position_embeddings")
    return {
        "vocab_size": read("vocab_size"),
        "max_seq_len": length,
        "n_layer": read("num_hidden_layers", 32),
        "n_head": read("num_attention_heads", 32),
        "n_kv_head": read("num_key_value_heads"),
        "d_model": read("hidden_size", 4096),
        "head_dim": read("head_dim"),
        "d_ff": read("intermediate_size"),
        "act": "swiglu",
        "norm": "rmsnorm",
        "norm_eps": read("rms_norm_eps", 1e-6),
        "attn_bias": read("attention_bias", False),
        "drop_attn": float(read("attention_dropout") or 0.0),
        "init_residual_scaling": False,
        **rope_from_hf(config, length),
        **_common(config, tied=False),
    }
