"""Export of a bundle to a GGUF file, which llama.cpp reads; tokeniser included.

Tensors are those of `model.hf` under GGUF's names. llama.cpp cuts words by name: byte-level BPE with GPT-2's pattern is
`gpt-2`, and no other tokeniser of Sheepfold has a name there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import torch

from model import count_parameters
from model.architecture import ModelConfig
from model.checkpoint import fsync_path
from model.hf import hf_parts
from model.hf_config import GPT2, LAYOUTS, LayoutError, layout_of
from tasks.tokens.tokenizer_kinds import Tokenizer
from tasks.training.bundle import Bundle
from tasks.training.gguf_types import TYPES, quantised
from tasks.training.hugging_face import Exchanged, ExchangeError, hf_spec, model_of

_LAYOUTS = ("gpt2", "llama", "qwen2", "qwen3")  # of `model.hf_config`; llama.cpp has architectures of these names
_MODELFILES = ("gpt2", "llama")  # Ollama cuts the words of Qwen's networks by a pattern of its own
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
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
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        work = Path(folder, target.name)
        writer = gguf.GGUFWriter(work, layout)
        try:
            writer.add_name(name or bundle_folder.name)
            writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[kind]))
            _add_shape(writer, config)
            _add_words(writer, bundle, *words)
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


def _words(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the tokens by their ids, and the merges, of a byte-level BPE tokeniser with GPT-2's pattern."""
    spec = hf_spec(tokenizer)
    found, model = spec.get("pre_tokenizer") or {}, spec["model"]
    is_known = model.get("type") == "BPE" and all(found.get(name) == value for name, value in _PATTERN.items())
    plain = not any(
        model.get(name)
        for name in ("byte_fallback", "ignore_merges", "end_of_word_suffix", "continuing_subword_prefix")
    )
    if not is_known or not plain or spec.get("normalizer") or not model["merges"] or spec.get("added_tokens"):
        raise ExchangeError(
            f"llama.cpp has no tokeniser like this one of kind {tokenizer.kind!r}: it has byte-level BPE with GPT-2's "
            "pattern, which is the default; train with tokenizer.kind=bpe to export"
        )
    by_id = {index: word for word, index in model["vocab"].items()}
    words = [by_id.get(index, f"[UNUSED{index}]") for index in range(tokenizer.vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return words, merges


def _add_words(writer: gguf.GGUFWriter, bundle: Bundle, words: list[str], merges: list[str]) -> None:
    tokenizer = bundle.tokenizer
    padding = [f"[UNUSED{index}]" for index in range(len(words), bundle.model_config.vocab_size)]
    control = {*tokenizer.special_ids, *range(len(words), bundle.model_config.vocab_size)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words, *padding])
    writer.add_token_types(
        [_CONTROL if index in control else _NORMAL for index in range(bundle.model_config.vocab_size)]
    )
    writer.add_token_merges(merges)
    begin, end = bundle.start_id, bundle.end_id
    writer.add_add_bos_token(begin is not None)
    writer.add_add_eos_token(False)
    writer.add_array("tokenizer.ggml.suppress_tokens", list(bundle.ids_without_text()))
    # without an entry llama.cpp takes the ordinary token 11 for both
    unused = next(
        (index for index in (tokenizer.eos_id, tokenizer.pad_id, *tokenizer.special_ids) if index is not None), 0
    )
    writer.add_bos_token_id(unused if begin is None else begin)
    writer.add_eos_token_id(unused if end is None else end)
    if tokenizer.pad_id is not None:
        writer.add_pad_token_id(tokenizer.pad_id)


def _add_shape(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_kv_head)
    if config.norm == "rmsnorm":
        writer.add_layer_norm_rms_eps(config.norm_eps)
    else:
        writer.add_layer_norm_eps(config.norm_eps)
    if config.pos == "rope":
        base = config.pos_base
        if config.rope_scaling == "ntk":  # a larger base
            base *= config.rope_factor ** (config.rope_dim / (config.rope_dim - 2))
        writer.add_rope_freq_base(base)
        writer.add_rope_dimension_count(config.rope_dim)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def _add_tensors(writer: gguf.GGUFWriter, bundle: Bundle, layout: str, kind: str) -> None:
    arch = next(key for key, text in gguf.MODEL_ARCH_NAMES.items() if text == layout)
    names = gguf.get_tensor_name_map(arch, bundle.model_config.n_layer)
    tensors = {name: tensor.detach().float().cpu() for name, tensor in bundle.model.state_dict().items()}
    for name, parts in hf_parts(tensors, bundle.model_config, layout).items():
        whole = torch.cat(parts, dim=-1)
        if LAYOUTS[layout].column == GPT2 and whole.dim() > 1 and ".h." in name:
            whole = whole.t()  # back from (in, out)
        elif layout == "llama" and re.search(r"\.[qk]_proj\.", name):  # neighbours form a pair there
            half = bundle.model_config.head_dim // 2
            whole = whole.unflatten(0, (-1, 2, half)).transpose(1, 2).flatten(0, 2)
        values = whole.contiguous().numpy()
        data, own = quantised(values, kind if values.ndim > 1 and "wpe" not in name else "f32")
        writer.add_tensor(_gguf_name(names, name), data, raw_dtype=own)


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
