"""Export of a bundle to a GGUF file, which llama.cpp reads, and import of one; tokeniser included.

Tensors are those of `model.hf` under GGUF's names. llama.cpp cuts words by name: byte-level BPE with GPT-2's pattern is
`gpt-2`, and no other tokeniser of Sheepfold has a name there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import gguf
import torch
from safetensors.torch import save_file

from model import Transformer, count_parameters
from model.architecture import DEFAULT_POS_BASE, ModelConfig
from model.checkpoint import fsync_path
from model.hf import WEIGHTS_FILE, hf_parts, write_json
from model.hf_config import FIELDS, GPT2, LAYOUTS, LayoutError, config_from_hf, layout_of
from storage.errors import UserError
from tasks.tokens.foreign import TOKENIZER_CONFIG_FILE
from tasks.tokens.hf_spec import byte_level_spec
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer
from tasks.training.bundle import CHAT_FILE, CONFIG_FILE, Bundle
from tasks.training.gguf_types import FLOATS, TYPES, quantised
from tasks.training.hugging_face import FRAMING, Exchanged, ExchangeError, hf_spec, import_folder, model_of

T = TypeVar("T")

_LAYOUTS = ("gpt2", "llama", "qwen2", "qwen3")  # of `model.hf_config`; llama.cpp has architectures of these names
_MODELFILES = ("gpt2", "llama")  # Ollama cuts the words of Qwen's networks by a pattern of its own
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # kinds of tokens
_SPECIAL = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
}
_ENDS = "sheepfold.eos"  # True if texts end with the eos id; without an entry they do
# keys of an architecture, and fields of ModelConfig
_SHAPE = {
    "vocab_size": "vocab_size",
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layer",
    "feed_forward_length": "d_ff",
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_kv_head",
}
_REAL = ("norm_eps", "pos_base")  # the others are whole numbers
_LARGEST = 2**20  # of those, in an import
_LEARNED = {"attention.layer_norm_epsilon": "norm_eps"}
_ROTARY = {
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "rope.freq_base": "pos_base",
    "rope.dimension_count": "head_dim",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
}
_PATTERN = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}  # GPT-2's, in tokenizer.json


def export_gguf(
    bundle_folder: Path, target: Path, kind: str = "f16", name: str = "", about: Mapping[str, str] | None = None
) -> Exchanged:
    """Write a bundle as a GGUF file, and for networks of GPT-2 and LLaMA a Modelfile for Ollama beside it.

    Vectors stay float32. Matrices with rows that cannot be divided into blocks of a quantisation become float16.

    Args:
        target: file to write; it must not exist.
        kind: one of `TYPES`, for matrices.
        name: of the model.
        about: further entries of the metadata, such as the lineage, under the prefix `sheepfold.`.

    Raises:
        ExchangeError: llama.cpp has no such network or tokeniser, or the file exists.
    """
    if kind not in TYPES:
        raise ExchangeError(f"there is no type {kind!r}; expected one of {', '.join(TYPES)}")
    modelfile = target.with_suffix(".Modelfile")
    for path in (target, modelfile):
        if path.exists():
            raise ExchangeError(f"{path} exists; give a new name, or remove it")
    bundle = model_of(bundle_folder)
    config, tokenizer = bundle.model_config, bundle.tokenizer
    layout = _layout(config)
    words = _words(tokenizer)
    chat = bundle_folder / CHAT_FILE
    template = chat.read_text(encoding="utf-8") if chat.is_file() else ""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        work = Path(folder, target.name)
        writer = gguf.GGUFWriter(work, layout)
        try:
            writer.add_name(name or bundle_folder.name)
            writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[kind]))
            _add_shape(writer, config, layout)
            _add_words(writer, bundle, *words, template)
            for key, text in (about or {}).items():
                writer.add_string(f"sheepfold.{key}", text)
            _add_tensors(writer, bundle, layout, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        fsync_path(work)
        if layout in _MODELFILES:
            modelfile.write_text(_modelfile(bundle, target), encoding="utf-8")
        work.replace(target)
    fsync_path(target.parent)
    size, begin = count_parameters(bundle.model)["total"], tokenizer.beginning(bundle.bos)
    return Exchanged(str(target), f"{layout} ({kind})", size, config.vocab_size, tokenizer.kind, begin)


_FILE_TYPES = {
    "f32": "ALL_F32",
    "f16": "MOSTLY_F16",
    "bf16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
    "q4_0": "MOSTLY_Q4_0",
}


def _layout(config: ModelConfig) -> str:
    """Return the layout that llama.cpp has for a network."""
    faults = {
        "window": config.window is not None and config.window < config.max_seq_len,
        "rope_scaling": config.rope_scaling not in ("none", "ntk"),
        "act": config.pos == "learned" and config.act != "gelu_tanh",
    }
    unsaid = [f"{name}={getattr(config, name)!r}" for name, is_fault in faults.items() if is_fault]
    if unsaid:
        raise ExchangeError(f"llama.cpp has no such network with {', '.join(unsaid)}; train one without to export it")
    try:
        layout = layout_of(config)
    except LayoutError as error:
        raise ExchangeError(f"llama.cpp has no such network: {error}") from error
    if layout not in _LAYOUTS:
        raise ExchangeError(f"llama.cpp has no such network: it is one of {layout}, expected {', '.join(_LAYOUTS)}")
    return layout


def _words(tokenizer: Tokenizer) -> tuple[dict[int, str], list[str]]:
    """Return the tokens by their ids, and the merges, of a byte-level BPE tokeniser with GPT-2's pattern."""
    spec = hf_spec(tokenizer)
    found, model = spec.get("pre_tokenizer") or {}, spec["model"]
    is_known = model.get("type") == "BPE" and all(found.get(name) == value for name, value in _PATTERN.items())
    plain = not any(
        model.get(name)
        for name in ("byte_fallback", "ignore_merges", "end_of_word_suffix", "continuing_subword_prefix")
    )
    added = spec.get("added_tokens") or []
    matched = [token["content"] for token in added if not token.get("special")]  # in texts, which llama.cpp does not
    if not is_known or not plain or spec.get("normalizer") or not model["merges"] or matched:
        raise ExchangeError(
            f"llama.cpp has no tokeniser like this one of kind {tokenizer.kind!r}: it has byte-level BPE with GPT-2's "
            "pattern, which is the default; train with tokenizer.kind=bpe to export"
        )
    words = {index: word for word, index in model["vocab"].items()} | {token["id"]: token["content"] for token in added}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return words, merges


def _add_words(
    writer: gguf.GGUFWriter, bundle: Bundle, words: dict[int, str], merges: list[str], template: str
) -> None:
    tokenizer = bundle.tokenizer
    kinds = {**dict.fromkeys(words, _NORMAL), **dict.fromkeys(tokenizer.special_ids, _CONTROL)}
    size = range(bundle.model_config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([words.get(index, f"[UNUSED{index}]") for index in size])
    writer.add_token_types([kinds.get(index, _UNUSED) for index in size])
    writer.add_token_merges(merges)
    if template:
        writer.add_chat_template(template)
    begin, end = bundle.start_id, bundle.end_id
    writer.add_add_bos_token(begin is not None)
    writer.add_add_eos_token(False)
    writer.add_bool(_ENDS, end is not None)
    writer.add_array("tokenizer.ggml.suppress_tokens", list(bundle.ids_without_text()))
    # without an entry llama.cpp takes the ordinary token 11 for both
    unused = next(
        (index for index in (tokenizer.eos_id, tokenizer.pad_id, *tokenizer.special_ids) if index is not None), 0
    )
    ids = {"bos": unused if begin is None else begin, "eos": unused if end is None else end}
    for name, index in {**ids, "pad": tokenizer.pad_id, "unk": tokenizer.unk_id}.items():
        if index is not None:
            writer.add_uint32(_SPECIAL[name], index)


def _add_shape(writer: gguf.GGUFWriter, config: ModelConfig, layout: str) -> None:
    values = vars(config)
    if config.rope_scaling == "ntk":  # a larger base
        base = config.pos_base * config.rope_factor ** (config.rope_dim / (config.rope_dim - 2))
        values = {**values, "pos_base": base}
    for key, field in {**_SHAPE, **(_LEARNED if config.pos == "learned" else _ROTARY)}.items():
        value = values[field]
        (writer.add_float32 if field in _REAL else writer.add_uint32)(f"{layout}.{key}", value)


def _add_tensors(writer: gguf.GGUFWriter, bundle: Bundle, layout: str, kind: str) -> None:
    names = _tensor_names(bundle.model_config, layout)
    tensors = {name: tensor.detach().float().cpu() for name, tensor in bundle.model.state_dict().items()}
    for name, parts in hf_parts(tensors, bundle.model_config, layout).items():
        whole = _turned(torch.cat(parts, dim=-1), name, layout, (2, bundle.model_config.head_dim // 2))
        values = whole.contiguous().numpy()
        data, own = quantised(values, kind if values.ndim > 1 and "wpe" not in name else "f32")
        writer.add_tensor(_gguf_name(names, name), data, raw_dtype=own)


def _turned(tensor: torch.Tensor, name: str, layout: str, pairs: tuple[int, int]) -> torch.Tensor:
    """Return a tensor of `model.hf` as GGUF has it, or the other way with the two numbers of `pairs` exchanged."""
    if LAYOUTS[layout].column == GPT2 and tensor.dim() > 1 and ".h." in name:
        return tensor.t()  # (in, out) in `model.hf`
    if layout == "llama" and re.search(r"\.[qk]_proj\.", name):  # neighbours form a pair in GGUF
        return tensor.unflatten(0, (-1, *pairs)).transpose(1, 2).flatten(0, 2)
    return tensor


def _tensor_names(config: ModelConfig, layout: str) -> Any:
    arch = next(key for key, text in gguf.MODEL_ARCH_NAMES.items() if text == layout)
    return gguf.get_tensor_name_map(arch, config.n_layer)


def _gguf_name(names: Any, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise ExchangeError(f"GGUF has no name for the tensor {name}")
    return str(found)


def _modelfile(bundle: Bundle, target: Path) -> str:
    """Return the Modelfile of Ollama: a text is continued as it stands."""
    sampling = bundle.sampling_config()
    lines = [
        f"FROM ./{target.name}",
        'TEMPLATE "{{ .Prompt }}"',
        f"PARAMETER num_ctx {bundle.model_config.max_seq_len}",
        f"PARAMETER temperature {sampling.temperature:g}",
        f"PARAMETER top_p {1 if sampling.top_p is None else sampling.top_p:g}",
        f"PARAMETER top_k {sampling.top_k or 0}",
        "PARAMETER repeat_penalty 1",
    ]
    return "\n".join(lines) + "\n"


class _Reader(gguf.GGUFReader):
    """A reader that notices the end of the file; the library's gives what is there, and counts on."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        found = super()._get(offset, dtype, count, override_order)
        if len(found) < count:
            raise ValueError("it ends too early")
        return found


def import_gguf(path: Path, target: Path) -> Exchanged:
    """Write a bundle from a GGUF file, as `import_folder` does from a Hugging Face folder.

    Args:
        path: a network of GPT-2, LLaMA, Qwen2 or Qwen3 as `f32`, `f16` or `bf16`, with GPT-2's tokeniser.
        target: output folder; must not exist, or be empty.

    Raises:
        ExchangeError: the file cannot be read, has what no bundle has, or `target` is not empty.
    """
    try:
        reader = _Reader(path)
        entries = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:  # of the library
        raise ExchangeError(f"{path} is no whole GGUF file: {error}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        work = Path(folder)
        try:
            _write_words(entries, work)
            _write_tensors(_write_config(entries, tensors, work), tensors, work)
            return import_folder(work, target)
        except (LayoutError, UserError) as error:
            told = str(error).replace(f"{work}/", "")
            raise ExchangeError(f"{path} cannot be imported: {told}") from error


def _entry(entries: Mapping[str, Any], name: str, kind: type[T], usual: T | None = None) -> T:
    """Return an entry of the metadata.

    Raises:
        ExchangeError: it is missing, or of another kind.
    """
    found = entries.get(name, usual)
    if type(found) is not kind:
        raise ExchangeError(f"{name} is {found!r:.80}, expected {kind.__name__}")
    return found


def _list(entries: Mapping[str, Any], name: str, kind: type[T], usual: list[T] | None = None) -> list[T]:
    found = _entry(entries, name, list, usual)
    if other := [item for item in found if type(item) is not kind]:
        raise ExchangeError(f"{name} has {other[0]!r:.80}, expected {kind.__name__} alone")
    return found


def _write_words(entries: Mapping[str, Any], folder: Path) -> None:
    """Write the tokeniser of a file for `import_folder`."""
    pair = entries.get("tokenizer.ggml.model"), entries.get("tokenizer.ggml.pre")
    if pair != ("gpt2", "gpt-2"):
        raise ExchangeError(f"its tokeniser is {pair[0]!r} with the word pattern {pair[1]!r}; expected 'gpt2', 'gpt-2'")
    words = _list(entries, "tokenizer.ggml.tokens", str)
    kinds = _list(entries, "tokenizer.ggml.token_type", int, [_NORMAL] * len(words))
    if len(kinds) != len(words) or len(set(words)) != len(words):
        raise ExchangeError(f"of its {len(words)} tokens, {len(set(words))} differ, and {len(kinds)} have a kind")
    for word, kind in zip(words, kinds, strict=True):
        if kind not in (_NORMAL, _CONTROL, _UNUSED):
            raise ExchangeError(f"its token {word!r} is of kind {kind}; expected {_NORMAL} (normal) or {_CONTROL}")
    merges = [merge.split(" ") for merge in _list(entries, "tokenizer.ggml.merges", str)]
    vocabulary = {word: index for index, word in enumerate(words) if kinds[index] != _UNUSED}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    control = [index for index, kind in enumerate(kinds) if kind == _CONTROL]
    added = [{"id": index, "content": words[index], **flags} for index in control]
    spec = {**json.loads(byte_level_spec(vocabulary, merges)), "added_tokens": added}
    write_json(folder / TOKENIZER_FILE, spec)
    framing = {
        "bos": _entry(entries, "tokenizer.ggml.add_bos_token", bool, False),
        "eos": _entry(entries, _ENDS, bool, True),
    }
    template = entries.get("tokenizer.chat_template")
    write_json(folder / TOKENIZER_CONFIG_FILE, {FRAMING: framing, "chat_template": template})


def _write_config(entries: Mapping[str, Any], tensors: Mapping[str, Any], folder: Path) -> tuple[str, ModelConfig]:
    """Write config.json for `import_folder`, and return the layout and its network."""
    layout = _entry(entries, "general.architecture", str)
    if layout not in _LAYOUTS:
        raise ExchangeError(f"it has a network of {layout!r}; expected {', '.join(_LAYOUTS)}")
    known = {**_SHAPE, **(_LEARNED if layout == "gpt2" else _ROTARY)}
    found: dict[str, Any] = {"vocab_size": len(entries["tokenizer.ggml.tokens"])}
    for name, value in entries.items():
        if not name.startswith(f"{layout}."):
            continue
        field = known.get(name.removeprefix(f"{layout}."))
        if field is None:
            raise ExchangeError(f"{name}={value!r:.80} is not supported; known are {', '.join(known)}")
        kind = float if field in _REAL else int
        exact = float(f"{_entry(entries, name, kind):.7g}") if kind is float else value  # of float32
        if kind is int and not 0 < _entry(entries, name, int) <= _LARGEST:
            raise ExchangeError(f"{name} is {value}, expected 1 to {_LARGEST:,}")
        if found.setdefault(field, exact) != exact:
            raise ExchangeError(f"{name} is {value}, expected {found[field]} as elsewhere in the file")
    optional = ("n_kv_head", "head_dim", "pos_base")
    if missing := [key for key, field in known.items() if field not in found and field not in optional]:
        raise ExchangeError(f"{layout}.{missing[0]} is missing")
    n_layer = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    if found["n_layer"] != n_layer:
        raise ExchangeError(f"{layout}.block_count is {found['n_layer']}, but there are tensors of {n_layer} blocks")
    shape = {
        "n_kv_head": found["n_head"],
        "head_dim": found["d_model"] // found["n_head"],
        "pos_base": DEFAULT_POS_BASE,
        **found,
        **dict.fromkeys(("drop_attn", "drop_resid", "drop_embed"), 0.0),
        "tie_weights": "output.weight" not in tensors,
        "attn_bias": "blk.0.attn_q.bias" in tensors,
        "ffn_bias": "blk.0.ffn_up.bias" in tensors,
    }
    column = LAYOUTS[layout].column
    fields = {row[column]: shape[row[0]] for row in FIELDS if row[column] and row[0] in shape}
    ids = {f"{name}_token_id": entries.get(key) for name, key in _SPECIAL.items()}
    fields |= {"model_type": layout, "rope_theta": shape["pos_base"], **ids}
    write_json(folder / CONFIG_FILE, fields)
    return layout, config_from_hf(fields)


def _write_tensors(network: tuple[str, ModelConfig], tensors: Mapping[str, Any], folder: Path) -> None:
    """Write model.safetensors for `import_folder`."""
    layout, config = network
    names, half = _tensor_names(config, layout), config.head_dim // 2
    with torch.device("meta"):
        parts = hf_parts(Transformer(config).state_dict(), config, layout)
    wanted = {_gguf_name(names, name): name for name in parts}
    for fault, keys in (("unknown", set(tensors) - set(wanted)), ("missing", set(wanted) - set(tensors))):
        if keys:
            raise ExchangeError(f"the tensor {min(keys)} is {fault}")
    found = {}
    for own, tensor in tensors.items():
        name, kind = wanted[own], tensor.tensor_type.name
        if kind.lower() not in FLOATS:
            raise ExchangeError(f"the tensor {own} is of type {kind}; expected {', '.join(FLOATS)}")
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        shape = _turned(torch.cat(parts[name], dim=-1), name, layout, (2, half)).shape
        if values.shape != shape:
            raise ExchangeError(f"the tensor {own} has the shape {tuple(values.shape)}, expected {tuple(shape)}")
        found[name] = _turned(values, name, layout, (half, 2)).contiguous()
    save_file(found, folder / WEIGHTS_FILE)
