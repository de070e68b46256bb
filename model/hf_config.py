"""The shape of the network as Hugging Face writes it down: `config.json` of GPT-2 and LLaMA models, and back.

A field that changes the function and has no counterpart on the other side is refused by name, in both directions: a
model that computes something else than it did before would be worse than none. Fields that the two classes of
`transformers` do not read are passed over, as they are there; what a file leaves out has those classes' defaults.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from .architecture import DEFAULT_POS_BASE, ModelConfig

Fields = Mapping[str, Any]


class LayoutError(ValueError):
    """A model that cannot be written, or a folder that cannot be read, in Hugging Face's layout."""


GPT2, LLAMA = "gpt2", "llama"
_LAYOUT_NAMES = {GPT2: "GPT-2", LLAMA: "LLaMA"}
_ARCHITECTURES = {GPT2: "GPT2LMHeadModel", LLAMA: "LlamaForCausalLM"}

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

# What each layout can say of a switch. All other fields of ModelConfig are numbers with a place of their own, are no
# part of the function (dropout, initial weights), or are looked at one by one.
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
    LLAMA: {
        "norm": ("rmsnorm",),
        "norm_order": ("pre",),
        "final_norm": (True,),
        "qk_norm": (False,),
        "act": ("swiglu",),
        "head_bias": (False,),
    },
}
_OTHER_FIELDS = (
    {"vocab_size", "max_seq_len", "n_layer", "n_head", "d_model", "d_ff", "n_kv_head", "head_dim", "pos", "pos_base"}
    | {"rope_layout", "rope_dim", "rope_scaling", "rope_factor", "rope_original_len", "rope_ramp", "norm_bias"}
    | {"norm_eps", "window", "attn_bias", "ffn_bias", "tie_weights", "vocab_multiple", "drop_embed", "drop_attn"}
    | {"drop_ffn", "drop_resid", "init", "init_std", "init_residual_scaling"}
)


def layout_of(config: ModelConfig) -> str:
    """Which layout a network of this shape has: "gpt2" or "llama".

    Raises:
        LayoutError: neither; the message names the switches that have no place.
    """
    layout = {"learned": GPT2, "rope": LLAMA}.get(config.pos)
    if layout is None:
        raise LayoutError(
            f"pos={config.pos!r} has no place in Hugging Face's layouts: GPT-2's needs pos='learned', LLaMA's "
            f"pos='rope'; train with one of those to export"
        )
    needs = _NEEDS[layout]
    misfits = [
        f"{name}={getattr(config, name)!r} (it needs {' or '.join(map(repr, allowed))})"
        for name, allowed in needs.items()
        if getattr(config, name) not in allowed
    ]
    if config.window is not None and config.window < config.max_seq_len:
        misfits.append(f"window={config.window} (every token sees all before it)")
    misfits += _gpt2_misfits(config) if layout == GPT2 else _llama_misfits(config)
    # a switch that this module has never heard of must not be dropped in silence
    misfits += [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if field.name not in needs
        and field.name not in _OTHER_FIELDS
        and getattr(config, field.name) not in (field.default, None)
    ]
    if misfits:
        raise LayoutError(
            f"{_LAYOUT_NAMES[layout]}'s layout, which pos={config.pos!r} asks for, has no place for "
            f"{', '.join(misfits)}; train with a shape that it can say, such as preset {layout!r}, to export"
        )
    return layout


def _gpt2_misfits(config: ModelConfig) -> list[str]:
    found = []
    if config.n_kv_head != config.n_head:
        found.append(f"n_kv_head={config.n_kv_head} (it needs n_head={config.n_head})")
    if config.n_head * config.head_dim != config.d_model:
        found.append(f"head_dim={config.head_dim} (it needs d_model / n_head)")
    return found


def _llama_misfits(config: ModelConfig) -> list[str]:
    found = []
    if config.rope_dim != config.head_dim:
        found.append(f"rope_dim={config.rope_dim} (it needs head_dim={config.head_dim})")
    if config.d_model % config.n_head:
        found.append(f"d_model={config.d_model} (it needs a multiple of n_head={config.n_head})")
    return found + _degenerate_yarn(config)


def _degenerate_yarn(config: ModelConfig) -> list[str]:
    # there the two sides' ramps, whose ends have changed places, differ
    if config.rope_scaling == "yarn" and config.rope_original_len < 2 * math.pi * config.rope_ramp[0]:
        return [f"rope_original_len={config.rope_original_len} (no pair turns rope_ramp[0] times in so few tokens)"]
    return []


def config_to_hf(
    config: ModelConfig, *, bos_id: int | None = None, eos_id: int | None = None, pad_id: int | None = None
) -> dict[str, Any]:
    """The content of `config.json` for a network of this shape.

    Dropout goes where the layout has a field for it; `drop_ffn`, and in LLaMA's layout `drop_embed` and `drop_resid`,
    have none and are left out: they are no part of what a finished network computes. "ntk" scaling is written as the
    larger base that it is.

    Args:
        config: the shape.
        bos_id, eos_id, pad_id: special ids; null where None, because the classes' defaults name ids of GPT-2 and LLaMA.

    Raises:
        LayoutError: the shape has no place in either layout.
    """
    layout = layout_of(config)
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
        **(_gpt2_fields(config) if layout == GPT2 else _llama_fields(config)),
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
    theta, scaling = _rope_to_hf(config)
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
        "mlp_bias": config.ffn_bias,
        "attention_dropout": config.drop_attn,
        # transformers 5 reads rope_parameters; what is older reads the other two
        "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        "rope_theta": theta,
        "rope_scaling": scaling,
    }


def _rope_to_hf(config: ModelConfig) -> tuple[float, dict[str, Any] | None]:
    """The base of the wavelengths, and the scaling as Hugging Face writes it."""
    base, factor, dim = float(config.pos_base), float(config.rope_factor), config.rope_dim
    if config.rope_scaling == "none":
        return base, None
    if config.rope_scaling == "ntk":
        return base * factor ** (dim / (dim - 2)), None
    scaling: dict[str, Any] = {"rope_type": config.rope_scaling, "factor": factor}
    if config.rope_scaling == "linear":
        return base, scaling
    low, high = map(float, config.rope_ramp)
    scaling["original_max_position_embeddings"] = config.rope_original_len
    if config.rope_scaling == "yarn":
        return base, {**scaling, "beta_slow": low, "beta_fast": high}
    return base, {**scaling, "low_freq_factor": low, "high_freq_factor": high}


def config_from_hf(config_json: Fields) -> ModelConfig:
    """The shape that a `config.json` of a GPT-2 or LLaMA model describes.

    Args:
        config_json: the file's content, of transformers 5 or of what came before.

    Raises:
        LayoutError: another kind of model, or a field that asks for what the network here does not do.
    """
    layout = config_json.get("model_type")
    if layout not in _LAYOUT_NAMES:
        raise LayoutError(f"config.json: model_type is {layout!r}; expected 'gpt2' or 'llama'")
    for name, harmless, why in _REFUSED:
        if config_json.get(name) not in harmless:
            raise LayoutError(f"config.json: {name}={config_json[name]!r} is not supported: {why}")
    try:
        return ModelConfig(**(_from_gpt2(config_json) if layout == GPT2 else _from_llama(config_json)))
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
    act = config.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise LayoutError(f"config.json: hidden_act={act!r} is not supported in LLaMA's layout; expected 'silu'")
    length, window = config.get("max_position_embeddings", 2048), config.get("sliding_window")
    if window is not None and window < length:
        raise LayoutError(
            f"config.json: sliding_window={window!r} is not supported in LLaMA's layout, whose tokens see all before "
            f"them; remove it if the model was trained without"
        )
    width, heads = config.get("hidden_size", 4096), config.get("num_attention_heads", 32)
    if width % heads:
        raise LayoutError(f"config.json: hidden_size={width} is no multiple of num_attention_heads={heads}")
    return {
        "vocab_size": config.get("vocab_size", 32000),
        "max_seq_len": length,
        "n_layer": config.get("num_hidden_layers", 32),
        "n_head": heads,
        "n_kv_head": config.get("num_key_value_heads"),
        "d_model": width,
        "head_dim": config.get("head_dim"),
        "d_ff": config.get("intermediate_size", 11008),
        "act": "swiglu",
        "norm": "rmsnorm",
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "attn_bias": config.get("attention_bias", False),
        "ffn_bias": config.get("mlp_bias", False),
        "drop_attn": float(config.get("attention_dropout") or 0.0),
        "init_residual_scaling": False,
        **_rope_from_hf(config, length),
        **_common(config, tied=False),
    }


def _rope_from_hf(config: Fields, length: int) -> dict[str, Any]:
    """Rotary fields from `rope_parameters` or from the older `rope_theta` and `rope_scaling`."""
    # in this order in transformers 5 as well
    rope: Fields = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise LayoutError("config.json: rope_parameters differ between layers; all layers are rotated alike here")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise LayoutError(
            f"config.json: partial_rotary_factor={share!r} is not supported: LLaMA's class of transformers rotates "
            f"whole heads"
        )
    theta = rope.get("rope_theta") or config.get("rope_theta") or DEFAULT_POS_BASE
    fields: dict[str, Any] = {"pos": "rope", "pos_base": float(theta), "rope_layout": "half"}
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return fields
    if kind not in ("linear", "yarn", "llama3"):
        why = "its base grows with the text that is read" if kind == "dynamic" else "it is unknown here"
        raise LayoutError(
            f"config.json: rope_type={kind!r} is not supported, because {why}; expected default, linear, yarn or llama3"
        )
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or length
    factor = rope.get("factor")
    if factor is None and kind == "yarn":
        factor = length / original
    if factor is None:
        raise LayoutError(f"config.json: rope_type={kind!r} needs a factor in rope_parameters")
    if kind == "yarn":
        _check_yarn(rope, factor)
    if factor == 1:
        return fields
    fields |= {"rope_scaling": kind, "rope_factor": float(factor)}
    if kind == "linear":
        return fields
    low, high = ("beta_slow", "beta_fast") if kind == "yarn" else ("low_freq_factor", "high_freq_factor")
    defaults = (1.0, 32.0) if kind == "yarn" else (1.0, 4.0)
    fields["rope_original_len"] = original
    fields["rope_ramp"] = (float(rope.get(low) or defaults[0]), float(rope.get(high) or defaults[1]))
    if kind == "yarn" and original < 2 * math.pi * fields["rope_ramp"][0]:
        raise LayoutError(
            f"config.json: original_max_position_embeddings={original} is too few tokens for yarn: no pair turns "
            f"beta_slow times in them"
        )
    return fields


def _check_yarn(rope: Fields, factor: float) -> None:
    """Refuses what YaRN can be told beyond its paper."""
    if rope.get("truncate") is False:
        raise LayoutError("config.json: truncate=False of yarn is not supported: its ramp joins whole pairs here")
    expected = _yarn_sharpening(factor)
    given = rope.get("attention_factor")
    mscale, over = rope.get("mscale"), rope.get("mscale_all_dim")
    if given is None and mscale and over:
        given = _yarn_sharpening(factor, mscale) / _yarn_sharpening(factor, over)
    if given is not None and not math.isclose(given, expected, rel_tol=1e-7):
        raise LayoutError(
            f"config.json: yarn's attention_factor (or mscale / mscale_all_dim) is {given!r}, which is not supported; "
            f"expected {expected!r}, which is 0.1 ln(factor) + 1"
        )


def _yarn_sharpening(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
