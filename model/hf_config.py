"""Conversion between ModelConfig and `config.json` of `transformers` or LLaMA's `params.json`.

A layout has fixed fields, names for the other fields, and defaults for names that a file leaves out. A configuration
fits a layout if it survives the round trip unchanged, apart from fields that affect training only. So no field is
dropped silently, and unsupported settings are refused by name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .architecture import DEFAULT_POS_BASE, ModelConfig

Fields = Mapping[str, Any]
ORIGINAL = "llama-original"  # LLaMA's original release
GEMMA3 = "gemma3_text"
_CLASSES = {"gpt2": "GPT2", "smollm3": "SmolLM3", GEMMA3: "Gemma3"}  # in `transformers`, where not as the layout


class LayoutError(ValueError):
    """A model cannot be written, or a folder cannot be read, in one of the layouts."""


@dataclass(frozen=True)
class Layout:
    """A layout of published models.

    Attributes:
        column: column of its names in FIELDS.
        fixed: fields of ModelConfig with a fixed value.
        defaults: values of fields that a file may leave out.
        is_centred: its norms multiply by 1 + weight.
    """

    column: int
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    is_centred: bool = False


GPT2, ROTARY, OWN = 1, 2, 3
# columns: ModelConfig, GPT-2, transformers' rotary models, LLaMA's original release
FIELDS = (
    ("vocab_size", "vocab_size", "vocab_size", "vocab_size"),
    ("max_seq_len", "n_positions", "max_position_embeddings", "max_seq_len"),
    ("d_model", "n_embd", "hidden_size", "dim"),
    ("d_ff", "n_inner", "intermediate_size", ""),
    ("n_layer", "n_layer", "num_hidden_layers", "n_layers"),
    ("n_head", "n_head", "num_attention_heads", "n_heads"),
    ("n_kv_head", "", "num_key_value_heads", "n_kv_heads"),
    ("head_dim", "", "head_dim", ""),
    ("norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps"),
    ("pos_base", "", "", "rope_theta"),
    ("attn_bias", "", "attention_bias", ""),
    ("ffn_bias", "", "mlp_bias", ""),
    ("drop_attn", "attn_pdrop", "attention_dropout", ""),
    ("drop_resid", "resid_pdrop", "", ""),
    ("drop_embed", "embd_pdrop", "", ""),
    ("init_std", "initializer_range", "initializer_range", ""),
    ("tie_weights", "tie_word_embeddings", "tie_word_embeddings", ""),
)
_ROPE = {"pos": "rope", "rope_layout": "half", "norm": "rmsnorm", "act": "swiglu", "init_residual_scaling": False}
_GATED_GELU = {**_ROPE, "act": "geglu", "ffn_bias": False, "embed_scale": True}
_NO_BIAS = {"attn_bias": False, "ffn_bias": False}
_LLAMA = {
    **{"vocab_size": 32000, "max_position_embeddings": 2048, "hidden_size": 4096, "intermediate_size": 11008},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6, "initializer_range": 0.02},
    **{"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
}
_MISTRAL = {
    **{**_LLAMA, "max_position_embeddings": 131072, "intermediate_size": 14336, "num_key_value_heads": 8},
    **{"sliding_window": 4096},
}
_QWEN = {
    **{**_LLAMA, "vocab_size": 151936, "max_position_embeddings": 32768, "intermediate_size": 22016},
    **{"num_key_value_heads": 32, "sliding_window": 4096},
}
_SMOL = {
    **{**_LLAMA, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True},
}
_GEMMA = {
    **{**_LLAMA, "vocab_size": 256000, "max_position_embeddings": 8192, "hidden_size": 3072},
    **{"intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16},
    **{"head_dim": 256, "tie_word_embeddings": True},
}
_GEMMA3 = {
    **{**_GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072, "hidden_size": 2304},
    **{"intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"sliding_window": 4096},
}
_GPT2 = {
    **{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    **{"layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    **{"initializer_range": 0.02, "tie_word_embeddings": True},
}
# its code reads the context from the command line and defaults to 2048
_OWN = {"max_seq_len": 2048, "norm_eps": 1e-5, "rope_theta": DEFAULT_POS_BASE}
# by model_type; the first that fits is written, except LLaMA's original one, which must be requested
LAYOUTS = {
    "gpt2": Layout(GPT2, {"pos": "learned", "norm": "layernorm"}, _GPT2),
    "llama": Layout(ROTARY, _ROPE, _LLAMA),
    "mistral": Layout(ROTARY, {**_ROPE, **_NO_BIAS}, _MISTRAL),
    "qwen2": Layout(ROTARY, {**_ROPE, **_NO_BIAS, "qkv_bias": True}, _QWEN),
    "qwen3": Layout(ROTARY, {**_ROPE, "ffn_bias": False, "qk_norm": True}, {**_QWEN, "head_dim": 128}),
    "smollm3": Layout(ROTARY, _ROPE, _SMOL),
    "gemma": Layout(ROTARY, _GATED_GELU, _GEMMA, is_centred=True),
    GEMMA3: Layout(ROTARY, {**_GATED_GELU, "qk_norm": True, "norm_order": "both"}, _GEMMA3, is_centred=True),
    ORIGINAL: Layout(OWN, {**_ROPE, **_NO_BIAS, "rope_layout": "interleaved", "tie_weights": False}, _OWN),
}

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_ACTIVATIONS |= {act: act for act in ("gelu", "relu", "relu2")}
_GATES = {"swiglu": ("silu", "swish"), "geglu": ("gelu_pytorch_tanh", "gelu")}  # Gemma's means the tanh form by gelu
_FULL, _SLIDING = "full_attention", "sliding_attention"
_RAMPS = {
    "yarn": {"beta_slow": 1.0, "beta_fast": 32.0},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}

# Fields, the values without an effect, and the reason why others are not supported.
_NOTHING: tuple[Any, ...] = (None, {}, [])
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("quantization_config", _NOTHING, "save the model with float weights"),
    ("auto_map", _NOTHING, "custom code is never run; save the model with a class of transformers"),
    ("pruned_heads", _NOTHING, "all layers have the same heads here"),
    ("per_layer_config", _NOTHING, "all layers have the same shape here"),
    ("add_cross_attention", (None, False), "there is no encoder to attend to"),
    ("is_encoder_decoder", (None, False), "there is no encoder"),
    ("scale_attn_weights", (None, True), "attention scores are always divided by sqrt(head_dim)"),
    ("scale_attn_by_inverse_layer_idx", (None, False), "attention scores are scaled alike in all layers"),
    ("attn_logit_softcapping", (None,), "scores are not capped here"),
    ("final_logit_softcapping", (None,), "logits are not capped here"),
    ("use_bidirectional_attention", (None, False), "attention is causal here"),
    ("use_scaled_rope", (None, False), "params.json does not have the factor; read the model's config.json instead"),
)


def layout_of(config: ModelConfig, wanted: str = "") -> str:
    """Return the layout for a configuration.

    Args:
        config: the configuration.
        wanted: one of LAYOUTS; empty for the first that fits.

    Raises:
        LayoutError: the configuration does not fit, with the fields that the layouts do not support.
    """
    if wanted and wanted not in LAYOUTS:
        raise LayoutError(f"there is no layout {wanted!r}; expected one of {', '.join(LAYOUTS)}")
    tried = [wanted] if wanted else [name for name in LAYOUTS if name != ORIGINAL]
    misfits = {name: _misfits(config, name) for name in tried if LAYOUTS[name].fixed["pos"] == config.pos}
    if not misfits:
        raise LayoutError(
            f"pos={config.pos!r} is not supported by {wanted or 'any layout'}: gpt2 needs pos='learned', the others "
            f"pos='rope'; train with one of those to export"
        )
    fewest = min(map(len, misfits.values()))
    nearest = {name: faults for name, faults in misfits.items() if len(faults) == fewest}
    if fewest:
        reasons = "; ".join(f"{name} does not support {', '.join(faults)}" for name, faults in nearest.items())
        raise LayoutError(
            f"this configuration cannot be written in {wanted or 'any layout'}: {reasons}. Train with a supported one, "
            f"such as preset 'gpt2', 'llama' or 'modern-1m', to export"
        )
    return next(iter(nearest))


def _misfits(config: ModelConfig, layout: str) -> list[str]:
    """Return the fields that do not survive the round trip through a layout."""
    try:
        back = config_from_hf(_written(config, layout), layout)
    except LayoutError as error:
        return [str(error.__cause__ or error)]
    # fields without a name in the layout get their defaults
    found = {**{item.name: item.default for item in dataclasses.fields(config)}, **_function(back)}
    return [
        f"{name}={value!r} (it would become {found[name]!r})"
        for name, value in _function(config).items()
        if found[name] != value
    ]


def _function(config: ModelConfig) -> dict[str, Any]:
    """Return the fields that determine the function of a trained network; NTK scaling becomes a larger base."""
    fields = {
        name: value
        for name, value in vars(config).items()
        if not name.startswith(("drop_", "init")) and name not in ("vocab_multiple", "rope_layout")
    }
    if config.rope_scaling == "ntk":
        dim = config.rope_dim
        fields["pos_base"] = config.pos_base * config.rope_factor ** (dim / (dim - 2))
        fields |= {"rope_scaling": "none", "rope_factor": 1.0}
    if config.window is not None and config.window >= config.max_seq_len and config.window_pos_base is None:
        fields |= {"window": None, "full_every": None}
    if config.window_pos_base is not None and all(map(config.has_window, range(config.n_layer))):
        fields |= {"pos_base": config.window_pos_base, "rope_scaling": "none", "rope_factor": 1.0}
        fields |= {"window_pos_base": None, "rope_original_len": None, "rope_ramp": None}
    if all(map(config.has_window, range(config.n_layer))):
        fields["full_every"] = None
    if fields["window_pos_base"] == fields["pos_base"] and fields["rope_scaling"] == "none":
        fields["window_pos_base"] = None
    if all(map(config.is_rotated, range(config.n_layer))):
        fields["unrotated_every"] = None
    return fields


def config_to_hf(
    config: ModelConfig,
    layout: str = "",
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
) -> dict[str, Any]:
    """Return the content of `config.json`, or of LLaMA's `params.json`, for a configuration.

    Dropout without a field in the layout is left out, because it does not affect inference. NTK scaling is written as
    a larger base.

    Args:
        config: the configuration.
        layout: one of LAYOUTS; empty for the first that fits.
        bos_id, eos_id, pad_id: special ids; None is written as null, because the defaults are ids of GPT-2 or LLaMA.

    Raises:
        LayoutError: as for `layout_of`.
    """
    layout = layout_of(config, layout)
    if layout == ORIGINAL:
        return _written(config, layout)
    return {
        "architectures": [_class_of(layout)],
        "model_type": layout,
        "dtype": "float32",
        "torch_dtype": "float32",  # the name of `dtype` before transformers 5
        "use_cache": True,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        **_written(config, layout),
    }


def _written(config: ModelConfig, layout: str) -> dict[str, Any]:
    ours, known = {**vars(config), **_function(config)}, LAYOUTS[layout]
    fields = {row[known.column]: ours[row[0]] for row in FIELDS if row[known.column] and row[0] not in known.fixed}
    if layout == "gpt2":
        theirs = next((name for name, act in _ACTIVATIONS.items() if act == config.act), "gelu_new")
        return {**fields, "activation_function": theirs}
    if layout == ORIGINAL:
        # its code rounds ffn_dim_multiplier * 8/3 * dim up to multiple_of
        plain = 8 * config.d_model // 3
        multiplier = config.d_ff / plain if plain > config.d_ff else None
        return {**fields, "multiple_of": config.d_ff, "ffn_dim_multiplier": multiplier}
    theta, kind, window = float(ours["pos_base"]), ours["rope_scaling"], config.window
    scaling: dict[str, Any] = {} if kind == "none" else {"rope_type": kind, "factor": float(config.rope_factor)}
    if kind in _RAMPS:
        ends = zip(_RAMPS[kind], map(float, config.rope_ramp), strict=True)
        scaling |= {"original_max_position_embeddings": config.rope_original_len, **dict(ends)}
    # transformers 5 reads rope_parameters; older versions read the other two
    rope = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    gate = _GATES[known.fixed["act"]][0]
    fields |= {"hidden_act": gate, "rope_parameters": rope, "rope_theta": theta, "rope_scaling": scaling or None}
    layers = range(config.n_layer)
    if layout == "mistral":
        fields["sliding_window"] = ours["window"]
    elif layout.startswith("qwen"):
        # transformers reads `layer_types` since 4.53; older versions read the other three
        window = ours["window"]
        fields |= {"use_sliding_window": window is not None, "sliding_window": window}
        fields["max_window_layers"] = config.n_layer if window is None else 0
        fields["layer_types"] = [_FULL if window is None else _SLIDING] * config.n_layer
    elif layout == "smollm3":
        fields["no_rope_layers"] = [int(config.is_rotated(layer)) for layer in layers]
    elif layout == "gemma":
        fields["hidden_activation"] = gate
    elif layout == GEMMA3:
        local = {"rope_theta": float(config.window_pos_base or theta), "rope_type": "default"}
        if config.window_pos_base is None:
            local = rope
        fields |= {"hidden_activation": gate, "query_pre_attn_scalar": config.head_dim, "rope_scaling": None}
        fields["rope_local_base_freq"] = local["rope_theta"]  # read before transformers 5
        fields |= {"rope_parameters": {_FULL: rope, _SLIDING: local}, "sliding_window": window or config.max_seq_len}
        fields["layer_types"] = [_SLIDING if config.has_window(layer) else _FULL for layer in layers]
    return fields


def _class_of(layout: str) -> str:
    if layout == "gpt2":
        return "GPT2LMHeadModel"
    return f"{_CLASSES.get(layout, layout.title())}ForCausalLM"


def config_from_hf(fields: Fields, layout: str = "") -> ModelConfig:
    """Return the configuration in a `config.json` or LLaMA's `params.json`.

    Args:
        fields: content of the file; `config.json` of transformers 5 or older.
        layout: one of LAYOUTS; empty for `model_type`.

    Raises:
        LayoutError: the model type or a setting is not supported.
    """
    layout = layout or str(fields.get("model_type"))
    known = LAYOUTS.get(layout)
    file = "params.json" if layout == ORIGINAL else "config.json"
    if known is None:
        expected = ", ".join(name for name in LAYOUTS if name != ORIGINAL)
        raise LayoutError(f"config.json: model_type is {fields.get('model_type')!r}; expected one of {expected}")
    for name, harmless, why in _REFUSED:
        if fields.get(name) not in harmless:
            raise LayoutError(f"{file}: {name}={fields[name]!r} is not supported: {why}")
    read = {**known.defaults, **fields}
    shape: dict[str, Any] = {row[0]: read.get(row[known.column]) for row in FIELDS if row[known.column]}
    shape |= {"init_std": shape.get("init_std") or 0.02, **known.fixed}  # 0 is refused by ModelConfig
    try:
        shape |= {name: float(value or 0.0) for name, value in shape.items() if name.startswith("drop_")}
        if layout == "gpt2":
            name = fields.get("activation_function", "gelu_new")
            if name not in _ACTIVATIONS:
                expected = ", ".join(_ACTIVATIONS)
                raise ValueError(f"activation_function={name!r} is not supported; expected one of {expected}")
            shape["act"] = _ACTIVATIONS[name]
        elif layout == ORIGINAL:
            shape |= {"d_ff": _read_width(fields), "head_dim": fields.get("head_dim")}
        elif layout == GEMMA3:
            shape |= _read_gemma3(read, shape["n_layer"], shape["max_seq_len"], shape["head_dim"])
        else:
            shape |= _read_rope(read, shape["max_seq_len"])
        if known.column == ROTARY:
            act = read.get("hidden_activation") or read.get("hidden_act") or _GATES[known.fixed["act"]][0]
            gates = _GATES[known.fixed["act"]]
            if act not in (gates[:1] if layout == GEMMA3 else gates):
                raise ValueError(f"hidden_act={act!r} is not supported; expected {_GATES[known.fixed['act']][0]!r}")
        if layout == "smollm3":
            shape["unrotated_every"] = _read_unrotated(fields, shape["n_layer"])
        if layout not in ("gpt2", GEMMA3):
            shape["window"] = _read_window(fields, layout, shape["n_layer"], shape["max_seq_len"])
        config = ModelConfig(**shape)
        if layout in ("llama", "smollm3", GEMMA3) and config.d_model % config.n_head:
            raise ValueError(f"hidden_size={config.d_model} is no multiple of num_attention_heads={config.n_head}")
        return config
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError) as error:
        raise LayoutError(f"{file}: {error}") from error


def _read_unrotated(fields: Fields, n_layer: int) -> int | None:
    """Return unrotated_every of SmolLM3."""
    every = fields.get("no_rope_layer_interval", 4)
    rotated = fields.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(n_layer)]
    if len(rotated) < n_layer:
        raise ValueError(f"no_rope_layers has {len(rotated)} layers, expected {n_layer}")
    without = [layer + 1 for layer in range(n_layer) if not rotated[layer]]
    return _period(without, n_layer, f"no_rope_layers={list(rotated)}")


def _read_gemma3(read: Fields, n_layer: int, length: int, head_dim: int) -> dict[str, Any]:
    """Return the fields of Gemma 3's positions and windows."""
    scalar = read.get("query_pre_attn_scalar", 256)
    if scalar != head_dim:
        raise ValueError(
            f"query_pre_attn_scalar={scalar} is not supported with heads of {head_dim}: attention scores are always "
            f"divided by sqrt(head_dim)"
        )
    every = read.get("sliding_window_pattern") or read.get("_sliding_window_pattern") or 6
    usual = [_FULL if (layer + 1) % every == 0 else _SLIDING for layer in range(n_layer)]
    kinds = (read.get("layer_types") or usual)[:n_layer]
    if len(kinds) < n_layer:
        raise ValueError(f"layer_types has {len(kinds)} layers, expected {n_layer}")
    if unknown := sorted(set(kinds) - {_FULL, _SLIDING}):
        raise ValueError(f"layer_types has {unknown[0]}, which is not supported")
    rope = read.get("rope_parameters") or {}
    full, local = (dict(rope.get(kind) or {}) for kind in (_FULL, _SLIDING))
    full = {"rope_theta": read.get("rope_theta") or 1e6, **full, **(read.get("rope_scaling") or {})}
    local_base = float(local.get("rope_theta") or read.get("rope_local_base_freq") or DEFAULT_POS_BASE)
    if _SLIDING not in kinds:
        return _read_rope({"rope_parameters": full}, length)
    if local.get("rope_type", "default") != "default":
        raise ValueError("scaled positions of layers with a window are not supported")
    window = min(int(read["sliding_window"]), length)
    full_every = _period([layer + 1 for layer in range(n_layer) if kinds[layer] == _FULL], n_layer, "layer_types")
    if full_every is None:
        return {"pos_base": local_base, "window": window}
    own = _read_rope({"rope_parameters": full}, length)
    same = own == {"pos_base": local_base}
    return {**own, "window": window, "full_every": full_every, "window_pos_base": None if same else local_base}


def _period(places: list[int], n_layer: int, what: str) -> int | None:
    """Return n if the places, counted from 1, are every n-th layer; None without any. Raises ValueError otherwise."""
    if not places:
        return None
    every = places[0]
    if places != list(range(every, n_layer + 1, every)) or every < 2:
        raise ValueError(f"{what} is not supported: expected that every so many layers one differs, the last of them")
    return every


def _read_width(params: Fields) -> int:
    """Return d_ff: `hidden_dim` of Mistral, or computed as in LLaMA's code."""
    if params.get("hidden_dim") or not params.get("dim"):
        return int(params.get("hidden_dim") or 0)
    multiple = params.get("multiple_of", 256)
    width = int((params.get("ffn_dim_multiplier") or 1) * (8 * params["dim"] // 3))
    return int(-(-width // multiple) * multiple)


def _read_window(config: Fields, layout: str, n_layer: int, length: int) -> int | None:
    """Return the window of all layers; None if it masks nothing. Raises ValueError if layers differ."""
    is_qwen = layout.startswith("qwen")
    window = config.get("sliding_window", LAYOUTS[layout].defaults.get("sliding_window"))
    if (is_qwen or layout == "smollm3") and not config.get("use_sliding_window", False):
        window = None
    if layout == "smollm3" and window is not None:
        raise ValueError("use_sliding_window=True is not supported: layers without rotation have the window there")
    first = config.get("max_window_layers", 28) if is_qwen else 0
    usual = [_FULL if window is None or layer < first else _SLIDING for layer in range(n_layer)]
    kinds = set(config.get("layer_types") or usual)
    if window is not None and window >= length:
        window, kinds, usual = None, {_FULL if kind == _SLIDING else kind for kind in kinds}, [_FULL]
    read = _SLIDING if window is not None and kinds == {_SLIDING} else _FULL
    if kinds != {read} or (not is_qwen and kinds != set(usual)):
        raise ValueError(
            f"layer_types {', '.join(sorted(kinds))} with sliding_window={window!r} (use_sliding_window="
            f"{config.get('use_sliding_window')!r}) is not supported: all layers have the same window here, or none"
        )
    if read == _SLIDING and layout == "llama":
        raise ValueError(
            f"sliding_window={window!r} is not supported in LLaMA's layout, which has full attention; remove it if the "
            f"model was trained without a window"
        )
    return window if read == _SLIDING else None


def _read_rope(config: Fields, length: int) -> dict[str, Any]:
    """Return the rotary fields, from `rope_parameters` or the older `rope_theta` and `rope_scaling`."""
    # transformers 5 has the same precedence
    rope: Fields = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_scaling={rope!r}; expected an object with rope_type")
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError("rope_parameters differ between layers, which is not supported")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        raise ValueError(f"partial_rotary_factor={share!r} is not supported: transformers rotates whole heads")
    base = float(rope.get("rope_theta") or config.get("rope_theta") or DEFAULT_POS_BASE)
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind not in ("default", "linear", *_RAMPS):
        why = "its base depends on the length of the text" if kind == "dynamic" else "it is unknown here"
        raise ValueError(f"rope_type={kind!r} is not supported: {why}; expected default, linear, yarn or llama3")
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or length
    factor = rope.get("factor") or (length / original if kind == "yarn" else None)
    if kind == "default" or factor == 1:
        return {"pos_base": base}
    if factor is None:
        raise ValueError(f"rope_type={kind!r} needs a factor in rope_parameters")
    fields = {"pos_base": base, "rope_scaling": kind, "rope_factor": float(factor)}
    if kind == "linear":
        return fields
    low, high = (float(rope.get(name) or end) for name, end in _RAMPS[kind].items())
    if kind == "yarn":
        _check_yarn(rope, factor, original, low)
    return {**fields, "rope_original_len": original, "rope_ramp": (low, high)}


def _check_yarn(rope: Fields, factor: float, original: int, slow: float) -> None:
    """Raise ValueError for options of YaRN beyond its paper, and where the two implementations differ."""

    def sharpening(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(max(factor, 1)) + 1.0

    if rope.get("truncate") is False:
        raise ValueError("truncate=False of yarn is not supported: the ramp has whole pair numbers")
    given, mscale, over = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if given is None and mscale and over:
        given = sharpening(mscale) / sharpening(over)
    if given is not None and not math.isclose(given, sharpening(), rel_tol=1e-7):
        raise ValueError(
            f"yarn's attention_factor (or mscale / mscale_all_dim) is {given!r}, which is not supported; expected "
            f"{sharpening()!r}, which is 0.1 ln(factor) + 1"
        )
    if original < 2 * math.pi * slow:
        raise ValueError(
            f"original_max_position_embeddings={original} is too few tokens for yarn: no pair turns beta_slow times"
        )
